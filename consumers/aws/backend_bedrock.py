"""The backend for Amazon Bedrock: litellm translates, signs and reads; the one call it makes goes over our own wire."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import structlog

from consumers import whole
from consumers.aws import bedrock_request
from consumers.aws.bedrock_errors import BY_CODE, LONGEST_DETAIL, Meaning, Pressure, as_error, meaning, waiting
from consumers.aws.bedrock_events import MALFORMED
from consumers.aws.bedrock_limiter import Limiter
from consumers.aws.bedrock_wire import Wire, tracing
from consumers.aws.litellm_library import litellm, quiet
from consumers.backend import Answer, BackendError, OnChunk, SoFar
from consumers.gathered import Gathered, MalformedChunkError, Object, compact
from consumers.upstream import parsed
from policies.deployments import Bedrock, Deployment, Modality, Tier
from policies.pricing import Usage
from policies.retries import Failure
from router.job import JSON, Job

log = structlog.get_logger(__name__)

CHAT = "/v1/chat/completions"
PING_S = 20.0
WARM_UP_S = 30.0
PREPARED_AT_ONCE = 2  # requests: one is translated while another is signed, in a thread
TAIL_S = 10.0  # how long usage may come after the finish reason; then it is estimated


class BedrockBackend:
    """Runs jobs on models of Bedrock: see `Backend` and `PlacedBackend`.

    A chat is always streamed. How many calls at once a deployment takes is learned from Bedrock's refusals, by each
    worker for itself; the quota that is configured is held before that, by all of them together.
    """

    def __init__(self, session: aiohttp.ClientSession, limiter: Limiter) -> None:
        self._session = session
        self._limiter = limiter
        self._preparing = asyncio.Semaphore(PREPARED_AT_ONCE)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, deployments: Mapping[str, Deployment], *, connections: int = 1000
    ) -> AsyncGenerator["BedrockBackend"]:
        """One for a process, warmed up: the first call would block all others for a third of a second."""
        quiet()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[tracing()],
        ) as session:
            backend = cls(session, Limiter({each.name: each.limits.concurrency for each in deployments.values()}))
            await backend._warm_up()
            yield backend

    def room(self, deployment: str, begun: int) -> int | None:
        """See the port."""
        return self._limiter.room(deployment, begun)

    def is_away(self, deployment: str) -> bool:
        """Bedrock has no replicas that could be."""
        return False

    def welcomes(self, job: Job) -> bool:
        """All are the same to it."""
        return True

    async def take_place(self, job: Job, deployment: Deployment, *, attempt: int) -> bool:
        """See the port."""
        return self._limiter.take(deployment.name, f"{job.id}.{attempt}")

    def leave_place(self, job: Job, deployment: Deployment, *, attempt: int) -> None:
        """See the port."""
        self._limiter.leave(deployment.name, f"{job.id}.{attempt}")

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        """See the port."""
        place = _place(deployment)
        wire = Wire(self._session, deployment.timeouts)
        exchange: _Chat | _Whole
        if job.endpoint == CHAT:
            asked = bedrock_request.chat(job, deployment, place, attempt=attempt)
            exchange = _Chat(wire, job, deployment, asked, on_chunk, self._preparing)
        else:
            exchange = _Whole(wire, job, deployment, place, attempt)
        try:
            answer = await exchange.run()
        except BackendError as error:
            so_far.usage = error.usage
            self._limiter.failed(deployment.name, _pressure(error), time.monotonic())
            raise
        except BaseException:  # cancelled, or on_chunk failed: what was used by then is owed all the same
            so_far.usage = exchange.spent
            raise
        finally:
            wire.close()
        self._limiter.succeeded(deployment.name, time.monotonic())
        so_far.usage, so_far.first_token_s = answer.usage, exchange.first_token_s
        return answer

    async def ping(self, deployment: Deployment) -> str | None:
        """Whether the model answers: one token is made or read, and paid for. Of one that paints it is not known."""
        place, wire = _place(deployment), Wire(self._session, deployment.timeouts)
        if deployment.modalities == {Modality.IMAGE_GENERATION}:
            return None
        arguments = bedrock_request.probe(deployment, place)
        try:
            async with asyncio.timeout(PING_S):
                if deployment.modalities == {Modality.EMBEDDING}:
                    await litellm.aembedding(**bedrock_request.embedding_probe(deployment, place), client=wire)
                    return None
                async for _ in await litellm.acompletion(**arguments, client=wire):
                    continue
        except TimeoutError:
            return f"{deployment.name}: no answer within {PING_S:g} s. Are its region and the way to AWS right?"
        except Exception as error:
            found, code, message = _fault(wire, error)
            return f"{deployment.name}: {code}: {message or found.detail}"
        finally:
            wire.close()
        return None

    async def _warm_up(self) -> None:
        """Everything up to the connection, which nobody takes."""
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and does not listen
            place = Bedrock(region="us-east-1", aws_url=f"http://127.0.0.1:{nobody.getsockname()[1]}")
            deployment = Deployment("warm-up", "bedrock", "anthropic.claude-3-haiku-20240307-v1:0", Tier.LIGHT)
            wire = Wire(self._session, deployment.timeouts)
            arguments = {
                **bedrock_request.probe(deployment, place),
                "aws_access_key_id": "warm",
                "aws_secret_access_key": "up",
            }
            with suppress(Exception):  # it always fails
                async with asyncio.timeout(WARM_UP_S):
                    await litellm.acompletion(**arguments, client=wire)


class _Chat:
    """One chat: what is sent, what has come, and until when more must come."""

    def __init__(
        self,
        wire: Wire,
        job: Job,
        deployment: Deployment,
        asked: bedrock_request.Asked,
        on_chunk: OnChunk | None,
        preparing: asyncio.Semaphore,
    ) -> None:
        self.first_token_s: float | None = None
        self._wire = wire
        self._preparing = preparing
        self._timeouts = deployment.timeouts
        self._asked = asked
        self._on_chunk = on_chunk
        self._gathered = Gathered(
            job.id,
            deployment.name,
            choices=1,
            input_estimate=job.estimate.input_tokens,
            created=int(time.time()),
        )
        self._clock = asyncio.get_running_loop().time
        self._started = self._last = self._clock()

    @property
    def spent(self) -> Usage:
        """What a call that ends now has used."""
        if self._wire.events.usage is not None:
            return self._wire.events.usage
        return self._gathered.usage if self._wire.is_sent else Usage()

    async def run(self) -> Answer:
        """The whole answer. Every failure of Bedrock's is a `BackendError`."""
        try:
            async with asyncio.timeout_at(self._started + self._timeouts.total) as total:
                return await self._answer()
        except TimeoutError as error:
            if not total.expired():
                raise  # on_chunk's own
            raise self._late("total", self._timeouts.total) from error

    async def _answer(self) -> Answer:
        stream = await self._asked_for(self._stream())
        pieces = aiter(stream)
        events = self._wire.events
        # Its last piece litellm only makes to count and log the whole answer once more: half of what a call costs here.
        while not self._is_whole and (chunk := await self._asked_for(anext(pieces, None))) is not None:
            await self._take(chunk)
        if events.fault is not None:
            raise self._failed(
                meaning(events.fault.code, None, events.fault.message), events.fault.code, events.fault.message
            )
        if events.stop_reason is None:
            raise self._failed(BY_CODE["ModelStreamErrorException"], "incomplete_answer", "")
        if events.stop_reason in MALFORMED:
            raise self._failed(BY_CODE["ModelErrorException"], events.stop_reason, "")
        self._gathered.add({"usage": _openai(self.spent)})
        if self._on_chunk is not None and self._asked.wants_usage:
            await self._on_chunk(self._gathered.usage_chunk())
        return Answer(self._gathered.completion(), self.spent)

    async def _stream(self) -> Any:
        """Prepared in their order: each takes milliseconds, and of many that begin at once all would be sent late.

        Bedrock counts a call when it comes, and would then gain less in the meantime than our own count of its quota.
        """
        await self._preparing.acquire()
        with ExitStack() as turn:
            turn.callback(self._preparing.release)
            self._wire.when_asked = turn.close
            return await litellm.acompletion(**self._asked.arguments, client=self._wire)

    @property
    def _is_whole(self) -> bool:
        return self._gathered.is_finished and self._wire.events.usage is not None

    async def _asked_for(self, step: Awaitable[Any]) -> Any:
        name, seconds, since = self._awaited()
        try:
            async with asyncio.timeout_at(since + seconds) as timeout:
                return await step
        except TimeoutError as error:
            if not timeout.expired():
                raise self._refused(error) from error
            if self._gathered.is_finished:
                return None
            raise self._late(name, seconds) from error
        except Exception as error:
            raise self._refused(error) from error

    def _awaited(self) -> tuple[str, float, float]:
        """Which deadline is running: its name, its seconds, and since when."""
        if self._gathered.is_finished:
            return "read", min(TAIL_S, self._timeouts.read), self._last
        if self._gathered.has_begun:
            return "read", self._timeouts.read, self._last
        return "first_token", self._timeouts.first_token, self._started

    async def _take(self, chunk: Any) -> None:
        value = chunk.model_dump(exclude_none=True)
        value.pop("usage", None)  # ours is of the events
        if not value.get("choices"):
            return
        for choice in value["choices"]:
            choice["delta"] = _delta(choice.get("delta") or {})
            if not choice.get("finish_reason"):
                choice.pop("finish_reason", None)
        value.pop("citations", None)
        value.pop("provider_specific_fields", None)
        try:
            is_for_client = self._gathered.add(value)
        except MalformedChunkError as error:
            raise self._failed(BY_CODE["ModelErrorException"], "malformed_chunk", "") from error
        self._last = self._clock()
        if self.first_token_s is None and self._gathered.has_begun:
            self.first_token_s = self._last - self._started
        if is_for_client and self._on_chunk is not None:
            await self._on_chunk(self._gathered.passed_on(value, with_usage=self._asked.wants_usage))

    def _refused(self, error: BaseException) -> BackendError:
        found, code, message = _fault(self._wire, error)
        return self._failed(found, code, message)

    def _late(self, name: str, seconds: float) -> BackendError:
        failure = Failure.TIMED_OUT if self._wire.is_sent else Failure.UNAVAILABLE
        found = Meaning(failure, f"Bedrock did not answer in time ({name}: {seconds:g} s)")
        return self._failed(found, f"{name}_timeout", "")

    def _failed(self, found: Meaning, code: str, message: str) -> BackendError:
        """With what was used: nothing, unless output came or Bedrock may still have been at work."""
        is_owed = self._gathered.has_begun or found.failure in (Failure.TIMED_OUT, Failure.CUT)
        if self._gathered.has_begun and found.failure in (Failure.UNAVAILABLE, Failure.THROTTLED):
            found = replace(found, failure=Failure.BACKEND_ERROR)  # those two promise that nothing was done
        return _error(found, code, message, self.spent if is_owed else Usage())


