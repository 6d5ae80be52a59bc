"""One demo model behind `local` and behind a coordinator: every API gives the same text, to the official SDKs too."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import anthropic
import httpx
import openai
import pytest

from provider.api.conversation import turns_of
from provider.api.output import CallArguments, CallBegun, Content, OutputParser, Reasoning
from provider.api.prompt import chat_prompt
from tests.fixtures.api_answers import Read, message_of, read_chat, read_message, read_response, response_of
from tests.fixtures.api_serving import TOKENIZER
from tests.integration.client import MODEL, Api
from tests.integration.processes import until
from tests.integration.side_packages import environment, run_beside, side_packages

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIBED = "Current weather of a city"
SUM = "What is 17 plus 25?"
WEATHER = "What is the weather in Oslo?"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COUNT = "/v1/messages/count_tokens"


@pytest.fixture(params=["local", "fleet"])
def api(apis: dict[str, Api], request: pytest.FixtureRequest) -> Api:
    return apis[request.param]


def claude(api: Api) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=api.url, api_key=api.key, max_retries=0, timeout=60, _strict_response_validation=True
    )


def gpt(api: Api) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=60, _strict_response_validation=True
    )


def chat_body(question: str, limit: int, thinking: bool | None, stop: list[str], tools: bool) -> dict[str, Any]:
    function = {"name": "get_weather", "description": DESCRIBED, "parameters": SCHEMA}
    return {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        "max_completion_tokens": limit,
        "stop": stop,
        "tools": [{"type": "function", "function": function}] if tools else [],
        **({} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}),
    }


def messages_body(question: str, limit: int, thinking: bool | None, stop: list[str], tools: bool) -> dict[str, Any]:
    switch = {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"}
    return {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": question}]}],
        "max_tokens": limit,
        "stop_sequences": stop,
        "tools": [{"name": "get_weather", "description": DESCRIBED, "input_schema": SCHEMA}] if tools else [],
        **({} if thinking is None else {"thinking": switch}),
    }


def responses_body(question: str, limit: int, thinking: bool | None, stop: list[str], tools: bool) -> dict[str, Any]:
    tool = {"type": "function", "name": "get_weather", "description": DESCRIBED, "parameters": SCHEMA}
    return {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": question}]}],
        "max_output_tokens": limit,
        "stop": stop,
        "tools": [tool] if tools else [],
        **({} if thinking is None else {"reasoning": {"effort": "medium" if thinking else "none"}}),
    }


BODIES: dict[str, Callable[..., dict[str, Any]]] = {
    CHAT: chat_body,
    MESSAGES: messages_body,
    RESPONSES: responses_body,
}
READS: dict[str, Callable[[Any], Read]] = {CHAT: read_chat, MESSAGES: read_message, RESPONSES: read_response}


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def ask(api: Api, path: str, stream: bool, **asked: Any) -> Read:
    body = {"model": MODEL, "temperature": 0, "stream": stream, **BODIES[path](**asked)}
    answer = api.post(body, path)
    assert answer.status_code == 200, answer.text
    if not stream:
        return READS[path](answer.json())
    return READS[path]((message_of if path == MESSAGES else response_of)(events_of(answer.text)))


@pytest.mark.parametrize(
    ("question", "limit", "thinking", "stop", "tools"),
    [
        (SUM, 60, True, [], False),
        (SUM, 60, False, [], False),
        ("Count from 5 to 99.", 8, None, [], False),
        ("Count from 5 to 99.", 40, False, ["9, 10"], False),
        (WEATHER, 60, None, [], True),
    ],
)
def test_the_same_request_gives_the_same_answer_on_every_api(
    apis: dict[str, Api], question: str, limit: int, thinking: bool | None, stop: list[str], tools: bool
) -> None:
    asked = {"question": question, "limit": limit, "thinking": thinking, "stop": stop, "tools": tools}
    expected = ask(apis["local"], CHAT, stream=False, **asked)
    assert expected.text or expected.calls
    assert bool(expected.calls) == tools
    assert bool(stop) <= ("9, 10" not in expected.text)
    for path in (MESSAGES, RESPONSES):
        assert ask(apis["local"], path, stream=True, **asked) == expected
        assert ask(apis["fleet"], path, stream=False, **asked) == expected
    assert completed(apis["fleet"], expected.tokens[0], **asked) == expected


def completed(api: Api, prompt_tokens: int, **asked: Any) -> Read:
    """The prompt that the chat's template renders, put as a completion; the raw text taken apart afterwards."""
    chat = chat_body(**asked)
    turns = turns_of(chat["messages"])
    kwargs = chat.get("chat_template_kwargs", {})
    prompt = chat_prompt(TOKENIZER, turns, chat["tools"], kwargs, time.time, Random(1))
    assert len(prompt.token_ids) == prompt_tokens
    body = {"model": MODEL, "temperature": 0, "max_tokens": asked["limit"], "stop": asked["stop"]}
    done = api.post({**body, "prompt": prompt.token_ids}, "/v1/completions").json()
    [choice], usage = done["choices"], done["usage"]
    parser = OutputParser(prompt.thinking, {"get_weather": SCHEMA} if asked["tools"] else {}, lambda: "id")
    pieces = parser.push(choice["text"]) + parser.finish(cut=choice["finish_reason"] == "length")
    names = [piece.name for piece in pieces if isinstance(piece, CallBegun)]
    arguments = "".join(piece.json for piece in pieces if isinstance(piece, CallArguments))
    return Read(
        "".join(piece.text for piece in pieces if isinstance(piece, Reasoning)),
        "".join(piece.text for piece in pieces if isinstance(piece, Content)),
        [(name, json.loads(arguments)) for name in names],
        "length" if choice["finish_reason"] == "length" else None,
        (usage["prompt_tokens"], usage["completion_tokens"]),
    )


