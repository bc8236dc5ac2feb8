"""The lines of a batch's input: read as a stream, checked one at a time. What is wrong is said as OpenAI does."""

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from gateway import body
from gateway.body import InvalidRequestError
from router.payloads import PayloadLostError, Payloads

PIECE = 1024 * 1024
LONGEST_ID = 512  # characters of a custom_id
MOST_ERRORS = 100  # that a batch shows


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the input cannot be used."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def values(self) -> dict[str, object]:
        """As clients see it."""
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


class LineError(Exception):
    """What is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Request:
    """What a line asks for."""

    custom_id: str
    values: dict[str, object]


@dataclass(frozen=True, slots=True)
class Raw:
    """A line as it is in the input. One without text was longer than allowed. `end` is the offset behind it.

    `number` counts from where reading began, the first is 1.
    """

    text: bytes | None
    end: int
    number: int = 1


def parse(raw: Raw, *, endpoint: str, models: Collection[str] | None, longest: int) -> Request:
    """What the line asks for. `models` are those that it may name (None: any). Raises `LineError`."""
    if raw.text is None:
        raise LineError("invalid_json_line", f"This line is longer than {longest} bytes.")
    try:
        values = body.parse(raw.text)
    except InvalidRequestError as error:
        message = error.message.replace("The request body", "This line")
        raise LineError("invalid_json_line", message) from None
    custom_id = _custom_id(values)
    if values.get("method") is None:
        raise _missing("method")
    if values["method"] != "POST":
        raise LineError("invalid_method", "The method of this line must be POST.", "method")
    if values.get("url") is None:
        raise _missing("url")
    if values["url"] != endpoint:
        message = f"The URL of this line does not match the batch's endpoint, which is {endpoint}."
        raise LineError("url_mismatch", message, "url")
    asked = values.get("body")
    if asked is None:
        raise _missing("body")
    if type(asked) is not dict:
        raise LineError("invalid_type", "Invalid type for 'body': expected an object.", "body")
    model = asked.get("model")
    if model is None:
        raise _missing("body.model")
    if not isinstance(model, str) or (models is not None and model not in models):
        message = "There is no such model, or you have no access to it. GET /v1/models lists yours."
        raise LineError("model_not_found", message, "body.model")
    return Request(custom_id, asked)


class Validator:
    """Looks at one line after another. It holds a digest of each `custom_id`, and nothing else of the lines."""

    def __init__(self, *, endpoint: str, models: Collection[str], most_lines: int, longest: int) -> None:
        self.total = 0
        self.faults: list[Fault] = []
        self._endpoint = endpoint
        self._models = models
        self._most_lines = most_lines
        self._longest = longest
        self._seen: set[bytes] = set()

    @property
    def has_enough(self) -> bool:
        """Whether more lines would say nothing new."""
        return len(self.faults) >= MOST_ERRORS or self.total > self._most_lines

    def look(self, raw: Raw) -> None:
        """The next line."""
        self.total += 1
        if self.total > self._most_lines:
            self.faults = [Fault("too_many_tasks", f"The input file has more than {self._most_lines} requests.")]
            return
        try:
            request = parse(raw, endpoint=self._endpoint, models=self._models, longest=self._longest)
            digest = blake2b(request.custom_id.encode(), digest_size=16).digest()
            if digest in self._seen:
                message = "Another line has the same custom_id. It must be unique within a batch."
                raise LineError("duplicate_custom_id", message, "custom_id")
            self._seen.add(digest)
        except LineError as error:
            self.faults.append(Fault(error.code, error.message, raw.number, error.param))

    def end(self) -> None:
        """There are no more lines."""
        if self.total == 0:
            self.faults.append(Fault("empty_file", "The input file has no requests."))


class Input:
    """The lines of a file from an offset on. Of a file of any size it holds a piece and a line."""

    def __init__(self, payloads: Payloads, path: str, *, size: int, offset: int, longest: int) -> None:
        self.offset = offset  # of what was given out
        self._payloads = payloads
        self._path = path
        self._size = size
        self._longest = longest
        self._held, self._at = b"", 0
        self._fetched = offset
        self._number = 0

    async def take(self, *, lines: int, size: int) -> list[Raw]:
        """The next lines, at most so many, and no more once they have `size` bytes. None are left: an empty list.

        Empty lines are passed over. Raises `PayloadUnavailableError`, `PayloadLostError`; then make it anew.
        """
        taken: list[Raw] = []
        held = 0
        while len(taken) < lines and held < size and (raw := await self._next()) is not None:
            taken.append(raw)
            held += len(raw.text or b"")
        return taken

    async def all(self) -> AsyncIterator[Raw]:
        """All that are left."""
        while (raw := await self._next()) is not None:
            yield raw

    async def _next(self) -> Raw | None:
        while self.offset < self._size:
            found, passed_over = self._held.find(b"\n", self._at), 0
            while found < 0 and self._fetched < self._size:
                if len(self._held) - self._at > self._longest:
                    passed_over += len(self._held) - self._at
                    self._held, self._at = b"", 0
                rest = self._held[self._at :]
                self._held, self._at = rest + await self._piece(), 0
                found = self._held.find(b"\n", len(rest))
            end = found + 1 if found >= 0 else len(self._held)
            text, size = self._held[self._at : end].strip(), passed_over + end - self._at
            self._at = end
            self._number += 1
            self.offset += size
            if passed_over or len(text) > self._longest:
                return Raw(None, self.offset, self._number)
            if text:
                return Raw(text, self.offset, self._number)
        return None

    async def _piece(self) -> bytes:
        piece = await self._payloads.part(self._path, self._fetched, min(PIECE, self._size - self._fetched))
        if not piece:
            raise PayloadLostError("the file ends before its end")
        self._fetched += len(piece)
        return piece


def _custom_id(values: Mapping[str, object]) -> str:
    custom_id = values.get("custom_id")
    if custom_id is None:
        raise _missing("custom_id")
    if not (isinstance(custom_id, str) and 0 < len(custom_id) <= LONGEST_ID):
        message = f"Invalid 'custom_id': expected a string of 1 to {LONGEST_ID} characters."
        raise LineError("invalid_value", message, "custom_id")
    return custom_id


def _missing(param: str) -> LineError:
    return LineError("missing_required_parameter", f"Missing required parameter: '{param}'.", param)
