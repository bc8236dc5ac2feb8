"""What each kind of server tells about itself, in our words. What it does not tell is unknown, never zero. Pure."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from policies.fleets import Engine


@dataclass(frozen=True, slots=True)
class Facts:
    """What a replica's metrics say; None is unknown. Counters are since its start; `kv_use` is 0..1.

    `prefix_hits` are prompt tokens that came from the cache, of `prefix_queries` that were looked up.
    """

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    generated: float | None = None


UNKNOWN = Facts()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a replica says that it takes: calls at once, and tokens of all of them together; None is unknown."""

    slots: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where an engine says what. Of several names the first that is there counts: engines rename their metrics.

    `about` is a path whose JSON names the bounds; `slots` and `kv_tokens` are keys in it.
    """

    prefix: str
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_use: tuple[str, ...] = ()
    prefix_hits: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    about: str | None = None
    slots: str = ""
    kv_tokens: str = ""


DIALECTS: Mapping[Engine, Dialect] = {
    Engine.VLLM: Dialect(
        "vllm:",
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_use=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        prefix_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        prefix_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        generated=("vllm:generation_tokens_total",),
    ),
    Engine.SGLANG: Dialect(
        "sglang:",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_use=("sglang:token_usage",),
        prefix_hits=("sglang:cached_tokens_total",),
        prefix_queries=("sglang:prompt_tokens_total",),
        generated=("sglang:generation_tokens_total",),
        about="/get_server_info",
        slots="max_running_requests",
        kv_tokens="max_total_num_tokens",
    ),
    Engine.TGI: Dialect(
        "tgi_",
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        generated=("tgi_request_generated_tokens_sum",),
        about="/info",
        slots="max_concurrent_requests",
        kv_tokens="max_batch_total_tokens",
    ),
    Engine.LLAMACPP: Dialect(
        "llamacpp:",
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        prefix_hits=("llamacpp:prompt_tokens_cached_total",),
        generated=("llamacpp:tokens_predicted_total",),
        about="/props",
        slots="total_slots",
    ),
    Engine.OPENAI: Dialect(""),
}


def recognised(metrics: str) -> Engine:
    """Which engine's metrics these are."""
    for engine, dialect in DIALECTS.items():
        if dialect.prefix and any(line.startswith(dialect.prefix) for line in metrics.splitlines()):
            return engine
    return Engine.OPENAI


def facts(engine: Engine, metrics: str) -> Facts:
    """What the Prometheus text of its metrics says. Of several series of a name (models, ranks) it is the sum."""
    dialect = DIALECTS[engine]
    names = {
        name
        for wanted in (
            dialect.running,
            dialect.waiting,
            dialect.kv_use,
            dialect.prefix_hits,
            dialect.prefix_queries,
            dialect.generated,
        )
        for name in wanted
    }
    series: dict[str, list[float]] = {}
    for name, value in _samples(metrics.splitlines()):
        if name in names:
            series.setdefault(name, []).append(value)
    hits, queries = _sum(series, dialect.prefix_hits), _sum(series, dialect.prefix_queries)
    if engine is Engine.LLAMACPP and hits is not None:  # it counts those that it did not find in the cache apart
        computed = [value for name, value in _samples(metrics.splitlines()) if name == "llamacpp:prompt_tokens_total"]
        queries = hits + sum(computed) if computed else None
    use = [value for name in dialect.kv_use[:1] for value in series.get(name, [])] or [
        value for name in dialect.kv_use[1:] for value in series.get(name, [])
    ]
    return Facts(
        running=_whole(_sum(series, dialect.running)),
        waiting=_whole(_sum(series, dialect.waiting)),
        kv_use=max(use, default=None),
        prefix_hits=hits,
        prefix_queries=queries,
        generated=_sum(series, dialect.generated),
    )


def bounds(engine: Engine, metrics: str, about: bytes = b"") -> Bounds:
    """What it takes at most: from its page `about`, or (vLLM) from the labels of its cache's configuration."""
    dialect = DIALECTS[engine]
    if engine is Engine.VLLM:
        return Bounds(kv_tokens=_vllm_kv_tokens(metrics))
    try:
        said = json.loads(about)
    except (ValueError, RecursionError):
        return Bounds()
    if not isinstance(said, dict):
        return Bounds()
    return Bounds(_positive(said.get(dialect.slots)), _positive(said.get(dialect.kv_tokens)))


def _vllm_kv_tokens(metrics: str) -> int | None:
    for line in metrics.splitlines():
        if line.startswith("vllm:cache_config_info{"):
            labels = dict(_labels(line))
            blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
            if blocks.isdecimal() and size.isdecimal():
                return int(blocks) * int(size) or None
    return None


def _labels(line: str) -> Iterator[tuple[str, str]]:
    inside = line.partition("{")[2].rpartition("}")[0]
    for part in inside.split('",'):
        name, _, value = part.partition('="')
        yield name.strip(), value.removesuffix('"')


def _samples(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Name and value of each series. A label may hold anything, a brace as well: the value is what follows the last."""
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name = line.partition("{")[0] if "{" in line else line.split(maxsplit=1)[0]
        words = (line.rpartition("}")[2] if "{" in line else line[len(name) :]).split()
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            yield name, value


def _sum(series: Mapping[str, list[float]], names: tuple[str, ...]) -> float | None:
    for name in names:
        if name in series:
            return sum(series[name])
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else max(0, round(value))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
