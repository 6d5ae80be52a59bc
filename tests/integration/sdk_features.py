"""Every feature, whole and streamed, through the official SDKs with each answer held to its type.

A program, so that other major versions of the SDKs can run it: `python sdk_features.py URL KEY [URL KEY ...]`.
It imports nothing of the project.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic
import openai

MODEL = "darkbloom-demo"
CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
WEATHER = "What is the weather in Oslo?"
COUNT = "Count from 5 to 9."
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIBED = {"name": "get_weather", "description": "Current weather of a city"}
CHAT_TOOL: Any = {"type": "function", "function": {**DESCRIBED, "parameters": SCHEMA}}
RESPONSES_TOOL: Any = {"type": "function", **DESCRIBED, "parameters": SCHEMA, "strict": False}
ANTHROPIC_TOOL: Any = {**DESCRIBED, "input_schema": SCHEMA}
BOUNDED: Any = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 12}},
    "required": ["answer"],
    "additionalProperties": False,
}
RAIN = '{"temperature": 7, "sky": "rain"}'


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


# OpenAI's chats


def chats_whole_and_streamed(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "messages": user(CAPITAL), "temperature": 0}
    whole = gpt.chat.completions.create(**asked)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (PARIS, "stop")
    chunks = list(gpt.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PARIS
    assert not [chunk for chunk in chunks if chunk.usage]
    *_, last = gpt.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.total_tokens) == ([], whole.usage.total_tokens)
    assert whole.usage.prompt_tokens_details.cached_tokens == 0


def chats_take_every_field(gpt: Any) -> None:
    done = gpt.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, *user(CAPITAL)],
        max_completion_tokens=20,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=["."],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -100},
        user="someone",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        tools=[CHAT_TOOL],
        tool_choice="none",
        store=True,
        service_tier="auto",
        extra_body={"top_k": 40, "min_p": 0.01, "priority": 1, "something_new": {"x": 1}},
    )
    assert "." not in done.choices[0].message.content


def chats_have_several_choices(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "messages": user(COUNT), "n": 3, "max_tokens": 12, "temperature": 1.2, "seed": 3}
    whole = gpt.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = ["", "", ""]
    for chunk in gpt.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def chats_think_or_do_not(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "messages": user("What is 17 plus 25?"), "temperature": 0, "max_tokens": 80}
    for switch in ({"reasoning_effort": "low"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}):
        thought = gpt.chat.completions.create(**asked, **switch)
        assert thought.choices[0].message.reasoning_content
        assert thought.usage.completion_tokens_details.reasoning_tokens > 0
        chunks = list(gpt.chat.completions.create(**asked, **switch, stream=True))
        told = "".join(getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks)
        assert told == thought.choices[0].message.reasoning_content
    for switch in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        plain = gpt.chat.completions.create(**asked, **switch)
        assert getattr(plain.choices[0].message, "reasoning_content", None) is None
        assert plain.usage.completion_tokens_details.reasoning_tokens == 0


def chats_call_tools(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "temperature": 0, "tools": [CHAT_TOOL], "tool_choice": "auto"}
    whole = gpt.chat.completions.create(**asked, messages=user(WEATHER))
    [call] = whole.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("tool_calls", None)
    with gpt.chat.completions.stream(**asked, messages=user(WEATHER)) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": RAIN}
    told = gpt.chat.completions.create(**asked, messages=[*user(WEATHER), whole.choices[0].message, result])
    assert (told.choices[0].finish_reason, bool(told.choices[0].message.content)) == ("stop", True)


def completions_take_text_and_tokens(gpt: Any, lenient: Any) -> None:
    asked: Any = {"model": MODEL, "prompt": [[5, 6, 7], [21, 22, 23]], "max_tokens": 6, "temperature": 0, "n": 2}
    whole = gpt.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage.completion_tokens <= 24
    texts = [""] * 4
    # A chunk's `finish_reason` is null until the last, which the SDK's type of a completion leaves out.
    for chunk in lenient.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def chats_are_held_to_a_schema(gpt: Any) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": user(CAPITAL),
        "temperature": 0,
        "max_tokens": 120,
        "reasoning_effort": "none",
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": BOUNDED}}
    whole = gpt.chat.completions.create(**asked, response_format=form)
    said = json.loads(whole.choices[0].message.content)
    assert (set(said), len(said["answer"]) <= 12) == ({"answer"}, True)
    chunks = gpt.chat.completions.create(**asked, response_format=form, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content


def chats_must_call(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "messages": user(WEATHER), "temperature": 0, "tools": [CHAT_TOOL], "max_tokens": 200}
    some = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    for choice in (
        "required",
        {"type": "function", "function": {"name": "get_weather"}},
        {"type": "allowed_tools", "allowed_tools": some},
    ):
        whole = gpt.chat.completions.create(
            **asked, tool_choice=choice, reasoning_effort="none", parallel_tool_calls=False
        )
        [call] = whole.choices[0].message.tool_calls
        assert isinstance(json.loads(call.function.arguments)["city"], str)


def chats_and_completions_tell_probabilities(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "messages": user(CAPITAL), "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = gpt.chat.completions.create(**asked).choices[0].logprobs.content
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in whole)
    chunks = list(gpt.chat.completions.create(**asked, stream=True))
    told = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.token for one in told] == [one.token for one in whole]
    done = gpt.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=4, temperature=0, logprobs=2)
    assert len(done.choices[0].logprobs.tokens) == len(done.choices[0].logprobs.token_logprobs) > 0


# OpenAI's responses


def responses_whole_and_streamed(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "input": CAPITAL, "temperature": 0, "instructions": "Be brief."}
    whole = gpt.responses.create(**asked, metadata={"a": "b"}, store=False, max_output_tokens=60, truncation="disabled")
    assert (whole.output_text, whole.status) == (PARIS, "completed")
    events = list(gpt.responses.create(**asked, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == PARIS
    assert events[-1].response.usage == whole.usage
    cut = gpt.responses.create(**asked, max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def responses_think(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "input": "What is 17 plus 25?", "temperature": 0}
    thought = gpt.responses.create(**asked, reasoning={"effort": "low"})
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert thought.usage.output_tokens_details.reasoning_tokens > 0
    plain = gpt.responses.create(**asked, extra_body={"reasoning": {"effort": "none"}})
    assert [item.type for item in plain.output] == ["message"]


def responses_call_tools(gpt: Any) -> None:
    asked: Any = {"model": MODEL, "temperature": 0, "tools": [RESPONSES_TOOL]}
    whole = gpt.responses.create(**asked, input=user(WEATHER))
    [call] = [item for item in whole.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Oslo"}
    with gpt.responses.stream(**asked, input=user(WEATHER)) as stream:
        final = stream.get_final_response()
    assert [item.arguments for item in final.output if item.type == "function_call"] == [call.arguments]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RAIN}
    items = [*user(WEATHER), *(item.to_dict() for item in whole.output), result]
    assert gpt.responses.create(**asked, input=items).output_text


def responses_are_held_to_a_schema(gpt: Any) -> None:
    form = {"type": "json_schema", "name": "answer", "schema": BOUNDED, "strict": True}
    asked: Any = {
        "model": MODEL,
        "temperature": 0,
        "max_output_tokens": 200,
        "extra_body": {"reasoning": {"effort": "none"}},
    }
    assert set(json.loads(gpt.responses.create(**asked, input=CAPITAL, text={"format": form}).output_text)) == {
        "answer"
    }
    named = {"type": "function", "name": "get_weather"}
    for choice in ("required", {"type": "allowed_tools", "mode": "required", "tools": [named]}):
        called = gpt.responses.create(**asked, input=WEATHER, tools=[RESPONSES_TOOL], tool_choice=choice)
        assert {item.name for item in called.output if item.type == "function_call"} == {"get_weather"}


def openai_models_and_errors(gpt: Any) -> None:
    assert [model.id for model in gpt.models.list()] == [gpt.models.retrieve(MODEL).id] == [MODEL]
    for stream in (False, True):
        refuses(openai.NotFoundError, gpt.chat.completions.create, model="other", messages=user("Hi"), stream=stream)
        asked: Any = {"model": MODEL, "messages": user("Hi"), "stream": stream}
        error = refuses(openai.BadRequestError, gpt.chat.completions.create, **asked, temperature=9)
        assert (error.param, error.type) == ("temperature", "invalid_request_error")
        refuses(openai.BadRequestError, gpt.responses.create, model=MODEL, input=[], stream=stream)
    refuses(openai.BadRequestError, gpt.completions.create, model=MODEL, prompt="a", best_of=2)
    refuses(openai.AuthenticationError, gpt.with_options(api_key="wrong").models.list)


# Anthropic's messages


def messages_whole_and_streamed(claude: Any) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 60, "messages": user(CAPITAL), "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**asked, system="Be brief.", metadata={"user_id": "x"})
    assert [block.text for block in whole.content] == [PARIS]
    assert whole.stop_reason == "end_turn"
    counted = claude.messages.count_tokens(model=MODEL, messages=user(CAPITAL), system="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens
    with claude.messages.stream(**asked, system="Be brief.") as stream:
        assert "".join(stream.text_stream) == PARIS
        assert stream.get_final_message().usage.to_dict() == whole.usage.to_dict()
    stopped = claude.messages.create(**asked, stop_sequences=["of France"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "of France")
    assert claude.messages.create(**{**asked, "max_tokens": 2}).stop_reason == "max_tokens"


def messages_think(claude: Any) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 2000, "messages": user("What is 17 plus 25?")}
    for switch, kinds in (
        ({"type": "enabled", "budget_tokens": 1024}, ["thinking", "text"]),
        ({"type": "disabled"}, ["text"]),
    ):
        body = {"temperature": 0, "thinking": switch}
        whole = claude.messages.create(**asked, extra_body=body)
        assert [block.type for block in whole.content] == kinds
        with claude.messages.stream(**asked, extra_body=body) as stream:
            final = stream.get_final_message()
        assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]


def messages_call_tools(claude: Any) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 100, "tools": [ANTHROPIC_TOOL], "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**asked, messages=user(WEATHER), tool_choice={"type": "auto"})
    assert whole.stop_reason == "tool_use"
    [call] = [block for block in whole.content if block.type == "tool_use"]
    assert call.input == {"city": "Oslo"}
    with claude.messages.stream(**asked, messages=user(WEATHER)) as stream:
        final = stream.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [call.input]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RAIN}]}
    history = [*user(WEATHER), {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert claude.messages.create(**asked, messages=history).stop_reason == "end_turn"


def messages_must_call(claude: Any) -> None:
    body = {"temperature": 0, "thinking": {"type": "disabled"}}
    asked: Any = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": user(CAPITAL),
        "tools": [ANTHROPIC_TOOL],
        "extra_body": body,
    }
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}):
        called = claude.messages.create(**asked, tool_choice=choice)
        assert {block.name for block in called.content if block.type == "tool_use"} == {"get_weather"}


def anthropic_models_and_errors(claude: Any) -> None:
    assert [model.id for model in claude.models.list()] == [claude.models.retrieve(MODEL).id] == [MODEL]
    asked: Any = {"max_tokens": 5, "messages": user("Hi")}
    for stream in (False, True):
        error = refuses(anthropic.NotFoundError, claude.messages.create, model="other", **asked, stream=stream)
        assert error.body["error"]["type"] == "not_found_error"
        refuses(
            anthropic.BadRequestError, claude.messages.create, model=MODEL, **{**asked, "max_tokens": 0}, stream=stream
        )
    stranger = claude.with_options(api_key="wrong")
    refuses(anthropic.AuthenticationError, stranger.messages.create, model=MODEL, **asked)


def refuses(kind: type[Exception], call: Callable[..., Any], **asked: Any) -> Any:
    try:
        call(**asked)
    except kind as error:
        return error
    raise AssertionError(f"not refused with {kind.__name__}: {asked}")


OPENAI = (
    chats_whole_and_streamed,
    chats_take_every_field,
    chats_have_several_choices,
    chats_think_or_do_not,
    chats_call_tools,
    chats_are_held_to_a_schema,
    chats_must_call,
    chats_and_completions_tell_probabilities,
    responses_whole_and_streamed,
    responses_think,
    responses_call_tools,
    responses_are_held_to_a_schema,
    openai_models_and_errors,
)
ANTHROPIC = (
    messages_whole_and_streamed,
    messages_think,
    messages_call_tools,
    messages_must_call,
    anthropic_models_and_errors,
)


def drive(url: str, key: str) -> None:
    """Raises what the first feature that is not as it should be raises."""
    openai_options: Any = {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0, "timeout": 60}
    anthropic_options: Any = {"base_url": url, "api_key": key, "max_retries": 0, "timeout": 60}
    with (
        openai.OpenAI(**openai_options, _strict_response_validation=True) as gpt,
        openai.OpenAI(**openai_options) as lenient,
        anthropic.Anthropic(**anthropic_options, _strict_response_validation=True) as claude,
    ):
        for feature in OPENAI:
            feature(gpt)
        completions_take_text_and_tokens(gpt, lenient)
        for feature in ANTHROPIC:
            feature(claude)


def main(arguments: list[str]) -> None:
    for url, key in zip(arguments[::2], arguments[1::2], strict=True):
        drive(url, key)
    print(json.dumps({"openai": openai.__version__, "anthropic": anthropic.__version__}))


if __name__ == "__main__":
    main(sys.argv[1:])
