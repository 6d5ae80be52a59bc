"""What a chat of any API asks, once its own words are left behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provider.api.conversation import Turn
from provider.grammar.local_names import by_pointers

Json = Any
"""A decoded JSON value."""


@dataclass(frozen=True, slots=True)
class Question:
    """`tools` are in the form of OpenAI's chats, which is what templates know; `param` names the conversation.
    `uncalled`: no tool is to be called."""

    turns: Sequence[Turn]
    param: str
    tools: Sequence[Json] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    uncalled: bool = False

    @property
    def schemas(self) -> dict[str, Json]:
        """The parameters' schema of each tool, by its name."""
        return {tool["function"]["name"]: by_pointers(tool["function"].get("parameters")) for tool in self.tools}


def function_tool(tool: Mapping[str, Json], parameters: str) -> Json:
    """A tool described flat, with its schema under the name `parameters`, in the form of OpenAI's chats."""
    described = {"name": tool["name"], "description": tool.get("description"), "parameters": tool.get(parameters)}
    return {"type": "function", "function": {key: value for key, value in described.items() if value is not None}}
