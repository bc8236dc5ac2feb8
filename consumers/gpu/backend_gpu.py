"""The backend for self-hosted servers: anything that speaks OpenAI's API, called directly."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import aiohttp

from consumers.backend import Answer, BackendError, OnChunk, SoFar
from consumers.gathered import Gathered, MalformedChunkError, Object, as_chunk
from consumers.gpu.discovery import discovery
from consumers.gpu.fleet import Replicas
from consumers.gpu.fleet_meters import FleetMeters
from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.members import Place
from consumers.gpu.places import Places
from consumers.gpu.whole_call import WholeCall
from consumers.gpu.wire import base_of, next_piece, read_most, unreachable
from consumers.refusals import Refusal, of_event, of_response
from consumers.sse import Event, Events, EventTooLargeError
from consumers.upstream import Upstream, upstream
from policies.deployments import Deployment
from policies.fleets import Fleet
from policies.pricing import Usage
from policies.retries import Failure
from policies.scripts import BoardUnavailableError
from router.job import Job

CHAT = "/v1/chat/completions"
LARGEST_ANSWER = 32 * 1024 * 1024  # bytes of a response
LARGEST_EVENT = 1024 * 1024  # bytes
LARGEST_REFUSAL = 64 * 1024  # bytes of an error's body that are read
LARGEST_LISTING = 1024 * 1024  # bytes of a list of models that are read
TAIL_S = 3.0  # how long usage may come after the last finish reason
DONE_S = 0.5  # how long [DONE] may come after both: it says nothing new
CLOSE_S = 0.05  # how long the end of the response may come after [DONE]
PING_S = 5.0
KEEP_ALIVE_S = 3.0  # vLLM closes idle connections after 5 s; ours are dropped before that can happen under a call
DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # made once: making one takes longer than a chunk


class GpuBackend:
    """Calls OpenAI-compatible servers: vLLM, SGLang, llama.cpp, Ollama, and hosted ones, at the job's endpoint.

    A chat it always streams from upstream, because only a stream can be cancelled. A server that does not stream
    must answer within `first_token`. An error that `on_chunk` raises closes the upstream call and is
    passed on as it is.
    """

    def __init__(self, session: aiohttp.ClientSession, secrets: Mapping[str, str | None]) -> None:
        self.replicas: dict[str, Replicas] = {}
        self._session = session
        self._secrets = secrets

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        secrets: Mapping[str, str | None],
        *,
        places: Places | None = None,
        deployments: Iterable[Deployment] = (),
        meters: FleetMeters | None = None,
        bills: MachineBills | None = None,
        connections: int = 1000,
        reuse: bool = False,
    ) -> AsyncGenerator["GpuBackend", None]:
        """One for a process. `secrets` are API keys by deployment; calls beyond `connections` wait to connect.

        Those of `deployments` that have replicas are looked after, with the `places` that all workers share, and their
        machines' time is billed.

        Each call has a connection of its own: llama.cpp promises to keep one alive and closes it after
        every stream, under the call that comes next. `reuse` saves the handshake where a server is known to behave.
        """
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        # aiohttp repeats a failed request by itself only for idempotent methods, which POST is not.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, force_close=not reuse, keepalive_timeout=KEEP_ALIVE_S if reuse else None
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept-encoding": "identity", "user-agent": "pointsman"},
            trace_configs=[trace],
        ) as session:
            backend = cls(session, secrets)
            async with AsyncExitStack() as opened:
                for each in deployments:
                    if each.fleet is not None and places is not None:
                        headers = backend._headers(each)
                        ours = Replicas(each, each.fleet, places, session, headers, meters=meters, bills=bills)
                        backend.replicas[each.name] = await opened.enter_async_context(ours.running())
                yield backend

    def room(self, deployment: str, begun: int) -> int | None:
        """See the port."""
        found = self.replicas.get(deployment)
        return None if found is None else found.room(begun)

    def is_away(self, deployment: str) -> bool:
        """See the port."""
        found = self.replicas.get(deployment)
        return found is not None and found.is_away

    def welcomes(self, job: Job) -> bool:
        """See the port."""
        found = self.replicas.get(job.route.deployment)
        return found is None or found.welcomes(job)

    def warming(self) -> Sequence[str]:
        """See the port."""
        return [name for name, replicas in self.replicas.items() if replicas.is_warming]

    async def take_place(self, job: Job, deployment: Deployment, *, attempt: int) -> bool:
        """See the port."""
        found = self.replicas.get(deployment.name)
        return found is None or await found.take(job, attempt) is not None

    def leave_place(self, job: Job, deployment: Deployment, *, attempt: int) -> None:
        """See the port."""
        if (found := self.replicas.get(deployment.name)) is not None:
            found.drop(job, attempt)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        """See the port."""
        replicas = self.replicas.get(deployment.name)
        if replicas is None:
            return await self._exchange(job, deployment, attempt, on_chunk, so_far)
        place = await _placed(replicas, job, attempt)
        there, began = replace(deployment, url=place.replica.url), time.monotonic()
        try:
            answer = await self._exchange(
                job, there, attempt, on_chunk, so_far, host=place.replica.host, begins=lambda: replicas.begins(place)
            )
        except BackendError as error:
            replicas.failed(place, error)
            raise
        finally:
            replicas.leave(place, tokens=so_far.usage.total)
        replicas.succeeded(place, so_far, time.monotonic() - began)
        return answer

    async def _exchange(
        self,
        job: Job,
        deployment: Deployment,
        attempt: int,
        on_chunk: OnChunk | None,
        so_far: SoFar,
        *,
        host: str | None = None,
        begins: Callable[[], None] = lambda: None,
    ) -> Answer:
        headers = {**self._headers(deployment), "x-request-id": f"{job.id}.{attempt}"}
        if job.traceparent is not None:
            headers["traceparent"] = job.traceparent
        exchange = (
            self._chat(job, deployment, on_chunk, host, begins)
            if job.endpoint == CHAT
            else WholeCall(self._session, job, deployment, host)
        )
        try:
            answer = await exchange.run(headers)
        except BackendError as error:
            so_far.usage = error.usage
            raise
        except BaseException:  # cancelled, or on_chunk failed: what was used by then is owed all the same
            so_far.usage = exchange.spent
            raise
        so_far.usage, so_far.first_token_s = answer.usage, exchange.first_token_s
        return answer

    def _chat(
        self, job: Job, deployment: Deployment, on_chunk: OnChunk | None, host: str | None, begins: Callable[[], None]
    ) -> "_Exchange":
        asked = upstream(job.body, deployment)
        gathered = Gathered(
            job.id,
            deployment.name,
            choices=asked.choices,
            input_estimate=job.estimate.input_tokens,
            created=int(time.time()),
        )
        return _Exchange(self._session, deployment, asked, gathered, on_chunk, host, begins)

    async def ping(self, deployment: Deployment) -> str | None:
        """See the port. At most five seconds. Of its replicas one must answer."""
        if deployment.fleet is not None:
            return await self._ping_fleet(deployment, deployment.fleet)
        return await self._ping_one(deployment)

    async def _ping_fleet(self, deployment: Deployment, fleet: Fleet) -> str | None:
        faults = []
        for replica in await discovery(fleet).find(0.0):
            fault = await self._ping_one(replace(deployment, url=replica.url))
            if fault is None:
                return None
            faults.append(fault)
        return faults[0] if faults else f"{deployment.name}: it has no replicas now. Where are they to be found?"

    async def _ping_one(self, deployment: Deployment) -> str | None:
        try:
            async with asyncio.timeout(PING_S):
                return await self._ping(deployment)
        except TimeoutError:
            return f"{deployment.name}: no answer within {PING_S:g} s. Is its url right, and has the server started?"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{deployment.name}: {unreachable(error).detail}"

    async def _ping(self, deployment: Deployment) -> str | None:
        base, headers = base_of(deployment.url), self._headers(deployment)
        root = re.sub(r"/v\d+$", "", base)
        async with self._session.get(f"{root}/health", headers=headers, allow_redirects=False) as health:
            if health.status >= 500:  # hosted servers have no such path, which says nothing
                return f"{deployment.name}: /health says {health.status}. Is the model still loading?"
        async with self._session.get(f"{base}/models", headers=headers, allow_redirects=False) as models:
            if models.status in (401, 403):
                return f"{deployment.name}: its key is refused (status {models.status}). Set the deployment's key."
            if models.status != 200:
                return f"{deployment.name}: /models says {models.status}. Does its url point at an OpenAI API?"
            listing = _parsed(await read_most(models, LARGEST_LISTING))
        return _not_listed(deployment, listing)

    def _headers(self, deployment: Deployment) -> dict[str, str]:
        key = self._secrets.get(deployment.name)
        return {"authorization": f"Bearer {key}"} if key else {}


class _Exchange:
    """One call: what is sent, what has come, and until when more must come."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        deployment: Deployment,
        asked: Upstream,
        gathered: Gathered,
        on_chunk: OnChunk | None,
        host: str | None,
        begins: Callable[[], None],
    ) -> None:
        self.is_sent = False
        self.first_token_s: float | None = None
        self._begins = begins
        self._host = host  # whom the server's certificate is for, where its address does not say so
        self._session = session
        self._deployment = deployment
        self._timeouts = deployment.timeouts
        self._asked = asked
        self._gathered = gathered
        self._on_chunk = on_chunk
        self._clock = asyncio.get_running_loop().time
        self._started = self._last = self._clock()
        self._skipped = 0

    @property
    def spent(self) -> Usage:
        """What a call that ends now has used."""
        return self._gathered.usage if self.is_sent else Usage()

    async def run(self, headers: Mapping[str, str]) -> Answer:
        """The whole answer within the total time. Every failure of the backend's is a `BackendError`."""
        try:
            async with asyncio.timeout_at(self._started + self._timeouts.total) as total:
                return await self._answer(headers)
        except TimeoutError as error:
            if not total.expired():
                raise  # on_chunk's own
            if self._gathered.is_whole:
                return self._whole()
            raise self._late("total", self._timeouts.total) from error
        except RecursionError as error:
            raise self._failed(
                Failure.BACKEND_ERROR, "the backend's answer is nested too deeply", code="answer_too_deep"
            ) from error

    async def _answer(self, headers: Mapping[str, str]) -> Answer:
        response = await self._send(headers)
        try:
            if response.status != 200:
                raise self._refused(await self._refusal(response))
            await self._receive(response)
        finally:
            response.release()  # before its end, this closes the connection
        if not self._gathered.is_whole:
            raise self._failed(
                Failure.CUT, f"the answer broke off ({self._skipped} malformed events)", code="incomplete_answer"
            )
        if self._on_chunk is not None and self._asked.wants_usage:
            await self._on_chunk(self._gathered.usage_chunk())
        return self._whole()

    async def _send(self, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout_at(self._started + self._timeouts.first_token):
                return await self._session.post(
                    f"{base_of(self._deployment.url)}/chat/completions",
                    data=BytesIO(self._asked.body),  # bytes of more than a megabyte would be sent in one piece
                    headers={**headers, "content-type": "application/json"},
                    timeout=aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect),
                    allow_redirects=False,
                    server_hostname=self._host,
                    trace_request_ctx=self,
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise self._failed(
                Failure.UNAVAILABLE, f"no connection within {self._timeouts.connect:g} s", code="connect_timeout"
            ) from error
        except TimeoutError as error:
            raise self._late("first_token", self._timeouts.first_token) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._refused(unreachable(error)) from error

    async def _receive(self, response: aiohttp.ClientResponse) -> None:
        if response.content_type == "text/html":
            raise self._failed(
                Failure.MISCONFIGURED, "the deployment's url leads to a web page, not to an API", code="not_an_api"
            )
        try:
            if response.content_type == "application/json":
                await self._receive_whole(response.content)
            else:
                await self._receive_events(response.content)
        except EventTooLargeError as error:
            raise self._too_large() from error
        if self._gathered.is_done and not response.content.is_eof():
            await _wait_for_end(response.content)

    async def _receive_events(self, content: aiohttp.StreamReader) -> None:
        events, size = Events(LARGEST_EVENT), 0
        while not self._gathered.is_done:
            piece = await self._piece(content)
            size += len(piece)
            if size > LARGEST_ANSWER:
                raise self._too_large()
            for event in events.feed(piece) if piece else events.end():
                await self._take(event)
            if not piece:
                return

    async def _receive_whole(self, content: aiohttp.StreamReader) -> None:
        """From a server that does not stream."""
        body = bytearray()
        while piece := await self._piece(content):
            body += piece
            if len(body) > LARGEST_ANSWER:
                raise self._too_large()
        answer = _parsed(bytes(body))
        try:
            await self._take_chunk("", as_chunk(answer) if "choices" in answer else answer)
        except MalformedChunkError:
            self._skipped += 1

    async def _piece(self, content: aiohttp.StreamReader) -> bytes:
        """As `next_piece`, in bounded time. What has come by the end shows whether the answer is whole."""
        name, seconds, since = self._awaited()
        try:
            async with asyncio.timeout_at(since + seconds):
                return await next_piece(content)
        except TimeoutError as error:
            if self._gathered.is_whole:
                return b""
            raise self._late(name, seconds) from error

    def _awaited(self) -> tuple[str, float, float]:
        """Which deadline is running: its name, its seconds, and since when."""
        if self._gathered.is_finished:
            tail = DONE_S if self._gathered.has_usage else TAIL_S
            return "read", min(tail, self._timeouts.read), self._last
        if self._gathered.has_begun:
            return "read", self._timeouts.read, self._last
        return "first_token", self._timeouts.first_token, self._started

    async def _take(self, event: Event) -> None:
        if event.data.strip() == b"[DONE]":
            self._gathered.is_done = True
            return
        chunk = _parsed(event.data)
        try:
            if not chunk:
                raise MalformedChunkError("not a JSON object")
            await self._take_chunk(event.name, chunk)
        except MalformedChunkError:
            self._skipped += 1  # the rest shows whether the answer is whole

    async def _take_chunk(self, name: str, chunk: Object) -> None:
        if (refusal := of_event(name, chunk)) is not None:
            raise self._refused(refusal)
        is_for_client = self._gathered.add(chunk)
        self._last = self._clock()
        if self.first_token_s is None and self._gathered.has_begun:
            self.first_token_s = self._last - self._started
            self._begins()
        if is_for_client and self._on_chunk is not None:
            await self._on_chunk(self._gathered.passed_on(chunk, with_usage=self._asked.wants_usage))

    async def _refusal(self, response: aiohttp.ClientResponse) -> Refusal:
        try:
            async with asyncio.timeout(TAIL_S):
                body = await read_most(response, LARGEST_REFUSAL)
        except (aiohttp.ClientError, OSError):  # too late counts as well: the status says enough
            body = b""
        return of_response(response.status, response.headers, body, time.time())

    def _whole(self) -> Answer:
        return Answer(self._gathered.completion(), self._gathered.usage)

    def _refused(self, refusal: Refusal) -> BackendError:
        return self._failed(
            refusal.failure,
            refusal.detail,
            code=refusal.code,
            param=refusal.param,
            retry_after=refusal.retry_after,
        )

    def _late(self, name: str, seconds: float) -> BackendError:
        return self._failed(
            Failure.TIMED_OUT if self.is_sent else Failure.UNAVAILABLE,
            f"the backend did not answer in time ({name}: {seconds:g} s)",
            code=f"{name}_timeout",
        )

    def _too_large(self) -> BackendError:
        return self._failed(Failure.BACKEND_ERROR, "the backend's answer is too large", code="answer_too_large")

    def _failed(
        self,
        failure: Failure,
        detail: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> BackendError:
        """With what was used: nothing, unless output came or the backend may still have been at work."""
        if self._gathered.has_begun and failure in (Failure.UNAVAILABLE, Failure.THROTTLED):
            failure = Failure.BACKEND_ERROR  # those two promise that nothing was done
        is_owed = self._gathered.has_begun or failure in (Failure.TIMED_OUT, Failure.CUT)
        usage = self.spent if is_owed else Usage()
        return BackendError(failure, detail, code=code, usage=usage, retry_after=retry_after, param=param)


async def _placed(replicas: Replicas, job: Job, attempt: int) -> Place:
    """The place that the attempt has taken, or a new one. Raises `BackendError`: nothing was done."""
    try:
        place = await replicas.take(job, attempt)
    except BoardUnavailableError as error:
        raise BackendError(Failure.UNAVAILABLE, "the board is away", code="board_away") from error
    if place is None:
        raise BackendError(Failure.UNAVAILABLE, "no replica has room", code="no_replica")
    return place


async def _note_sent(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestHeadersSentParams
) -> None:
    if isinstance(context.trace_request_ctx, _Exchange | WholeCall):
        context.trace_request_ctx.is_sent = True


def _parsed(data: bytes) -> Object:
    """A JSON object; empty when it is none. NaN, which is no JSON, becomes null."""
    try:
        value = DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def _wait_for_end(content: aiohttp.StreamReader) -> None:
    """So that the server sees its answer taken, not broken off, and the connection can be used again."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await content.readany()
    except (aiohttp.ClientError, OSError):
        return


def _not_listed(deployment: Deployment, listing: Object) -> str | None:
    models = listing.get("data")
    if not isinstance(models, list):
        return f"{deployment.name}: /models lists nothing. Does its url point at an OpenAI API?"
    known = [model for model in models if isinstance(model, dict)]
    if any(model.get("owned_by") == "llamacpp" for model in known):
        return None  # it takes any name
    names = [str(model.get("id")) for model in known]
    if deployment.model in names or f"{deployment.model}:latest" in names:
        return None
    return f"{deployment.name}: the server has no model {deployment.model!r}, but {', '.join(names[:10])[:300]}"
