"""What accepting a job costs: an open-loop load of async POSTs, then GETs, then the same without board and log.

    python -m bench.accept [--rps 1000] [--seconds 30] [--connections 500] [--log kafka|streams] [--brokers 1|3]
    python -m bench.accept --kill-leader [--rps 200] [--seconds 30]

One API process with authentication, idempotency keys, the queue cap, the board (each write on disk) and the log
(Kafka: acks=all), beside the servers and this load on the same machine. Times count from the moment a request was
due, not from when it could be sent.

`--kill-leader`: three brokers, each the leader of a third of every topic's partitions, and a third of the way through
one of them is killed hard. No accept may fail: each is held until the cluster has fenced the dead broker.

The last line is one JSON object:

- `offered_rps` `accepted_rps`: due, and answered with 202, a second
- `failed`: answered otherwise or not at all; `missing_on_log`: accepted, but not on the log (read back whole)
- `p50_ms` `p99_ms` `p999_ms` `max_ms`: of the POSTs
- `get_p50_ms` `get_p99_ms` `get_failed`: of GETs of accepted jobs, at the same rate
- `bare_p50_ms` `bare_p99_ms`: of the POSTs without board and log
- `ratio_to_bare`: CPU of the API process for each accept, over the same without board and log: what durability costs
- `p99_ratio_to_bare`: `p99_ms` over `bare_p99_ms`
- `cpu_ms` `bare_cpu_ms`: that CPU, in milliseconds for each accept; `redis_cpu_ms` `kafka_cpu_ms`: the servers'
- `rss_mb`: memory of the API process at the end
- `killed`: with --kill-leader the number of the dead broker, else null (and then the figures of GET and bare are)

Exit code 1 when anything failed or is missing.
"""

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Collection, Sequence
from itertools import cycle, islice

import uvloop
from rich.console import Console
from rich.table import Table

from bench import jobs
from bench.load import Load, Measured, get, moments, post
from bench.servers import Stage, cpu_seconds, rss_mb, stage
from router import topics
from tools.kafka.broker import HOST

PATH = "/v1/chat/completions"
WARM_UP_S = 3.0
ONLY_WITHOUT_DRILL = ("get_p50_ms", "get_p99_ms", "bare_p50_ms", "bare_p99_ms", "ratio_to_bare", "p99_ratio_to_bare")
AUDIT_S = 120.0  # to read the log back
KILLED = 0  # the first broker: as good as any
SHORTER = 3  # the GETs and the bare run take a third of the time


def main() -> int:
    """Measure, print, and say with the exit code whether everything was accepted and kept."""
    given = _arguments()
    gc.disable()  # the load's own pauses are not the gateway's
    figures = uvloop.run(_kill_leader(given) if given.kill_leader else _measure(given))
    _print(figures)
    print(json.dumps(figures), flush=True)
    return 1 if figures["failed"] or figures["missing_on_log"] or figures.get("get_failed") else 0


async def _measure(given: argparse.Namespace) -> dict[str, object]:
    async with stage(log=given.log, brokers=given.brokers) as place:
        key = await place.new_key()
        async with place.api() as api:
            await _warm_up(place, key, given)
            cpu, redis, kafka = cpu_seconds(api.pid), await place.cpu_of_redis(), place.cpu_of_kafka()
            posted = await _posts(place, key, given, given.seconds)
            cpu, redis, kafka = (
                cpu_seconds(api.pid) - cpu,
                await place.cpu_of_redis() - redis,
                place.cpu_of_kafka() - kafka,
            )
            ids = [json.loads(body)["id"] for body in posted.bodies(202)]
            seen = await _gets(place, key, given, ids)
            rss = rss_mb(api.pid)
        missing = await _missing(place, ids)
        async with place.api("bench.bare", "serve") as api:
            await _warm_up(place, key, given)
            bare_cpu = cpu_seconds(api.pid)
            bare = await _posts(place, key, given, given.seconds / SHORTER)
            bare_cpu = cpu_seconds(api.pid) - bare_cpu
    cpu_ms, bare_cpu_ms = _per_accept(cpu, posted), _per_accept(bare_cpu, bare)
    return {
        **_of_posts(posted, given, missing),
        "get_p50_ms": round(seen.ms(0.5), 2),
        "get_p99_ms": round(seen.ms(0.99), 2),
        "get_failed": seen.missing + len(seen.answers) - seen.count(200),
        "bare_p50_ms": round(bare.ms(0.5), 2),
        "bare_p99_ms": round(bare.ms(0.99), 2),
        "ratio_to_bare": round(cpu_ms / bare_cpu_ms, 2),
        "p99_ratio_to_bare": round(posted.ms(0.99) / bare.ms(0.99), 2),
        "cpu_ms": round(cpu_ms, 3),
        "bare_cpu_ms": round(bare_cpu_ms, 3),
        "redis_cpu_ms": round(_per_accept(redis, posted), 3),
        "kafka_cpu_ms": round(_per_accept(kafka, posted), 3),
        "rss_mb": round(rss),
        "killed": None,
    }


