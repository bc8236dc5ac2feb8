"""`pointsman submit|watch|jobs|cancel`: batches and jobs of a running gateway, as its client."""

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from gateway import tables
from gateway.client_answers import ENDED, GatewayError, NotThereError

if TYPE_CHECKING:
    from gateway.client import Client

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

WAIT_S = 30

FileArgument = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="Requests as JSONL, one a line.")
]
UrlOption = Annotated[
    str, typer.Option("--url", envvar="OPENAI_BASE_URL", help="The gateway, up to and with /v1.", show_default=True)
]
KeyOption = Annotated[
    str, typer.Option("--key", envvar=["POINTSMAN_API_KEY", "OPENAI_API_KEY"], help="An API key; best as a variable.")
]
EndpointOption = Annotated[str, typer.Option(help="Of all requests in the file.")]
WindowOption = Annotated[str, typer.Option(help="When it must be done: 1h to 24h.")]
URL, ENDPOINT, WINDOW = "http://127.0.0.1:4000/v1", "/v1/chat/completions", "24h"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be run, and until when."""

    file: Path
    endpoint: str
    window: str

    def digest(self) -> str:
        """The same for the same lines, endpoint and window."""
        with self.file.open("rb") as content:
            digest = file_digest(content, "sha256")
        digest.update(f"{self.endpoint} {self.window}".encode())
        return digest.hexdigest()


@dataclass(slots=True)
class Underway:
    """What `submit` has done so far, in a file beside the output: the same command goes on from there."""

    url: str
    asked: str  # digest of the input and of what is asked for
    file: str = ""
    batch: str = ""

    @classmethod
    def read(cls, path: Path, url: str, asked: str) -> "Underway":
        """Of the same request; a new one where there is none, or of another."""
        try:
            known = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls(url, asked)
        return known if (known.url, known.asked) == (url, asked) else cls(url, asked)

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(path)

    def forget(self, path: Path) -> None:
        """It is done with."""
        path.unlink(missing_ok=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands of `app`."""
    app.command("submit")(submit_command)
    app.command("watch")(watch_command)
    app.command("jobs")(jobs_command)
    app.command("cancel")(cancel_command)


def submit_command(
    context: typer.Context,
    file: FileArgument,
    output: Annotated[Path | None, typer.Option(help="Where the answers go; FILE.out.jsonl.")] = None,
    errors: Annotated[Path | None, typer.Option(help="Where everything else goes; FILE.err.jsonl.")] = None,
    endpoint: EndpointOption = ENDPOINT,
    window: WindowOption = WINDOW,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Leave once it is submitted.")] = False,
    url: UrlOption = URL,
    key: KeyOption = "",
) -> None:
    """Run a file of requests as a batch, and fetch its answers. After Ctrl-C the same command goes on where it was."""
    places = output or file.with_suffix(".out.jsonl"), errors or file.with_suffix(".err.jsonl")
    _check_places(file, *places)

    async def run() -> dict[str, Any]:
        async with client_of(url, key, is_patient=True) as client:
            underway, path = await submitted(client, Asked(file, endpoint, window), places[0])
            err.print(f"{underway.batch} is submitted.", markup=False)
            if no_wait:
                err.print("The same command without --no-wait fetches its answers.")
                return await client.get(f"/batches/{underway.batch}")
            with _taking_it_up_again(underway.batch):
                batch = await followed(client, underway.batch)
                await fetched(client, batch, *places)
            underway.forget(path)
            return batch

    batch = run_it(context, run())
    if batch["status"] in ENDED:
        conclude(batch, *places)


def watch_command(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="Of a batch or a job.")],
    url: UrlOption = URL,
    key: KeyOption = "",
) -> None:
    """Show how far a batch or a job is, until it has ended."""

    async def run() -> dict[str, Any]:
        async with client_of(url, key, is_patient=True) as client:
            if id.startswith("batch_"):
                return await followed(client, id)
            while (job := await client.get(f"/jobs/{id}", wait=WAIT_S))["status"] not in ENDED:
                err.print(f"{id}: {job['status']}", markup=False)
            return job

    ended = run_it(context, run())
    if ended["object"] == "batch":
        conclude(ended)
        return
    out.print_json(json.dumps(ended))
    raise typer.Exit(0 if ended["status"] == "completed" else 1)


def jobs_command(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a job.")] = False,
    url: UrlOption = URL,
    key: KeyOption = "",
) -> None:
    """The tenant's jobs, the newest first."""

    async def run() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with client_of(url, key) as client:
            query: dict[str, str | int] = {"status": status} if status else {}
            while True:
                page = await client.get("/jobs", limit=min(100, limit - len(found)), **query)
                found += page["data"]
                if not page["has_more"] or len(found) >= limit:
                    return found
                query["after"] = page["last_id"]

    jobs = run_it(context, run())
    if as_json:
        for job in jobs:
            out.print(json.dumps(job), soft_wrap=True, markup=False)
        return
    table = Table(
        Column("id", overflow="fold"),
        "status",
        "class",
        "model",
        "deployment",
        "attempts",
        "dollars",
        Column("batch", overflow="fold"),
    )
    for job in jobs:
        ours = job["pointsman"]
        shown = ("class", "deployment", "attempts", "usd", "batch")
        cells = [job["id"], job["status"], ours["class"], job["model"], *(ours.get(name) for name in shown[1:])]
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    tables.show(out, table)


