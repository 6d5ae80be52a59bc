"""Exact concurrency on real servers with the bundled model: one and the same chat alone, beside others, joining others,
parked and computed again has one text, with drafts and without."""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client import MODEL, Api, Stream, counting
from tests.integration.processes import free_port, health, running, until
from tests.soak import SOAK

QUESTION = "Produce the integers from 1 through 300 in ascending order, separated only by commas"
TOKENS = 48
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"temperature": 0.8, "seed": 7}}
PARK_EVERY = 20
STAGGER_S = 0.2


def asked(sampling: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": MODEL, "messages": messages, "max_tokens": TOKENS, "ignore_eos": True, **SAMPLINGS[sampling]}


@contextlib.contextmanager
def local(directory: Path, *flags: str, **environment: str) -> Iterator[Api]:
    port = free_port()
    data = ("--data-dir", str(directory / f"data-{port}"))
    command = ("local", "--model", MODEL, "--port", str(port), "--exact", "on", *data, *flags)
    with running(directory / f"local-{port}.log", *command, **environment) as server:
        api = Api(f"http://127.0.0.1:{port}")
        until(lambda: health(api.url) == "ok" or server.process.poll() is not None, what="health ok")
        assert server.process.poll() is None, server.output
        yield api


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with local(tmp_path_factory.mktemp("exact")) as api:
        yield api


@pytest.fixture(scope="module")
def alone(api: Api) -> dict[str, str]:
    """The digest of each chat that nobody is beside."""
    return {sampling: digest(Stream(api, asked(sampling))) for sampling in SAMPLINGS}


def digest(stream: Stream) -> str:
    assert stream.ended(180).done, (stream.status, stream.broken, stream.lines[-3:])
    assert stream.finish_reason == "length"
    return hashlib.sha256(stream.text.encode()).hexdigest()


def digests(streams: dict[str, list[Stream]]) -> dict[str, set[str]]:
    return {sampling: {digest(one) for one in own} for sampling, own in streams.items()}


def only(alone: dict[str, str]) -> dict[str, set[str]]:
    return {sampling: {one} for sampling, one in alone.items()}


def preempted(streams: dict[str, list[Stream]]) -> list[dict[str, int]]:
    return [event["preempt"] for own in streams.values() for one in own for event in one.events if "preempt" in event]


def at_once(api: Api, each: int) -> dict[str, list[Stream]]:
    return {sampling: [Stream(api, asked(sampling)) for _ in range(each)] for sampling in SAMPLINGS}


def test_the_server_says_that_it_is_exact(api: Api) -> None:
    props = api.get("/props").json()
    assert (props["exact_concurrency"], props["exact_concurrency_reason"]) == ("on", None)
    (model,) = props["models"]
    assert model["exact"]["state"] == "on"
    assert model["exact"]["lane_rows"] in (1, 2, 4, 8, 16)
    assert model["exact"]["lane_rows_from"] == "measured"
    told = api.get("/v1/settings/exact-concurrency").json()
    assert (told["wanted"], told["actual"], told["overridden_by"]) == ("on", "on", "--exact")


def test_four_at_once_have_the_text_of_one_alone(api: Api, alone: dict[str, str]) -> None:
    streams, most = at_once(api, 4), 0
    while any(one.running for own in streams.values() for one in own):
        most = max(most, api.states().count("running"))
        time.sleep(0.02)
    assert digests(streams) == only(alone)
    assert most >= 4
    drafted = api.get("/props").json()["models"][0]["mtp"]["drafted"]
    assert sum(drafted["accepted"]) > 0, "nothing that was drafted was part of an answer"


def test_one_that_joins_three_others_has_the_text_of_one_alone(api: Api, alone: dict[str, str]) -> None:
    streams: dict[str, list[Stream]] = {}
    for sampling in SAMPLINGS:
        others = [Stream(api, counting(10 * n, 80 + 16 * n, ignore_eos=True)).begun() for n in range(3)]
        time.sleep(STAGGER_S)
        streams[sampling] = [Stream(api, asked(sampling)).begun()]
        assert any(one.running for one in others)
        for one in (*others, *streams[sampling]):
            one.ended(180)
    assert digests(streams) == only(alone)


@pytest.mark.parametrize(
    ("fails", "flags"),
    [("2", ())] + ([("", ()), ("1", ("--mtp-mode", "off"))] if SOAK else []),
    ids=["some-computed-again"] + (["all-copied", "all-computed-again-without-drafts"] if SOAK else []),
)
def test_parks_change_no_byte(tmp_path: Path, alone: dict[str, str], fails: str, flags: tuple[str, ...]) -> None:
    """`fails`: every so manieth copy is lost, so that its chat is computed again."""
    knobs = {"DARKBLOOM_PREEMPT_EVERY": str(PARK_EVERY), "DARKBLOOM_PREEMPT_FAIL_SAVE": fails}
    with local(tmp_path, *flags, **knobs) as api:
        streams = at_once(api, 2)
        assert digests(streams) == only(alone)
        told = preempted(streams)
    parks, recomputes = (sum(one[kind] for one in told) for kind in ("parks", "recomputes"))
    assert len(told) == 4
    assert all(one["parks"] >= 1 for one in told)
    assert {"": recomputes == 0, "1": recomputes == parks, "2": 0 < recomputes < parks}[fails], told
