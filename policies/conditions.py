"""How the deployments do, shared by all workers through Redis: what one finds out holds for all half a second later."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import cast

from policies.cooldown import Condition, CooldownRule, Cooling, Failed, Go, Probe, ask, failed, released, succeeded
from policies.quota import deployment_slot
from policies.retries import Failure
from policies.retrybudget import RetryBudget
from policies.scripts import BoardUnavailableError, Script, Scripts, Value

FRESH_S = 0.5
KEPT_S = 600.0  # after nothing has happened
TURNS = 20  # of writers that come in between each other


@dataclass(frozen=True, slots=True)
class _Seen:
    """A condition as it was read: its version, when that was on our clock, and what to add for the board's."""

    condition: Condition
    version: str
    at: float
    board_minus_ours: float


@dataclass(slots=True)
class _Retries:
    """A deployment's budget as it was last heard of, and the calls that the board has not heard of yet."""

    budget: RetryBudget
    calls: int = 0


@dataclass(slots=True)
class Conditions:
    """The conditions of all deployments. `clock` is a steady one; what is compared is on Redis' own.

    A deployment that does well costs one round trip each half a second, however many calls it gets. A change that
    other workers come in between of too often is left out: they say the same.

    So is the budget of retries, of which a deployment gets at most `retry_share` for each call, all workers together.
    The calls are told along with the next look; only a retry costs a round trip of its own.
    """

    scripts: Scripts
    rule: CooldownRule
    clock: Callable[[], float]
    retry_share: float = 0.2
    _retries: dict[str, _Retries] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _script: Script = field(default_factory=lambda: Script.load("policies", "condition"))

    async def ask(self, deployment: str, call: str) -> Go | Probe | Cooling:
        """Whether this call may be sent; of those that could test a failing deployment one gets `Probe`.

        Raises `BoardUnavailableError`.
        """
        seen = await self._look(deployment)
        for _ in range(TURNS):
            verdict = ask(seen.condition, call, self.clock() + seen.board_minus_ours, self.rule)
            if not isinstance(verdict, Probe) or verdict.condition == seen.condition:
                return verdict
            seen = await self._swap(deployment, seen, verdict.condition)
        return Cooling(FRESH_S)

    async def cooling(self, deployment: str) -> Cooling | None:
        """Whether a call would have to wait now. Raises `BoardUnavailableError`."""
        seen = await self._look(deployment)
        verdict = ask(seen.condition, "", self.clock() + seen.board_minus_ours, self.rule)
        return verdict if isinstance(verdict, Cooling) else None

    def age_of(self, deployment: str, moment: float) -> float:
        """Seconds since a moment that is on the board's clock; 0 before the deployment was first asked for."""
        seen = self._seen.get(deployment)
        return 0.0 if seen is None else self.clock() + seen.board_minus_ours - moment

    async def failed(
        self,
        deployment: str,
        failure: Failure,
        *,
        job: str,
        call: str,
        retry_after: float | None,
        stands_still: bool = False,
    ) -> Condition:
        """A call has failed. Raises `BoardUnavailableError`."""

        def after(condition: Condition, now: float) -> Condition:
            one = Failed(job, call, now)
            return failed(condition, failure, one, retry_after, self.rule, stands_still=stands_still)

        return await self._change(deployment, after)

    async def is_well(self, deployment: str) -> bool:
        """Whether it does well, or as well as nobody knows otherwise. Raises `BoardUnavailableError`."""
        return (await self._look(deployment)).condition.openings == 0

    def called(self, deployment: str) -> None:
        """A job is called there for the first time."""
        retries = self._retries_of(deployment)
        retries.budget.called(self.clock(), is_retry=False)
        retries.calls += 1

    def may_retry(self, deployment: str) -> bool:
        """Whether there is room for a retry, for all that is known here."""
        return self._retries_of(deployment).budget.has_room(self.clock())

    async def take_retry(self, deployment: str) -> bool:
        """Whether a retry may be made now; if so, it counts. Raises `BoardUnavailableError`."""
        _, is_taken = await self._exchange(deployment, "", Condition(), takes=True)
        return is_taken

    async def succeeded(self, deployment: str, call: str) -> None:
        """A call is being answered. Never raises: a condition that is not made better is tested again."""
        await self._mend(deployment, lambda condition: succeeded(condition, call))

    async def released(self, deployment: str, call: str) -> None:
        """A call that was let through shows nothing. Never raises."""
        await self._mend(deployment, lambda condition: released(condition, call))

    async def _mend(self, deployment: str, after: Callable[[Condition], Condition]) -> None:
        """Costs nothing while there is nothing to change."""
        seen = self._seen.get(deployment)
        if seen is None or after(seen.condition) == seen.condition:
            return
        try:
            await self._change(deployment, lambda condition, _: after(condition))
        except BoardUnavailableError:
            return

    async def _change(self, deployment: str, after: Callable[[Condition, float], Condition]) -> Condition:
        seen = await self._look(deployment)
        for _ in range(TURNS):
            changed = after(seen.condition, self.clock() + seen.board_minus_ours)
            if changed == seen.condition:
                break
            seen = await self._swap(deployment, seen, changed)
        return seen.condition

    async def _look(self, deployment: str) -> _Seen:
        seen, now = self._seen.get(deployment), self.clock()
        if seen is not None and now - seen.at < FRESH_S:
            return seen
        if seen is not None:  # one look for all that ask meanwhile
            self._seen[deployment] = _Seen(seen.condition, seen.version, now, seen.board_minus_ours)
        return await self._run(deployment, "", Condition())

    async def _swap(self, deployment: str, seen: _Seen, condition: Condition) -> _Seen:
        """Write it, unless another has written since; either way, what stands now."""
        return await self._run(deployment, seen.version, condition)

    async def _run(self, deployment: str, version: str, condition: Condition) -> _Seen:
        seen, _ = await self._exchange(deployment, version, condition)
        return seen

    async def _exchange(
        self, deployment: str, version: str, condition: Condition, *, takes: bool = False
    ) -> tuple[_Seen, bool]:
        kept_ms = int((KEPT_S + self.rule.longest + self.rule.probe) * 1000)
        retries = self._retries_of(deployment)
        calls, retries.calls = retries.calls, 0
        arguments: list[Value] = [version, json.dumps(asdict(condition)), kept_ms, self.retry_share, calls, int(takes)]
        keys = [f"{deployment_slot(deployment)}:condition"]
        try:
            answer = await self.scripts.run(self._script, keys, arguments)
        except BoardUnavailableError:
            retries.calls += calls
            raise
        micros, found, text, room, taken = cast("tuple[bytes, bytes, bytes, bytes, int]", answer)
        now = self.clock()
        retries.budget.heard(float(room), now)
        seen = _Seen(_condition(text), found.decode(), now, int(micros) / 1e6 - now)
        self._seen[deployment] = seen
        return seen, bool(taken)

    def _retries_of(self, deployment: str) -> _Retries:
        found = self._retries.get(deployment)
        if found is None:
            found = self._retries[deployment] = _Retries(RetryBudget(self.retry_share))
        return found


def _condition(text: bytes) -> Condition:
    if not text:
        return Condition()
    values = json.loads(text)
    calls = tuple(Failed(each["job"], each["call"], each["at"]) for each in values.pop("failed"))
    return Condition(**values, failed=calls)
