"""What `make demo` runs: a gateway, a real model and a client of the official OpenAI SDK, all on this machine.

Starts `pointsman up` with examples/demo.yaml and the model of examples/model_server.py in a temporary folder, makes one
waiting call, one stream and twenty jobs, and shows what the router decided and what it cost. Exit code 0 means that
every job was done and that both tiers had work.
"""

import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, cast
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import yaml
from openai import OpenAI, OpenAIError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

HERE = Path(__file__).parent
MODEL_URL = "http://127.0.0.1:8081/v1"  # as demo.yaml says; the demo takes a free port instead
START_S = 60.0
JOBS_S = 150.0
CALL_S = 60.0
LOOK_S = 0.3
STOP_S = 10.0
SHOWN_REASONS = 2  # the first ones weigh most
TERMINAL = ("completed", "failed", "cancelled", "expired")
TIERS = ("light", "heavy")


class DemoError(Exception):
    """The demo did not come to its end; the message says where."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a job's owner is told: where it went and why, seconds waited, tokens, dollars (None: no price known)."""

    id: str
    status: str
    lane: str
    reasons: tuple[str, ...]
    microbatch: str
    waited_s: float | None
    tokens_in: int
    tokens_out: int
    usd: Decimal | None
    error: str

    @property
    def tier(self) -> str:
        """The size of model that the router chose: the lane is backend, modality and tier."""
        return self.lane.rpartition(".")[2]

    @property
    def is_done(self) -> bool:
        """Whether its state is one that never changes again."""
        return self.status in TERMINAL


def main() -> int:
    """Run the demo; the exit code."""
    console = Console()
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="pointsman-demo-") as folder, gateway(Path(folder), console) as client:
            call_and_wait(client, console)
            call_and_stream(client, console)
            receipts = run_jobs(client, questions(), console)
            show(receipts, console)
    except (DemoError, OpenAIError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False)
        return 1
    problem = shortfall(receipts)
    if problem:
        console.print(f"the demo failed: {problem}", style="red", markup=False)
        return 1
    keep = f"{command()} up --config examples/pointsman.yaml"
    console.print(f"All done in {time.monotonic() - started:.0f} s. To keep one running: {keep}", style="green")
    return 0


def questions() -> list[str]:
    """What is asked, in the order of examples/demo_jobs.yaml."""
    return [str(question) for question in yaml.safe_load((HERE / "demo_jobs.yaml").read_text(encoding="utf-8"))]


@contextmanager
def gateway(folder: Path, console: Console) -> Iterator[OpenAI]:
    """A client of a gateway that keeps its data in `folder`, in front of a real model. Both end with the block."""
    key = "pm-" + secrets.token_urlsafe(32)
    with ExitStack() as opened:
        with console.status("starting the model and the gateway"):
            model_url = opened.enter_context(model(folder / "model.log"))
            config = folder / "demo.yaml"
            text = (HERE / "demo.yaml").read_text(encoding="utf-8")
            config.write_text(text.replace(MODEL_URL, model_url), encoding="utf-8")
            url = opened.enter_context(pointsman(folder, config, key))
        console.print(f"gateway {url}, model {model_url}", style="dim", highlight=False)
        # No retries of the SDK's own: what fails here should be seen.
        yield opened.enter_context(OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=CALL_S))


@contextmanager
def model(log: Path) -> Iterator[str]:
    """The address of a real model, which ends with the block."""
    server = [sys.executable, str(HERE / "model_server.py"), "--port", "0"]
    with child(server, log, dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        line = first_line(process, START_S)
        if not line.startswith("model ready at "):
            raise DemoError(f"the model did not start:\n{tail(log)}")
        yield line.removeprefix("model ready at ").strip()


@contextmanager
def pointsman(folder: Path, config: Path, key: str) -> Iterator[str]:
    """The address of an embedded gateway that is ready, and ends with the block."""
    port = free_port()
    log = folder / "gateway.log"
    options = ["--host", "127.0.0.1", "--port", str(port), "--data", str(folder / "data"), "--config", str(config)]
    # Only its own variables: what the caller set for another gateway is not meant for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    with child([str(command()), "up", *options], log, environment | {"POINTSMAN_API_KEY": key}) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/readyz"), process, "the gateway", log)
        yield url


def command() -> Path:
    """The `pointsman` of this environment."""
    beside = Path(sys.executable).with_name("pointsman")
    if not beside.exists():
        raise DemoError("there is no pointsman in this environment; `make demo` makes one")
    return beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside


def call_and_wait(client: OpenAI, console: Console) -> None:
    """A normal call: the answer, and what the gateway says about it in its headers."""
    console.rule("a call that waits")
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=[{"role": "user", "content": "What is the capital of Italy?"}],
    )
    console.print(raw.parse().choices[0].message.content or "", markup=False, highlight=False)
    for name, value in raw.headers.items():
        if name.lower().startswith("x-pointsman-"):
            console.print(f"{name}: {value}", style="dim", markup=False, highlight=False)


def call_and_stream(client: OpenAI, console: Console) -> None:
    """The same with `stream=True`: tokens as they come."""
    console.rule("a call that streams")
    pieces = 0
    for chunk in client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "Tell me about the moon."}],
        stream=True,
    ):
        for choice in chunk.choices:
            if choice.delta.content:
                pieces += 1
                console.print(choice.delta.content, end="", markup=False, highlight=False)
    console.print()
    if not pieces:
        raise DemoError("the stream carried no token")