def cancel_command(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="Of a batch or a job.")],
    url: UrlOption = URL,
    key: KeyOption = "",
) -> None:
    """End a batch or a job. What a batch has done is kept."""

    async def run() -> dict[str, Any]:
        async with client_of(url, key) as client:
            return await client.post(f"/{'batches' if id.startswith('batch_') else 'jobs'}/{id}/cancel")

    out.print(f"{id}: {run_it(context, run())['status']}", markup=False)


def _check_places(file: Path, output: Path, errors: Path) -> None:
    """Before anything is sent, that all can be kept."""
    for place, option in ((output, "--output"), (errors, "--errors")):
        if place.is_dir() or not os.access(place.absolute().parent, os.W_OK):
            raise typer.BadParameter(f"nothing can be written to {place}; name another file", param_hint=option)
    if len({place.resolve() for place in (file, output, errors)}) < 3:
        raise typer.BadParameter("the input, the answers and the errors need a file each", param_hint="--output")


async def at_gateway(client: "Client", asked: Asked, output: Path) -> tuple[Underway, Path]:
    """This file at the gateway, uploaded now or by an earlier run, and where that is written down."""
    path = output.with_name(output.name + ".underway")
    underway = Underway.read(path, client.url, await asyncio.to_thread(asked.digest))
    if underway.batch and not await _is_there(client, f"/batches/{underway.batch}"):
        underway = Underway(client.url, underway.asked)
    if underway.file and not underway.batch and not await _is_there(client, f"/files/{underway.file}"):
        underway.file = ""
    if not underway.file:
        underway.file = await _uploaded(client, asked.file)
        underway.write(path)
    return underway, path


async def submitted(client: "Client", asked: Asked, output: Path) -> tuple[Underway, Path]:
    """The batch of this file, made now or by an earlier run, and where that is written down."""
    underway, path = await at_gateway(client, asked, output)
    if not underway.batch:
        order = {
            "input_file_id": underway.file,
            "endpoint": asked.endpoint,
            "completion_window": asked.window,
        }
        underway.batch = (await client.post("/batches", order, key=f"submit-{underway.file}"))["id"]
        underway.write(path)
    return underway, path


async def _is_there(client: "Client", path: str) -> bool:
    try:
        await client.get(path)
    except NotThereError:
        return False
    return True


async def _uploaded(client: "Client", file: Path) -> str:
    columns = TextColumn("uploading"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("", total=_size(file))
        return await client.upload(file, file.name, lambda sent: progress.update(task, completed=sent))


def _size(file: Path) -> int:
    return file.stat().st_size


async def followed(client: "Client", batch_id: str) -> dict[str, Any]:
    """The batch once it has ended, with a bar until then."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("waiting", total=None)
        async for event in client.events(f"/batches/{batch_id}/events"):
            counts = event["request_counts"]
            about = f"{event['status']}" + (f", {counts['failed']} failed" if counts["failed"] else "")
            done = counts["completed"] + counts["failed"]
            progress.update(task, description=about, completed=done, total=counts["total"] or None)
    return await client.get(f"/batches/{batch_id}")


async def fetched(client: "Client", batch: dict[str, Any], output: Path, errors: Path) -> None:
    for file_id, path in ((batch["output_file_id"], output), (batch["error_file_id"], errors)):
        if file_id:
            await client.download(file_id, path)


def conclude(batch: dict[str, Any], output: Path | None = None, errors: Path | None = None) -> None:
    """Say what became of it; exit code 1 when not all of its lines are answered."""
    counts, ours = batch["request_counts"], batch["pointsman"]
    usd = "unknown, as an attempt has no price" if ours["usd"] is None else f"{ours['usd']} dollars"
    out.print(f"{batch['status']}: {counts['completed']} of {counts['total']} lines, {usd}", markup=False)
    for fault in (batch["errors"] or {"data": []})["data"]:
        at = f"line {fault['line']}: " if fault["line"] else ""
        err.print(f"  {at}{fault['message']} ({fault['code']})", style="red", markup=False, soft_wrap=True)
    for path, file_id in ((output, batch["output_file_id"]), (errors, batch["error_file_id"])):
        if path is not None and file_id:
            out.print(f"  {path}", markup=False, soft_wrap=True)
    if batch["status"] != "completed" or counts["completed"] < counts["total"]:
        raise typer.Exit(1)


@contextmanager
def _taking_it_up_again(batch_id: str) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        said = f"It goes on. The same command takes it up again; `pointsman cancel {batch_id}` ends it."
        err.print(said, soft_wrap=True)
        raise


def client_of(url: str, key: str, *, is_patient: bool = False) -> AbstractAsyncContextManager["Client"]:
    from gateway.client import Client  # its HTTP library is loaded by the commands that need it

    if not key:
        raise GatewayError("there is no API key: set POINTSMAN_API_KEY, or OPENAI_API_KEY")
    return Client.open(url, key, is_patient=is_patient, told=_say_so)


def _say_so(text: str) -> None:
    err.print(text, style="yellow", markup=False, soft_wrap=True)


def run_it(context: typer.Context, coroutine: Coroutine[Any, Any, Any]) -> Any:
    _, run = context.obj
    return run(coroutine)
