"""How OpenAI's APIs name the tools that may, or have to, be called."""

from typing import Annotated, Literal

from pydantic import Field

from provider.api.shape import Listed, Shape, must_be


class NamedFunction(Shape):
    name: str


class NamedTool(Shape):
    type: Literal["function"]
    function: NamedFunction


class Allowed(Shape):
    mode: Literal["auto", "required"]
    tools: Listed[NamedTool] = Field(min_length=1)


class AllowedTools(Shape):
    """Some of the tools: the model is shown them all, and calls these only."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


class FlatNamedTool(Shape):
    """Of responses."""

    type: Literal["function"]
    name: str


class FlatAllowedTools(Shape):
    """Of responses."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Listed[FlatNamedTool] = Field(min_length=1)


ChosenTool = Annotated[
    Literal["auto", "none", "required"] | NamedTool | AllowedTools,
    must_be(
        '"auto", "none", "required", {"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", '
        '"allowed_tools": {"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}]}}'
    ),
]
FlatChosenTool = Annotated[
    Literal["auto", "none", "required"] | FlatNamedTool | FlatAllowedTools,
    must_be(
        '"auto", "none", "required", {"type": "function", "name": ...} or {"type": "allowed_tools", '
        '"mode": "auto" or "required", "tools": [{"type": "function", "name": ...}]}'
    ),
]
