"""The load client over a transport in memory: what it asks, what it hears, and how each kind of failure is named."""

import asyncio
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from provider.bench.client import BenchError, Target, first_model, prompt_style, run_load
from provider.bench.load import Arrivals, ClosedLoop, Fixed, OpenLoop, plan_load
from provider.bench.plot import load_pyplot, write_plot
from provider.bench.prompts import TokenIds, Words
from provider.bench.report import Answer, Outcome, Unanswered
from provider.cli import application
from provider.errors import ConfigError

TARGET = Target("http://test", "m", {"temperature": 0, "ignore_eos": True})
Handler = Callable[[httpx.Request], Any]


def events(*events: dict[str, Any], done: bool = True) -> httpx.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return httpx.Response(200, text=": notice\n\n" + "".join(lines) + ("data: [DONE]\n\n" if done else ""))


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None}], **more}


def usage(prompt: int, output: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def outcomes(handler: Handler, requests: int = 1, arrivals: Arrivals | None = None, tokens: int = 3) -> list[Outcome]:
    load = plan_load(arrivals or ClosedLoop(1), requests, Fixed(5), Fixed(tokens), seed=1)
    ticks = count()

    async def run() -> list[Outcome]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://test") as client:
            return await run_load(client, TARGET, load, TokenIds(), lambda: float(next(ticks)))

    return asyncio.run(run())


def test_it_streams_prompts_of_its_own_and_asks_for_the_usage() -> None:
    bodies = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return events(piece("a"), usage(5, 3))

    assert all(isinstance(one, Answer) for one in outcomes(handler, requests=3))
    assert len({tuple(body.pop("prompt")) for body in bodies}) == 3
    assert bodies[0] == {
        "model": "m", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_tokens_are_counted_by_the_server_where_it_says() -> None:
    (answer,) = outcomes(lambda request: events(piece("a"), piece(""), piece("bc"), usage(5, 3)))
    assert isinstance(answer, Answer)
    assert (answer.counted, answer.output_tokens, answer.prompt_tokens) == ("usage", 3, 5)
    assert len(answer.arrivals_s) == 2
    assert answer.sent_s < answer.arrivals_s[0] < answer.arrivals_s[1] < answer.done_s


def test_tokens_are_counted_by_their_pieces_where_it_does_not() -> None:
    last = {"choices": [{"text": "c", "finish_reason": "length"}], "usage": None}
    (answer,) = outcomes(lambda request: events(piece("a"), piece("b"), last))
    assert isinstance(answer, Answer)
    assert (answer.counted, answer.output_tokens, answer.prompt_tokens) == ("pieces", 3, None)
    assert answer.finish_reason == "length"


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("nobody there")


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda request: httpx.Response(503, json={"error": {"code": "queue_full"}}), "status 503: .*queue_full"),
        (lambda request: events(piece("a"), {"error": {"code": "worker_died"}}), "error in the stream.*worker_died"),
        (lambda request: events(piece("a"), done=False), r"without \[DONE\]"),
        (lambda request: httpx.Response(200, text="data: {"), "not a stream of JSON events"),
        (lambda request: httpx.Response(200, text="data: 3"), "not a stream of JSON events"),
        (unreachable, "nobody there"),
    ],
)
def test_a_failure_is_one_request_and_says_why(handler: Handler, reason: str) -> None:
    answers = iter([lambda request: events(piece("a"), usage(5, 1)), handler, lambda request: events(piece("b"))])
    first, failed, last = outcomes(lambda request: next(answers)(request), requests=3)
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert isinstance(failed, Unanswered)
    assert failed.number == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failed.reason)


@pytest.mark.parametrize(("arrivals", "most"), [(ClosedLoop(1), 1), (ClosedLoop(4), 4), (OpenLoop(1e9), 12)])
def test_a_closed_loop_holds_its_streams_and_an_open_one_waits_for_nobody(arrivals: Arrivals, most: int) -> None:
    running, seen = 0, 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal running, seen
        running += 1
        seen = max(seen, running)
        for _ in range(50):
            await asyncio.sleep(0)
        running -= 1
        return events(piece("a"), usage(5, 1))

    answers = outcomes(handler, requests=12, arrivals=arrivals)
    assert [one.number for one in answers] == list(range(12))
    assert seen == most


def probe(handler: Handler) -> Any:
    async def run() -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://test") as client:
            return await prompt_style(client, TARGET)

    return asyncio.run(run())


def test_a_server_that_takes_token_ids_gets_them() -> None:
    assert probe(lambda request: httpx.Response(200, json={})) == TokenIds()


def text_only(request: httpx.Request) -> httpx.Response:
    if not isinstance(json.loads(request.content)["prompt"], str):
        return httpx.Response(422, json={"detail": "str expected"})
    return httpx.Response(200, json={"usage": {"prompt_tokens": 160}})


def test_one_that_does_not_gets_text_measured_in_its_own_tokens() -> None:
    assert probe(text_only) == Words(2.5)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda request: httpx.Response(401, json={"error": "key"}), "answers 401"),
        (lambda request: text_only(request) if b"[" in request.content else httpx.Response(200, json={}), "how many"),
        (unreachable, "cannot be asked"),
    ],
)
def test_one_that_answers_neither_is_not_measured(handler: Handler, reason: str) -> None:
    with pytest.raises(BenchError, match=reason):
        probe(handler)


@pytest.mark.parametrize("answer", [httpx.Response(404), httpx.Response(200, json={"data": []})])
def test_a_server_that_lists_no_model_asks_for_a_name(answer: httpx.Response) -> None:
    async def run() -> str:
        transport = httpx.MockTransport(lambda request: answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await first_model(client)

    with pytest.raises(BenchError, match="--model"):
        asyncio.run(run())


def invoke(*arguments: str) -> Any:
    command = ["bench", "serving", *arguments]
    return CliRunner().invoke(application(command), command, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--streams", "2", "--rate", "3"], "either streams or a rate"), (["--streams", "0"], "--streams")],
)
def test_wrong_usage_exits_with_2(arguments: list[str], said: str) -> None:
    done = invoke("--url", "http://test", *arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_a_plot_without_matplotlib_is_refused_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = invoke("--url", "http://test", "--plot", "x.png")
    assert isinstance(done.exception, ConfigError)
    assert "darkbloom-py[bench]" in str(done.exception)


@pytest.mark.parametrize("answers", [0, 3])
def test_a_plot_is_a_png(tmp_path: Path, answers: int) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'darkbloom-py[bench]'")
    rows = [Answer(n, 2, n, (n + 0.1, n + 0.2), n + 0.3, 5, 2, "usage", "length") for n in range(answers)]
    write_plot(load_pyplot(), rows, "title", tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
