"""The grammar of a whole answer: how it may think, and what comes after.

The text is guided from its first token, so that an answer cannot end while it thinks; what is thought is free. The end
of the thinking is part of the text like any other, wherever in a run of drafts it comes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from provider.errors import GrammarError, SchemaRefused
from provider.grammar.json_schema import MAX_LOOKS, Check, Schema
from provider.grammar.limits import MAX_GRAMMAR_BYTES
from provider.grammar.rules import Rules
from provider.grammar.tool_rules import Markup, ToolSchema, call_rule

GAP = r"/\n{0,2}/"
"""What models write before an answer: a blank line at most, which is no part of it."""


class Thinking(Enum):
    """Where the prompt leaves the answer."""

    DONE = auto()
    BEGUN = auto()
    OFFERED = auto()
    """The model may think or not."""


@dataclass(frozen=True, slots=True)
class Calls:
    """`several`: one behind the other. `talk`: there may be words before the first, or words only."""

    tools: Sequence[ToolSchema]
    markup: Markup
    several: bool
    talk: bool


def answer_grammar(thinking: Thinking, value: Schema | None, calls: Calls | None, place: str, check: Check) -> str:
    """A JSON value, or calls of tools, or either of them. Raises SchemaRefused, naming `place` where it cannot be said
    which part is wrong."""
    rules = Rules()
    rules.add("start", _start(thinking))
    rules.add("gap", "GAP")
    rules.add("GAP", GAP)
    rules.add("thought[lazy]", r"/(.|\n)*?<\/think>/")
    rules.add("thinking[lazy]", r"/<think>(.|\n)*?<\/think>/")
    rules.add("body", " | ".join(_bodies(rules, value, calls)))
    grammar = rules.grammar()
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise SchemaRefused(place, f"what is asked for is longer than {MAX_GRAMMAR_BYTES} bytes")
    if calls is None:
        return grammar  # what there is of it beside the value's schema, which has been tried, is always the same
    try:
        check(grammar)
    except GrammarError as error:
        raise SchemaRefused(_blamed(calls, check) or place, str(error)) from None
    return grammar


def _blamed(calls: Calls, check: Check) -> str | None:
    """The place of the tool that cannot be called, or of its parameter; None: each of them can be by itself."""
    for tool in calls.tools[:MAX_LOOKS]:
        if _fails(tool, calls.markup, check):
            parts = list(_parameters(tool))[:MAX_LOOKS]
            failing = (part.parameters_place for part in parts if _fails(part, calls.markup, check))
            return next(failing, tool.parameters_place)
    return None


def _fails(tool: ToolSchema, markup: Markup, check: Check) -> bool:
    rules = Rules()
    rules.add("start", call_rule(rules, tool, markup))
    try:
        check(rules.grammar())
    except GrammarError:
        return True
    return False


def _parameters(tool: ToolSchema) -> Iterator[ToolSchema]:
    """The tool with each of its parameters alone, at the place of that."""
    schema = tool.parameters or {}
    for name, one in (schema.get("properties") or {}).items():
        alone = {**schema, "properties": {name: one}, "required": [name]}
        yield replace(tool, parameters=alone, parameters_place=f"{tool.parameters_place}.properties.{name}")


def _start(thinking: Thinking) -> str:
    match thinking:
        case Thinking.DONE:
            return "gap body"
        case Thinking.BEGUN:
            return "thought gap body"
        case Thinking.OFFERED:
            return "gap (thinking gap)? body"


def _bodies(rules: Rules, value: Schema | None, calls: Calls | None) -> list[str]:
    bodies = [] if value is None else [rules.schema(value)]
    if calls is not None:
        bodies += _calls(rules, calls)
    return bodies


def _calls(rules: Rules, calls: Calls) -> list[str]:
    rules.add("call", " | ".join(call_rule(rules, tool, calls.markup) for tool in calls.tools))
    more = r' (/\n?/ "<tool_call>" call)*' if calls.several else ""
    if not calls.talk:
        return [f'"<tool_call>" call{more}']
    rules.add("WORDS", r"/(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/")
    rules.add("talk[lazy]", r"/(.|\n)*?<tool_call>/")
    return ["WORDS", f"talk call{more}"]
