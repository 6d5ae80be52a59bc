"""Chat messages to prompt tokens: one normaliser in front of the model's own template.

What a user writes never becomes a control token: special-token strings in user-supplied text are masked
while the template renders, and encoded as ordinary text.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from provider.api.encoding import encode_within
from provider.api.wire import internal_error, invalid_request
from provider.errors import RequestFailed
from provider.generation import TextTokenizer

Json = Any
"""A decoded JSON value; only its user-supplied strings are looked at."""

Message = dict[str, Json]

SYSTEM_ROLES = ("system", "developer")
TEXT_PARTS = ("text", "input_text", "output_text")
RESERVED_KWARGS = ("messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now")
THINK_OPEN = "<think>"

# Whatever a template does to a value it does not expect; anything else is our own fault.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """`thinking` says that the prompt ends inside a think block, so that the answer begins in it."""

    token_ids: list[int]
    thinking: bool


def chat_prompt(
    tokenizer: TextTokenizer,
    messages: Sequence[Message],
    tools: Sequence[Json],
    template_kwargs: Mapping[str, Json],
    clock: Callable[[], float],
    random: Random,
    n_ctx: int = sys.maxsize,
) -> ChatPrompt:
    """The prompt that asks for the next assistant message. `messages` are of the shape `requests.Message`.

    Raises RequestFailed (400) naming the message, the part or the key that cannot be used, or for text far
    beyond `n_ctx` tokens.
    """
    if tokenizer.chat_template is None:
        message = "This model has no chat template: use /v1/completions."
        raise RequestFailed(invalid_request(message, "model", "chat_template_missing"))
    mask = _Mask(tokenizer.special_tokens, random)
    text = _render(
        tokenizer.chat_template,
        clock,
        {
            **tokenizer.template_tokens,
            **mask.hide(_template_kwargs(template_kwargs)),
            "messages": mask.hide(normalised(messages)),
            "tools": mask.hide(list(tools)) or None,
            "add_generation_prompt": True,
        },
    )
    return ChatPrompt(mask.encode(tokenizer, text, n_ctx), thinking=text.rstrip().endswith(THINK_OPEN))


def normalised(messages: Sequence[Message]) -> list[Message]:
    """Every content a string, every tool argument an object, one system message at the front.

    Templates differ in what they bear; this is what all of them read.
    """
    whole = [_normalised(message, index) for index, message in enumerate(messages)]
    system = [message["content"] for message in whole if message["role"] in SYSTEM_ROLES]
    others = [message for message in whole if message["role"] not in SYSTEM_ROLES]
    if not system:
        return others
    return [{"role": "system", "content": "\n\n".join(filter(None, system))}, *others]


def _normalised(message: Message, index: int) -> Message:
    result = {**message, "content": _content(message.get("content"), index)}
    if message.get("tool_calls"):
        calls = enumerate(message["tool_calls"])
        result["tool_calls"] = [_tool_call(call, index, number) for number, call in calls]
    return result


def _content(content: Json, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"messages[{index}].content[{n}]") for n, part in enumerate(content))


def _part(part: Json, where: str) -> str:
    kind = part.get("type")
    if kind not in TEXT_PARTS:
        _refuse(f"{where}: a part of type {kind!r} cannot be read: this model takes text only.", where)
    if not isinstance(part.get("text"), str):
        _refuse(f"{where}: a text part needs a string `text`.", where)
    return str(part["text"])


def _tool_call(call: Json, index: int, number: int) -> Json:
    where = f"messages[{index}].tool_calls[{number}].function.arguments"
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"), where)}}


def _arguments(arguments: Json, where: str) -> dict[str, Json]:
    """Templates iterate over an object; the OpenAI API sends it as a JSON string."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            _refuse(f"{where}: not valid JSON.", where)
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        _refuse(f"{where}: must be a JSON object.", where)
    return arguments


def _template_kwargs(kwargs: Mapping[str, Json]) -> dict[str, Json]:
    for name in RESERVED_KWARGS:
        if name in kwargs:
            _refuse(f"chat_template_kwargs: {name!r} is set by the server.", "chat_template_kwargs")
    return dict(kwargs)


def _refuse(message: str, param: str) -> NoReturn:
    raise RequestFailed(invalid_request(message, param))


def _render(template: str, clock: Callable[[], float], values: dict[str, Json]) -> str:
    def strftime_now(pattern: str) -> str:
        return datetime.fromtimestamp(clock()).strftime(pattern)

    compiled = _compiled(template)
    try:
        return compiled.render(values, strftime_now=strftime_now, raise_exception=_raise_exception)
    except _TEMPLATE_ERRORS as error:
        message = f"The chat template cannot render these messages: {error}"
        raise RequestFailed(invalid_request(message, "messages", "chat_template_error")) from error


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    """The environment transformers gives chat templates (`transformers.utils.chat_template_utils`)."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        message = f"The chat template of this model cannot be read: {error}"
        raise RequestFailed(internal_error(message, "chat_template_error")) from error


def _tojson(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Mask:
    """Stands in for the special-token strings in user-supplied text while a template renders.

    A stand-in is private-use characters around digits nobody can guess: no template changes the case of
    either, and no user can write one.
    """

    def __init__(self, special_tokens: Iterable[str], random: Random) -> None:
        self._specials = sorted(special_tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._specials)) or r"(?!)")
        self._nonce = f"{random.getrandbits(128):039d}"
        self._stand_in = re.compile(f"\ue000{self._nonce}([0-9]+)\ue001")

    def hide(self, value: Json) -> Json:
        match value:
            case str():
                return self._pattern.sub(self._hidden, value)
            case dict():
                return {self.hide(key): self.hide(item) for key, item in value.items()}
            case list():
                return [self.hide(item) for item in value]
            case _:
                return value

    def encode(self, tokenizer: TextTokenizer, text: str, n_ctx: int) -> list[int]:
        """The stretches between the template's own special tokens that hold a stand-in are encoded as the
        user wrote them, with no special token recognised; everything else as usual."""
        if self._nonce not in text:
            return encode_within(tokenizer, text, n_ctx)
        token_ids: list[int] = []
        plain = ""
        for stretch in self._stretches(text):
            if self._nonce not in stretch:
                plain += stretch
                continue
            token_ids += encode_within(tokenizer, plain, n_ctx) if plain else []
            token_ids += encode_within(tokenizer, self._shown(stretch), n_ctx, special=False)
            plain = ""
        return token_ids + (encode_within(tokenizer, plain, n_ctx) if plain else [])

    def _hidden(self, match: re.Match[str]) -> str:
        return f"\ue000{self._nonce}{self._specials.index(match[0])}\ue001"

    def _shown(self, text: str) -> str:
        return self._stand_in.sub(lambda match: self._specials[int(match[1])], text)

    def _stretches(self, text: str) -> list[str]:
        """`text` cut before and after each special token; together they are `text`."""
        cuts = [0, *(cut for match in self._pattern.finditer(text) for cut in match.span()), len(text)]
        return [text[start:end] for start, end in pairwise(cuts) if start < end]
