"""Writes the bills of replicas' machines: each span of time once, split over the calls that ran there."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from consumers.gpu.fleet_meters import FleetMeters
from policies.machine_time import Bill, Idle, Phase, Ran, split
from policies.quota import deployment_slot
from policies.scripts import Script, Scripts, Value
from router.ledger import plain
from router.machine_sums import counters, day_of

MOST_CALLS = 4000  # that have ended, in one bill: it has to fit in a record
LEAST_MS = 1000

Append = Callable[[str, str], Awaitable[None]]  # an id and a record, onto the ledger


@dataclass(frozen=True, slots=True)
class _Used:
    """What a machine has done since the last bill, and whose its calls were."""

    since: int
    until: int
    seen: str  # where the last bill ended, as it is written down
    carry: int
    phases: Sequence[tuple[int, Phase]]
    machines: Sequence[tuple[int, int]]
    calls: Sequence[Ran]
    tenants: dict[str, str]
    ended: int
    waker: str  # the call that was there first where calls wait for a machine; '' for none
    kept: Sequence[str]  # of the calls that have ended: as they are written down, for the next bill as well
    tokens: int


class MachineBills:
    """Any worker may write them, any number of times: a span is closed once. Raises `BoardUnavailableError`.

    A bill is on the board before it is on the ledger, and there until `append` has returned.
    """

    def __init__(
        self,
        scripts: Scripts,
        append: Append,
        meters: FleetMeters | None = None,
        *,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """While it `waits` nothing is billed: the board is lost, and made anew from the ledger."""
        self._waits = waits
        self._scripts = scripts
        self._append = append
        self._meters = meters
        self._used = _script("used")
        self._bill = _script("bill")
        self._owed = _script("owed")
        self._struck = _script("struck")

    async def write(
        self, deployment: str, replica: str, usd_per_hour: Decimal, *, lag_s: float | None = None
    ) -> Bill | None:
        """Bill the time since the last bill. None: there is nothing to bill, or another worker has.

        With `lag_s` calls are known to have run only once they are over, and for no longer than that. So the bill stops
        where the first of those began that are there, at most `lag_s` ago.
        """
        if self._waits():
            return None
        used = _read(await self._run(self._used, deployment, replica, MOST_CALLS), lag_s)
        if used is None or used.until - used.since < LEAST_MS:
            return None
        bill = split(
            usd_per_hour,
            used.phases,
            used.calls,
            since=used.since,
            until=used.until,
            carry=used.carry,
            machines=used.machines,
        )
        id = f"machine:{deployment}:{replica}:{used.since}"
        record = _record(id, deployment, replica, usd_per_hour, used, bill)
        over = sum(at <= used.until for at, _ in used.phases) - 1  # the last of them still holds
        closed = await self._run(
            self._bill,
            deployment,
            replica,
            used.seen,
            used.until,
            bill.carry,
            used.ended,
            max(0, over),
            day_of(used.until).isoformat(),
            id,
            json.dumps(record, separators=(",", ":")),
            len(used.kept),
            *used.kept,
            *(each for counter in counters(record).items() for each in counter),
        )
        if not closed:
            return None
        if self._meters is not None:
            self._meters.billed(deployment, replica, bill, tokens=used.tokens)
        return bill

    async def publish(self, deployment: str) -> None:
        """Put on the ledger what is not there yet, the oldest first; an id may come twice. Raises as `append` does."""
        owed = cast("list[bytes]", await self._run(self._owed, deployment))
        bills = sorted(zip(owed[::2], owed[1::2], strict=True), key=lambda pair: json.loads(pair[1])["from_ms"])
        for id, record in bills:
            await self._append(id.decode(), record.decode())
            await self._run(self._struck, deployment, id)

    async def _run(self, script: Script, deployment: str, *args: Value) -> object:
        prefix = deployment_slot(deployment) + ":"
        return await self._scripts.run(script, [f"{prefix}fleet"], [prefix, *args])


def _read(answer: object, lag_s: float | None) -> _Used | None:
    now, last, carry, phases, ended, running = cast(
        "tuple[int, bytes, bytes, list[bytes], list[bytes], list[bytes]]", answer
    )
    known, machines = _phases(phases)
    rows = [line.decode().split() for line in ended]
    there = {name.decode(): began.decode().split() for name, began in zip(running[::2], running[1::2], strict=True)}
    until = now if len(rows) < MOST_CALLS else max(int(row[1]) for row in rows)
    tenants = {row[3]: row[2] for row in rows} | {name: tenant for name, (_, tenant) in there.items()}
    calls = [Ran(row[3], int(row[0]), int(row[1])) for row in rows]
    waker = ""
    if lag_s is None:
        calls += [Ran(name, int(start), now) for name, (start, _) in there.items()]
    else:  # those that are there wait, or run since nobody knows when
        came = [(int(start), name) for name, (start, _) in there.items()]
        until = min(until, max(min(came, default=(now, ""))[0], now - int(lag_s * 1000)))
        came += [(int(row[5]), row[3]) for row in rows]
        waker = min(((at, name) for at, name in came if at < until), default=(0, ""))[1]
    first = min([at for at, _ in known] + [call.start for call in calls], default=None)
    if first is None:
        return None
    return _Used(
        since=int(last) if last else first,
        until=until,
        seen=last.decode(),
        carry=int(carry),
        phases=known,
        machines=machines,
        calls=calls,
        tenants=tenants,
        ended=len(rows),
        waker=waker,
        kept=[" ".join(row) for row in rows if int(row[1]) > until],
        tokens=sum(int(row[4]) for row in rows if int(row[1]) <= until),
    )


def _phases(lines: Sequence[bytes]) -> tuple[list[tuple[int, Phase]], list[tuple[int, int]]]:
    """Moments with the phase, and with the number of machines, that begin then: 'ms phase', or 'ms phase*number'."""
    phases, machines = [], []
    for moment, told in (line.decode().split() for line in lines):
        phase, _, number = told.partition("*")
        phases.append((int(moment), Phase(phase)))
        machines.append((int(moment), int(number or 1)))
    return phases, machines


def _record(id: str, deployment: str, replica: str, rate: Decimal, used: _Used, bill: Bill) -> Mapping[str, object]:
    shares = [
        {
            **_call(call, used),
            "seconds": bill.held_ms[call] / 1000,
            "usd": _dollars(share),
        }
        for call, share in bill.shares.items()
    ]
    return {
        "type": "machine",
        "id": id,
        "deployment": deployment,
        "replica": replica,
        "from_ms": used.since,
        "to_ms": used.until,
        "usd_per_hour": plain(rate),
        "up_s": bill.up_ms / 1000,
        "busy_s": bill.busy_ms / 1000,
        "tokens": used.tokens,
        "usd": _dollars(bill.total),
        "busy_usd": _dollars(bill.busy),
        "idle_usd": {cause: _dollars(usd) for cause, usd in bill.idle.items()},
        **({"woken_by": _call(used.waker, used)} if used.waker and bill.idle[Idle.WARM_UP] else {}),
        "shares": shares,
    }


def _call(call: str, used: _Used) -> dict[str, str | int]:
    job, _, attempt = call.rpartition(".")
    return {"job": job, "attempt": int(attempt), "tenant": used.tenants[call]}


def _dollars(picodollars: int) -> str:
    return plain(Decimal(picodollars).scaleb(-12))


def _script(name: str) -> Script:
    return Script.load("consumers.gpu", "places_functions", f"places_{name}")
