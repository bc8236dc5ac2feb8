"""What Bedrock's event stream says that litellm's chunks do not: usage as it counts, the tier that served, errors.

The frames are read by botocore's own parser, beside litellm, which turns them into OpenAI's chunks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.eventstream import EventStreamBuffer, ParserError

from policies.pricing import Usage

MALFORMED = frozenset({"malformed_model_output", "malformed_tool_use"})


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in the stream: the provider's code and its words."""

    code: str
    message: str


class Events:
    """Takes the bytes of one stream as they come."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self.usage: Usage | None = None
        self.fault: Fault | None = None
        self._buffer = EventStreamBuffer()

    def feed(self, data: bytes) -> None:
        """Read what is whole. Raises ValueError for what is no event stream."""
        try:
            self._buffer.add_data(data)
            for event in self._buffer:
                found = event.to_response_dict()
                self._take(found["headers"], found["body"])
        except ParserError as error:
            raise ValueError("not an event stream") from error

    def feed_whole(self, body: bytes) -> None:
        """An answer that came in one piece: litellm asks so where it makes a tool of a schema."""
        answer = _object(body)
        reason = answer.get("stopReason")
        self.stop_reason = reason if isinstance(reason, str) else None
        self.usage = used(answer)

    def _take(self, headers: Mapping[str, Any], body: bytes) -> None:
        kind = headers.get(":message-type")
        if kind == "event":
            match headers.get(":event-type"):
                case "messageStop":
                    reason = _object(body).get("stopReason")
                    self.stop_reason = reason if isinstance(reason, str) else None
                case "metadata":
                    self.usage = used(_object(body))
                case str() as name if name.endswith("Exception"):
                    self.fault = _fault(name, body)
        elif kind in ("exception", "error"):
            name = headers.get(":exception-type") or headers.get(":error-code") or "InternalServerException"
            self.fault = _fault(str(name), body)


def used(metadata: Mapping[str, Any]) -> Usage | None:
    """Bedrock's usage in our terms; None where it cannot be true. Its `inputTokens` are those that were not cached.

    What is written to a cache for an hour is in `cacheDetails`, and in the sum of all that is written.
    """
    usage = metadata.get("usage")
    if not isinstance(usage, Mapping):
        return None
    read = {name: usage.get(name, 0) for name in _COUNTS}
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in read.values()):
        return None
    written, hour = read["cacheWriteInputTokens"], _written_for_an_hour(usage.get("cacheDetails"))
    hour = min(hour, written)
    tier = metadata.get("serviceTier")
    served = tier.get("type") if isinstance(tier, Mapping) else None
    return Usage(
        input=read["inputTokens"],
        cache_read=read["cacheReadInputTokens"],
        cache_write=written - hour,
        cache_write_1h=hour,
        output=read["outputTokens"],
        tier=served if isinstance(served, str) and len(served) <= LONGEST_TIER else "",
    )


_COUNTS = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")
LONGEST_TIER = 20  # characters


def _written_for_an_hour(details: object) -> int:
    counts = [
        each.get("inputTokens")
        for each in (details if isinstance(details, list) else [])
        if isinstance(each, Mapping) and each.get("ttl") == "1h"
    ]
    return sum(count for count in counts if isinstance(count, int) and count > 0)


def _fault(name: str, body: bytes) -> Fault:
    message = _object(body).get("message")
    return Fault(name[:1].upper() + name[1:], message if isinstance(message, str) else "")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