class _Whole:
    """One call whose answer comes whole: embeddings, images."""

    def __init__(self, wire: Wire, job: Job, deployment: Deployment, place: Bedrock, attempt: int) -> None:
        self.first_token_s: float | None = None
        self._wire = wire
        self._job = job
        self._deployment = deployment
        self._place = place
        self._attempt = attempt

    @property
    def spent(self) -> Usage:
        """What a call that ends now may be billed."""
        return self._job.estimate.owed if self._wire.is_sent else Usage()

    async def run(self) -> Answer:
        """The whole answer, within the deployment's total time. Every failure of Bedrock's is a `BackendError`."""
        call, total = self._call(), self._deployment.timeouts.total
        try:
            async with asyncio.timeout(total):
                answer = await call
        except TimeoutError as error:
            failure = Failure.TIMED_OUT if self._wire.is_sent else Failure.UNAVAILABLE
            found = Meaning(failure, f"Bedrock did not answer in time (total: {total:g} s)")
            raise _error(found, "total_timeout", "", self.spent) from error
        except Exception as error:
            found, code, message = _fault(self._wire, error)
            is_owed = found.failure in (Failure.TIMED_OUT, Failure.CUT)
            raise _error(found, code, message, self.spent if is_owed else Usage()) from error
        sent = whole.Request("", b"", JSON, parsed(self._job.body))
        made = whole.answer(sent, self._job, self._deployment, compact(answer.model_dump(mode="json")), JSON)
        return replace(made, usage=replace(made.usage, tier=self._wire.served))

    def _call(self) -> Awaitable[Any]:
        match self._job.endpoint:
            case whole.EMBEDDINGS:
                arguments = bedrock_request.embedding(self._job, self._deployment, self._place, attempt=self._attempt)
                return litellm.aembedding(**arguments, client=self._wire)  # type: ignore[no-any-return]
            case whole.IMAGES:
                arguments = bedrock_request.image(self._job, self._deployment, self._place)
                return litellm.aimage_generation(**arguments, client=self._wire)  # type: ignore[no-any-return]
        raise BackendError(Failure.REJECTED, "this deployment has no such endpoint", code="unknown_endpoint")