async def _kill_leader(given: argparse.Namespace) -> dict[str, object]:
    async with stage(log="kafka", brokers=3) as place:
        key = await place.new_key()
        async with place.api() as api:
            await _warm_up(place, key, given)
            cpu = cpu_seconds(api.pid)
            loading = asyncio.create_task(_posts(place, key, given, given.seconds))
            await asyncio.sleep(given.seconds / 3)
            assert place.cluster is not None
            place.cluster.kill(KILLED)
            posted = await loading
            cpu = cpu_seconds(api.pid) - cpu
            rss = rss_mb(api.pid)
        missing = await _missing(place, [json.loads(body)["id"] for body in posted.bodies(202)])
    return {
        **_of_posts(posted, given, missing),
        **dict.fromkeys(ONLY_WITHOUT_DRILL),
        "get_failed": 0,
        "cpu_ms": round(_per_accept(cpu, posted), 3),
        "rss_mb": round(rss),
        "killed": place.cluster.brokers[KILLED].node,
    }


def _of_posts(posted: Measured, given: argparse.Namespace, missing: int) -> dict[str, object]:
    accepted = posted.count(202)
    return {
        "offered_rps": given.rps,
        "accepted_rps": round(accepted / posted.seconds, 1),
        "accepted": accepted,
        "failed": posted.missing + len(posted.answers) - accepted,
        "missing_on_log": missing,
        "p50_ms": round(posted.ms(0.5), 2),
        "p99_ms": round(posted.ms(0.99), 2),
        "p999_ms": round(posted.ms(0.999), 2),
        "max_ms": round(posted.ms(1), 2),
    }


async def _warm_up(place: Stage, key: str, given: argparse.Namespace) -> None:
    await _posts(place, key, given, WARM_UP_S)


async def _posts(place: Stage, key: str, given: argparse.Namespace, seconds: float) -> Measured:
    due = moments(given.rps, seconds, even=given.even)
    run = asyncio.get_running_loop().time()

    def request(number: int) -> bytes:
        return post(PATH, key, jobs.body(number), idempotency_key=f"{run}-{number}")

    async with Load(HOST, place.settings.http.port, given.connections) as load:
        return await load.run(due, request)


async def _gets(place: Stage, key: str, given: argparse.Namespace, ids: Sequence[str]) -> Measured:
    due = moments(given.rps, given.seconds / SHORTER, even=given.even) if ids else []
    asked = list(islice(cycle(ids), len(due)))
    async with Load(HOST, place.settings.http.port, given.connections) as load:
        return await load.run(due, lambda number: get(f"/v1/jobs/{asked[number]}", key))


async def _missing(place: Stage, ids: Collection[str]) -> int:
    """How many of these jobs are not on the log, which is read from its beginning."""
    left = {job_id.removeprefix("job_") for job_id in ids}
    ends = asyncio.get_running_loop().time() + AUDIT_S
    wanted = topics.for_backend("echo", place.core.deployments)
    async with place.core.log.subscribe(wanted, group="bench.audit") as subscription:
        while left and asyncio.get_running_loop().time() < ends:
            for delivery in await subscription.take(1000):
                left.discard(delivery.record.headers["job"])
                await subscription.done(delivery)
    return len(left)


def _per_accept(cpu_s: float, posted: Measured) -> float:
    return cpu_s * 1000 / max(1, posted.count(202))


def _print(figures: dict[str, object]) -> None:
    table = Table("figure", "value", title="Accepting jobs")
    for name, value in figures.items():
        table.add_row(name, "" if value is None else str(value))
    Console(width=60).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.accept", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--rps", type=float, help="POSTs a second; 1000, with --kill-leader 200")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--log", choices=("kafka", "streams"), default="kafka")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--even", action="store_true", help="evenly spaced instead of Poisson")
    parser.add_argument("--kill-leader", action="store_true", help="the drill: three brokers, one dies hard")
    given = parser.parse_args()
    given.rps = given.rps or (200.0 if given.kill_leader else 1000.0)
    return given


if __name__ == "__main__":
    sys.exit(main())
