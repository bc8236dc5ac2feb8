"""What a job of each endpoint may use, before it runs: quota, window and dollars follow from it."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.deployments import Deployment, Tier
from policies.pricing import Meter, Price, Usage, charge, cost, usual_tokens
from router import tokens
from router.expected import expected
from router.job import Estimate
from tests.unit.router.test_media_sizes import a_wav

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
    max_leaves=10,
)
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/videos",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
)
DEPLOYMENT = Deployment("d", "gpu", "m", Tier.LIGHT, max_output=500)


def of(endpoint: str, body: dict[str, object]) -> Usage:
    return expected(endpoint, body, DEPLOYMENT, read=tokens.estimate_input(body)).usage


@given(
    st.sampled_from(ENDPOINTS),
    st.dictionaries(st.sampled_from(["input", "messages", "file", "n", "size", "seconds"]), JSON),
)
def test_whatever_the_body_something_is_reserved_and_not_more_than_the_ceiling(
    endpoint: str, body: dict[str, object]
) -> None:
    usage = of(endpoint, body)

    assert 1 <= usage.total <= 2 * tokens.CEILING
    assert all(quantity >= 0 for quantity in usage.quantities().values())


def test_images_are_counted_and_larger_ones_cost_more_tokens() -> None:
    small = of("/v1/images/generations", {"prompt": "a cat", "n": 3, "size": "256x256"})
    large = of("/v1/images/generations", {"prompt": "a cat", "n": 3, "size": "1024x1024"})

    assert small.images == large.images == 3
    assert small.output < large.output


@pytest.mark.parametrize(
    ("model", "asked", "seconds"),
    [
        ("amazon.nova-reel-v1:1", None, 6),
        ("luma.ray-v2:0", None, 5),
        ("unknown", None, 6),
        ("amazon.nova-reel-v1:1", "12", 12),
        ("amazon.nova-reel-v1:1", 18, 18),
    ],
)
def test_a_video_is_counted_in_seconds_those_of_its_model_where_nobody_says(
    model: str, asked: object, seconds: int
) -> None:
    deployment = replace(DEPLOYMENT, model=model)

    usage = expected("/v1/videos", {"prompt": "a cat", "seconds": asked}, deployment, read=3).usage

    assert (usage.video_seconds, usage.input) == (seconds, 3)
    assert usage.output == usual_tokens(Usage(video_seconds=seconds)) > 0


def test_speech_is_counted_in_characters_and_in_the_seconds_that_they_take() -> None:
    usage = of("/v1/audio/speech", {"input": "a" * 150})

    assert (usage.characters, usage.audio_seconds) == (150, 10)


def test_a_recording_is_counted_in_seconds() -> None:
    usage = of("/v1/audio/transcriptions", {"file": a_wav(61.2)})

    assert usage.audio_seconds == 62
    assert usage.input >= usual_tokens(Usage(audio_seconds=62))


@pytest.mark.parametrize(
    ("rates", "usd", "meters"),
    [
        ({Meter.AUDIO_SECONDS: Decimal(100)}, "0.001", ["audio_seconds"]),
        ({Meter.INPUT: Decimal(1), Meter.OUTPUT: Decimal(2)}, "0.00029", ["input", "output"]),
        ({Meter.IMAGES: Decimal(1)}, None, ["input", "output"]),
    ],
)
def test_a_call_is_charged_by_the_count_that_is_priced(
    rates: dict[Meter, Decimal], usd: str | None, meters: list[str]
) -> None:
    usage, price = Usage(input=250, output=20, audio_seconds=10), Price(rates, "test")

    assert cost(price, usage) == (None if usd is None else Decimal(usd))
    assert [line.meter for line in charge(price, usage, job="j", attempt=1, outcome="completed")] == meters


def test_what_is_counted_in_units_alone_is_unpriced_without_a_price_and_never_nothing() -> None:
    [line] = charge(None, Usage(images=2), job="j", attempt=1, outcome="completed")

    assert (line.meter, line.quantity, line.usd) == ("images", 2, None)


def test_what_a_lost_call_owes_is_its_input_and_its_units() -> None:
    estimate = Estimate.of(Usage(input=250, output=40, audio_seconds=10), None)

    assert estimate.tokens == 290
    assert estimate.owed.quantities() == {"input": 250, "audio_seconds": 10}