def run_jobs(client: OpenAI, asked: Sequence[str], console: Console) -> list[Receipt]:
    """Make a job of each question, all at once, and look at them until the last one is done."""
    console.rule(f"{len(asked)} jobs to the model `auto`")
    deadline = time.monotonic() + JOBS_S
    receipts = [make_job(client, question) for question in asked]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("jobs", total=len(receipts))
        while not all(receipt.is_done for receipt in receipts):
            if time.monotonic() > deadline:
                raise DemoError(f"not all jobs were done after {JOBS_S:.0f} s")
            time.sleep(LOOK_S)
            receipts = [receipt if receipt.is_done else look(client, receipt.id) for receipt in receipts]
            done = sum(receipt.is_done for receipt in receipts)
            running = sum(receipt.status == "in_progress" for receipt in receipts)
            progress.update(bar, completed=done, description=f"jobs ({running} running)")
    return receipts


def make_job(client: OpenAI, question: str) -> Receipt:
    """`async` makes a job of a normal call: the answer is 202, at once, and the job is on disk by then."""
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=[{"role": "user", "content": question}],
        extra_body={"async": True},
    )
    if raw.status_code != 202:
        raise DemoError(f"a job was answered with {raw.status_code}, not 202")
    return receipt_of(json.loads(raw.content))


def look(client: OpenAI, job: str) -> Receipt:
    """The job as it is now."""
    return receipt_of(cast(dict[str, Any], client.get(f"/jobs/{job}", cast_to=object)))


def receipt_of(job: Mapping[str, Any]) -> Receipt:
    """What the demo shows of a job object."""
    ours = job["pointsman"]
    charges = ours.get("charges") or ()
    usd = ours.get("usd")
    error = job.get("error") or {}
    return Receipt(
        id=job["id"],
        status=job["status"],
        lane=ours["lane"],
        reasons=tuple(ours.get("reasons") or ()),
        microbatch=ours.get("microbatch") or "",
        waited_s=ours.get("waited_s"),
        tokens_in=sum(line["quantity"] for line in charges if line["meter"] != "output"),
        tokens_out=sum(line["quantity"] for line in charges if line["meter"] == "output"),
        usd=None if usd is None else Decimal(usd),
        error=error.get("code") or error.get("message") or "",
    )


def show(receipts: Sequence[Receipt], console: Console) -> None:
    """Each job, then each microbatch, then all."""
    jobs = Table("job", "lane", "reasons", *right("waited", "tokens", "dollars"), box=None, pad_edge=False)
    for receipt in receipts:
        jobs.add_row(
            short(receipt.id),
            receipt.lane if receipt.status == "completed" else f"{receipt.lane} {receipt.status} {receipt.error}",
            ", ".join(receipt.reasons[:SHOWN_REASONS]),
            "" if receipt.waited_s is None else f"{receipt.waited_s:.1f} s",
            f"{receipt.tokens_in}+{receipt.tokens_out}",
            dollars(receipt.usd),
        )
    console.print(jobs)
    console.rule("dollars by microbatch")
    batches = Table("microbatch", "lane", *right("jobs", "tokens", "dollars"), box=None, pad_edge=False)
    for microbatch in dict.fromkeys(receipt.microbatch for receipt in receipts):
        add_sum(batches, short(microbatch), [each for each in receipts if each.microbatch == microbatch])
    batches.add_section()
    add_sum(batches, "in all", receipts)
    console.print(batches)


def add_sum(table: Table, name: str, receipts: Sequence[Receipt]) -> None:
    """One row: the sum over some jobs."""
    lanes = sorted({receipt.lane for receipt in receipts})
    tokens = sum(receipt.tokens_in + receipt.tokens_out for receipt in receipts)
    table.add_row(name, ", ".join(lanes), str(len(receipts)), str(tokens), dollars(total(receipts)))


def total(receipts: Sequence[Receipt]) -> Decimal | None:
    """The exact sum of dollars; None when any of them is not known."""
    amount = Decimal(0)
    for receipt in receipts:
        if receipt.usd is None:
            return None
        amount += receipt.usd
    return amount


def shortfall(receipts: Sequence[Receipt]) -> str:
    """What was promised and is not there; empty when nothing."""
    for receipt in receipts:
        if receipt.status != "completed":
            return f"{receipt.id} is {receipt.status} {receipt.error}"
        if receipt.usd is None:
            return f"{receipt.id} has no price"
    chosen = {receipt.tier for receipt in receipts}
    missing = [tier for tier in TIERS if tier not in chosen]
    return f"the router sent nothing to {', '.join(missing)}" if missing else ""


def short(name: str) -> str:
    """The end of an id, where two ids differ."""
    return f"…{name[-6:]}" if name else "none"


def dollars(usd: Decimal | None) -> str:
    """Exact, in plain digits."""
    return "unknown" if usd is None else f"${usd.normalize():f}"


def right(*names: str) -> list[Column]:
    """Columns of figures."""
    return [Column(name, justify="right", no_wrap=True) for name in names]


@contextmanager
def child(
    program: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block: SIGTERM first, then SIGKILL. What it says goes to `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            program, stdin=stdin, stdout=out if stdout is None else stdout, stderr=out, env=dict(environment)
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            close(pipe)


def close(pipe: IO[bytes] | None) -> None:
    """Close a pipe, if there is one."""
    if pipe is not None:
        pipe.close()


def first_line(process: subprocess.Popen[bytes], seconds: float) -> str:
    """The first line that a process prints; empty when it ends or says nothing for too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline().decode() if selector.select(seconds) else ""


def wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    """Return when the process is ready; raise `DemoError` with what it said when it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while not is_ready():
        if process.poll() is not None:
            raise DemoError(f"{name} ended with code {process.returncode}:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise DemoError(f"{name} was not ready after {START_S:.0f} s:\n{tail(log)}")
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether it answers with 200."""
    try:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (HTTPError, URLError, OSError):
        return False


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def tail(log: Path, lines: int = 20) -> str:
    """The end of what a process said."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the children end with it
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
