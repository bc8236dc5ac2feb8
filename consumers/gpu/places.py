"""Places on a deployment's replicas, shared by all workers: leases on the board, so that a cap is one for all."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from consumers.gpu.replicas import Learned
from policies.quota import deployment_slot
from policies.scripts import Script, Scripts, Value

REPORT_S = 15.0  # a report that is older is about a replica that nobody sees any more


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has left its replica, and the tokens that it used."""

    replica: str
    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The index of the replica that has a place for the call, or None; the calls that each has now.

    `homes` are the replicas that had the beginning of its prompt last, the very last one first.
    """

    index: int | None
    counts: Sequence[int]
    homes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a worker saw of a replica. `report` is JSON for people; `out_until` is a moment, 0 for none.

    `phase` is what its machine does, for its bill; '' where it has none. `up*3`: there are three of them, taken as one.
    """

    replica: str
    report: str
    out_until: float = 0.0
    strikes: int = 0
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What all workers together know of a replica: the calls that are there, until when it is ejected, its cap."""

    places: int
    out_until: float
    strikes: int
    learned: Learned | None


class Places:
    """Every method raises `BoardUnavailableError`, and may run twice with the same effect.

    A place whose worker has died is free again after `hold_s`.
    """

    def __init__(self, scripts: Scripts, *, hold_s: float = 30.0) -> None:
        self.hold_s = hold_s
        self._scripts = scripts
        self._take = _script("take")
        self._keep = _script("keep")
        self._ran = _script("ran")
        self._sync = _script("sync")
        self._learn = _script("learn")
        self._wake = _script("wake")
        self._reports = _script("reports")

    async def take(
        self,
        deployment: str,
        id: str,
        wanted: Sequence[tuple[str, int]],
        *,
        ended: Sequence[Ended] = (),
        billed_to: str = "",
        beginning: str = "",
        homes: Sequence[str] = (),
    ) -> Taken:
        """A place on the first of these replicas that has fewer calls than its cap.

        The places of those that have `ended` are given back first. With `billed_to`, a tenant, the time that the place
        is held goes into the machine's bill. Where the `beginning` (a digest) of its prompt has homes that are not
        among those given, no place is taken: they are told, to be chosen from.
        """
        args = [value for replica, cap in wanted for value in (replica, cap)]
        known = "\n".join(["", *homes, ""])
        told = id, self._hold_ms, billed_to, beginning, known, len(wanted), *args, *_given(ended)
        answer = await self._run(self._take, deployment, *told)
        number, counts, found = cast("tuple[int, list[int], list[bytes]]", answer)
        return Taken(number - 1 if number else None, counts, tuple(name.decode() for name in found))

    async def keep(self, deployment: str, running: Sequence[tuple[str, str]], ended: Sequence[Ended]) -> None:
        """Renew the leases of calls that run (replica and id of each), and give back the others' places."""
        renewed = [value for pair in running for value in pair]
        await self._run(self._keep, deployment, self._hold_ms, len(running), *renewed, *_given(ended))

    async def ran(self, deployment: str, ended: Ended, *, since: float, until: float) -> None:
        """It has left its replica, and ran there between these moments only: the rest of the time it waited."""
        told = ended.replica, ended.id, ended.tokens, int(since * 1000), int(until * 1000)
        await self._run(self._ran, deployment, *told)

    async def sync(self, deployment: str, seen: Sequence[Seen]) -> tuple[float, Sequence[Known]]:
        """The moment on the board's clock, and what is known of each of them."""
        args = [
            value
            for each in seen
            for value in (each.replica, each.report, int(each.out_until * 1000), each.strikes, each.phase)
        ]
        answer = cast(
            "list[int | bytes]",
            await self._run(self._sync, deployment, self._hold_ms, int(REPORT_S * 1000), *args),
        )
        known = []
        for start in range(1, len(answer), 5):
            places, until, strikes, cap, at = answer[start : start + 5]
            learned = Learned(float(cap), int(at) / 1000) if cap != b"" else None
            known.append(Known(int(places), int(until) / 1000, int(strikes), learned))
        return int(answer[0]) / 1000, known

    async def learn(self, deployment: str, replica: str, after: Learned | None, cap: float) -> Learned:
        """Set its cap, unless it was changed since `after`. Returns what holds now."""
        seen = "" if after is None else f"{after.at * 1000:.0f}"
        answer = await self._run(self._learn, deployment, replica, seen, f"{cap:.3f}")
        known, at = cast("list[bytes]", answer)
        return Learned(float(known), int(at) / 1000)

    async def may_wake(self, deployment: str, *, again_s: float) -> bool:
        """Whether the waker is to be called from here now: yes to one worker, once in `again_s`."""
        return bool(await self._run(self._wake, deployment, int(again_s * 1000)))

    async def wake_again(self, deployment: str, *, in_s: float) -> None:
        """The waker was not reached: it may be called in so many seconds, from anywhere."""
        await self._run(self._wake, deployment, int(in_s * 1000), "again")

    async def reports(self, deployment: str) -> tuple[float, dict[str, dict[str, object]]]:
        """The moment on the board's clock, and by replica what a worker has said of it in the last `REPORT_S`."""
        answer = cast("list[int | bytes]", await self._run(self._reports, deployment, int(REPORT_S * 1000)))
        pairs = zip(cast("list[bytes]", answer[1::2]), cast("list[bytes]", answer[2::2]), strict=True)
        return int(answer[0]) / 1000, {name.decode(): json.loads(text) for name, text in sorted(pairs)}

    @property
    def _hold_ms(self) -> int:
        return int(self.hold_s * 1000)

    async def _run(self, script: Script, deployment: str, *args: Value) -> object:
        prefix = deployment_slot(deployment) + ":"
        return await self._scripts.run(script, [f"{prefix}fleet"], [prefix, *args])


def _given(ended: Sequence[Ended]) -> list[Value]:
    return [value for each in ended for value in (each.replica, each.id, each.tokens)]


def _script(name: str) -> Script:
    return Script.load("consumers.gpu", "places_functions", f"places_{name}")
