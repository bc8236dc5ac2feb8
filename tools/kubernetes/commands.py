"""The command line of `python -m tools.kubernetes`. Building needs no Python packages; running those of `.venv`."""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tools.kubernetes.building import KubernetesToolError, build


def run(*, with_keda: bool) -> None:
    """In the foreground, until SIGTERM or SIGINT. Prints how to use it when ready. The logs stay when it fails."""
    from tools.kubernetes.control_plane import ControlPlane  # noqa: PLC0415
    from tools.kubernetes.keda import start_keda  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="pointsman-kubernetes-"))
    plane = ControlPlane(folder)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            plane.start()
            if with_keda:
                start_keda(plane)
            print(f"{plane.url} is ready\n  export KUBECONFIG={plane.kubeconfig}", flush=True)
            while True:
                plane.processes.refuse_ended()
                time.sleep(0.5)
        finally:
            plane.stop()
    shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.kubernetes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the programs into .tools/kubernetes")
    running = commands.add_parser("run", help="in the foreground, until it is interrupted")
    running.add_argument("--keda", action="store_true", help="with KEDA's operator and its metrics")
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "build":
                build()
            case "run":
                run(with_keda=chosen.keda)
    except KubernetesToolError as error:
        print(f"kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
