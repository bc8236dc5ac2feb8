"""What an operator can set about a model of Bedrock."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.settings_sagemaker import Region
from gateway.settings_section import Section
from gateway.settings_shipping import Place, ShippingSettings
from gateway.settings_values import ServerUrl
from policies.deployments import Bedrock

# An id or an ARN, as botocore's model of Converse has it.
Profile = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.:/_-]*)?$", max_length=2048)]


class BedrockSettings(Section):
    """Where the model is and how it is called."""

    region: Region
    profile: Profile = ""
    service_tier: Literal["default", "flex", "priority", "reserved"] | None = None
    latency: Literal["standard", "optimized"] | None = None
    guardrail: str = Field(default="", max_length=2048)
    guardrail_version: str = Field(default="", max_length=8, pattern=r"^([1-9][0-9]{0,7}|DRAFT)?$")
    videos: Place | Literal[""] = ""
    aws_url: ServerUrl = Field(default="", max_length=2000)
    shipping: ShippingSettings | None = None

    @model_validator(mode="after")
    def _guardrail_is_whole(self) -> Self:
        if self.guardrail_version and not self.guardrail:
            raise ValueError("guardrail_version is of a guardrail, and there is none")
        return self

    @property
    def is_asked_for_more(self) -> bool:
        """Whether calls name a tier, a latency or a guardrail."""
        return bool(self.service_tier or self.latency or self.guardrail)

    def bedrock(self) -> Bedrock:
        """The domain's value."""
        return Bedrock(
            region=self.region,
            profile=self.profile,
            service_tier=self.service_tier or "",
            latency=self.latency or "",
            guardrail=self.guardrail,
            guardrail_version=self.guardrail_version or "DRAFT",
            videos=self.videos,
            aws_url=self.aws_url,
        )
