"""Spans of OpenTelemetry: one trace from the caller's, over the log, to the model. Never content, never a key.

Loaded where `traces.url` is set, and only there.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from policies.deployments import Deployment
from policies.pricing import Usage
from router.job import Job

EXPORT_S = 5.0
LAST_EXPORT_S = 3.0  # of what waits when the process ends
# As the semantic conventions name them; what is not there goes by the backend's name.
PROVIDERS: Mapping[str, str] = MappingProxyType({"bedrock": "aws.bedrock", "sagemaker": "aws.sagemaker"})
OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "/v1/embeddings": "embeddings",
        "/v1/images/generations": "generate_content",
        "/v1/audio/speech": "generate_content",
        "/v1/audio/transcriptions": "generate_content",
    }
)

Value = str | int | float


class Span:
    """One step. `traceparent` is what the next one follows from."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._has_failed = False

    @property
    def traceparent(self) -> str:
        """As W3C Trace Context has it."""
        at = self._span.get_span_context()
        return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"

    def note(self, **values: Value) -> None:
        """Say more of it, under `pointsman`."""
        self._span.set_attributes({f"pointsman.{name}": value for name, value in values.items()})

    def used(self, usage: Usage) -> None:
        """What the model was billed for."""
        tokens = {"gen_ai.usage.input_tokens": usage.total - usage.output, "gen_ai.usage.output_tokens": usage.output}
        self._span.set_attributes(tokens)

    def failed(self, kind: str) -> None:
        """It did not work out. `kind` is from a closed list, or an exception's type, never its words.

        The first that is said counts.
        """
        if self._has_failed:
            return
        self._has_failed = True
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


class Traces:
    """Makes spans."""

    def __init__(self, tracer: trace.Tracer, *, log: str) -> None:
        self._tracer = tracer
        self._log = log
        self._contexts = TraceContextTextMapPropagator()

    @classmethod
    @asynccontextmanager
    async def exported(cls, url: str, *, process: str, share: float, log: str) -> AsyncGenerator["Traces"]:
        """Sent to `url` from a thread, in the background; more than 2,048 that wait are dropped. Leaving takes 3 s.

        Of the callers' traces those that they have chosen, of the others this `share`. `log` is `kafka` or
        `redis_streams`.
        """
        provider = TracerProvider(
            resource=Resource.create({"service.name": "pointsman", "pointsman.process": process}),
            sampler=ParentBased(TraceIdRatioBased(share)),
            shutdown_on_exit=False,
        )
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)  # once a batch, not at each try
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        try:
            yield cls(provider.get_tracer("pointsman"), log=log)
        finally:
            ending = threading.Thread(target=provider.shutdown, daemon=True)
            ending.start()
            await asyncio.to_thread(ending.join, LAST_EXPORT_S)
            if ending.is_alive():  # nobody takes them
                exporter.shutdown()  # type: ignore[no-untyped-call]

    @contextmanager
    def accepting(self, endpoint: str, job_id: str, tenant: str, parent: str | None) -> Iterator[Span]:
        """A request becomes a job."""
        about = {"pointsman.job": job_id, "pointsman.tenant": tenant, "http.route": endpoint}
        with self._span(f"accept {endpoint}", SpanKind.SERVER, parent, about) as span:
            yield span

    @contextmanager
    def appending(self, job: Job) -> Iterator[Span]:
        """It goes on the log."""
        with self._span(f"send {job.topic}", SpanKind.PRODUCER, job.traceparent, self._message(job, "send")) as span:
            yield span

    @contextmanager
    def running(self, job: Job, attempt: int) -> Iterator[Span]:
        """A worker has claimed it."""
        about = self._message(job, "process") | {
            "pointsman.tenant": job.tenant,
            "pointsman.deployment": job.route.deployment,
            "pointsman.lane": job.route.lane,
            "pointsman.attempt": attempt,
        }
        with self._span(f"process {job.topic}", SpanKind.CONSUMER, job.traceparent, about) as span:
            yield span

    @contextmanager
    def calling(self, job: Job, deployment: Deployment, parent: str) -> Iterator[Span]:
        """The call to the model, by the semantic conventions of generative AI."""
        operation = OPERATIONS.get(job.endpoint, "chat")
        about: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDERS.get(deployment.backend, deployment.backend),
            "gen_ai.request.model": deployment.model,
            "pointsman.job": job.id,
        }
        with self._span(f"{operation} {deployment.model}", SpanKind.CLIENT, parent, about) as span:
            yield span

    def _message(self, job: Job, act: str) -> dict[str, Value]:
        return {
            "messaging.system": self._log,
            "messaging.operation.name": act,
            "messaging.operation.type": act,
            "messaging.destination.name": job.topic,
            "messaging.message.id": job.id,
            "pointsman.class": job.job_class,
        }

    @contextmanager
    def _span(self, name: str, kind: SpanKind, parent: str | None, about: Mapping[str, Value]) -> Iterator[Span]:
        context = self._contexts.extract({"traceparent": parent}, Context()) if parent else Context()
        span = self._tracer.start_span(name, context, kind, about)
        made = Span(span)
        try:
            yield made
        except BaseException as error:
            made.failed(type(error).__name__)
            raise
        finally:
            span.end()
