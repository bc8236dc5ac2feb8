"""What an operator can set about a SageMaker endpoint."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.settings_section import Section
from gateway.settings_values import Dollars, Number, ServerUrl, Whole
from policies.deployments import (
    LONGEST_RUN_S,
    LONGEST_TTL_S,
    SHORTEST_TTL_S,
    USUAL_RUN_S,
    PayloadFormat,
    SageMaker,
)

Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
S3Place = Annotated[
    str, Field(pattern=r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?)?$", max_length=900)
]


class SageMakerSettings(Section):
    """Where the endpoint is and how it is asked. Bounds of seconds are the service's own."""

    region: Region
    inputs: S3Place = ""
    queue: ServerUrl = Field(default="", max_length=2000)
    payload: PayloadFormat = PayloadFormat.OPENAI
    served_model: str = Field(default="", max_length=300)
    request_ttl_s: Whole = Field(default=LONGEST_TTL_S, ge=SHORTEST_TTL_S, le=LONGEST_TTL_S)
    invocation_timeout_s: Whole = Field(default=USUAL_RUN_S, ge=1, le=LONGEST_RUN_S)
    realtime: bool = False
    tokens_per_s: Number | None = Field(default=None, gt=0, le=100_000)
    usd_per_hour: Dollars | None = None
    aws_url: ServerUrl = Field(default="", max_length=2000)

    @model_validator(mode="after")
    def _nothing_asynchronous(self) -> Self:
        if self.realtime and (self.queue or self.inputs):
            raise ValueError("a realtime endpoint answers at once: it has no queue and no inputs")
        if self.tokens_per_s is not None and not self.realtime:
            raise ValueError("tokens_per_s is of a realtime endpoint, which has 60 s for a call")
        return self

    def sagemaker(self) -> SageMaker:
        """The domain's value."""
        return SageMaker(
            region=self.region,
            inputs=self.inputs,
            queue=self.queue,
            payload=self.payload,
            served_model=self.served_model,
            request_ttl_s=self.request_ttl_s,
            invocation_timeout_s=self.invocation_timeout_s,
            is_realtime=self.realtime,
            tokens_per_s=self.tokens_per_s,
            usd_per_hour=self.usd_per_hour,
            aws_url=self.aws_url,
        )