IDS = re.compile(r'"(msg|resp|rs|fc|toolu|call)_[A-Za-z0-9]{24}"|"created_at":\d+')


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize("question", [SUM, WEATHER])
def test_a_stream_has_the_same_bytes_through_a_coordinator(apis: dict[str, Api], path: str, question: str) -> None:
    asked = BODIES[path](question, 80, None, [], question == WEATHER)
    local, fleet = (
        IDS.sub("ID", api.post({"model": MODEL, "temperature": 0, "stream": True, **asked}, path).text)
        for api in apis.values()
    )
    assert local == fleet
    assert local.split("event: ")[-1].startswith(("message_stop\n", "response.completed\n"))


def test_the_anthropic_sdk_goes_through_a_loop_of_tools(api: Api) -> None:
    tools: Any = messages_body(WEATHER, 1, None, [], True)["tools"]
    asked: list[Any] = [{"role": "user", "content": WEATHER}]
    with claude(api) as client:
        shared: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "tools": tools, "extra_body": {"temperature": 0}}
        counted = client.messages.count_tokens(model=MODEL, tools=tools, messages=asked)
        called = client.messages.create(**shared, messages=asked)
        assert called.usage.input_tokens == counted.input_tokens
        assert called.stop_reason == "tool_use"
        [call] = [block for block in called.content if block.type == "tool_use"]
        assert call.input == {"city": "Oslo"}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 7, "sky": "rain"}'}
        asked += [called.to_param(), {"role": "user", "content": [result]}]
        whole = client.messages.create(**shared, messages=asked)
        with client.messages.stream(**shared, messages=asked) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content if block.type == "text") != ""
    assert final.usage.to_dict() == whole.usage.to_dict()
    assert whole.stop_reason == "end_turn"


def test_the_openai_sdk_goes_through_a_loop_of_tools_over_responses(api: Api) -> None:
    tools: Any = responses_body(WEATHER, 1, None, [], True)["tools"]
    items: list[Any] = [{"role": "user", "content": WEATHER}]
    with gpt(api) as client:
        shared: dict[str, Any] = {"model": MODEL, "temperature": 0, "tools": tools}
        called = client.responses.create(**shared, input=items)
        [call] = [item for item in called.output if item.type == "function_call"]
        assert json.loads(call.arguments) == {"city": "Oslo"}
        result = {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": '{"temperature": 7, "sky": "rain"}',
        }
        items += [*(item.to_dict() for item in called.output), result]
        whole = client.responses.create(**shared, input=items)
        with client.responses.stream(**shared, input=items) as stream:
            final = stream.get_final_response()
    assert final.output_text == whole.output_text != ""
    assert final.usage == whole.usage


