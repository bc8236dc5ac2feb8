"""The sums of one microbatch, for its record on the ledger."""

import json
from dataclasses import dataclass
from decimal import Decimal

from router import ledger


@dataclass(slots=True)
class Tally:
    """Counts what the attempts of a microbatch came to. `started` is on a steady clock, in seconds."""

    id: str
    deployment: str
    lane: str
    started: float
    jobs: int = 0
    attempts: int = 0
    retries: int = 0
    tokens: int = 0
    unpriced: int = 0
    usd: Decimal = Decimal(0)

    def add(self, *, tokens: int, usd: Decimal | None, concluded: bool, retried: bool) -> None:
        """One attempt was charged."""
        self.attempts += 1
        self.jobs += concluded
        self.retries += retried
        self.tokens += tokens
        if usd is None:
            self.unpriced += 1
        else:
            self.usd += usd

    def text(self, now: float) -> str:
        """The record: a JSON object. `usd` is null when anything in it has no price; `priced_usd` is the rest."""
        seconds = now - self.started
        return json.dumps(
            {
                "type": "microbatch",
                "id": self.id,
                "deployment": self.deployment,
                "lane": self.lane,
                "jobs": self.jobs,
                "attempts": self.attempts,
                "retries": self.retries,
                "tokens": self.tokens,
                "usd": None if self.unpriced else ledger.plain(self.usd),
                "priced_usd": ledger.plain(self.usd),
                "unpriced": self.unpriced,
                "seconds": round(seconds, 3),
                "items_per_minute": round(self.jobs * 60 / seconds, 1) if seconds > 0 else None,
            },
            separators=(",", ":"),
        )