def _place(deployment: Deployment) -> Bedrock:
    if deployment.bedrock is None:
        raise BackendError(Failure.MISCONFIGURED, "the deployment has no bedrock section", code="no_bedrock_section")
    return deployment.bedrock


def _fault(wire: Wire, error: BaseException) -> tuple[Meaning, str, str]:
    """What a call that failed means, by the first that says so: Bedrock, our wire, litellm. With code and words."""
    fault = wire.fault or wire.events.fault
    if fault is not None:
        return waiting(meaning(fault.code, wire.status, fault.message), wire.retry_after), fault.code, fault.message
    if wire.refusal is not None:
        return Meaning(wire.refusal.failure, wire.refusal.detail), wire.refusal.code, ""
    if wire.is_asked:
        return BY_CODE["ModelStreamErrorException"], "unreadable_answer", ""
    if any("redential" in type(each).__name__ or "redentials" in str(each)[:500] for each in _causes(error)):
        return BY_CODE["NoCredentials"], "no_credentials", "there are no credentials for AWS"
    if isinstance(error, litellm.BadRequestError | litellm.UnsupportedParamsError):
        return BY_CODE["ValidationException"], "untranslatable", str(error)
    return Meaning(Failure.BACKEND_ERROR, "the request could not be made"), type(error).__name__, ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _error(found: Meaning, code: str, message: str, usage: Usage) -> BackendError:
    if found.pause_s is not None:  # the operator's to mend: no such message holds what a client wrote
        log.error("bedrock_refuses_all", code=code, said=message[:LONGEST_DETAIL])
    return as_error(found, code, message, usage)


def _pressure(error: BackendError) -> Pressure:
    if error.pause_s is not None:  # all stand still, and begin again as before
        return Pressure.NONE
    found = BY_CODE.get(error.code)
    if error.failure is Failure.THROTTLED:
        return Pressure.MUCH
    return Pressure.NONE if found is None else found.pressure


def _delta(delta: Object) -> Object:
    """Of a chunk, without what only litellm has."""
    return {name: delta[name] for name in ("role", "content", "tool_calls", "reasoning_content") if delta.get(name)}


def _openai(usage: Usage) -> Object:
    """For the client: cached tokens are part of the prompt."""
    return {
        "prompt_tokens": usage.total - usage.output,
        "completion_tokens": usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
    }
