"""What the pages say is what is there: links, commands, settings, states, addresses, headers, keys and metrics."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import pytest
import typer
from annotated_types import Ge, Gt, Le
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette import routing

from consumers.attempt_meters import AttemptMeters
from consumers.aws.sagemaker_meters import SageMakerMeters
from consumers.gpu.fleet_meters import FleetMeters
from consumers.lanes import Lanes
from consumers.meters import LogMeters, WebhookMeters, WorkerMeters
from consumers.sweeper_meters import DeploymentMeters, LaneMeters
from consumers.tally import Tally
from gateway import render, wiring
from gateway.app import routes
from gateway.cli import app
from gateway.metrics import InboxMetrics, Metrics
from gateway.reading import Inflight
from gateway.settings import MIB, Settings
from policies.conditions import Conditions
from policies.deployments import Fallback, Modality, Tier
from policies.pricing import Meter, Price, Usage, charge
from policies.retries import Failure
from router import envelope, ledger, topics
from router.job import TERMINAL, Alternative, AtBackend, Estimate, Job, JobClass, JobState, Line, Payload, Reply, Route
from router.log import Counts, Log, Record
from router.queues import Queues
from router.shares import Shares
from router.wakeups import Wakeups
from tools.chart import __main__ as chart

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

JOB = Job(
    id="01KB7M4Q3M7C9V2W6T8X0Y1Z2A",
    tenant="acme",
    endpoint="/v1/chat/completions",
    model="auto",
    job_class=JobClass.STANDARD,
    route=Route(
        "light",
        "gpu",
        Modality.TEXT,
        Tier.LIGHT,
        ("short",),
        0.2,
        left=(Alternative(Fallback("other"), Estimate(10, 20)),),
        tried=("first",),
        spent=1,
    ),
    estimate=Estimate(10, 20, Decimal("0.1")),
    body=b"",
    created_at=1.0,
    expires_at=2.0,
    result_ttl_s=3.0,
    stream=True,
    payload=Payload("bodies/acme/1", "00", 1),
    metadata={"a": "b"},
    traceparent="00-0-0-00",
    max_usd=Decimal(1),
    key_id="0123456789abcdef",
    limited_key="ci",
    is_reserved=True,
    webhook_url="https://hooks.example.com/",
    is_waited_for=True,
    reply=Reply("acme.replies", "7"),
    line=Line("01KB7M4Q3M7C9V2W6T8X0Y1Z2B", "a"),
)


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    broken = [link for link in _links(page) if not _resolves(page, link)]

    assert not broken


def test_every_page_is_reached_from_the_readme() -> None:
    reached, rest = set[Path](), [README]
    while rest:
        page = rest.pop()
        if page not in reached:
            reached.add(page)
            rest += [target for target in _targets(page) if target.suffix == ".md"]

    assert set(DOCS.rglob("*.md")) <= reached


# Commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_make_target_that_is_named_is_in_the_makefile(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([a-z][a-z-]*):", makefile))

    assert {words[1] for words in _commands(page, "make") if re.fullmatch(r"[a-z-]+", words[1])} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_that_is_named_is_one_with_these_options(page: Path) -> None:
    faults = [" ".join(words) for words in _commands(page, "pointsman") if not _is_command(words)]

    assert not faults


def test_the_readme_shows_the_example_of_the_sdk_as_it_is() -> None:
    shown = re.findall(r"(?s)```python\n(.*?)```", README.read_text(encoding="utf-8"))

    assert shown == [(ROOT / "examples" / "sdk.py").read_text(encoding="utf-8")]


# Words and states


def test_the_glossary_knows_every_state_and_what_clients_see() -> None:
    rows = _rows(DOCS / "glossary.md", "States")

    assert {JobState(_code(state)): _code(shown) for state, shown, _ in rows} == dict(render.STATES)
    assert {_code(state) for state, *_ in rows[-len(TERMINAL) :]} == TERMINAL


# Settings


def test_the_chart_takes_the_settings_that_there_are() -> None:
    assert chart.PLACE.read_text(encoding="utf-8") == chart.text(), "run: make chart-schema"


def test_the_page_of_the_settings_has_each_with_its_default_and_range() -> None:
    rows = _rows(DOCS / "reference" / "settings.md")
    described = {_code(row[0]): (row[1], row[2]) for row in rows if len(row) == 4 and row[0] != "setting"}

    assert described == dict(_settings(Settings))


# The API


async def test_the_page_of_the_api_has_each_address(tmp_path: Path) -> None:
    settings = Settings(redis="redis://127.0.0.1:1/0", data=tmp_path)  # nobody is asked
    async with wiring.core(settings) as core:
        served = routes(wiring.services(core, Wakeups(core.redis, role="http")))

    described = {_code(row[0]) for row in _rows(DOCS / "reference" / "api.md", "Addresses")}
    assert described == {
        f"{method} {_path(route)}" for route in served for method in (route.methods or set()) - {"HEAD"}
    }


def test_the_page_of_the_api_has_each_state_and_each_failure() -> None:
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")

    assert not [word for word in [*render.STATES.values(), *Failure] if f"`{word}`" not in text]


# Records


def test_the_page_of_the_records_has_each_topic() -> None:
    text = (DOCS / "reference" / "records.md").read_text(encoding="utf-8")

    assert not [topic for topic in topics.FIXED if f"`{topic}`" not in text]


def test_the_page_of_the_records_has_each_header_of_a_job() -> None:
    page = DOCS / "reference" / "records.md"
    record = envelope.to_record(JOB)
    waiting = envelope.postponed(Record(b""), JOB.topic, due_at=1.0, reason="quota_requests")
    remembering = envelope.replayed(envelope.kept(Record(b""), AtBackend(1, "a-call")), at=1.0)

    assert set(record.headers) == _names(page, "Jobs")
    assert set(waiting.headers) == _names(page, "Postponed jobs")
    assert set(remembering.headers) == _names(page, "What a job's record remembers")


def test_the_page_of_the_records_has_each_key_of_what_is_json() -> None:
    page = DOCS / "reference" / "records.md"
    price = Price({Meter.INPUT: Decimal(1)}, "a test")
    usage = Usage(input=1, tier="default")
    lines = charge(price, usage, job=JOB.id, attempt=1, outcome="completed")
    attempt = ledger.attempt_text(JOB, 1, "mb_1", lines, 1, concluded=True)
    event = ledger.event_text(replace(JOB, webhook_url="", reply=None), JobState.COMPLETED, usd=None)
    microbatch = Tally("mb_1", "light", "gpu.text.light", started=0.0).text(1.0)

    assert _keys(attempt) | _keys(attempt, "lines") == _names(page, "Charges")
    assert _keys(event) == _names(page, "Events")
    assert _keys(microbatch) == _names(page, "Microbatches")


# Metrics


def test_the_guide_has_each_metric() -> None:
    described = _names(DOCS / "guides" / "cluster.md", "Metrics")
    registry = CollectorRegistry()
    WorkerMeters(registry)
    LogMeters(registry, Counts())
    AttemptMeters(registry)
    LaneMeters(registry, Lanes(cast(Log, None), cast(Queues, None), {}))
    DeploymentMeters(registry, cast(Conditions, None), {})
    FleetMeters(registry)
    SageMakerMeters(registry)
    WebhookMeters(registry)
    InboxMetrics(registry)
    counted = Metrics(Inflight(most_requests=1, most_bytes=1), lambda: 0, Shares()).registry

    assert described == {_metric(each) for each in (*registry.collect(), *counted.collect())}


# How the pages are read


def _links(page: Path) -> list[str]:
    text = _without_code(page.read_text(encoding="utf-8"))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def _targets(page: Path) -> Iterator[Path]:
    for link in _links(page):
        path = link.partition("#")[0]
        if path:
            yield (page.parent / path).resolve()


def _resolves(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not heading or heading in _headings(target)


def _headings(page: Path) -> set[str]:
    """As GitHub names them."""
    titles = re.findall(r"(?m)^#+ (.+)$", _without_code(page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def _without_code(text: str) -> str:
    return re.sub(r"(?s)```.*?```", "", text)


def _commands(page: Path, name: str) -> Iterator[list[str]]:
    """What stands in code, inline or in blocks, and begins with the name; without what is said about it."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"(?s)```(?:text|console)\n(.*?)```", text)
    inline = re.findall(r"`([^`\n]+)`", _without_code(text))
    for line in [*(line for block in blocks for line in block.splitlines()), *inline]:
        command = re.split(r" {3,}", line)[0]
        if command.startswith(f"{name} "):
            yield shlex.split(command)


