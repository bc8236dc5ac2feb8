"""A Response as the events of its stream, out of the chunks of a chat completion. Pure.

The same chunks give the same events under the same numbers, so that a stream can be taken up again anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router.response_object import call_item, message_item, reasoning_item, text_part, tokens_of
from router.responses import Object

# By the type of a content part: where its text is.
_TEXTS: Mapping[str, str] = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
_ENDINGS = {"completed": "response.completed", "incomplete": "response.incomplete"}


@dataclass(slots=True)
class ResponseEvents:
    """Tells one Response from its start. `add` takes chunks in their order, `end` the Response as it ended."""

    job_id: str
    _next: int = 0
    _begun: dict[str, int] = field(default_factory=dict)  # the place of each item in the output
    _parts: dict[tuple[str, str], int] = field(default_factory=dict)  # and of each part in its item
    _calls: dict[object, int] = field(default_factory=dict)  # and of each call among the calls, by what its pieces name

    @property
    def told(self) -> int:
        """How many events there were."""
        return self._next

    def begin(self, response: Object) -> Iterator[Object]:
        """Before anything of the answer is there; `response` is as it was when it was made."""
        yield self._event("response.created", response=response)
        if response["background"]:
            yield self._event("response.queued", response=response)

    def run(self, response: Object) -> Iterator[Object]:
        """It is being worked on."""
        yield self._event("response.in_progress", response=response)

    def add(self, chunk: Mapping[str, Any]) -> Iterator[Object]:
        """What a chunk says."""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if thought:
                yield from self._text("reasoning_text", thought, [])
            if delta.get("content"):
                yield from self._text("output_text", delta["content"], tokens_of(choice.get("logprobs")))
            if delta.get("refusal"):
                yield from self._text("refusal", delta["refusal"], [])
            for call in delta.get("tool_calls") or ():
                yield from self._call(call)

    def end(self, response: Object) -> Iterator[Object]:
        """What of its output was not told yet, the end of each item, and its end. `response` is as it is now."""
        output = {item["id"]: item for item in response["output"]}
        for item_id, item in output.items():
            yield from self._catch_up(item_id, item)
        for item_id in self._begun:
            if item_id in output:
                yield from self._close(output[item_id])
        yield self._event(_ENDINGS.get(response["status"], "response.failed"), response=self._in_order(response))

    def close(self, response: Object, *, after: int) -> Iterator[Object]:
        """Only the closing events, numbered from there on: for whoever had the rest, of which the pieces are gone."""
        for item in response["output"]:
            self._begun[item["id"]] = len(self._begun)
        self._next = after + 1
        yield from self.end(response)

    def fail(self, code: str | None, message: str) -> Object:
        """The stream cannot go on; the Response may."""
        return self._event("error", code=code, message=message, param=None)

    def _in_order(self, response: Object) -> Object:
        """With its output in the order in which the stream told it."""
        return {**response, "output": sorted(response["output"], key=lambda item: self._begun[item["id"]])}

    def _event(self, kind: str, **fields: object) -> Object:
        event = {"type": kind, "sequence_number": self._next, **fields}
        self._next += 1
        return event

    def _text(self, kind: str, text: str, logprobs: Sequence[Object]) -> Iterator[Object]:
        item = reasoning_item(self.job_id) if kind == "reasoning_text" else message_item(self.job_id)
        yield from self._begin(item)
        yield from self._begin_part(item["id"], kind)
        more = {"logprobs": list(logprobs)} if kind == "output_text" else {}
        yield self._event(f"response.{kind}.delta", **self._at(item["id"], kind), delta=text, **more)

    def _call(self, call: Mapping[str, Any]) -> Iterator[Object]:
        function = call.get("function") or {}
        named = call.get("index", call.get("id") or len(self._calls) - 1)
        item = call_item(
            self.job_id,
            self._calls.setdefault(named, len(self._calls)),
            call_id=call.get("id") or "",
            name=function.get("name") or "",
        )
        yield from self._begin(item)
        if function.get("arguments"):
            place = self._place(item["id"])
            yield self._event("response.function_call_arguments.delta", **place, delta=function["arguments"])

    def _begin(self, item: Object) -> Iterator[Object]:
        if item["id"] not in self._begun:
            self._begun[item["id"]] = len(self._begun)
            yield self._event("response.output_item.added", output_index=self._begun[item["id"]], item=item)

    def _begin_part(self, item_id: str, kind: str) -> Iterator[Object]:
        if (item_id, kind) not in self._parts:
            self._parts[item_id, kind] = sum(other == item_id for other, _ in self._parts)
            yield self._event("response.content_part.added", **self._at(item_id, kind), part=_part(kind, ""))

    def _place(self, item_id: str) -> Object:
        return {"item_id": item_id, "output_index": self._begun[item_id]}

    def _at(self, item_id: str, kind: str) -> Object:
        return {**self._place(item_id), "content_index": self._parts[item_id, kind]}

    def _catch_up(self, item_id: str, item: Object) -> Iterator[Object]:
        """An item, or a part of one, of which no piece came: all of it in one."""
        if item["type"] == "function_call":
            if item_id not in self._begun:
                yield from self._begin({**item, "arguments": "", "status": "in_progress"})
                if item["arguments"]:
                    place = self._place(item_id)
                    yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            return
        if item_id not in self._begun:
            for part in item["content"]:
                yield from self._text(part["type"], part[_TEXTS[part["type"]]], part.get("logprobs") or [])

    def _close(self, item: Object) -> Iterator[Object]:
        place = self._place(item["id"])
        if item["type"] == "function_call":
            said = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **place, **said)
        else:
            for index, part in enumerate(item["content"]):
                name = _TEXTS[part["type"]]
                more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
                at = {**place, "content_index": self._parts.get((item["id"], part["type"]), index)}
                yield self._event(f"response.{part['type']}.done", **at, **{name: part[name]}, **more)
                yield self._event("response.content_part.done", **at, part=part)
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)


def _part(kind: str, text: str) -> Object:
    if kind == "output_text":
        return text_part(text, [])
    return {"type": kind, _TEXTS[kind]: text}
