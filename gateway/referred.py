"""Items of earlier responses that a request names by their ids: put in place, as if the client had sent them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway import render
from gateway.body import InvalidRequestError
from gateway.reading import TooLargeError
from router.compact import encode
from router.conversations import Conversations, NoSuchResponseError, UnfinishedResponseError
from router.responses import REFERENCE, Object

MOST_RESPONSES = 500  # whose items one request names
_ITEM_ID = re.compile(r"(?:msg|fc|rs)_([0-9A-Z]{26})(?:_\d{1,4})?")  # of an answer's


@dataclass(frozen=True, slots=True)
class Referred:
    """With all that it puts in, a request has at most `most` bytes."""

    conversations: Conversations
    most: int

    async def put_in(
        self, tenant: str, values: Mapping[str, object], *, size: int, hold: Callable[[int], None]
    ) -> bool:
        """Whether any was named; the input of `values` is changed then. `size` is the request's.

        `hold` is told of the bytes that come in. Raises `InvalidRequestError`, `TooLargeError`,
        `PayloadUnavailableError`, `BoardUnavailableError`, and what `hold` does.
        """
        given = values.get("input")
        if not isinstance(given, list):
            return False
        items: list[Any] = given
        places = _places(items)
        if len(places) > MOST_RESPONSES:
            message = f"Invalid 'input': it names items of more than {MOST_RESPONSES} responses. Send the items."
            raise InvalidRequestError(message, "input", "too_many_references")
        for job_id, indices in places.items():
            answer = await self._answer(tenant, job_id, indices[0])
            for index in indices:
                if (item := answer.get(items[index]["id"])) is None:
                    raise _missing(index)
                grown = len(encode(item))
                size += grown
                if size > self.most:
                    raise TooLargeError(self.most)
                hold(grown)
                items[index] = item
        return bool(places)

    async def _answer(self, tenant: str, job_id: str, index: int) -> dict[str, Object]:
        try:
            items = await self.conversations.answer(tenant, job_id)
        except (NoSuchResponseError, UnfinishedResponseError):
            raise _missing(index) from None
        return {item["id"]: item for item in items}


def _places(items: list[Any]) -> dict[str, list[int]]:
    """By job, where its items are named. Raises `InvalidRequestError`."""
    places: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == REFERENCE:
            found = _ITEM_ID.fullmatch(str(item.get("id")))
            job_id = render.job_id(found[1]) if found else None
            if job_id is None:
                raise _missing(index)
            places.setdefault(job_id, []).append(index)
    return places


def _missing(index: int) -> InvalidRequestError:
    path = f"input[{index}].id"
    return InvalidRequestError(
        f"Invalid '{path}': no stored response has answered with this item. Its response may be deleted, past its "
        'time, not completed or made with "store": false. Send the item itself.',
        path,
        "item_not_found",
    )