def _is_command(words: list[str]) -> bool:
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        if "|" in rest[0]:  # one of several
            return all(_is_command([*words[: -len(rest)], name]) for name in rest[0].split("|"))
        command = command.commands.get(rest.pop(0))
    if command is None:
        return False
    options = {name for parameter in command.params for name in parameter.opts}
    return all(word in options for word in rest if word.startswith("--"))


def _rows(page: Path, heading: str = "") -> list[list[str]]:
    """The rows of the tables below a heading (of the whole page without one), heads left out."""
    text = _without_code(page.read_text(encoding="utf-8"))
    if heading:
        text = re.split(rf"(?m)^#+ {re.escape(heading)}$", text, maxsplit=1)[1]
        text = re.split(r"(?m)^##? ", text, maxsplit=1)[0]
    lines = text.splitlines()
    rows = [line for line, below in zip(lines, [*lines[1:], ""], strict=True) if not below.startswith("|---")]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))]
        for row in rows
        if row.startswith("|") and not row.startswith("|---")
    ]


def _code(cell: str) -> str:
    """The one thing in backticks."""
    [name] = re.findall(r"`([^`]+)`", cell)
    return str(name)


def _names(page: Path, heading: str) -> set[str]:
    """All that stands in backticks in the first column."""
    return {name for row in _rows(page, heading) for name in re.findall(r"`([^`]+)`", row[0])}


