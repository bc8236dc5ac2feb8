"""Usage as Bedrock counts it, in our terms; and what a stream says beside its words."""

import json

import pytest
from moto.core.serialize import EventStreamEncoder  # type: ignore[attr-defined]

from consumers.aws.bedrock_events import Events, Fault, used
from policies.pricing import Usage

ENCODER = EventStreamEncoder()


def an_event(name: str, value: object, *, kind: str = "event") -> bytes:
    encoded: bytes = ENCODER.encode_message(
        {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}, json.dumps(value).encode()
    )
    return encoded


def a_usage(**counts: object) -> dict[str, object]:
    return {"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, **counts}}


def test_cached_tokens_are_beside_the_input_and_not_in_it() -> None:
    found = used(a_usage(cacheReadInputTokens=100, cacheWriteInputTokens=30))

    assert found == Usage(input=10, cache_read=100, cache_write=30, output=5)


def test_what_is_kept_for_an_hour_is_told_apart() -> None:
    details = [{"ttl": "5m", "inputTokens": 10}, {"ttl": "1h", "inputTokens": 20}]

    found = used(a_usage(cacheWriteInputTokens=30, cacheDetails=details))

    assert found == Usage(input=10, cache_write=10, cache_write_1h=20, output=5)


def test_the_tier_is_the_one_that_served() -> None:
    assert used({**a_usage(), "serviceTier": {"type": "flex"}}) == Usage(input=10, output=5, tier="flex")


@pytest.mark.parametrize(
    "metadata",
    [{}, {"usage": None}, {"usage": []}, a_usage(inputTokens=-1), a_usage(outputTokens="5"), a_usage(inputTokens=True)],
)
def test_what_cannot_be_true_is_no_usage(metadata: dict[str, object]) -> None:
    assert used(metadata) is None


def test_a_stream_tells_its_end_and_its_usage_in_whatever_pieces_it_comes() -> None:
    data = an_event("messageStop", {"stopReason": "end_turn"}) + an_event("metadata", a_usage())
    events = Events()

    for i in range(len(data)):
        events.feed(data[i : i + 1])

    assert (events.stop_reason, events.usage, events.fault) == ("end_turn", Usage(input=10, output=5), None)


def test_an_exception_in_a_stream_has_the_providers_code() -> None:
    events = Events()

    events.feed(an_event("modelStreamErrorException", {"message": "broken"}, kind="exception"))

    assert events.fault == Fault("ModelStreamErrorException", "broken")


def test_what_is_no_event_stream_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match="not an event stream"):
        Events().feed(b"data: {}\n\n" * 10)
