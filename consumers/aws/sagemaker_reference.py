"""What is known of a submitted call: its name, its bounds, and where its result is or would be. No I/O."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import ceil

from consumers.aws.sagemaker_notices import CallName
from consumers.aws.sagemaker_patience import over_after
from policies.deployments import LONGEST_RUN_S, LONGEST_TTL_S, SHORTEST_TTL_S, SageMaker
from router.job import Job


@dataclass(frozen=True, slots=True)
class Reference:
    """A call as the board keeps it. `is_sure`: the service said that it took it, and where the result will be.

    AWS does not say how it joins the output path, the `extension` and the file's name: "appended" may mean with a
    slash or without, and the name may get an ending. What is not sure is looked for in all of these places.
    """

    call: str
    output_at: str
    failure_at: str
    submitted_at: float
    is_sure: bool = True
    extension: str = ""
    ttl_s: int = LONGEST_TTL_S
    timeout_s: int = LONGEST_RUN_S

    @classmethod
    def planned(cls, job: Job, attempt: int, place: SageMaker, *, output: str, failure: str, now: float) -> "Reference":
        """Of a call that is made now. `output` and `failure` are the endpoint's own paths, '' where not known."""
        end = f"{extension_of(job)}/{filename_of(job, attempt)}"
        left_s = ceil(job.expires_at - now)
        return cls(
            call=str(CallName.of(job.tenant, job.id, attempt)),
            output_at=f"{output}/{end}" if output else "",
            failure_at=f"{failure}/{end}" if failure else "",
            submitted_at=now,
            is_sure=False,
            extension=extension_of(job),
            ttl_s=max(SHORTEST_TTL_S, min(place.request_ttl_s, left_s)),
            timeout_s=max(1, min(place.invocation_timeout_s, left_s)),
        )

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Of the board's text."""
        return cls(**json.loads(text))

    @property
    def over_after_s(self) -> float:
        """The age at which it is over whatever happens."""
        return over_after(self.ttl_s, self.timeout_s)

    def readings(self, at: str) -> Sequence[str]:
        """The places where what is planned `at` may be."""
        appended = at.replace(f"/{self.extension}/", f"{self.extension}/", 1)
        return [] if not at else [at] if appended == at else [at, appended]

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def extension_of(job: Job) -> str:
    """Of the output path: the same for all attempts of a job, whenever they are made."""
    return f"{job.tenant}/{datetime.fromtimestamp(job.created_at, UTC):%Y-%m-%d}"


def filename_of(job: Job, attempt: int) -> str:
    """32 characters at most."""
    return f"{job.id}-{attempt}"
