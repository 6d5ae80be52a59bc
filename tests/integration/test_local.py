"""`darkbloom-py local` as a process: the official SDK, what goes wrong one request at a time, and kills."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from tests.integration.client import COMPLETION, MODEL, Api, Stream, counting
from tests.integration.processes import Command, free_port, gone, health, run, running, until

ENDLESS = 4000
"""More tokens than any test waits for: half a minute."""
SMALL_POOL = 110
LONG_PROMPT = "x " * 1500


@contextlib.contextmanager
def local(directory: Path, *flags: str, key: str | None = None) -> Iterator[tuple[Command, Api]]:
    port = free_port()
    named = ("local", "--model", MODEL, "--port", str(port), *flags, *(() if key is None else ("--api-key", key)))
    with running(directory / f"local-{port}.log", *named) as command:
        api = Api(f"http://127.0.0.1:{port}", key or "none")
        until(lambda: health(api.url) == "ok" or command.process.poll() is not None, what="health ok")
        assert command.process.poll() is None, command.output
        yield command, api


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Api]]:
    with local(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(scope="module")
def api(server: tuple[Command, Api]) -> Api:
    return server[1]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Two places; a third request waits."""
    with local(tmp_path_factory.mktemp("narrow"), "--max-concurrent", "2") as (_, api):
        yield api


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with local(tmp_path_factory.mktemp("small"), "--kv-pool-tokens", str(SMALL_POOL), key="a key") as (_, api):
        yield api


def test_the_openai_sdk_chats_whole_and_streamed(api: Api) -> None:
    with api.sdk() as client:
        asked: Any = counting(1, 12)
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        streamed = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert whole.choices[0].message.content == streamed
        assert streamed.startswith("1, 2, 3")
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        (told,) = [one.usage for one in chunks if one.usage]
        assert (told.prompt_tokens, told.completion_tokens, told.total_tokens) == (
            whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens
        )  # fmt: skip


def test_the_openai_sdk_completes_text_token_ids_and_lists_of_either(api: Api) -> None:
    text = "<|im_start|>user\nCount from 5 to 9.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ids = ModelTokenizer(BUNDLED_MODEL_DIR).encode(text)
    with api.sdk() as client:
        for prompt in (text, ids, [text, text], [ids, ids]):
            done = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
            texts = [choice.text for choice in done.choices]
            assert len(texts) == (2 if isinstance(prompt[0], str | list) and isinstance(prompt, list) else 1)
            assert set(texts) == {"5, 6, 7,"}
            assert done.usage is not None
            assert done.usage.prompt_tokens == len(ids) * len(texts)


