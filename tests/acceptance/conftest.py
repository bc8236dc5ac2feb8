"""What acceptance tests start from: an upstream that counts its calls, and a Pointsman with all of the surface."""

from collections.abc import Iterator

import pytest

from tests.acceptance.surface import Surface, surface
from tests.doubles import OpenAIDouble, openai_double


@pytest.fixture
def upstream() -> Iterator[OpenAIDouble]:
    """An OpenAI-compatible server in a process of its own, which nothing that a test kills takes with it."""
    with openai_double() as double:
        yield double


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    """One for all suites that only look at it from outside."""
    with surface(tmp_path_factory.mktemp("surface")) as running:
        yield running