def _keys(text: str, inside: str = "") -> set[str]:
    values = json.loads(text)
    return set(values[inside][0] if inside else values)


def _metric(family: Any) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def _path(route: routing.Route) -> str:
    return re.sub(r":\w+}", "}", route.path)


# How the settings are read


def _settings(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    for name, field in model.model_fields.items():
        inner = _plain(field.annotation)
        at = f"{path}{name}"
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _settings(inner, f"{at}.")
        elif get_origin(inner) is Mapping and _is_model(value := _plain(get_args(inner)[1])):
            yield from _settings(value, f"{at}.NAME.")
        else:
            yield at, (_default(field), _range(field))


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _plain(annotation: Any) -> Any:
    """Without `Annotated` and `| None`."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    match field.get_default(call_default_factory=True):
        case None:
            return "none"
        case bool() as choice:
            return f"`{choice}`".lower()
        case "" | {} | ():
            return "empty"
        case tuple() as values:
            return f"`{', '.join(values)}`"
        case int() as size if size and size % MIB == 0:
            return f"`{size // MIB} MiB`"
        case float() as number:
            return f"`{number:g}`" if number < 1e5 else f"`{number:.0f}`"
        case value:
            return f"`{value}`"


def _range(field: FieldInfo) -> str:
    kind = _plain(field.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if kind is bool:
        return "`true`, `false`"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{choice}`" for choice in kind)
    least, over, most = (_bound(field, bound) for bound in (Ge, Gt, Le))
    if over is not None:
        return f"over {over} to {most}"
    return f"{least} to {most}" if least is not None else ""


def _bound(field: FieldInfo, kind: type[Ge | Gt | Le]) -> str | None:
    for each in field.metadata:
        if isinstance(each, kind):
            value: Any = getattr(each, kind.__name__.lower())
            if value >= MIB and value % MIB == 0:
                return f"{value // MIB} MiB"
            return f"{value:.0f}" if value == int(value) else f"{value:g}"
    return None