def test_ignore_eos_goes_on_past_the_end_of_the_turn(api: Api) -> None:
    body = {**counting(1, 40), "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    stopped = api.post(body).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] < 40
    ignoring = api.post({**body, "ignore_eos": True}).json()
    assert ignoring["choices"][0]["finish_reason"] == "length"
    assert ignoring["usage"]["completion_tokens"] == 40


def test_models_are_listed(api: Api) -> None:
    with api.sdk() as client:
        assert [one.id for one in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


def test_the_model_lives_in_another_process(server: tuple[Command, Api]) -> None:
    command, api = server
    props = api.get("/props").json()
    (model,) = props["models"]
    assert model["worker_pid"] != command.process.pid
    assert psutil.Process(model["worker_pid"]).parent() == psutil.Process(command.process.pid)
    assert model["n_ctx"] == props["default_generation_settings"]["n_ctx"] == 4096


def test_slots_and_metrics_follow_a_run(api: Api) -> None:
    before = metrics(api)
    stream = Stream(api, counting(1, 240)).begun()
    (slot,) = [one for one in api.get("/slots").json() if one["is_processing"]]
    assert slot["state"] == "running"
    assert slot["model"] == MODEL
    assert slot["n_ctx"] == 4096
    assert 0 < slot["n_decoded"] <= 240
    assert metrics(api)["darkbloom_requests_running"] == 1
    assert stream.ended().done
    after = metrics(api)
    assert after["darkbloom_generation_tokens_total"] - before["darkbloom_generation_tokens_total"] == 240
    assert after["darkbloom_requests_total"] - before["darkbloom_requests_total"] == 1
    assert after["darkbloom_requests_running"] == 0
    assert after["darkbloom_worker_up"] == 1
    assert len(api.get("/slots").json()) == 8


def metrics(api: Api) -> dict[str, float]:
    families = text_string_to_metric_families(api.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_streams_that_join_and_leave_get_the_text_they_get_alone(api: Api) -> None:
    """Greedy ones and seeded ones in one batch."""
    samplings: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 7, "top_p": 0.95}]
    bodies = [counting(n, 48 - 4 * n, ignore_eos=True, **samplings[n % 2]) for n in range(8)]
    for number in (3, 6):
        bodies[number]["messages"].insert(0, {"role": "system", "content": "Be brief. " * 10 * number})
    alone = [api.text(body) for body in bodies]
    streams, most = [], 0
    for body in bodies:
        streams.append(Stream(api, body))
        time.sleep(0.03)
    while any(stream.running for stream in streams):
        most = max(most, len(api.states()))
        time.sleep(0.05)
    assert [stream.text for stream in streams] == alone
    assert all(stream.done for stream in streams)
    assert most >= 3, "too few of them ran together for this to say anything"


def served(api: Api) -> bool:
    return api.text(counting(3, 8)).startswith("3, 4")


# What is refused


REFUSED: list[tuple[str, dict[str, Any] | bytes, str, int, str, str | None]] = [
    ("invalid JSON", b"{", "/v1/chat/completions", 400, "invalid_request_error", "invalid_json"),
    ("not UTF-8", b'{"model": "\xff"}', "/v1/chat/completions", 400, "invalid_request_error", "invalid_json"),
    ("no object", b"[]", "/v1/chat/completions", 400, "invalid_request_error", "invalid_json"),
    ("unknown model", {**counting(1, 1), "model": "m"}, "/v1/chat/completions", 404, "invalid_request_error",
     "model_not_found"),
    ("max_tokens 0", counting(1, 0), "/v1/chat/completions", 400, "invalid_request_error", "invalid_value"),
    ("no messages", {**counting(1, 1), "messages": []}, "/v1/chat/completions", 400, "invalid_request_error", None),
    ("empty prompt", {"model": MODEL, "prompt": ""}, COMPLETION, 400, "invalid_request_error", None),
    ("no tokens", {"model": MODEL, "prompt": []}, COMPLETION, 400, "invalid_request_error", None),
    ("wrong token", {"model": MODEL, "prompt": [10**9]}, COMPLETION, 400, "invalid_request_error", None),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=[case[0] for case in REFUSED])
def test_a_bad_request_is_a_typed_error_and_the_next_is_served(api: Api, case: tuple[Any, ...]) -> None:
    _, body, path, status, kind, code = case
    answered, error = api.error(body, path)
    assert (answered, error["type"]) == (status, kind)
    assert error["message"]
    assert code in (None, error["code"])
    assert served(api)


def test_an_oversized_body_is_refused(api: Api) -> None:
    status, error = api.error({**counting(1, 1), "messages": [{"role": "user", "content": "x" * (16 * 2**20)}]})
    assert (status, error["code"]) == (413, "body_too_large")
    assert served(api)


def test_a_wrong_key_is_refused(small: Api) -> None:
    status, error = Api(small.url, "another").error(counting(1, 3))
    assert (status, error["type"]) == (401, "authentication_error")
    with Api(small.url, "yet another").sdk() as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert httpx.get(f"{small.url}/slots").status_code == 401
    assert httpx.get(f"{small.url}/health").json() == {"status": "ok"}
    assert served(small)


# The context and the pool


def test_a_prompt_longer_than_the_context_says_how_long(small: Api) -> None:
    body = {**counting(1, 3), "messages": [{"role": "user", "content": "apple " * 200}]}
    for stream in (False, True):
        status, error = small.error({**body, "stream": stream})
        assert (status, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", SMALL_POOL)
        assert error["n_prompt_tokens"] > 200


def test_a_chat_that_outgrows_the_context_ends_with_a_typed_error(small: Api) -> None:
    stream = Stream(small, counting(1, 400)).ended()
    assert stream.status == 200
    assert stream.text.startswith("1, 2, 3, 4, 5")
    assert stream.error is not None
    assert (stream.error["type"], stream.error["n_ctx"]) == ("exceed_context_size_error", SMALL_POOL)
    assert stream.done
    asked: Any = counting(1, 400, stream=True)
    with small.sdk() as client, pytest.raises(openai.APIError, match="context"):
        list(client.chat.completions.create(**asked))
    assert small.error(counting(1, 400))[0] == 400


def test_two_chats_in_a_pool_for_one_both_finish_with_the_text_they_get_alone(small: Api) -> None:
    bodies = [counting(first, 60, ignore_eos=True) for first in (1, 20)]
    alone = [small.text(body) for body in bodies]
    streams = [Stream(small, body) for body in bodies]
    assert [stream.ended().text for stream in streams] == alone
    assert all(stream.done and stream.finish_reason == "length" for stream in streams)
    preempted = [event["preempt"]["parks"] for stream in streams for event in stream.events if "preempt" in event]
    assert sorted(preempted) == [0, 1]


# Clients that leave


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_row(narrow: Api, stream: bool) -> None:
    with narrow.vanishing(counting(1, ENDLESS, stream=stream)):
        until(lambda: narrow.states() == ["running"], what="a running sequence")
    until(lambda: narrow.states() == [], 10, "its end")


def test_a_client_that_vanishes_in_prefill_frees_its_row(narrow: Api) -> None:
    # Eight choices over two places, so that a prefill can be seen also where one takes milliseconds.
    body = {"model": MODEL, "prompt": LONG_PROMPT, "n": 8, "max_tokens": 64, "ignore_eos": True}
    with narrow.vanishing(body, COMPLETION):
        until(lambda: "prefill" in narrow.states(), what="a prefill")
    until(lambda: narrow.states() == [], 10, "its end")


def test_a_client_that_vanishes_while_it_waits_loses_its_place_in_line(narrow: Api) -> None:
    with narrow.vanishing(counting(1, ENDLESS)), narrow.vanishing(counting(2, ENDLESS)):
        until(lambda: narrow.states().count("running") == 2, what="two running sequences")
        with narrow.vanishing(counting(3, ENDLESS, stream=True)):
            until(lambda: "waiting" in narrow.states(), what="a waiting sequence")
        until(lambda: sorted(narrow.states()) == ["running", "running"], 10, "its end")
    until(lambda: narrow.states() == [], 10, "the end of all")


# Kills


def test_when_the_worker_is_killed_health_answers_and_others_are_served(narrow: Api) -> None:
    alone = [narrow.text(counting(n, 8)) for n in (3, 4)]
    begun = [Stream(narrow, counting(n, ENDLESS)).begun() for n in (1, 2)]
    waiting = [Stream(narrow, counting(n, 8)) for n in (3, 4)]
    until(lambda: narrow.states().count("waiting") == 2, what="two waiting sequences")
    worker = narrow.get("/props").json()["models"][0]["worker_pid"]
    heard: list[str | None] = []
    with watched_health(narrow.url, heard):
        os.kill(worker, signal.SIGKILL)
        for stream in begun:
            assert stream.ended(10).error is not None
            assert stream.error is not None
            assert stream.error["code"] == "worker_died"
            assert stream.done
        assert [stream.ended().text for stream in waiting] == alone
        assert served(narrow)
    assert len(heard) > 5
    assert set(heard) == {"ok"}
    assert narrow.get("/props").json()["models"][0]["worker_pid"] != worker
    assert metrics(narrow)["darkbloom_worker_restarts_total"] == 1


@contextlib.contextmanager
def watched_health(url: str, heard: list[str | None]) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            heard.append(health(url))
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_ctrl_c_lets_running_chats_finish_and_leaves_nothing(tmp_path: Path) -> None:
    with local(tmp_path) as (command, api):
        processes = [psutil.Process(command.process.pid), *command.descendants()]
        stream = Stream(api, counting(1, 200)).begun()
        command.process.send_signal(signal.SIGINT)
        until(lambda: health(api.url) != "ok", what="the drain")
        assert stream.running
        with contextlib.suppress(httpx.TransportError):
            status, error = api.error(counting(1, 3))
            assert (status, error["code"]) == (503, "draining")
        assert stream.ended().done
        assert stream.finish_reason == "length"
        assert command.process.wait(20) == 0
        assert gone(processes)
        assert len(processes) >= 2


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    with local(tmp_path) as (command, api):
        processes = [psutil.Process(command.process.pid), *command.descendants()]
        stream = Stream(api, counting(1, ENDLESS)).begun()
        command.process.send_signal(signal.SIGINT)
        until(lambda: health(api.url) != "ok", what="the drain")
        assert command.interrupt(5) == 128 + signal.SIGINT
        assert not stream.ended(5).done
        until(lambda: gone(processes), 10, "the end of the worker")


def test_when_the_server_is_killed_its_worker_ends_too(tmp_path: Path) -> None:
    with local(tmp_path) as (command, api):
        workers = command.descendants()
        Stream(api, counting(1, ENDLESS)).begun()
        command.process.kill()
        command.process.wait()
        assert workers
        until(lambda: gone(workers), 10, "the end of the worker")


# What keeps it from starting


@pytest.mark.parametrize(
    ("arguments", "toml", "code", "said"),
    [
        ((), "", 1, "--model"),
        (("--model", "/nowhere"), "", 1, "/nowhere"),
        (("--model", MODEL, "--max-concurrent", "0"), "", 2, "--max-concurrent"),
        (("--model", MODEL), "[engine]\nmax_concurrnt = 3", 1, "engine.max_concurrnt"),
    ],
)
def test_what_keeps_it_from_starting_is_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], toml: str, code: int, said: str
) -> None:
    file = tmp_path / ".config" / "darkbloom" / "provider.toml"
    file.parent.mkdir(parents=True)
    file.write_text(toml)
    done = run(tmp_path / "log", "local", "--port", "0", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path / "log", "local", "--model", MODEL, "--port", port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}")
    assert done.stderr.count("\n") == 1
