"""Bodies made to cost: bounded time and memory, and a refusal with a name."""

import resource
import subprocess
import sys
import time
from random import Random
from typing import Any

import pytest

from coordinator.api.body import parse_object
from coordinator.api.errors import Refusal
from provider.api.body import _decoded
from provider.api.job import Origin
from provider.api.jobs import JOBS
from provider.errors import RequestFailed
from tests.fixtures.api_serving import DemoModel

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"model": "m", "input": "Hi"},
}
WITHIN_S = 5.0
"""Of a busy machine; without its bounds each takes from half a minute to minutes."""


def refusal(path: str, **fields: Any) -> RequestFailed:
    started = time.process_time()
    with pytest.raises(RequestFailed) as refused:
        JOBS[path]({**GOOD[path], **fields}, Origin("r", DemoModel(), lambda: 0.0, Random(1)))
    assert time.process_time() - started < WITHIN_S
    assert refused.value.failure.status == 400
    return refused.value


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [0] * 2_000_000}),
        ("/v1/chat/completions", {"messages": [{}] * 2_000_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [0] * 2_000_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [0] * 2_000_000}]}),
        ("/v1/chat/completions", {"tools": [0] * 2_000_000}),
        ("/v1/chat/completions", {"stop": [0] * 2_000_000}),
        ("/v1/chat/completions", {"stop": [f"stop {number}" for number in range(10_000)]}),
        ("/v1/chat/completions", {"logit_bias": {str(number): "x" for number in range(500_000)}}),
        ("/v1/chat/completions", {"metadata": {str(number): 0 for number in range(500_000)}}),
        ("/v1/completions", {"prompt": [[]] * 2_000_000}),
        ("/v1/completions", {"prompt": ["x", 0] * 1_000_000}),
        ("/v1/completions", {"prompt": [7] * 2_000_000}),
        ("/v1/messages", {"messages": [0] * 2_000_000}),
        ("/v1/messages", {"system": [0] * 2_000_000}),
        ("/v1/messages", {"tools": [0] * 2_000_000}),
        ("/v1/responses", {"input": [0] * 2_000_000}),
        ("/v1/responses", {"tools": [0] * 2_000_000}),
        ("/v1/responses", {"include": [0] * 2_000_000}),
    ],
)
def test_of_a_million_mistakes_the_first_is_named(path: str, fields: dict[str, Any]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failure = refusal(path, **fields).failure
    assert failure.param is None or failure.param.startswith(next(iter(fields)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 * 2**10 * (1 if sys.platform == "linux" else 2**10)


DECODE = """
import sys, time
from provider.api.body import _decoded
from coordinator.api.body import parse_object
body = b'{"a": [' + b",".join([b"[]"] * 400_000) + b"," + b"7," * 500_000 + b'7], "b": "' + b"x" * 8_000_000 + b'"}'
for read in (_decoded, parse_object):
    started = time.process_time()
    read(body)
    print(time.process_time() - started)
"""


def test_ten_megabytes_of_small_values_are_read_in_little_time() -> None:
    """In a process of its own: what a collector does depends on what else is alive."""
    printed = subprocess.run([sys.executable, "-c", DECODE], capture_output=True, text=True, check=True, timeout=120)
    assert all(float(line) < 3.0 for line in printed.stdout.split())


def test_a_body_of_very_many_lists_is_refused_before_it_is_read() -> None:
    for body in (
        b'{"a": [' + b",".join([b"[]"] * 600_000) + b"]}",
        b'{"a": "' + b"{" * 600_000 + b'"}',
        b"[" * 10**7,
        b'{"a": [' + b"1," * 1_100_000 + b"1]}",
    ):
        with pytest.raises(RequestFailed) as local:
            _decoded(body)
        with pytest.raises(Refusal) as fleet:
            parse_object(body)
        assert local.value.failure == fleet.value.failure
        assert (local.value.failure.status, local.value.failure.code) == (400, "body_too_complex")
