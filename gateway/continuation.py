"""A stream whose first attempt broke off goes on where a second one says the same, and else breaks. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from router.board import Chunk


class StreamBrokenError(Exception):
    """What was already sent is not how the later attempt begins; the client must ask again."""


class Continuation:
    """Turns the pieces of several attempts into one stream.

    Until a second attempt begins, pieces pass as they are. From then on what repeats is held back, and only what
    comes after it passes. Only plain text is followed: other kinds of pieces in the first attempt break the stream.
    """

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._passed: list[bytes] = []
        self._sent: dict[int, str] = {}
        self._again: dict[int, str] = {}

    def pass_on(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """What the client is to get of these. Raises `StreamBrokenError`."""
        return [piece for chunk in chunks for piece in self._one(chunk)]

    def end(self) -> None:
        """The answer is whole. Raises `StreamBrokenError` when less came again than was sent before."""
        if any(len(self._again.get(index, "")) < len(text) for index, text in self._sent.items()):
            raise StreamBrokenError

    def _one(self, chunk: Chunk) -> Iterator[bytes]:
        if self._attempt is None:
            self._attempt = chunk.attempt
        if chunk.attempt < self._attempt:
            return  # a late piece of an attempt that is over
        if chunk.attempt > self._attempt:
            self._begin_again(chunk.attempt)
        if not self._sent:
            self._passed.append(chunk.data)
            yield chunk.data
            return
        piece = self._rest(json.loads(chunk.data))
        if piece is not None:
            yield json.dumps(piece, ensure_ascii=False, separators=(",", ":")).encode()

    def _begin_again(self, attempt: int) -> None:
        if not self._sent:
            self._sent = _texts(self._passed)
            self._passed = []
        else:
            self._sent = {index: max(text, self._again.get(index, ""), key=len) for index, text in self._sent.items()}
        self._attempt = attempt
        self._again = {}

    def _rest(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The chunk without what the client has; None when nothing is left of it."""
        choices = [rest for choice in chunk.get("choices", []) if (rest := self._rest_of(choice)) is not None]
        if not choices and chunk.get("choices"):
            return None
        return {**chunk, "choices": choices}

    def _rest_of(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        index, delta = choice.get("index", 0), choice.get("delta") or {}
        sent, before = self._sent.get(index, ""), self._again.get(index, "")
        text = delta.get("content") or ""
        now = before + text
        self._again[index] = now
        if not (sent.startswith(now) or now.startswith(sent)):
            raise StreamBrokenError
        rest = {name: value for name, value in delta.items() if value and name not in ("role", "content")}
        is_end = choice.get("finish_reason") is not None
        if (rest or is_end) and len(now) < len(sent):
            raise StreamBrokenError
        if new := now[max(len(sent), len(before)) :]:
            rest["content"] = new
        return {**choice, "delta": rest} if rest or is_end else None


def _texts(pieces: Sequence[bytes]) -> dict[int, str]:
    """The text of each choice so far. Raises `StreamBrokenError` for what is more than text."""
    texts: dict[int, str] = defaultdict(str)
    for piece in pieces:
        for choice in json.loads(piece).get("choices", []):
            delta = choice.get("delta") or {}
            if choice.get("finish_reason") is not None or any(
                delta.get(name) for name in delta if name not in ("role", "content")
            ):
                raise StreamBrokenError
            texts[choice.get("index", 0)] += delta.get("content") or ""
    return dict(texts) or {0: ""}
