"""Items of earlier responses that a request names by their ids: put in place, as if the client had sent them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
        places = [index for index, item in enumerate(given) if isinstance(item, dict) and item.get("type") == REFERENCE]
        answers: dict[str, dict[str, Object]] = {}  # by response: most conversations name many items of few
        for index in places:
            item_id = str(given[index]["id"])
            path = f"input[{index}].id"
            found = _ITEM_ID.fullmatch(item_id)
            job_id = render.job_id(found[1]) if found else None
            if job_id is None:
                raise _missing(path)
            if job_id not in answers:
                if len(answers) == MOST_RESPONSES:
                    message = (
                        f"Invalid 'input': it names items of more than {MOST_RESPONSES} responses. Send the items."
                    )
                    raise InvalidRequestError(message, "input", "too_many_references")
                answers[job_id] = await self._answer(tenant, job_id, path)
            if (item := answers[job_id].get(item_id)) is None:
                raise _missing(path)
            grown = len(encode(item))
            size += grown
            if size > self.most:
                raise TooLargeError(self.most)
            hold(grown)
            given[index] = item
        return bool(places)

    async def _answer(self, tenant: str, job_id: str, path: str) -> dict[str, Object]:
        try:
            items = await self.conversations.answer(tenant, job_id)
        except (NoSuchResponseError, UnfinishedResponseError):
            raise _missing(path) from None
        return {item["id"]: item for item in items}


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Invalid '{path}': no stored response has answered with this item. Its response may be deleted, past its "
        'time, not completed or made with "store": false. Send the item itself.',
        path,
        "item_not_found",
    )
