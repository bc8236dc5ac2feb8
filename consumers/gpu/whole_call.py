"""One call to an OpenAI-compatible server whose answer comes whole."""

import asyncio
import time
from collections.abc import Mapping
from io import BytesIO

import aiohttp

from consumers import whole
from consumers.backend import Answer, BackendError
from consumers.gpu.wire import PausedError, base_of, read_most, unreachable
from consumers.refusals import Refusal, of_event, of_response
from policies.deployments import Deployment
from policies.pricing import Usage
from policies.retries import Failure
from router.job import JSON, Job

LARGEST_ANSWER = 64 * 1024 * 1024  # bytes
LARGEST_REFUSAL = 64 * 1024  # bytes of an error's body that are read
REFUSAL_S = 3.0  # in which they have to come


class WholeCall:
    """Sends a job and reads its answer, which begins when the work is done. Each of its times has its own failure."""

    def __init__(
        self, session: aiohttp.ClientSession, job: Job, deployment: Deployment, host: str | None = None
    ) -> None:
        self.is_sent = False
        self.first_token_s = None
        self._host = host  # whom the server's certificate is for, where its address does not say so
        self._session = session
        self._job = job
        self._deployment = deployment

    @property
    def spent(self) -> Usage:
        """What a call that ends now may be billed."""
        return self._job.estimate.owed if self.is_sent else Usage()

    async def run(self, headers: Mapping[str, str]) -> Answer:
        """The whole answer. Every failure of the backend's is a `BackendError`."""
        sent = whole.request(self._job, self._deployment)
        timeouts = self._deployment.timeouts
        try:
            async with asyncio.timeout(timeouts.total):
                response = await self._begun(sent, headers)
                try:
                    data = await self._read(response)
                finally:
                    response.release()  # before its end, this closes the connection
        except aiohttp.ConnectionTimeoutError as error:
            raise BackendError(
                Failure.UNAVAILABLE, f"no connection within {timeouts.connect:g} s", code="connect_timeout"
            ) from error
        except TimeoutError as error:
            raise self._late("total", timeouts.total) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _refused(unreachable(error)) from error
        return whole.answer(sent, self._job, self._deployment, data, response.content_type)

    async def _begun(self, sent: whole.Request, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        timeouts = self._deployment.timeouts
        limit = asyncio.timeout(timeouts.whole)
        try:
            async with limit:
                return await self._session.post(
                    base_of(self._deployment.url) + sent.path,
                    data=BytesIO(sent.body),  # bytes of more than a megabyte would be sent in one piece
                    headers={**headers, "content-type": sent.media_type},
                    timeout=aiohttp.ClientTimeout(total=None, connect=timeouts.connect),
                    allow_redirects=False,
                    server_hostname=self._host,
                    trace_request_ctx=self,
                )
        except TimeoutError as error:
            if not limit.expired():
                raise  # the connection's
            raise self._late("whole", timeouts.whole) from error

    def _late(self, name: str, seconds: float) -> BackendError:
        return BackendError(
            Failure.TIMED_OUT if self.is_sent else Failure.UNAVAILABLE,
            f"the backend did not answer in time ({name}: {seconds:g} s)",
            code=f"{name}_timeout",
            usage=self.spent,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != 200:
            try:
                async with asyncio.timeout(REFUSAL_S):
                    body = await read_most(response, LARGEST_REFUSAL)
            except (aiohttp.ClientError, OSError):  # too late counts as well: the status says enough
                body = b""
            raise _refused(of_response(response.status, response.headers, body, time.time()))
        if response.content_type == "text/html":
            raise BackendError(
                Failure.MISCONFIGURED, "the deployment's url leads to a web page, not to an API", code="not_an_api"
            )
        try:
            data = await read_most(response, LARGEST_ANSWER + 1, pause_s=self._deployment.timeouts.read)
        except PausedError as error:
            raise self._late("read", self._deployment.timeouts.read) from error
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(
                Failure.CUT, "the answer broke off", code="incomplete_answer", usage=self.spent
            ) from error
        if len(data) > LARGEST_ANSWER:
            raise BackendError(
                Failure.BACKEND_ERROR, "the backend's answer is too large", code="answer_too_large", usage=self.spent
            )
        if response.content_type == JSON and len(data) <= LARGEST_REFUSAL and data.lstrip().startswith(b"{"):
            refusal = of_event("", whole.parsed_answer(data))
            if refusal is not None:
                raise _refused(refusal)
        return data


def _refused(refusal: Refusal) -> BackendError:
    return BackendError(
        refusal.failure, refusal.detail, code=refusal.code, param=refusal.param, retry_after=refusal.retry_after
    )
