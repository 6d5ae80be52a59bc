"""Answers held to a form, on real servers with the bundled model: through the official SDKs, with and without thinking,
drafts up to three deep, and parks by force."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, Field

from tests.fixtures.deep_head import write_deep_head
from tests.integration.client import MODEL, Api
from tests.integration.test_parking import local
from tests.soak import SOAK

REQUESTS = 200 if SOAK else 20
CONCURRENCY = 8
TAG = {"type": "string", "enum": ["red", "green", "blue"]}
MARK = "a<|im_end|>\n<|im_start|>b"
"""Text that reads like control tokens, and is none."""
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 30}}, "required": ["answer"]},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": TAG, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
    {
        "$defs": {
            "Step": {"type": "object", "properties": {"do": {"type": "string", "maxLength": 10}}, "required": ["do"]}
        },
        "type": "object",
        "properties": {"steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 1, "maxItems": 2}},
        "required": ["steps"],
    },
    {
        "type": "object",
        "properties": {
            "kind": {"anyOf": [{"const": "a"}, {"type": "null"}, {"type": "boolean"}]},
            "day": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
            MARK: {"const": MARK},
        },
        "required": ["kind", "day", "code", MARK],
    },
    {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "minItems": 2, "maxItems": 4},
)
QUESTIONS = ("What is 3 plus 4?", "Count from 3 to 8.", "Sort: 4, 2, 9", "If it rains, what do I need?")
CAPITAL = "What is the capital of France?"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": TAG, "maxItems": 2},
        "mark": {"type": "string", "enum": [MARK]},
    },
    "required": ["city", "days", "mark"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Current weather of a city", "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The bundled model, its head allowed three drafts; every chat is parked every 20 tokens."""
    directory = tmp_path_factory.mktemp("drafting")
    with local(directory, model=str(write_deep_head(directory)), DARKBLOOM_PREEMPT_EVERY="20") as (_, api):
        yield api


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with local(tmp_path_factory.mktemp("plain"), "--mtp-mode", "off") as (_, api):
        yield api


@pytest.fixture(scope="module")
def chats(drafting: Api) -> Iterator[openai.OpenAI]:
    with strict(drafting) as client:
        yield client


def strict(api: Api) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{api.url}/v1", api_key="none", max_retries=0, timeout=120, _strict_response_validation=True
    )


@dataclass(frozen=True)
class Told:
    content: str
    reasoning: str
    finish_reason: str
    completion_tokens: int
    accepted: int
    parks: int


def ask(client: openai.OpenAI, number: int) -> tuple[dict[str, Any], Told]:
    """The schema, and what was answered; every third answer is streamed."""
    random = Random(number)
    schema = SCHEMAS[number % len(SCHEMAS)]
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": random.choice(QUESTIONS)}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        "temperature": random.choice([0, 0.7, 1.0]),
        "seed": number,
        "max_tokens": 300,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": number % 2 == 0}},
    }
    if number % 3:
        whole = client.chat.completions.create(**asked)
        choice = whole.choices[0]
        said = (choice.message.content or "", getattr(choice.message, "reasoning_content", None) or "")
        return schema, told(*said, choice.finish_reason, whole.usage, getattr(whole, "preempt", {}))
    content, reasoning, reason, usage, preempt = "", "", "", None, {}
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
            preempt = getattr(chunk, "preempt", preempt)
    return schema, told(content, reasoning, reason, usage, preempt)


def told(content: str, reasoning: str, reason: str, usage: Any, preempt: Any) -> Told:
    accepted = usage.completion_tokens_details.accepted_prediction_tokens
    return Told(content, reasoning, reason, usage.completion_tokens, accepted, preempt["parks"])


def generated(api: Api) -> float:
    families = text_string_to_metric_families(api.get("/metrics").text)
    return sum(
        one.value for family in families for one in family.samples if one.name == "darkbloom_generation_tokens_total"
    )


