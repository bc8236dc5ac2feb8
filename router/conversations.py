"""What responses were asked, kept beside their jobs: for those that follow them, and to be shown again."""

import json
from dataclasses import dataclass
from typing import Any

from router import compact, envelope
from router.board import Board, JobView
from router.job import Job, JobState, Payload
from router.payloads import PayloadLostError, Payloads, input_path
from router.response_object import output_of, response
from router.responses import Object, UntranslatableError, items_of, to_chat

INLINE_INPUT = 64 * 1024
# What a response may follow:
MOST_ITEMS = 5_000
LARGEST = 32 * 1024 * 1024  # bytes


class NoSuchResponseError(Exception):
    """There is no such response to follow: unknown, another tenant's, past its time, or not stored."""


class UnfinishedResponseError(Exception):
    """The response to follow is not completed."""


class ConversationLostError(Exception):
    """What came before is not kept any more, and without it the request cannot be answered."""


class ConversationTooLongError(Exception):
    """The conversation has more items, or more bytes, than one may have."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A `Kept` as JSON, in its two parts."""

    asked: str
    items: str

    @property
    def text(self) -> str:
        """Both together."""
        return f'{{"asked":{self.asked},"items":{self.items}}}'


@dataclass(frozen=True, slots=True)
class Kept:
    """What a response was asked: its settings (`echo_of`), and all items that its model reads."""

    asked: Object
    items: list[Object]

    @property
    def packed(self) -> Packed:
        """As it is kept."""
        return Packed(compact.text(self.asked), compact.text(self.items))


def is_stored(asked: Object) -> bool:
    """Whether the client wants to see the response again."""
    return asked.get("store") is not False


class Conversations:
    """Keeps them on the board, large ones in the object store. Raises what those two raise."""

    def __init__(self, board: Board, payloads: Payloads) -> None:
        self._board = board
        self._payloads = payloads

    async def keep(self, job: Job, packed: Packed, *, ttl_s: float) -> None:
        """Keep it for as long, or until the job's result goes. Safe to repeat."""
        text, path = packed.text, ""
        if len(text) > INLINE_INPUT:
            path = input_path(job.tenant, job.id)
            await self._board.keep_input(job, "", ttl_s=ttl_s, path=path)  # swept up, should this process die now
            at = envelope.payload_text(await self._payloads.put(path, text.encode()))
            asked = packed.asked if len(packed.asked) <= INLINE_INPUT else "null"
            text = f'{{"asked":{asked},"at":{at}}}'  # so that who only looks need not read all of it
        await self._board.keep_input(job, text, ttl_s=ttl_s, path=path)

    async def kept(self, tenant: str, job_id: str) -> Kept | None:
        """What a response was asked; None when that is gone."""
        values = await self._on_board(tenant, job_id)
        if values is not None and "at" in values:
            values = json.loads(await self._payloads.get(Payload(**values["at"])))
        return None if values is None else Kept(values["asked"], values["items"])

    async def asked(self, tenant: str, job_id: str) -> Object:
        """Its settings alone; nothing when they are gone."""
        values = await self._on_board(tenant, job_id)
        return {} if values is None else await self._settings(values)

    async def answer(self, tenant: str, job_id: str) -> list[Object]:
        """The items that a response answered with. Raises `NoSuchResponseError`, `UnfinishedResponseError`."""
        view = await self._board.view(tenant, job_id)
        values = await self._on_board(tenant, job_id) if view else None
        if view is None or values is None or not is_stored(await self._settings(values)):
            raise NoSuchResponseError(job_id)
        if view.state is not JobState.COMPLETED:
            raise UnfinishedResponseError(job_id)
        return output_of(await self.completion(view), job_id)

    async def until(self, tenant: str, job_id: str) -> list[Object]:
        """All items up to the end of a response.

        Raises `NoSuchResponseError`, `UnfinishedResponseError`, `ConversationTooLongError`.
        """
        view = await self._board.view(tenant, job_id)
        values = await self._on_board(tenant, job_id) if view else None
        if values is not None and "at" in values and values["at"]["size"] > LARGEST:
            raise ConversationTooLongError
        kept = await self.kept(tenant, job_id) if values else None
        if view is None or kept is None or not is_stored(kept.asked):
            raise NoSuchResponseError(job_id)
        if view.state is not JobState.COMPLETED:
            raise UnfinishedResponseError(job_id)
        items = [*kept.items, *output_of(await self.completion(view), job_id)]
        if len(items) > MOST_ITEMS:
            raise ConversationTooLongError
        return items

    async def forget(self, tenant: str, job_id: str) -> None:
        """Remove what lies in the object store; the board lets go of its part with the job."""
        values = await self._on_board(tenant, job_id)
        if values is not None and "at" in values:
            await self._payloads.remove(values["at"]["path"])

    async def chat(self, job: Job) -> bytes:
        """The job's body as a chat request. Raises `ConversationLostError`, `UntranslatableError`."""
        try:
            values = json.loads(job.body)
            items = items_of(values, job.id)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise UntranslatableError("the body is no request of the Responses API") from error
        if values.get("previous_response_id"):
            kept = await self.kept(job.tenant, job.id)
            if kept is None:
                raise ConversationLostError(job.id)
            items = kept.items
        return compact.encode(to_chat(values, items))

    async def completion(self, view: JobView) -> dict[str, Any]:
        """The chat completion that answered it."""
        result = view.result if view.result_at is None else await self._payloads.get(view.result_at)
        if result is None:
            raise PayloadLostError("the board has no result")
        completion: dict[str, Any] = json.loads(result)
        return completion

    async def response(self, view: JobView, asked: Object | None = None) -> Object:
        """The Response as it is now."""
        if asked is None:
            asked = await self.asked(view.job.tenant, view.job.id)
        completion = await self.completion(view) if view.state is JobState.COMPLETED else None
        return response(view, asked, completion)

    async def _settings(self, values: dict[str, Any]) -> Object:
        if values["asked"] is None:
            values = json.loads(await self._payloads.get(Payload(**values["at"])))
        return dict(values["asked"])

    async def _on_board(self, tenant: str, job_id: str) -> dict[str, Any] | None:
        """Both parts, or where they lie."""
        text = await self._board.input(tenant, job_id)
        return json.loads(text) if text else None
