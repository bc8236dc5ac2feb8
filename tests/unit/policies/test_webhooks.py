"""How webhooks are signed and how often they are tried, judged by the official SDK and the clock."""

import json
import time
from base64 import b64encode

import openai
import pytest

from policies import webhooks
from policies.webhooks import GIVE_UP_S, Again, Endpoint, GiveUp

KEY = bytes(range(32))
SECRET = "whsec_" + b64encode(KEY).decode()
BODY = json.dumps(
    {"id": "evt_1", "object": "event", "type": "batch.completed", "created_at": 1, "data": {"id": "batch_1"}}
).encode()


def unwrapped(headers: dict[str, str], secret: str = SECRET) -> object:
    client = openai.OpenAI(api_key="unused", webhook_secret=secret)
    return client.webhooks.unwrap(BODY, headers)


def test_the_sdk_takes_what_is_signed() -> None:
    event = unwrapped(webhooks.headers((KEY,), "evt_1", int(time.time()), BODY))

    assert isinstance(event, openai.types.webhooks.BatchCompletedWebhookEvent)
    assert event.data.id == "batch_1"


@pytest.mark.parametrize("secret", [SECRET, "whsec_" + b64encode(b"n" * 32).decode()])
def test_while_a_secret_is_changed_holders_of_either_can_check(secret: str) -> None:
    headers = webhooks.headers((KEY, b"n" * 32), "evt_1", int(time.time()), BODY)

    assert unwrapped(headers, secret)


@pytest.mark.parametrize("changed", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_the_sdk_refuses_what_was_changed(changed: str) -> None:
    now = int(time.time())
    headers = webhooks.headers((KEY,), "evt_1", now, BODY)
    other = {"webhook-id": "evt_2", "webhook-timestamp": str(now - 1), "webhook-signature": "v1,AAAA"}

    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrapped({**headers, changed: other[changed]})


@pytest.mark.parametrize("text", ["", "whsec_", "sk-1", SECRET.removeprefix("whsec_"), "whsec_AAAA", "whsec_?" * 9])
def test_a_secret_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="whsec_ and the base64") as refused:
        webhooks.decoded(text)

    assert not text.removeprefix("whsec_") or text not in str(refused.value)


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_it_is_tried_for_a_day_with_growing_waits_and_then_given_up(jitter: float) -> None:
    age = 0.0
    waits: list[float] = []
    while isinstance(
        verdict := webhooks.after_failure(
            attempt=len(waits) + 1, age_s=age, status=500, retry_after=None, jitter=jitter
        ),
        Again,
    ):
        waits.append(verdict.seconds)
        age += verdict.seconds

    assert waits == sorted(waits)
    assert waits[0] < 10
    assert 10 <= len(waits) <= 14
    assert GIVE_UP_S * 0.75 < age <= GIVE_UP_S


def test_a_receiver_that_asks_for_more_time_gets_it_within_reason() -> None:
    def wait(retry_after: float) -> object:
        return webhooks.after_failure(attempt=1, age_s=0, status=429, retry_after=retry_after, jitter=0)

    assert wait(1) == Again(5.0)
    assert wait(60) == Again(60)
    assert wait(10**9) == Again(4 * 3600)


def test_a_receiver_that_says_it_is_gone_gets_no_more() -> None:
    assert webhooks.after_failure(attempt=1, age_s=0, status=410, retry_after=None, jitter=0) == GiveUp()


def test_an_endpoint_wants_what_its_patterns_name() -> None:
    endpoint = Endpoint("https://a.example", ("batch.*", "job.failed"), (KEY,))

    wanted = [type for type in webhooks.EVENTS if endpoint.wants(type)]

    assert wanted == ["job.failed", "batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
