"""What acceptance tests start from: an upstream that counts its calls."""

from collections.abc import Iterator

import pytest

from tests.doubles import OpenAIDouble, openai_double


@pytest.fixture
def upstream() -> Iterator[OpenAIDouble]:
    """An OpenAI-compatible server in a process of its own, which nothing that a test kills takes with it."""
    with openai_double() as double:
        yield double
