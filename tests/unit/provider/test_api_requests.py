"""What a body may hold, and what becomes of it: the sequences to generate."""

from random import Random
from typing import Any

import pytest

from provider.api.job import Job, Origin, chat_job, completions_job
from provider.api.jobs import JOBS
from provider.api.requests import MAX_STOPS
from provider.api.wire import Failure
from provider.errors import RequestFailed
from tests.fixtures.api_serving import TOKENIZER, DemoModel

CHAT: dict[str, Any] = {"model": "darkbloom-demo", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "darkbloom-demo", "prompt": "Hi"}
HI: list[Any] = [{"role": "user", "content": "Hi"}]
EOS = sorted(TOKENIZER.eos_token_ids)


def origin() -> Origin:
    return Origin("r", DemoModel(), lambda: 0.0, Random(1))


def chat(**fields: Any) -> Job:
    return chat_job({**CHAT, **fields}, origin())


def completion(**fields: Any) -> Job:
    return completions_job({**TEXT, **fields}, origin())


def refusal(job: Any, **fields: Any) -> Failure:
    with pytest.raises(RequestFailed) as caught:
        job(**fields)
    failure = caught.value.failure
    assert (failure.status, failure.type) == (400, "invalid_request_error")
    return failure


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": value} for value in (-0.1, 2.1, "1", float("nan"), float("inf"), True)),
        *({"top_p": value} for value in (0, 1.1, "x")),
        *({"max_tokens": value} for value in (0, -1, 1.5, "9", 2**31, 10**30)),
        *({"n": value} for value in (0, 129, 1.5)),
        *({"stop": value} for value in ("", [""], 3, [3], ["a"] * (MAX_STOPS + 1), "a" * 2000)),
        *({"seed": value} for value in (1.5, "1", 2**63)),
        *({"presence_penalty": value} for value in (-2.1, 2.1)),
        *({"frequency_penalty": value} for value in (-2.1, 2.1)),
        *({"repetition_penalty": value} for value in (0, -1)),
        *({"logit_bias": value} for value in ({"x": 1}, {"1024": 1}, {"-1": 1}, [], {"1": 1, "01": 2})),
        *({"top_k": value} for value in (-2, 1.5)),
        *({"min_p": value} for value in (-0.1, 1.1)),
        {"priority": "high"},
        {"stream": "yes"},
        {"stream_options": {"include_usage": True}},
        {"user": 5},
    ],
)
def test_a_wrong_value_is_refused_by_name(fields: dict[str, Any]) -> None:
    [name] = fields
    for job in (chat, completion):
        failure = refusal(job, **fields)
        assert failure.param == name
        assert failure.message.startswith(name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": []}, "metadata"),
        ({"store": "yes"}, "store"),
        ({"service_tier": 1}, "service_tier"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ],
)
def test_what_has_no_effect_is_checked_too(fields: dict[str, Any], param: str) -> None:
    assert refusal(chat, **fields).param == param


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": None}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": None}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{"function": None}]}]}, None),
        ("/v1/chat/completions", {"messages": HI, "tools": [{"type": "function", "function": None}]}, None),
        ("/v1/completions", {"prompt": None}, "prompt"),
        ("/v1/responses", {"input": None}, "input"),
        ("/v1/messages", {"max_tokens": 5, "messages": None}, "messages"),
        ("/v1/messages", {"max_tokens": None, "messages": HI}, "max_tokens"),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ("/v1/messages/count_tokens", {"messages": None}, "messages"),
    ],
)
def test_a_null_is_as_good_as_left_out_where_something_is_needed(
    path: str, fields: dict[str, Any], param: str | None
) -> None:
    of_nulls, without = (
        refusal(JOBS[path], body={"model": "darkbloom-demo", **body}, origin=origin())
        for body in (fields, without_nulls(fields))
    )
    assert of_nulls == without
    assert of_nulls.code == "missing_required_parameter"
    assert param in (None, of_nulls.param)


def without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_nulls(one) for key, one in value.items() if one is not None}
        case list():
            return [without_nulls(one) for one in value]
        case _:
            return value


def test_a_null_is_as_good_as_left_out_where_nothing_is_needed() -> None:
    call = {"id": None, "type": None, "function": {"name": "f", "arguments": None}}
    message = {"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": [call]}
    assert chat(messages=[*HI, message, *HI]).requests == chat(messages=without_nulls([*HI, message, *HI])).requests


