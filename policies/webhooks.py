"""Webhooks as Standard Webhooks defines them: who wants which event, how it is signed, how often it is tried."""

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256

PREFIX = "whsec_"
FEWEST_BYTES, MOST_BYTES = 24, 64
GIVE_UP_S = 86_400.0
LONGEST_ASKED_S = 4 * 3600.0  # of a Retry-After
# Seconds after each attempt; the last one repeats until GIVE_UP_S.
WAITS = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 4 * 3600.0)
GONE = 410

EVENTS = (
    *(f"job.{end}" for end in ("completed", "failed", "cancelled", "expired")),
    *(f"response.{end}" for end in ("completed", "failed", "cancelled", "incomplete")),
    *(f"batch.{end}" for end in ("completed", "failed", "expired", "cancelled")),
)

Secrets = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant wants events sent: those of its `events`, which are types or such as `batch.*`."""

    url: str
    events: tuple[str, ...]
    secrets: Secrets = field(repr=False)

    def wants(self, type: str) -> bool:
        """Whether this event is for it."""
        return any(fnmatchcase(type, pattern) for pattern in self.events)


@dataclass(frozen=True, slots=True)
class Again:
    """Try once more in `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It goes to the dead ones."""


def decoded(secret: str) -> bytes:
    """The key of a `whsec_...`. Raises ValueError, whose text does not show it."""
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not FEWEST_BYTES <= len(key) <= MOST_BYTES:
        raise ValueError(f"must be {PREFIX} and the base64 of {FEWEST_BYTES} to {MOST_BYTES} random bytes")
    return key


def headers(secrets: Secrets, id: str, at: int, body: bytes) -> dict[str, str]:
    """What a receiver checks: `at` is this attempt's second. One signature for each secret."""
    content = b".".join((id.encode(), str(at).encode(), body))
    signatures = [b64encode(hmac.digest(secret, content, sha256)).decode() for secret in secrets]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def after_failure(
    *, attempt: int, age_s: float, status: int | None, retry_after: float | None, jitter: float
) -> Again | GiveUp:
    """What follows the `attempt`-th one (from 1) of an event that is `age_s` old; `jitter` in [0, 1).

    A receiver that says it is gone gets no more. `retry_after` is what it asked for, in seconds.
    """
    if status == GONE:
        return GiveUp()
    wait = _wait(attempt, WAITS) * (1 + jitter / 5)
    if retry_after is not None:
        wait = max(wait, min(retry_after, LONGEST_ASKED_S))
    return GiveUp() if age_s + wait > GIVE_UP_S else Again(wait)


def _wait(attempt: int, waits: Sequence[float]) -> float:
    return waits[min(attempt, len(waits)) - 1]
