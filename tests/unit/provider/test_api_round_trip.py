"""A call that a model has made comes back in the history as the markup it wrote, whichever API carries it."""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.job import Origin
from provider.api.jobs import JOBS
from tests.fixtures.api_serving import TOKENIZER, DemoModel
from tests.soak import examples
from tests.unit.provider.test_api_output import parse, summary

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "open": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "filters": {"type": "object"},
    },
}
TOOLS = {"f": SCHEMA}
ASKED = {"role": "user", "content": "Hi"}


def chat(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    return {"messages": messages, "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}


def chat_of_text(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return chat(json.dumps(arguments))


def messages(arguments: Mapping[str, Any]) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "done"}
    said = [ASKED, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"max_tokens": 5, "messages": said, "tools": [{"name": "f", "input_schema": SCHEMA}]}


def responses(arguments: Mapping[str, Any]) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps(arguments)}
    result = {"type": "function_call_output", "call_id": "c", "output": "done"}
    return {"input": [ASKED, call, result], "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]}


SURFACES: list[tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = [
    ("/v1/chat/completions", chat),
    ("/v1/chat/completions", chat_of_text),
    ("/v1/messages", messages),
    ("/v1/responses", responses),
]


def written(path: str, body: Mapping[str, Any]) -> str:
    """The assistant's turn in the prompt."""
    model = DemoModel(n_ctx=100_000)
    [request] = JOBS[path]({"model": model.id, **body}, Origin("r", model, lambda: 0.0, Random(1))).requests
    prompt = TOKENIZER.decode(request.prompt, skip_special_tokens=False)
    return prompt.split("<|im_start|>assistant\n")[1].split("<|im_end|>\n<|im_start|>")[0]


PIECES = st.sampled_from(
    [
        "a",
        "é😀",
        "\n",
        " ",
        '"',
        "\\",
        "</parameter>",
        "<parameter>",
        "{{ 7 }}",
        "</tool_call>",
        "<|im_end|>",
        "<think>",
        "null",
    ]
)
TEXT = st.lists(PIECES, min_size=1, max_size=6).map(lambda pieces: "x" + "".join(pieces) + "x")
"""Not a null, and not white space at its ends: templates cut it."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**15) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "maybe": TEXT,
        "count": st.integers(-(10**15), 10**15),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "open": st.booleans(),
        "tags": st.lists(TEXT, max_size=3),
        "filters": st.dictionaries(TEXT, JSON, max_size=3),
    },
)


@pytest.mark.parametrize(("path", "body"), SURFACES)
def test_a_call_in_the_history_is_the_call_that_was_made(
    path: str, body: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> None:
    @settings(max_examples=examples(2500))
    @given(ARGUMENTS)
    def check(arguments: dict[str, Any]) -> None:
        said = summary(parse([written(path, body(arguments))], tools=TOOLS))
        assert said["calls"] == [("f", arguments)]
        assert said["content"] == ""

    check()
