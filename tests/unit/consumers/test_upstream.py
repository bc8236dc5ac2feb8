"""What is sent upstream for what a client asked."""

import json

import pytest

from consumers.backend import BackendError
from consumers.upstream import upstream
from policies.deployments import Deployment, Tier
from policies.retries import Failure

LIGHT = Deployment("light", "gpu", "their-name", Tier.LIGHT, max_output=100)


def sent(**fields: object) -> dict[str, object]:
    body: dict[str, object] = json.loads(upstream(json.dumps(fields).encode(), LIGHT).body)
    return body


def test_the_clients_fields_go_on_and_ours_stay_here() -> None:
    ours = {
        "async": True,
        "pointsman": {"deadline_s": 5},
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
    }
    theirs = {"messages": [{"role": "user", "content": "é"}], "temperature": 0.1, "seed": 2**60, "tools": [{"x": None}]}

    body = sent(model="auto", stream=False, stream_options={"include_usage": False}, **ours, **theirs)

    assert body == theirs | {
        "model": "their-name",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
    }


def test_what_a_developer_says_is_said_by_the_system() -> None:
    body = sent(messages=[{"role": "developer", "content": "Be brief", "name": "d"}, {"role": "user", "content": "Hi"}])

    assert body["messages"] == [
        {"role": "system", "content": "Be brief", "name": "d"},
        {"role": "user", "content": "Hi"},
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"max_tokens": 100}),
        ({"max_tokens": None}, {"max_tokens": 100}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 7}, {"max_completion_tokens": 7}),
        ({"max_completion_tokens": 700}, {"max_completion_tokens": 100}),
        ({"max_tokens": 700, "max_completion_tokens": 7}, {"max_tokens": 100, "max_completion_tokens": 7}),
        ({"max_tokens": -1}, {"max_tokens": 100}),
        ({"max_tokens": 0}, {"max_tokens": 100}),
        ({"max_tokens": "7"}, {"max_tokens": 100}),
        ({"max_tokens": True}, {"max_tokens": 100}),
        ({"max_tokens": None, "max_completion_tokens": 7}, {"max_completion_tokens": 7}),
    ],
)
def test_output_is_bounded_under_the_clients_name(given: dict[str, object], expected: dict[str, object]) -> None:
    body = sent(**given)

    assert {key: value for key, value in body.items() if key.startswith("max_") and value is not None} == expected


@pytest.mark.parametrize(("n", "choices"), [(None, 1), (1, 1), (3, 3), (0, 1), ("3", 1), (True, 1), (128, 128)])
def test_choices_are_counted(n: object, choices: int) -> None:
    assert upstream(json.dumps({"n": n}).encode(), LIGHT).choices == choices


def test_more_choices_than_openai_allows_are_refused() -> None:
    with pytest.raises(BackendError) as raised:
        sent(n=129)

    assert (raised.value.failure, raised.value.param) == (Failure.REJECTED, "n")
