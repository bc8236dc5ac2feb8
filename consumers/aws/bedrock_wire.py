"""The HTTP of one call to Bedrock, in the place of litellm's own: one request, never repeated, and everything seen.

litellm hides errors behind classes of its own, drops what it does not know, and sends a request again when a connection
was closed under it.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx

from consumers.aws.bedrock_events import LONGEST_TIER, Events, Fault
from consumers.aws.litellm_library import AsyncHTTPHandler
from consumers.gpu.wire import next_piece, read_most, unreachable
from consumers.refusals import Refusal, retry_after
from policies.deployments import Timeouts
from policies.retries import Failure

LARGEST_ANSWER = 64 * 1024 * 1024  # bytes
LARGEST_REFUSAL = 64 * 1024  # bytes of an error's body that are read
SERVED = "x-amzn-bedrock-service-tier"
LONGEST_NAME = 100  # characters of a code


class Wire(AsyncHTTPHandler):  # type: ignore[misc]
    """`fault` is Bedrock's own error, `refusal` why there is none and no answer either. Closed by whoever made it.

    `served` is the tier that did it, where that is a header; a stream's is in its events. `when_asked` is called when
    litellm is done with the request, and nothing of it was sent yet.
    """

    def __init__(self, session: aiohttp.ClientSession, timeouts: Timeouts) -> None:
        self._client = None  # litellm's; there is none
        self._owns_client = False
        self._session = session
        self._timeouts = timeouts
        self._response: aiohttp.ClientResponse | None = None
        self.events = Events()
        self.when_asked: Callable[[], None] | None = None
        self.is_asked = False
        self.is_sent = False
        self.status: int | None = None
        self.retry_after: float | None = None
        self.served = ""
        self.fault: Fault | None = None
        self.refusal: Refusal | None = None

    async def post(
        self,
        url: str,
        data: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        **_: Any,
    ) -> httpx.Response:
        """Send it. Raises httpx' errors, as litellm expects; what was wrong is then found here."""
        request = httpx.Request("POST", url)
        self.is_asked = True
        if self.when_asked is not None:
            self.when_asked()
        try:
            self._response = response = await self._session.post(
                url,
                data=data.encode() if isinstance(data, str) else data,
                headers={**(headers or {}), "accept-encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect),
                allow_redirects=False,
                trace_request_ctx=self,
            )
            self.status = response.status
            if response.status != 200:
                body = await read_most(response, LARGEST_REFUSAL)
                self.fault = _fault(response, body)
                self.retry_after = retry_after(response.headers, time.time())
                answer = httpx.Response(response.status, content=body, request=request)
                raise httpx.HTTPStatusError("refused", request=request, response=answer)
            if stream:
                return httpx.Response(200, headers=_kind(response), stream=_Stream(self, response), request=request)
            body = await read_most(response, LARGEST_ANSWER + 1)
            if len(body) > LARGEST_ANSWER:
                raise self.too_large()
            self.events.feed_whole(body)
            self.served = response.headers.get(SERVED, "")[:LONGEST_TIER]
            return httpx.Response(200, headers=_kind(response), content=body, request=request)
        except aiohttp.ConnectionTimeoutError as error:
            self.refusal = Refusal(
                Failure.UNAVAILABLE, f"no connection within {self._timeouts.connect:g} s", "connect_timeout"
            )
            raise httpx.ConnectTimeout("no connection", request=request) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.refusal = self.refusal or unreachable(error)
            raise httpx.ConnectError("no answer", request=request) from error

    def too_large(self) -> ValueError:
        """Nothing more of it is read."""
        self.refusal = Refusal(Failure.BACKEND_ERROR, "Bedrock's answer is too large", "answer_too_large")
        return ValueError("too large")

    def close(self) -> None:
        """Hang up, unless the answer was read to its end. Safe to repeat."""
        if self._response is not None:
            self._response.close() if not self._response.content.is_eof() else self._response.release()


class _Stream(httpx.AsyncByteStream):
    """The bytes as they come; the events are read on their way."""

    def __init__(self, wire: Wire, response: aiohttp.ClientResponse) -> None:
        self._wire = wire
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        while piece := await next_piece(self._response.content):  # what has come shows whether the answer is whole
            size += len(piece)
            if size > LARGEST_ANSWER:
                raise self._wire.too_large()
            self._wire.events.feed(piece)
            yield piece

    async def aclose(self) -> None:
        self._wire.close()


def tracing() -> aiohttp.TraceConfig:
    """For the session, so that each wire knows whether its call was sent."""
    config = aiohttp.TraceConfig()
    config.on_request_headers_sent.append(_note_sent)
    return config


async def _note_sent(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestHeadersSentParams
) -> None:
    context.trace_request_ctx.is_sent = True


def _fault(response: aiohttp.ClientResponse, body: bytes) -> Fault:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = {}
    told = value if isinstance(value, dict) else {}
    code = response.headers.get("x-amzn-errortype") or told.get("__type") or told.get("code") or ""
    message = told.get("message") or told.get("Message") or ""
    name = str(code).partition(":")[0].rpartition("#")[2]
    return Fault(name[:LONGEST_NAME] or f"status_{response.status}", message if isinstance(message, str) else "")


def _kind(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: response.headers[name] for name in ("content-type", "x-amzn-requestid") if name in response.headers}
