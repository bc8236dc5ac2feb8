"""What an operator can set about jobs that go out as batch jobs of Bedrock."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.settings_section import Section
from gateway.settings_values import Number, Whole
from policies.shipping import Shipping

Role = Annotated[str, Field(pattern=r"^arn:aws(-[^:]+)?:iam::[0-9]{12}:role/.+$", max_length=2048)]
Place = Annotated[
    str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?$", max_length=900)
]


class ShippingSettings(Section):
    """How patient jobs are gathered, and what the batch jobs need."""

    role: Role
    place: Place
    min_records: Whole = Field(default=100, ge=1, le=50_000)
    max_records: Whole = Field(default=10_000, ge=1, le=50_000)
    quiet_s: Number = Field(default=30.0, ge=0, le=3600)
    wait_s: Number = Field(default=1800.0, gt=0, le=86_400)
    patience_s: Number = Field(default=21_600.0, gt=0, le=604_800)
    live_before_s: Number = Field(default=3600.0, gt=0, le=86_400)
    timeout_h: Whole = Field(default=24, ge=24, le=168)

    @model_validator(mode="after")
    def _leaves_time(self) -> Self:
        if self.min_records > self.max_records:
            raise ValueError(f"min_records is {self.min_records}, above max_records, {self.max_records}")
        if self.patience_s <= self.wait_s + self.live_before_s:
            raise ValueError(
                f"patience_s is {self.patience_s:g}, which leaves a batch job no time after wait_s ({self.wait_s:g}) "
                f"and before live_before_s ({self.live_before_s:g}); make it longer than both together"
            )
        return self

    def shipping(self) -> Shipping:
        """The domain's value."""
        return Shipping(
            role=self.role,
            place=self.place,
            least=self.min_records,
            most=self.max_records,
            quiet_s=self.quiet_s,
            wait_s=self.wait_s,
            patience_s=self.patience_s,
            live_before_s=self.live_before_s,
            timeout_h=self.timeout_h,
        )
