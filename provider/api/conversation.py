"""The messages of any API in the one form that chat templates read. Pure.

Templates differ in what they bear; this is what all of them read: every content a string, every tool argument an
object, one system message at the front.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from provider.api.parameter_types import TOO_DEEP, TOO_LONG, has_long_integer, is_deep, loads
from provider.api.wire import invalid_request
from provider.errors import RequestFailed

Json = Any
"""A decoded JSON value."""

Message = dict[str, Json]

SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The kinds of parts that are text, and the member that holds it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the shape `requests.Message`, and what its client calls it: `messages[3]`, or `input[3]`."""

    message: Message
    place: str


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """The messages of a chat, which need no other names than their own."""
    return [Turn(message, f"messages[{index}]") for index, message in enumerate(messages)]


def normalised(turns: Sequence[Turn]) -> list[Turn]:
    """Raises RequestFailed (400) naming what cannot be used.

    System and developer messages, wherever they stand, are merged in order into one at the front, which has the
    place of the first of them.
    """
    whole = [replace(turn, message=_normalised(turn)) for turn in turns]
    system = [turn for turn in whole if turn.message["role"] in SYSTEM_ROLES]
    others = [turn for turn in whole if turn.message["role"] not in SYSTEM_ROLES]
    if not system:
        return others
    text = "\n\n".join(turn.message["content"] for turn in system if turn.message["content"])
    return [Turn({"role": "system", "content": text}, system[0].place), *others]


def text_of(content: Json, place: str) -> str:
    """`content` is a string, nothing, or a list of parts. Raises RequestFailed for a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{place}[{number}]") for number, part in enumerate(content))


def arguments_of(arguments: Json, place: str) -> dict[str, Json]:
    """Templates iterate over an object; OpenAI's APIs send it as a JSON string. Raises RequestFailed."""
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            refuse(f"{place}: not valid JSON: {error}.", place)
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        refuse(f"{place}: must be a JSON object.", place)
    if has_long_integer(arguments):
        refuse(f"{place}: {TOO_LONG}.", place)
    if is_deep(arguments):
        refuse(f"{place}: {TOO_DEEP}.", place)
    return arguments


def refuse(message: str, param: str) -> NoReturn:
    raise RequestFailed(invalid_request(message, param))


def _normalised(turn: Turn) -> Message:
    message, place = turn.message, turn.place
    result = {**message, "content": text_of(message.get("content"), f"{place}.content")}
    if message.get("tool_calls"):
        calls = enumerate(message["tool_calls"])
        result["tool_calls"] = [_tool_call(call, f"{place}.tool_calls[{number}]") for number, call in calls]
    return result


def _tool_call(call: Json, place: str) -> Json:
    function = call["function"]
    arguments = arguments_of(function.get("arguments"), f"{place}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _part(part: Json, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    member = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if member is None:
        refuse(f"{place}: a part of type {kind!r} cannot be read: this model takes text only.", place)
    if not isinstance(part.get(member), str):
        refuse(f"{place}: a part of type {kind!r} needs a string `{member}`.", place)
    return str(part[member])
