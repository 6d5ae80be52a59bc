"""`allowed_tools`: the model is shown every tool and calls some of them only, over chats and responses."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from provider.api.job import Origin
from provider.api.jobs import JOBS
from provider.errors import RequestFailed
from provider.generation import GenerationRequest
from tests.fixtures.api_serving import DemoModel
from tests.fixtures.grammars import begins, takes

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
CHATS, RESPONSES = "/v1/chat/completions", "/v1/responses"
NAMES = ("f", "g", "h")


def call(name: str) -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"


def asked(path: str, choice: Any = None, **more: Any) -> GenerationRequest:
    functions = [{"name": name, "parameters": SCHEMA} for name in NAMES]
    body: Mapping[str, Any] = {
        CHATS: {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": one} for one in functions],
            "reasoning_effort": "none",
        },
        RESPONSES: {
            "input": "Hi",
            "tools": [{"type": "function", **one} for one in functions],
            "reasoning": {"effort": "none"},
        },
    }[path]
    model = DemoModel(n_ctx=2000)
    origin = Origin("r", model, lambda: 0.0, Random(1))
    [request] = JOBS[path]({"model": model.id, **body, "tool_choice": choice, **more}, origin).requests
    return request


def allowed(path: str, mode: str, *names: str) -> dict[str, Any]:
    if path == RESPONSES:
        return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("path", [CHATS, RESPONSES])
def test_the_prompt_has_every_tool_and_the_answer_some(path: str) -> None:
    free = asked(path)
    for mode in ("auto", "required"):
        request = asked(path, allowed(path, mode, "f", "h"))
        grammar = request.sampling.grammar
        assert request.prompt == free.prompt, "a prompt that stays the same"
        assert grammar is not None
        assert takes(grammar, call("f"))
        assert takes(grammar, call("h") + "\n" + call("f"))
        assert not begins(grammar, "<tool_call>\n<function=g>")
        assert not takes(grammar, call("f") + "\n" + call("g"))
        assert takes(grammar, "It rains.") == (mode == "auto")
        assert takes(grammar, f"Let me see.\n{call('f')}") == (mode == "auto")


@pytest.mark.parametrize("path", [CHATS, RESPONSES])
def test_all_tools_allowed_are_no_restriction(path: str) -> None:
    assert asked(path, allowed(path, "auto", *NAMES)).sampling.grammar is None
    required = asked(path, allowed(path, "required", *NAMES)).sampling.grammar
    assert required == asked(path, "required").sampling.grammar


@pytest.mark.parametrize("path", [CHATS, RESPONSES])
def test_one_call_of_those_that_are_allowed_where_no_more_are_wanted(path: str) -> None:
    grammar = asked(path, allowed(path, "required", "g"), parallel_tool_calls=False).sampling.grammar
    assert grammar is not None
    assert takes(grammar, call("g"))
    assert not begins(grammar, call("g") + "\n")


@pytest.mark.parametrize(
    ("path", "choice", "param"),
    [
        (CHATS, allowed(CHATS, "auto", "f", "x"), "tool_choice.allowed_tools.tools[1].function.name"),
        (CHATS, allowed(CHATS, "required", "x"), "tool_choice.allowed_tools.tools[0].function.name"),
        (RESPONSES, allowed(RESPONSES, "auto", "x"), "tool_choice.tools[0].name"),
        (CHATS, {"type": "function", "function": {"name": "x"}}, "tool_choice.function.name"),
        (RESPONSES, {"type": "function", "name": "x" * 500}, "tool_choice.name"),
        (CHATS, allowed(CHATS, "auto"), "tool_choice"),
        (CHATS, allowed(CHATS, "none", "f"), "tool_choice"),
        (CHATS, allowed(RESPONSES, "auto", "f"), "tool_choice"),
        (RESPONSES, allowed(RESPONSES, "auto"), "tool_choice"),
        (RESPONSES, allowed(CHATS, "auto", "f"), "tool_choice"),
        (RESPONSES, {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "name": "x"}]}, "tool_choice"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_by_name(path: str, choice: Any, param: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        asked(path, choice)
    failure = caught.value.failure
    assert (failure.status, failure.code, failure.param) == (400, "invalid_value", param)
    assert len(failure.message) < 400


def test_a_form_and_some_of_the_tools() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    grammar = asked(CHATS, allowed(CHATS, "auto", "g"), response_format=form).sampling.grammar
    assert grammar is not None
    assert takes(grammar, '{"n": 3}')
    assert takes(grammar, call("g"))
    assert not begins(grammar, "<tool_call>\n<function=f>")