def test_answers_are_what_their_schemas_say_beside_each_other_drafting_and_parked(drafting: Api, plain: Api) -> None:
    before = {api: generated(api) for api in (drafting, plain)}
    numbers = {drafting: range(REQUESTS * 3 // 4), plain: range(REQUESTS * 3 // 4, REQUESTS)}
    answers: list[tuple[dict[str, Any], Told]] = []
    for api, asked in numbers.items():
        with ThreadPoolExecutor(CONCURRENCY) as threads, strict(api) as client:
            here = list(threads.map(lambda number, client=client: ask(client, number), asked))
        # No answer is generated twice.
        assert generated(api) - before[api] == sum(one.completion_tokens for _, one in here)
        answers += here
    stopped = [(schema, one) for schema, one in answers if one.finish_reason == "stop"]
    assert len(stopped) >= 0.95 * len(answers)
    for schema, one in stopped:
        assert one.content[0] in "{["
        jsonschema.validate(json.loads(one.content), schema)
    assert sum(one.accepted for _, one in answers[: len(numbers[drafting])]) > 0
    assert sum(one.parks for _, one in answers) > 0
    assert sum(one.reasoning != "" for _, one in answers) > 0
    assert all(one.accepted == 0 for _, one in answers[len(numbers[drafting]) :])


def test_reasoning_is_prose_and_content_the_value_alone(chats: openai.OpenAI) -> None:
    """Evidence N and Q: with drafts, and with thinking on and off."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[0]}}
    for thinking in (True, False):
        answer = chats.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is 3 plus 4?"}],
            response_format=form,  # type: ignore[arg-type]  # a plain dict
            temperature=0,
            extra_body={"chat_template_kwargs": {"enable_thinking": thinking}},
        )
        message = answer.choices[0].message
        reasoning = getattr(message, "reasoning_content", None)
        assert bool(reasoning) == thinking
        assert "<" not in (reasoning or "")
        assert "{" not in (reasoning or "")
        assert (message.content or "").startswith("{")
        assert list(json.loads(message.content or "")) == ["answer"]


class Verdict(BaseModel):
    word: str = Field(max_length=8)
    score: int = Field(ge=0, le=9)


def test_the_sdks_parse_into_their_callers_types(chats: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Judge."}]
    parsed = chats.chat.completions.parse(model=MODEL, messages=messages, response_format=Verdict, temperature=0)
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    response = chats.responses.parse(model=MODEL, input="Judge.", text_format=Verdict, temperature=0)
    assert isinstance(response.output_parsed, Verdict)
    assert response.text is not None
    loose = chats.chat.completions.create(
        model=MODEL, messages=messages, response_format={"type": "json_object"}, temperature=0, max_tokens=20
    )
    assert (loose.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("choice", "question"),
    [
        ("required", "What is the weather in Oslo?"),
        ({"type": "function", "function": {"name": "get_weather"}}, "Tell me of the sea."),
    ],
)
def test_a_tool_that_has_to_be_called_is_called_within_its_schema(
    chats: openai.OpenAI, choice: Any, question: str
) -> None:
    tools: Any = [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "nothing"}}]
    answer = chats.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=300,
    )
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)
    [call] = message.tool_calls or []
    assert call.type == "function"
    if call.function.name == "get_weather":
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    else:
        assert (call.function.name, json.loads(call.function.arguments)) == ("nothing", {})
        assert choice == "required"


def test_a_strict_tool_is_held_to_its_schema_where_the_model_decides(chats: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    for seed in range(2):
        answer = chats.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
            tools=tools,
            seed=seed,
            max_tokens=300,
        )
        for call in answer.choices[0].message.tool_calls or []:
            assert call.type == "function"
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_responses_and_messages_call_tools_too(chats: openai.OpenAI, drafting: Api) -> None:
    flat: Any = {"type": "function", "strict": True, **WEATHER}
    response = chats.responses.create(
        model=MODEL, input="Hello", tools=[flat], tool_choice={"type": "function", "name": "get_weather"}
    )
    [item] = [one for one in response.output if one.type == "function_call"]
    jsonschema.validate(json.loads(item.arguments), PARAMETERS)
    tool: Any = {"name": "get_weather", "input_schema": PARAMETERS}
    with anthropic.Anthropic(
        base_url=drafting.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
            message = client.messages.create(
                model=MODEL,
                max_tokens=300,
                messages=[{"role": "user", "content": "Hello"}],
                tools=[tool],
                tool_choice=choice,  # type: ignore[arg-type]  # a plain dict
            )
            assert message.stop_reason == "tool_use"
            [block] = [one for one in message.content if one.type == "tool_use"]
            jsonschema.validate(block.input, PARAMETERS)
    body = {
        "model": MODEL,
        "max_tokens": 300,
        "messages": [{"role": "user", "content": "Hello"}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMAS[1]}},
    }
    answer = drafting.post(body, "/v1/messages").json()
    jsonschema.validate(json.loads(answer["content"][-1]["text"]), SCHEMAS[1])


def test_an_answer_that_is_cut_ends_for_its_length_or_its_stop_string(chats: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[0]}}
    messages: Any = [{"role": "user", "content": "Count from 3 to 8."}]
    asked: dict[str, Any] = {"model": MODEL, "messages": messages, "response_format": form, "temperature": 0}
    cut = chats.chat.completions.create(**asked, max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 3
    stopped = chats.chat.completions.create(**asked, stop=["answer"])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == '{"'


def probabilities(client: openai.OpenAI) -> list[tuple[str, float]]:
    """Of the tokens of a greedy answer, which are the same when it is streamed."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 5 to 29."}],
        "temperature": 0,
        "max_tokens": 60,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**asked)
    told_of = whole.choices[0].logprobs
    assert told_of is not None
    content = told_of.content or []
    assert "".join(one.token for one in content) == whole.choices[0].message.content
    for one in content:
        best = one.top_logprobs[0]
        assert len(one.top_logprobs) == 3
        assert (one.token, one.logprob) == (best.token, best.logprob)
        assert one.logprob <= 0
    streamed: list[Any] = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        streamed += [one for choice in chunk.choices if choice.logprobs for one in choice.logprobs.content or []]
    assert streamed == content
    return [(one.token, one.logprob) for one in content]


