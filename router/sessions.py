"""Which session (a dialogue) a job belongs to, and where its earlier turns went: a tier never goes down within one.

It stays with its deployment as well, as its prompt cache is there.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

MOST = 20_000  # sessions that a process remembers; the longest unused goes
KEPT_S = 3600.0  # after the last turn
READ = 1024  # characters of its first turn
FIRST = 8  # messages that are looked at for it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session is. `until` is a moment on the clock of this process."""

    deployment: str
    is_heavy: bool
    until: float


class Sessions:
    """What this process knows of sessions, its own and those that others told it of."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._places: OrderedDict[tuple[str, str], Place] = OrderedDict()
        self._untold: dict[tuple[str, str], Place] = {}

    def copy(self) -> "Sessions":
        """As it is now."""
        copy = Sessions(most=self._most)
        copy._places = self._places.copy()
        return copy

    def find(self, tenant: str, session: str, now: float) -> Place | None:
        """Where the session is."""
        place = self._places.get((tenant, session))
        return place if place is not None and place.until > now else None

    def note(self, tenant: str, session: str, deployment: str, *, is_heavy: bool, now: float) -> None:
        """A turn of it goes there; others are to be told if that is new, or old enough to be forgotten soon."""
        key, place = (tenant, session), Place(deployment, is_heavy, now + KEPT_S)
        before = self._places.get(key)
        self._keep(key, place)
        is_known = (
            before is not None
            and (before.deployment, before.is_heavy) == (deployment, is_heavy)
            and before.until > now + KEPT_S / 2
        )
        if not is_known and len(self._untold) < self._most:
            self._untold[key] = place

    def told(self, tenant: str, session: str, deployment: str, *, is_heavy: bool, now: float) -> None:
        """Another process says where it is. Two that disagree agree on heavy."""
        before = self.find(tenant, session, now)
        if before is None or is_heavy or not before.is_heavy:
            self._keep((tenant, session), Place(deployment, is_heavy, now + KEPT_S))

    def untold(self) -> dict[str, dict[str, Place]]:
        """What others do not know yet, by tenant; it counts as told from now on."""
        found: dict[str, dict[str, Place]] = {}
        for (tenant, session), place in self._untold.items():
            found.setdefault(tenant, {})[session] = place
        self._untold.clear()
        return found

    def _keep(self, key: tuple[str, str], place: Place) -> None:
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > self._most:
            self._places.popitem(last=False)


def is_under_way(body: Mapping[str, object]) -> bool:
    """Whether it may have had an earlier turn."""
    messages = body.get("messages")
    if isinstance(body.get("prompt_cache_key"), str):
        return True
    return isinstance(messages, list) and any(
        isinstance(message, dict) and message.get("role") == "assistant" for message in islice(messages, FIRST)
    )


def session_of(body: Mapping[str, object]) -> str:
    """The session's name: from `prompt_cache_key`, else from how it began. Nothing of it can be read from that."""
    given = body.get("prompt_cache_key")
    if isinstance(given, str) and given:
        return _digest("key", given[:READ])
    messages = body.get("messages")
    began = []
    for message in islice(messages, FIRST) if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") in ("system", "developer", "user"):
            began.append(_text(message.get("content")))
            if message["role"] == "user":
                break
    return _digest("began", *began)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content[:READ]
    parts = content[:FIRST] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text[:READ] for text in texts if isinstance(text, str))


def _digest(*texts: str) -> str:
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
