"""How each API asks for an answer that is JSON."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from provider.grammar.json_schema import ANY_OBJECT

Json = Any
"""A decoded JSON value."""
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Kind = Literal["text", "json_object", "json_schema"]


class Format(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @property
    def schema_asked(self) -> Json | None:
        """Of the value asked for; None where text is."""
        return None


class JsonSchema(Format):
    """`strict` or not, the answer is held to the schema. Without one it is any object."""

    name: Name
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Format):
    """Of chats."""

    type: Kind
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_is_given(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise _missing("response_format.json_schema")
        return self

    @property
    def schema_asked(self) -> Json | None:
        return _asked(self.type, None if self.json_schema is None else self.json_schema.schema_)


class TextFormat(Format):
    """Of responses."""

    type: Kind
    name: Name | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _name_is_given(self) -> Self:
        if self.type == "json_schema" and self.name is None:
            raise _missing("text.format.name")
        return self

    @property
    def schema_asked(self) -> Json | None:
        return _asked(self.type, self.schema_)


class OutputFormat(Format):
    """Of Anthropic's messages."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")

    @property
    def schema_asked(self) -> Json | None:
        return self.schema_


def _asked(kind: Kind, schema: Json | None) -> Json | None:
    match kind:
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            return ANY_OBJECT if schema is None else schema


def _missing(field: str) -> PydanticCustomError:
    return PydanticCustomError("missing", "{reason}", {"field": field, "reason": "is required with this type"})