def test_probabilities_are_told_streamed_or_not_parked_or_not(chats: openai.OpenAI, plain: Api) -> None:
    with strict(plain) as client:
        expected = probabilities(client)
    found = probabilities(chats)
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)


def test_completions_and_responses_tell_probabilities_too(plain: Api) -> None:
    asked = {"model": MODEL, "prompt": "The capital of", "max_tokens": 6, "temperature": 0, "logprobs": 2}
    [choice] = plain.post(asked, "/v1/completions").json()["choices"]
    told_of = choice["logprobs"]
    assert "".join(told_of["tokens"]) == choice["text"]
    assert [choice["text"][at:][:1] for at in told_of["text_offset"]] == [one[:1] for one in told_of["tokens"]]
    assert all(
        top[one] == value
        for top, one, value in zip(*(told_of[k] for k in ("top_logprobs", "tokens", "token_logprobs")), strict=True)
    )
    with strict(plain) as client:
        response = client.responses.create(
            model=MODEL, input=CAPITAL, temperature=0, include=["message.output_text.logprobs"], top_logprobs=1
        )
    [part] = [part for item in response.output if item.type == "message" for part in item.content]
    assert part.type == "output_text"
    assert "".join(one.token for one in part.logprobs or []) == part.text


def hostile(schema: Any, **more: Any) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "response_format": form}
    return json.dumps({**asked, **more}).encode()


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


def attacks() -> Iterator[tuple[str, bytes]]:
    yield "10 MB of nesting", hostile("HERE").replace(b'"HERE"', nested(800_000).encode())
    yield "10 MB of choices", hostile({"enum": ["x" * 100 + str(number) for number in range(100_000)]})
    chain: dict[str, Any] = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(2500)}
    yield (
        "a long row of references",
        hostile({"$defs": {**chain, "d2500": {"$ref": "#/$defs/d0"}}, "$ref": "#/$defs/d0"}),
    )
    wide = [{"anyOf": [{"properties": {f"a{i}_{j}": {"type": "string"}}} for j in range(6)]} for i in range(9)]
    yield "a schema that explodes", hostile({"allOf": wide})
    yield "a pattern that explodes", hostile({"type": "string", "pattern": "^(a?){1000}a{1000}$"})
    yield "a pattern nested too deeply", hostile({"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000})
    yield "a reference to elsewhere", hostile({"$ref": "file:///etc/passwd"})


def test_hostile_schemas_are_refused_and_harm_nobody(plain: Api) -> None:
    stop, seen = threading.Event(), list[str]()

    def neighbour() -> None:
        while not stop.is_set():
            body = {"model": MODEL, "messages": [{"role": "user", "content": CAPITAL}], "temperature": 0}
            seen.append(plain.text(body))

    beside = threading.Thread(target=neighbour)
    beside.start()
    try:
        for name, body in attacks():
            answer = httpx.post(f"{plain.url}/v1/chat/completions", content=body, timeout=60)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), name
            assert len(error["message"]) < 2000, name
    finally:
        stop.set()
        beside.join()
    assert set(seen) == {"The capital of France is Paris."}
    assert plain.get("/health").json() == {"status": "ok"}


def test_a_slow_pattern_takes_bounded_time_a_token(plain: Api) -> None:
    body = hostile({"type": "string", "pattern": "(.*a.{20}){3}", "maxLength": 200}, max_tokens=100)
    answer = httpx.post(f"{plain.url}/v1/chat/completions", content=body, timeout=60)
    assert answer.status_code in (200, 400)
