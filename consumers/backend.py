"""The port to what runs models: a job in, an answer or a named failure out."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from policies.deployments import Deployment
from policies.pricing import Usage
from policies.retries import Failure
from policies.values import dataclass
from router.job import JSON, Job, Stay
from router.queues import Cold

OnChunk = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: the OpenAI object as JSON bytes, or what else the endpoint gives, and what it used."""

    body: bytes
    usage: Usage
    media_type: str = JSON
    stay: Stay | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The backend took the job and keeps it; ask for it under `reference`, first in `check_in_s`.

    Unless it `holds_places`, it uses none of the deployment's rates there, and is none of the tenant's running calls.
    """

    reference: str
    check_in_s: float
    holds_places: bool = True


@dataclass(frozen=True, slots=True)
class Pending:
    """The backend still works on it; ask again in `check_in_s`. `holds_places` as of `Submitted`."""

    check_in_s: float
    holds_places: bool = True


@dataclass(frozen=True, slots=True)
class Returned:
    """The backend gives the job back, which is then called anew: nobody failed. `usage` is what it may be billed."""

    reason: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Notice:
    """A backend says that an attempt is over there. `handle` is what it needs to be told that this was heard."""

    tenant: str
    job_id: str
    attempt: int
    handle: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Late:
    """What a call used at a deployment after its attempt had been given up."""

    deployment: Deployment
    usage: Usage


class BackendError(Exception):
    """A call failed. `usage` is what it had used by then; `detail` is for the operator and the client.

    `code` is the backend's own code. `retry_after` is its wish, in seconds. `another_replica`: only one replica of the
    deployment failed, and the next call there goes to another. `most_tries`: more calls than that are not worth making.
    With `pause_s` the deployment can do no job at all, and one job looks again after so many seconds.
    """

    def __init__(
        self,
        failure: Failure,
        detail: str,
        *,
        code: str = "",
        usage: Usage | None = None,
        retry_after: float | None = None,
        param: str | None = None,
        another_replica: bool = False,
        most_tries: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.code = code
        self.usage = usage or Usage()
        self.retry_after = retry_after
        self.param = param
        self.another_replica = another_replica
        self.most_tries = most_tries
        self.pause_s = pause_s


class Backend(Protocol):
    """Runs one job on one deployment.

    `call` makes exactly one upstream call, never retries, and enforces the deployment's timeouts.
    Every failure is a `BackendError`. When its task is cancelled the upstream call is closed within
    a second; the `Usage` so far is then found in `so_far`.
    """

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: "SoFar"
    ) -> Answer | Submitted:
        """The whole answer, or that the backend has taken the job (then `collect` gets the answer).

        With `on_chunk`: also every `chat.completion.chunk`, as JSON bytes, as it comes.

        An answer's and a chunk's `id` is `chatcmpl-` with the job's id, its `model` the deployment's name.
        """
        ...

    async def ping(self, deployment: Deployment) -> str | None:
        """None when the deployment answers, else what is wrong with it and what to do, in one line."""
        ...


@runtime_checkable
class HandOffBackend(Backend, Protocol):
    """A backend that takes jobs and works on them while nobody waits."""

    async def collect(
        self, job: Job, deployment: Deployment, reference: str, *, attempt: int
    ) -> Answer | Pending | Returned:
        """What became of it. Safe to repeat. A failure is a `BackendError`; UNAVAILABLE: it could not be asked."""
        ...

    async def abandon(self, job: Job, deployment: Deployment, reference: str) -> Usage | None:
        """Nobody wants it any more; end it where the backend can. What it may be billed; None: its input."""
        ...


@runtime_checkable
class RecoveringBackend(HandOffBackend, Protocol):
    """One that finds the call of an attempt whose process died before it could say whether it was taken.

    It finds as well the call that it has taken, whose board was lost since.
    """

    async def recover(
        self, job: Job, deployment: Deployment, *, attempt: int, reference: str | None
    ) -> Submitted | None:
        """Where its result will be if it was; None when nobody can know. `reference`: as it said when it took it."""
        ...


@runtime_checkable
class NoticingBackend(HandOffBackend, Protocol):
    """One that says by itself when a call is over."""

    async def listen(self) -> Sequence[Notice]:
        """What it has to say, as soon as it has; bounded. `collect` then knows it. Raises `BackendError`."""
        ...

    async def acknowledge(self, notice: Notice) -> None:
        """What it said is done with for good. What is not acknowledged is said again. Raises `BackendError`."""
        ...

    async def late(self, job: Job, notice: Notice) -> Late | None:
        """What a call used that is over after all, though its attempt had been concluded without it.

        None: it came to nothing. Safe to repeat. Raises `BackendError`.
        """
        ...


@runtime_checkable
class WatchedBackend(Backend, Protocol):
    """One whose servers tell of themselves elsewhere than in answers."""

    async def watch(self) -> None:
        """For ever: look there, and say aloud what is wrong."""
        ...

    def cold(self) -> Mapping[str, Cold]:
        """Deployments of which nothing runs, but for which something can be started."""
        ...


@runtime_checkable
class PlacedBackend(Backend, Protocol):
    """A backend whose deployments may have replicas that take so many calls at once. The queue is not theirs."""

    def room(self, deployment: str, begun: int) -> int | None:
        """How many more jobs may begin on it, when `begun` have; None: any number. To ask says that jobs wait."""
        ...

    def is_away(self, deployment: str) -> bool:
        """Whether none of its replicas can be called now, so that its jobs had better go elsewhere."""
        ...

    def welcomes(self, job: Job) -> bool:
        """Whether this job may begin there, if any may: it may have reason to wait for one of several replicas."""
        ...

    def warming(self) -> Sequence[str]:
        """The deployments that nothing can run on as yet, but soon something will."""
        ...

    async def take_place(self, job: Job, deployment: Deployment, *, attempt: int) -> bool:
        """Whether there is a place for this attempt's `call`, which needs it. Raises `BoardUnavailableError`."""
        ...

    def leave_place(self, job: Job, deployment: Deployment, *, attempt: int) -> None:
        """It is not called after all. Safe to repeat, and after a call."""
        ...


class SoFar:
    """What a running call has used, for whoever cancels it; and when its first token came, once it has ended."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.first_token_s: float | None = None
