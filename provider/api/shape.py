"""What every request's shape is made of: strict types, and errors that name the field and say what is accepted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

Item = TypeVar("Item")
Listed = Annotated[list[Item], Field(fail_fast=True)]
"""Its first wrong item is enough: a description of each would take a gigabyte for a body of a few megabytes."""


class Shape(BaseModel):
    """No value is converted to another type: the string "1" is not a number. Nulls are as good as left out."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_nulls_out(cls, value: Any) -> Any:
        if isinstance(value, dict) and None in value.values():
            return {name: member for name, member in value.items() if member is not None}
        return value


def must_be(accepted: str) -> WrapValidator:
    """Says what is accepted, in place of one message for each alternative of a union."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("accepted", "must be {accepted}", {"accepted": accepted}) from None

    return WrapValidator(check)


def refused(field: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{reason}", {"field": field, "reason": reason})


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that would change the answer, and cannot be had here. `nothing`: the values that ask for nothing."""

    nothing: tuple[Any, ...] = (None, False, 0, "", [], {})
    reason: str = "is not supported"


ONE_ANSWER = Unsupported((None, 1), "is not supported here: there is one answer")


def refuse_unsupported(body: Any, unsupported: Mapping[str, Unsupported]) -> None:
    """Raises PydanticCustomError for what is asked for in vain; to be silent would be to answer something else."""
    if not isinstance(body, dict):
        return
    for name, field in unsupported.items():
        value = body.get(name)
        if not any(type(value) is type(one) and value == one for one in field.nothing):
            raise refused(name, field.reason)
