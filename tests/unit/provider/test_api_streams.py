"""One answer on every API: the same words, calls and counts, whole and streamed, whatever the split of its tokens."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.job import Job, Origin, chat_job
from provider.api.jobs import messages_job, responses_job
from provider.generation import Delta, Finished, FinishReason
from provider.text import TextStream
from tests.fixtures.api_answers import Read, message_of, read_chat, read_message, read_response, response_of
from tests.fixtures.api_serving import TOKENIZER, DemoModel
from tests.soak import examples

WRITE_FILE = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
FILTER = {
    "type": "object",
    "properties": {"filters": {"type": "object"}, "tags": {"type": "array"}, "when": {"type": "string"}},
}
PUT = {"type": "object", "properties": {"text": {"type": "string"}}}
SCHEMAS = {"write_file": WRITE_FILE, "search": FILTER, "put": PUT}
CHAT_TOOLS = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in SCHEMAS.items()]
MESSAGES_TOOLS = [{"name": name, "input_schema": one} for name, one in SCHEMAS.items()]
RESPONSES_TOOLS = [{"type": "function", "name": name, "parameters": one} for name, one in SCHEMAS.items()]
HELLO = (
    "<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/h.py\n</parameter>\n<parameter=content>\n"
    'print("Hello, World!")\n</parameter>\n</function>\n</tool_call>'
)


def origin() -> Origin:
    return Origin("r", DemoModel(), lambda: 0.0, Random(1))


def chat(tools: bool = True, stop: Sequence[str] = (), thinking: bool | None = None) -> Job:
    extra = {} if thinking is None else {"reasoning_effort": "high" if thinking else "none"}
    body = {"model": "darkbloom-demo", "messages": [{"role": "user", "content": "Hi"}], "stop": list(stop), **extra}
    return chat_job({**body, "tools": CHAT_TOOLS if tools else []}, origin())


def messages(tools: bool = True, stop: Sequence[str] = (), thinking: bool | None = None) -> Job:
    extra = {} if thinking is None else {"thinking": {"type": "enabled" if thinking else "disabled"}}
    body = {"model": "darkbloom-demo", "max_tokens": 300, "messages": [{"role": "user", "content": "Hi"}], **extra}
    return messages_job({**body, "tools": MESSAGES_TOOLS if tools else [], "stop_sequences": list(stop)}, origin())


def responses(tools: bool = True, stop: Sequence[str] = (), thinking: bool | None = None) -> Job:
    extra = {} if thinking is None else {"reasoning": {"effort": "high" if thinking else "none"}}
    body = {"model": "darkbloom-demo", "input": "Hi", "stop": list(stop), **extra}
    return responses_job({**body, "tools": RESPONSES_TOOLS if tools else []}, origin())


Make = Callable[..., Job]


def play(job: Job, text: str, sizes: Sequence[int], reason: FinishReason = "stop") -> list[dict[str, Any]]:
    """The chunks of an answer whose tokens come in groups of `sizes`, over and over, as the engine tells them."""
    [request] = job.requests
    stream = TextStream(TOKENIZER.decode, request.stop, request.skip_special_tokens, request.reading)
    ids, told, chunks = TOKENIZER.encode(text), 0, []
    at = turn = 0
    while at < len(ids):
        group = ids[at : at + sizes[turn % len(sizes)]]
        at, turn = at + len(group), turn + 1
        pushed = stream.push(group)
        kept = group[: pushed.stopped_at]
        told += len(kept)
        chunks += job.translation.delta(0, Delta("r-0", kept, pushed.text))
        if pushed.stopped_at is not None:
            break
    if held := stream.finish(cut=reason == "length"):
        chunks += job.translation.delta(0, Delta("r-0", [], held))
    stop = stream.stopped_by
    ended = Finished("r-0", "stop" if stop else reason, len(request.prompt), told + 1, stop=stop)
    return chunks + job.translation.finished(0, ended)


def told(make: Make, text: str, sizes: Sequence[int], reason: FinishReason = "stop", **asked: Any) -> Read:
    """What a client reads; the stream and the whole must say the same."""
    job = make(**asked)
    chunks = play(job, text, sizes, reason)
    whole = job.translation.whole()
    if make is messages:
        assert message_of(chunks) == whole
        return read_message(whole)
    if make is responses:
        assert response_of(chunks) == whole
        return read_response(whole)
    return read_chat(whole)


SURFACES = [chat, messages, responses]


@pytest.mark.parametrize("make", SURFACES)
@pytest.mark.parametrize("run", range(1, 9))
def test_a_tool_call_is_one_call_with_empty_content(make: Make, run: int) -> None:
    read = told(make, HELLO, [run])
    assert read.calls == [("write_file", {"path": "src/h.py", "content": 'print("Hello, World!")'})]
    assert read.text == ""


@pytest.mark.parametrize("make", [messages, responses])
@pytest.mark.parametrize("run", range(1, 9))
def test_markup_in_a_value_is_kept_whole(make: Make, run: int) -> None:
    value = "<cfg><parameter>a</parameter></cfg>"
    text = f"<tool_call>\n<function=put>\n<parameter=text>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert told(make, text, [run]).calls == [("put", {"text": value})]


@pytest.mark.parametrize("make", [messages, responses])
def test_values_have_the_types_of_the_schema_in_any_order(make: Make) -> None:
    parameters = {"when": "2025-06-15T10:30:00Z", "tags": "['a', 'b']", "filters": "{'open': True}"}
    inner = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items())
    read = told(make, f"<tool_call>\n<function=search>\n{inner}</function>\n</tool_call>", [3])
    expected = {"when": "2025-06-15T10:30:00Z", "tags": ["a", "b"], "filters": {"open": True}}
    assert read.calls == [("search", expected)]


@pytest.mark.parametrize("make", SURFACES)
@pytest.mark.parametrize("run", range(1, 9))
def test_nothing_of_a_stop_string_is_told_and_a_begun_one_is_flushed(make: Make, run: int) -> None:
    assert told(make, "alpha beta gamma delta", [run], stop=["beta gamma"]).text == "alpha "
    assert told(make, "alpha beta gam", [run], stop=["beta gamma"]).text == "alpha beta gam"


@pytest.mark.parametrize("run", range(1, 9))
@pytest.mark.parametrize(
    ("text", "stops", "found"),
    [
        ("alpha beta gamma", ["gamma", "beta"], "beta"),
        ("alpha beta gamma", ["beta gamma", "beta"], "beta"),
        ("alpha beta gamma", ["zeta", "a beta"], "a beta"),
        ("alpha beta gam", ["gamma"], None),
        ("alpha", [], None),
        ("<think>\nso beta\n</think>\n\ngamma", ["gamma"], "gamma"),
        ("naïve 😀 end", ["😀"], "😀"),
    ],
)
def test_a_message_names_the_stop_sequence_that_ended_it(
    run: int, text: str, stops: list[str], found: str | None
) -> None:
    job = messages(stop=stops)
    message = message_of(play(job, text, [run]))
    expected = "end_turn" if found is None else "stop_sequence"
    assert (message["stop_reason"], message["stop_sequence"]) == (expected, found)


@pytest.mark.parametrize("run", range(1, 9))
@pytest.mark.parametrize(
    ("text", "reason", "thought"),
    [
        ("<think>\nso\n</think>\n\nbecause", "stop", "<think>\nso\n</think>"),
        ("<think>\nso and so and", "length", "<think>\nso and so and"),
        ("because", "stop", ""),
    ],
)
def test_the_tokens_of_a_thought_are_counted_at_every_split(
    run: int, text: str, reason: FinishReason, thought: str
) -> None:
    expected = len(TOKENIZER.encode(thought))
    message = message_of(play(messages(), text, [run], reason))
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": expected}
    response = response_of(play(responses(), text, [run], reason))
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": expected}
    job = chat()
    play(job, text, [run], reason)
    usage = job.translation.whole()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == expected
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_an_answer_cut_by_its_length_says_so() -> None:
    message = message_of(play(messages(), "one two", [1], "length"))
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    response = response_of(play(responses(), "one two", [1], "length"))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][-1]["status"] == "incomplete"


def test_an_answer_that_says_nothing_is_still_a_whole_stream() -> None:
    assert message_of(play(messages(), "", [1]))["content"] == []
    assert response_of(play(responses(), "", [1]))["output"] == []


def test_calls_end_a_message_with_tool_use() -> None:
    assert message_of(play(messages(), f"Writing.\n{HELLO}", [2]))["stop_reason"] == "tool_use"
    assert message_of(play(messages(), HELLO, [2], "length"))["stop_reason"] == "max_tokens"


def test_ids_say_what_they_are_of() -> None:
    text = f"<think>\na\n</think>\n\nb\n{HELLO}"
    thought, said, call = response_of(play(responses(), text, [1]))["output"]
    assert [item["id"].partition("_")[0] for item in (thought, said, call)] == ["rs", "msg", "fc"]
    assert call["call_id"].startswith("call_")
    message = message_of(play(messages(), text, [1]))
    assert message["id"].startswith("msg_")
    assert message["content"][-1]["id"].startswith("toolu_")


def test_an_empty_chunk_changes_no_number() -> None:
    job = responses()
    assert job.translation.empty_chunk() == {"type": "keepalive", "sequence_number": 0}
    first = job.translation.delta(0, Delta("r-0", [1], "a"))
    assert job.translation.empty_chunk()["sequence_number"] == first[-1]["sequence_number"]
    rest = job.translation.finished(0, Finished("r-0", "stop", 1, 1))
    assert response_of([*first, *rest])["output"][0]["content"][0]["text"] == "a"
    assert messages().translation.empty_chunk() == {"type": "ping"}


@pytest.mark.parametrize("make", SURFACES)
@pytest.mark.parametrize("size", [1, 4])
def test_a_stop_string_is_looked_for_in_the_content_alone(make: Make, size: int) -> None:
    text = f"<think>\nso\n\nbeta\n</think>\n\nalpha\n\n{HELLO}"
    read = told(make, text, [size], stop=("\n\n", "</think>", "Hello"))
    assert (read.reasoning, read.text) == ("so\n\nbeta", "alpha")
    assert [name for name, _ in read.calls] == ["write_file"]
    cut = told(make, "<think>\nso\n</think>\n\nalpha\nbeta\ngamma", [size], stop=("\n",))
    assert (cut.reasoning, cut.text) == ("so", "alpha")
    assert cut.tokens[1] < len(TOKENIZER.encode("<think>\nso\n</think>\n\nalpha\nbeta\ngamma"))


FRAGMENTS = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "\n",
            "\n\n",
            " ",
            "a",
            "é😀",
            "<",
            "</",
            "beta",
            " gamma",
        ),
        *("<function=put>", "</function>", "<parameter=text>", "</parameter>", "Oslo", '{"name": "x"}', HELLO),
    ]
)


@settings(max_examples=examples(5000))
@given(
    st.lists(FRAGMENTS, max_size=10).map("".join),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([None, True, False]),
    st.sampled_from([(), ("beta gamma",), ("a", "</think>")]),
    st.sampled_from(["stop", "length"]),
)
def test_every_api_tells_the_same_at_every_split(
    text: str,
    sizes: list[int],
    tools: bool,
    thinking: bool | None,
    stop: tuple[str, ...],
    reason: FinishReason,
) -> None:
    asked = {"tools": tools, "thinking": thinking, "stop": stop}
    plain = told(chat, text, [1], reason, **asked)
    for make in SURFACES:
        for split in (sizes, [1], [10_000]):
            read = told(make, text, split, reason, **asked)
            assert read == replace(plain, tokens=read.tokens)
            assert read.tokens == plain.tokens
    assert json.dumps(plain.calls)