HOSTILE = {
    "nested": b'{"model": "darkbloom-demo", "messages": ' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"}",
    "objects": b'{"a":' * 2_000_000 + b"1" + b"}" * 2_000_000,
    "items": b'{"model": "darkbloom-demo", "messages": [' + b",".join([b"[]"] * 3_300_000) + b"]}",
    "not UTF-8": b'{"model": "darkbloom-demo", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "half a pair": b'{"model": "darkbloom-demo", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "stops": json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stop": ["x"] * 10_000}
    ).encode(),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_body_is_a_400_soon_and_the_next_is_served(api: Api, attack: str) -> None:
    started = time.monotonic()
    status, error = api.error(HOSTILE[attack])
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert time.monotonic() - started < 30
    assert api.get("/v1/models").status_code == 200


def test_models_are_listed_in_the_form_of_the_client(api: Api) -> None:
    with claude(api) as client:
        assert [one.id for one in client.models.list()] == [client.models.retrieve(MODEL).id] == [MODEL]
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.models.retrieve("some/other")
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with gpt(api) as client:
        assert [one.id for one in client.models.list()] == [client.models.retrieve(MODEL).id] == [MODEL]


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
def test_errors_have_the_form_of_the_api_that_was_called(api: Api, path: str) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    for fields, status, kind, code in (
        ({"model": "other"}, 404, "not_found_error", "model_not_found"),
        ({"messages": []}, 400, "invalid_request_error", "invalid_value"),
        ({"model": 3}, 400, "invalid_request_error", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            "invalid_value",
        ),
    ):
        answer = api.post({**body, **fields}, path)
        error = answer.json()["error"]
        assert (answer.status_code, answer.json()["type"], error["type"]) == (status, "error", kind)
        assert code is None or error["code"] == code


def test_a_wrong_key_is_an_anthropic_error(apis: dict[str, Api]) -> None:
    answer = httpx.post(apis["fleet"].url + MESSAGES, json={}, headers={"x-api-key": "wrong"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_a_client_that_leaves_frees_its_row(apis: dict[str, Api]) -> None:
    local = apis["local"]
    for path in (MESSAGES, RESPONSES):
        body = {
            "model": MODEL,
            "stream": True,
            "ignore_eos": True,
            **BODIES[path]("Count from 1 to 99.", 4000, None, [], False),
        }
        with local.vanishing(body, path):
            until(lambda: local.states() == ["running"], what="a running row")
        until(lambda: not local.states(), what="no row")


def test_the_documents_list_the_routes(api: Api) -> None:
    assert {CHAT, "/v1/completions", MESSAGES, COUNT, RESPONSES} <= set(api.get("/openapi.json").json()["paths"])


LLM = ("llm==0.36", "click-default-group", "condense-json", "puremagic", "python-dateutil", "python-ulid")
LLM_STORE = ("sqlite-fts4", "sqlite-utils", "tabulate", "tzdata")
PYDANTIC_AI = ("pydantic-ai-slim==2.68.0", "pydantic-graph==2.68.0", "genai-prices", "griffelib", "logfire-api")
TIKTOKEN = ("tiktoken", "requests", "urllib3", "charset-normalizer")
CLIENTS = {"llm ": (*LLM, *LLM_STORE), "pydantic_ai": (*PYDANTIC_AI, *TIKTOKEN)}
"""What a recipe runs that is not of this project, by a word in it."""

RECIPE = re.compile(r"```(sh|python)\n(.*?)```\n```text\n(.*?)```", re.DOTALL)
PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
RECIPES = RECIPE.findall(PAGE)


@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_the_recipes_print_what_they_say(apis: dict[str, Api], number: int, capfd: pytest.CaptureFixture[str]) -> None:
    kind, recipe, printed = RECIPES[number]
    api = apis["fleet"]
    here = recipe.replace("http://127.0.0.1:8080", api.url).replace("dbk_...", api.key)
    client = next((packages for name, packages in CLIENTS.items() if name in recipe), None)
    if kind == "sh":
        env = os.environ if client is None else environment(side_packages(*client))
        subprocess.run(["bash", "-c", here], check=True, timeout=120, env=env)
    elif client is not None:
        print(run_beside(side_packages(*client), "-c", here))
    else:
        named: dict[str, Any] = {}
        exec(compile(here, "docs/api.md", "exec"), named)
        named["client"].close()
    assert capfd.readouterr().out.strip() == printed.strip()


def test_every_recipe_is_tried() -> None:
    assert len(RECIPES) == PAGE.count("```text") >= 10
