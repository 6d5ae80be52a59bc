"""A conversation to prompt tokens, by the model's own template.

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

from provider.api.conversation import Turn, normalised, refuse
from provider.api.encoding import encode_within
from provider.api.wire import context_exceeded, internal_error, invalid_request
from provider.errors import RequestFailed
from provider.generation import TextTokenizer

Json = Any
"""A decoded JSON value; only its user-supplied strings are looked at."""

RESERVED_KWARGS = ("messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now")
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
MAX_SEARCHED = 1000
"""Among more messages than this, the one that cannot be rendered is not looked for: every look is a rendering."""

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
    """`thinking` says that the prompt ends inside a think block, so that the answer begins in it; `may_think`, that the
    answer may begin one of its own."""

    token_ids: list[int]
    thinking: bool
    may_think: bool = False


def chat_prompt(
    tokenizer: TextTokenizer,
    turns: Sequence[Turn],
    tools: Sequence[Json],
    template_kwargs: Mapping[str, Json],
    clock: Callable[[], float],
    random: Random,
    n_ctx: int = sys.maxsize,
) -> ChatPrompt:
    """The prompt that asks for the next assistant message. `tools` are in the form of OpenAI's chats.

    Raises RequestFailed (400) naming the message, the part or the key that cannot be used, or for text far
    beyond `n_ctx` tokens.
    """
    if tokenizer.chat_template is None:
        message = "This model has no chat template: use /v1/completions."
        raise RequestFailed(invalid_request(message, "model", "chat_template_missing"))
    mask = _Mask(tokenizer.special_tokens, random)
    said = normalised(turns)
    if len(said) > n_ctx:
        # No message is less than a token, and a template takes long over very many.
        raise RequestFailed(context_exceeded(len(said), n_ctx))
    messages = [mask.hide(turn.message) for turn in said]
    render = _Rendering(
        tokenizer.chat_template,
        clock,
        {
            **tokenizer.template_tokens,
            **mask.hide(_template_kwargs(template_kwargs)),
            "tools": mask.hide(list(tools)) or None,
            "add_generation_prompt": True,
        },
    )
    try:
        text = render(messages)
    except _TEMPLATE_ERRORS as error:
        place = _unreadable(render, said, messages)
        message = f"{place}: the chat template cannot render this message: {error}"
        raise RequestFailed(invalid_request(message, place, "chat_template_error")) from error
    end = text.rstrip()
    may_think = THINK_OPEN in tokenizer.chat_template and not end.endswith((THINK_OPEN, THINK_CLOSE))
    return ChatPrompt(mask.encode(tokenizer, text, n_ctx), end.endswith(THINK_OPEN), may_think)


def _template_kwargs(kwargs: Mapping[str, Json]) -> dict[str, Json]:
    for name in RESERVED_KWARGS:
        if name in kwargs:
            refuse(f"chat_template_kwargs: {name!r} is set by the server.", "chat_template_kwargs")
    return dict(kwargs)


class _Rendering:
    """Renders messages; raises whatever the template does."""

    def __init__(self, template: str, clock: Callable[[], float], values: Mapping[str, Json]) -> None:
        self._template = _compiled(template)
        self._clock = clock
        self._values = values

    def __call__(self, messages: Sequence[Json]) -> str:
        return self._template.render(
            {**self._values, "messages": list(messages)},
            strftime_now=self._strftime_now,
            raise_exception=_raise_exception,
        )

    def _strftime_now(self, pattern: str) -> str:
        return datetime.fromtimestamp(self._clock()).strftime(pattern)


def _unreadable(render: _Rendering, said: Sequence[Turn], messages: Sequence[Json]) -> str:
    """The place of a message that cannot follow those before it, found in few renderings: with it the template fails,
    without it it does not. Where a template fails at any beginning, it is the first message."""
    good, bad = 0, len(messages)
    if bad > MAX_SEARCHED:
        return f"{said[0].place} to {said[-1].place}"
    while bad - good > 1:
        middle = (good + bad) // 2
        if _renders(render, messages[:middle]):
            good = middle
        else:
            bad = middle
    return said[bad - 1].place


def _renders(render: _Rendering, messages: Sequence[Json]) -> bool:
    try:
        render(messages)
    except _TEMPLATE_ERRORS:
        return False
    return True


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
