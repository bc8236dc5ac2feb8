"""What every section of the settings has in common."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Frozen, knows all its keys, and takes a key without a value for one that is not there."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if item is not None or key not in cls.model_fields}
