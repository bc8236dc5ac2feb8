"""What a job carries or wants is read from its endpoint and its parts."""

import pytest

from policies.deployments import Modality
from router import modality

CHAT = "/v1/chat/completions"


def a_body(*kinds: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": kind} for kind in kinds]}]}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), Modality.TEXT),
        (("text",), Modality.TEXT),
        (("text", "image_url"), Modality.IMAGE),
        (("input_image",), Modality.IMAGE),
        (("file",), Modality.DOCUMENT),
        (("input_file",), Modality.DOCUMENT),
        (("input_audio",), Modality.AUDIO),
        (("video",), Modality.VIDEO),
        (("something new",), Modality.TEXT),
    ],
)
def test_a_part_says_what_a_chat_carries(kinds: tuple[str, ...], expected: Modality) -> None:
    assert modality.first(modality.needs(CHAT, a_body(*kinds))) is expected


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("/v1/embeddings", Modality.EMBEDDING),
        ("/v1/images/generations", Modality.IMAGE_GENERATION),
        ("/v1/videos", Modality.VIDEO_GENERATION),
        ("/v1/audio/speech", Modality.SPEECH),
        ("/v1/audio/transcriptions", Modality.AUDIO),
    ],
)
def test_an_endpoint_of_its_own_says_it_alone(endpoint: str, expected: Modality) -> None:
    assert modality.needs(endpoint, {"input": "hello", "prompt": "hello"}) == {expected}


def test_of_several_the_heaviest_decides_and_all_are_needed() -> None:
    body = a_body("text", "image_url", "file", "input_audio")

    assert modality.first(modality.needs(CHAT, body)) is Modality.AUDIO
    assert modality.needs(CHAT, body) == {Modality.IMAGE, Modality.DOCUMENT, Modality.AUDIO}


def test_an_image_of_an_earlier_turn_still_counts() -> None:
    body = a_body("image_url")
    body["messages"] += [{"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Which?"}]  # type: ignore[operator]

    assert modality.first(modality.needs(CHAT, body)) is Modality.IMAGE


def test_an_answer_wanted_as_audio_is_speech() -> None:
    body = {**a_body("text", "input_audio"), "modalities": ["text", "audio"]}

    assert modality.first(modality.needs(CHAT, body)) is Modality.SPEECH
    assert Modality.AUDIO in modality.needs(CHAT, body)


def test_parts_of_the_responses_api_are_read_too() -> None:
    body: dict[str, object] = {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}

    assert modality.first(modality.needs("/v1/responses", body)) is Modality.DOCUMENT


def test_every_modality_has_its_place_in_the_order() -> None:
    assert sorted(modality.ORDER) == sorted(Modality)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "text"},
        {"messages": [None, 3, [], {"content": 4}, {"content": [None, 1, {"type": []}, {"type": {}}]}]},
        {"messages": [{"content": "x"}], "modalities": {"audio": 1}},
    ],
)
def test_odd_shapes_are_text(body: dict[str, object]) -> None:
    assert modality.first(modality.needs(CHAT, body)) is Modality.TEXT
