"""When a deployment that fails is left alone, and when a call tests it again. Pure; moments are on Redis' clock."""

from dataclasses import dataclass, replace

from policies.retries import FINAL, Failure

LOOK_AGAIN_S = 0.5  # while somebody's call tests it
LONGEST_PAUSE_S = 3600.0  # of what a backend asks for; then a call may ask again


@dataclass(frozen=True, slots=True)
class CooldownRule:
    """What opens a cooldown and how long it lasts. Seconds.

    `failures` one after the other within `window`, of two jobs at least: one job that always fails is its own fault.
    The first lasts `first`, each further one twice as long, at most `longest`. A probe that is not heard of for
    `probe` makes room for another.
    """

    failures: int = 3
    window: float = 30.0
    first: float = 3.0
    longest: float = 20.0
    probe: float = 90.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that failed: the job's id, the call's name, and when it was."""

    job: str
    call: str
    at: float


@dataclass(frozen=True, slots=True)
class Condition:
    """How a deployment does, for all workers. Nothing is sent before `until`.

    `failed` are its latest calls as long as they failed; `openings` how often in a row it was found failing, 0 when it
    does well; `probe` the one call that may then be sent, until `probe_ends`.
    """

    until: float = 0.0
    failed: tuple[Failed, ...] = ()
    openings: int = 0
    probe: str = ""
    probe_ends: float = 0.0


@dataclass(frozen=True, slots=True)
class Go:
    """Send it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Send it, as the one call that shows whether the deployment is back; `condition` says so to the others."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Cooling:
    """Send nothing for so many seconds. `is_pause`: it does well otherwise, and has asked for them."""

    seconds: float
    is_pause: bool = False


def ask(condition: Condition, call: str, now: float, rule: CooldownRule) -> Go | Probe | Cooling:
    """Whether this call may be sent."""
    if now < condition.until:
        return Cooling(condition.until - now, is_pause=condition.openings == 0)
    if condition.openings == 0:
        return Go()
    if condition.probe == call:
        return Probe(condition)
    if condition.probe and now < condition.probe_ends:
        return Cooling(min(LOOK_AGAIN_S, condition.probe_ends - now))
    return Probe(replace(condition, probe=call, probe_ends=now + rule.probe))


def failed(
    condition: Condition,
    failure: Failure,
    one: Failed,
    retry_after: float | None,
    rule: CooldownRule,
    *,
    stands_still: bool = False,
) -> Condition:
    """After a call that failed at `one.at`. Said twice, it counts once. What is the client's fault is an answer.

    `stands_still`: no job at all can be done there, which one call shows as well as three.
    """
    if failure in FINAL:
        return succeeded(condition, one.call)
    if any(each.call == one.call for each in condition.failed):
        return condition
    pause = one.at + min(retry_after, LONGEST_PAUSE_S) if retry_after is not None else 0.0
    if condition.openings:
        if condition.probe != one.call:  # it began before the cooldown, and says nothing new
            return replace(condition, until=max(condition.until, pause))
        return _opened(condition, one.at, pause, rule)
    if stands_still:
        return _opened(condition, one.at, pause, rule)
    latest = (*(each for each in condition.failed if each.at > one.at - rule.window), one)[-rule.failures :]
    if len(latest) == rule.failures and len({each.job for each in latest}) > 1:
        return _opened(condition, one.at, pause, rule)
    return replace(condition, failed=latest, until=max(condition.until, pause))


def succeeded(condition: Condition, call: str) -> Condition:
    """After an answer. While it cools, only the call that tests it shows that it is back."""
    if condition.openings == 0:
        return replace(condition, failed=()) if condition.failed else condition
    return Condition() if condition.probe == call else condition


def released(condition: Condition, call: str) -> Condition:
    """After a call that shows nothing: it was not made, or was broken off. Another may be the probe."""
    return replace(condition, probe="", probe_ends=0.0) if condition.probe == call else condition


def _opened(condition: Condition, now: float, pause: float, rule: CooldownRule) -> Condition:
    seconds = min(rule.longest, rule.first * 2.0 ** min(condition.openings, 30))
    return Condition(until=max(now + seconds, pause), openings=condition.openings + 1)