def test_what_is_no_object_is_told_without_names_of_ours() -> None:
    for fields in ({"response_format": 3}, {"tools": ["x"]}, {"messages": [3]}, {"metadata": 3}, {"logit_bias": []}):
        failure = refusal(chat, **fields)
        assert failure.message == f"{failure.param}: must be an object"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": "2"}, "best_of"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_a_chat_refuses_what_it_does_not_support_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(chat, **fields).param == param


@pytest.mark.parametrize(
    "fields", [{"best_of": 2}, {"echo": True}, {"logprobs": 6}, {"suffix": "x"}, {"top_logprobs": 2}]
)
def test_a_completion_refuses_what_it_does_not_support_by_name(fields: dict[str, Any]) -> None:
    assert refusal(completion, **fields).param == next(iter(fields))


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("x", "messages"),
        ([3], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_a_wrong_message_is_named(messages: Any, param: str) -> None:
    assert refusal(chat, messages=messages).param == param


def test_nulls_and_unknown_fields_are_no_mistakes() -> None:
    nothing = dict.fromkeys(("temperature", "stop", "tools", "max_tokens", "n", "seed", "logit_bias", "stream"))
    assert len(chat(**nothing, user="me", metadata={}, parallel_tool_calls=True, store=False, best_of=1).requests) == 1
    assert len(completion(**nothing, user="me", best_of=1, echo=False, top_logprobs=0).requests) == 1


def test_the_defaults_are_openais() -> None:
    request = chat().requests[0]
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    assert request.stop_token_ids == EOS
    assert request.max_tokens == 512 - len(request.prompt)
    assert completion().requests[0].max_tokens == 16


def test_fields_reach_the_engine() -> None:
    request = chat(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        seed=-1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": -100},
        stop="END",
        max_tokens=9,
        max_completion_tokens=7,
        priority=3,
        ignore_eos=True,
        skip_special_tokens=False,
    ).requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 0, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.1, {5: -100.0})
    assert sampling.seed == 2**63 - 1
    assert (request.stop, request.max_tokens, request.priority) == (["END"], 7, 3)
    assert request.stop_token_ids == []
    assert not request.skip_special_tokens


def test_choices_share_a_seed_and_differ_by_index() -> None:
    requests = chat(n=3).requests
    assert [request.sampling.index for request in requests] == [0, 1, 2]
    assert len({request.sampling.seed for request in requests}) == 1
    assert len({request.request_id for request in requests}) == 3


def test_a_seed_is_drawn_when_none_is_given() -> None:
    shared = Origin("r", DemoModel(), lambda: 0.0, Random(1))
    first, second = (chat_job(CHAT, shared).requests[0].sampling.seed for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", [TOKENIZER.encode("Hi")]),
        ([5, 6], [[5, 6]]),
        (["Hi", "a"], [TOKENIZER.encode("Hi"), TOKENIZER.encode("a")]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        ("<|im_end|>", [EOS]),
    ],
)
def test_a_completion_takes_text_or_tokens_or_lists_of_either(prompt: Any, prompts: list[list[int]]) -> None:
    assert [request.prompt for request in completion(prompt=prompt).requests] == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        (None, "prompt"),
        ([[]], "prompt"),
        ([1024], "prompt"),
        ([-1], "prompt"),
        (["a", 1], "prompt"),
        ([True], "prompt"),
        (["Hi", ""], "prompt[1]"),
        ([[5], [5000]], "prompt[1]"),
        ([2**70], "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused(prompt: Any, param: str) -> None:
    assert refusal(completion, prompt=prompt).param == param


def test_several_prompts_times_choices_are_bounded() -> None:
    assert len(completion(prompt=["a", "b"], n=3).requests) == 6
    assert refusal(completion, prompt=["a"] * 100, n=2).param == "prompt"


@pytest.mark.parametrize("length", [512, 5000])
def test_a_prompt_that_fills_the_context_is_refused_with_its_numbers(length: int) -> None:
    with pytest.raises(RequestFailed) as caught:
        completion(prompt=[5] * length)
    failure = caught.value.failure
    assert (failure.status, failure.type) == (400, "exceed_context_size_error")
    assert failure.detail == {"n_prompt_tokens": length, "n_ctx": 512}
    assert completion(prompt=[5] * 511).requests[0].max_tokens == 1


def test_tools_reach_the_template_as_they_were_written() -> None:
    tool = {"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "name": "f"}}
    text = TOKENIZER.decode(chat(tools=[tool]).requests[0].prompt)
    assert '{"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "name": "f"}}' in text


def test_tool_choice_none_hides_the_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert chat(tools=[tool], tool_choice="none").requests[0].prompt == chat().requests[0].prompt
