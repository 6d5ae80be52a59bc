"""Whatever JSON a body holds, it is served or refused with a 4xx that names a field: never an error of ours."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.job import Job, Origin
from provider.api.jobs import JOBS
from provider.errors import RequestFailed
from tests.fixtures.api_serving import TOKENIZER, DemoModel
from tests.soak import examples

WORDS = st.sampled_from(
    [
        *(
            "text",
            "input_text",
            "tool_use",
            "tool_result",
            "thinking",
            "image",
            "message",
            "function_call",
            "reasoning",
        ),
        *(
            "function_call_output",
            "user",
            "assistant",
            "system",
            "tool",
            "auto",
            "none",
            "enabled",
            "function",
            "{",
            "{}",
        ),
        *("<|im_end|>", "", "\x00", "{{ 7 }}"),
    ]
)
NAMES = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "name", "input", "tool_use_id", "thinking", "arguments", "call_id"),
        *(
            "output",
            "function",
            "tool_calls",
            "parameters",
            "input_schema",
            "description",
            "summary",
            "format",
            "effort",
        ),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.floats(allow_nan=False) | WORDS
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)
BLOCK = st.fixed_dictionaries(
    {"type": WORDS | JSON},
    optional=dict.fromkeys(("text", "id", "name", "input", "content", "tool_use_id", "thinking"), WORDS | JSON),
)
ITEM = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("type", "role", "content", "call_id", "name", "arguments", "output"), WORDS | JSON)
)
TURN = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]) | JSON,
        "content": WORDS | st.lists(BLOCK, max_size=3) | JSON,
    }
)
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "/v1/messages": {
        "messages": st.lists(TURN, min_size=1, max_size=3) | JSON,
        "system": JSON,
        "tools": st.lists(st.fixed_dictionaries({"name": WORDS, "input_schema": JSON})) | JSON,
        "tool_choice": JSON,
        "thinking": JSON,
        "stop_sequences": JSON,
        "output_config": JSON,
    },
    "/v1/responses": {
        "input": st.lists(ITEM, min_size=1, max_size=4) | JSON,
        "instructions": JSON,
        "tools": st.lists(st.fixed_dictionaries({"type": st.just("function"), "name": WORDS, "parameters": JSON})),
        "tool_choice": JSON,
        "reasoning": JSON,
        "text": JSON,
        "include": JSON,
        "stop": JSON,
    },
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "darkbloom-demo", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"model": "darkbloom-demo", "input": "Hi"},
}


def tried(job_of: Callable[[Any, Origin], Job], body: dict[str, Any]) -> Job | None:
    try:
        return job_of(body, Origin("r", DemoModel(), lambda: 0.0, Random(1)))
    except RequestFailed as refused:
        failure = refused.failure
        assert failure.status in (400, 413)
        assert failure.param is None or failure.message
        return None


@pytest.mark.parametrize("path", FIELDS)
def test_any_json_is_served_or_refused(path: str) -> None:
    served = 0

    @settings(max_examples=examples(4000))
    @given(st.fixed_dictionaries({}, optional=FIELDS[path]))
    def check(fields: dict[str, Any]) -> None:
        nonlocal served
        job = tried(JOBS[path], {**GOOD[path], **fields})
        if job is None:
            return
        served += 1
        assert len(job.requests) == 1
        assert isinstance(job.translation.whole(), dict)

    check()
    assert served


def messages_of(text: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "t", "name": text, "input": {text: text}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": text}]}
    return {
        "system": [{"type": "text", "text": text}],
        "tools": [{"name": text, "description": text, "input_schema": {"title": text}}],
        "messages": [
            {"role": "user", "content": text},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": text}, {"type": "text", "text": text}, call],
            },
            {"role": "user", "content": [result, {"type": "text", "text": text}]},
        ],
    }


def responses_of(text: str) -> dict[str, Any]:
    return {
        "instructions": text,
        "tools": [{"type": "function", "name": text, "description": text, "parameters": {"title": text}}],
        "input": [
            {"role": "user", "content": text},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
            {"type": "function_call", "call_id": "c", "name": text, "arguments": f'{{"{text}": "{text}"}}'},
            {"type": "function_call_output", "call_id": "c", "output": text},
            {"role": "developer", "content": [{"type": "input_text", "text": text}]},
        ],
    }


@pytest.mark.parametrize(("path", "asked"), [("/v1/messages", messages_of), ("/v1/responses", responses_of)])
@pytest.mark.parametrize("evil", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_nothing_that_is_sent_becomes_a_control_token(path: str, asked: Callable[[str], Any], evil: str) -> None:
    def controls(text: str) -> int:
        job = tried(JOBS[path], {**GOOD[path], **asked(text)})
        assert job is not None
        told = TOKENIZER.decode(job.requests[0].prompt, skip_special_tokens=False)
        assert told.count(text) >= 8
        return sum(TOKENIZER.decode([token]) == "" for token in job.requests[0].prompt)

    assert controls(evil) == controls("harmless")
