"""Whether a replica may be called: what its probes and its calls make of it. Pure; `now` is on any steady clock."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

WINDOW_S = 30.0
FAILURES = 3  # within the window
SHARE = 0.2  # of its calls in the window, so that a busy replica is not out for one bad call in a thousand
FIRST_OUT_S = 10.0  # then twice as long each time
LONGEST_OUT_S = 300.0
PROBES = 2  # that it passes before it is called again
MISSED = 3  # probes in a row without an answer
KEPT = 1000  # calls that are remembered


class State(StrEnum):
    """Of a replica. Only one that is READY is called."""

    NEW = "new"  # nothing is known yet
    WARMING = "warming"  # it answers that it is loading its model
    READY = "ready"
    EJECTED = "ejected"  # its calls failed; it is left alone for a while
    PROBING = "probing"  # that while is over; it has to answer some probes first
    DOWN = "down"


class Probe(StrEnum):
    """What came of asking a replica how it is."""

    WELL = "well"
    LOADING = "loading"  # 503
    REFUSED = "refused"  # nobody listens there
    SILENT = "silent"  # no answer in time, or none that says anything


@dataclass(slots=True)
class Health:
    """One replica's. `why` is for people. `out_until` ends an ejection; `strikes` are ejections in a row."""

    state: State = State.NEW
    why: str = ""
    out_until: float = 0.0
    strikes: int = 0
    _ready_since: float | None = None  # None: it was ready before we came
    _passed: int = 0
    _missed: int = 0
    _was_ready: bool = False  # since it was last not there at all
    _answered: int = 0  # small calls of ours in a row, while it is ejected
    _came_early: bool = False  # for these, before its time was over
    _deceives: bool = False  # it answered them, and was ejected again
    _on_trial: bool = False
    _calls: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def is_on_trial(self) -> bool:
        """Whether it has been ejected, and no call has shown as yet that it is well again."""
        return self._on_trial

    def probed(self, probe: Probe, now: float) -> None:
        """It was asked."""
        self._missed = self._missed + 1 if probe is Probe.SILENT else 0
        if self.state is State.EJECTED:
            if now < self.out_until:
                return
            self._become(State.PROBING, "its ejection is over")
        match probe:
            case Probe.WELL:
                self._well(now)
            case Probe.LOADING:
                self._loading()
            case Probe.REFUSED:
                self.gone("no connection")
            case Probe.SILENT if self._missed >= MISSED or self.state is not State.READY:
                self._become(State.DOWN, "no answer to its probes")

    def tried(self, *, well: bool, now: float) -> None:
        """While it was ejected it was asked for one token: some answers in a row end that, as its time would.

        Not where it was ejected again after that: then it is out for all of its time, until it has been well for long.
        """
        if self.state is not State.EJECTED:
            return
        self._answered = self._answered + 1 if well else 0
        if self._answered >= PROBES and not self._deceives:
            self._back(now)
            self._on_trial = self._came_early = True

    def gone(self, why: str) -> None:
        """Nobody listens there."""
        self._was_ready = False
        self._become(State.DOWN, why)

    def begins(self, now: float) -> None:
        """A call there gets its first token: enough to end a trial, as a whole answer may take minutes."""
        if self._on_trial:
            self._on_trial = False
            self._ready_since = now

    def succeeded(self, now: float) -> None:
        """A call there has ended well."""
        self._calls.append((now, True))
        self._missed = 0
        self._on_trial = False
        since = self._ready_since
        if self.strikes and since is not None and now - since > _out_s(self.strikes):
            self.strikes = 0
            self._came_early = self._deceives = False

    def failed(self, why: str, now: float) -> bool:
        """A call there has failed, by its fault. True: it is ejected now."""
        self._calls.append((now, False))
        recent = [well for at, well in self._calls if at > now - WINDOW_S]
        bad = recent.count(False)
        if self.state is not State.READY or not (self._on_trial or (bad >= FAILURES and bad >= SHARE * len(recent))):
            return False
        self._deceives = self._deceives or self._came_early
        self.strikes += 1
        self.eject(now + _out_s(self.strikes), self.strikes, why)
        return True

    def eject(self, until: float, strikes: int, why: str) -> None:
        """Leave it alone until then; another worker may have found out."""
        self.out_until, self.strikes = until, strikes
        self._passed = self._answered = 0
        self._came_early = False
        self._calls.clear()
        self._become(State.EJECTED, why)

    def share(self, slow_start_s: float, now: float) -> float:
        """The part of its cap that it may use: a tenth when it comes back, all of it `slow_start_s` later."""
        if self._on_trial:
            return 0.0  # one call shows whether it is well
        if self._ready_since is None or slow_start_s <= 0:
            return 1.0
        return min(1.0, 0.1 + 0.9 * (now - self._ready_since) / slow_start_s)

    def _well(self, now: float) -> None:
        match self.state:
            case State.NEW:
                self._become(State.READY, "")
                self._was_ready = True
            case State.WARMING | State.DOWN:
                self._back(now)
            case State.PROBING:
                self._passed += 1
                if self._passed >= PROBES:
                    self._back(now)
                    self._on_trial = True
            case State.READY | State.EJECTED:
                return

    def _loading(self) -> None:
        if self._was_ready:  # vLLM says so as well once its engine is dead
            self._become(State.DOWN, "its health says 503")
        else:
            self._become(State.WARMING, "it loads its model")

    def _back(self, now: float) -> None:
        self._was_ready = True
        self._ready_since = now
        self._become(State.READY, "")

    def _become(self, state: State, why: str) -> None:
        self.state, self.why = state, why


def _out_s(strikes: int) -> float:
    return min(LONGEST_OUT_S, FIRST_OUT_S * 2.0 ** (strikes - 1))
