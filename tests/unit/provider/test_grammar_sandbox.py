"""A grammar that breaks whoever compiles it breaks a process that nobody needs."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from provider.errors import GrammarError, RequestFailed
from provider.grammar.rules import grammar_of
from provider.grammar.sandbox import Sandbox

GOOD = grammar_of("start: @value", {"value": {"type": "integer"}})


def row_of_references(length: int) -> str:
    named: dict[str, Any] = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(length)}
    return grammar_of(
        "start: @value", {"value": {"$defs": {**named, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}}
    )


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(deadline_s=60, wait_s=60)
    yield made
    made.close()


def test_a_grammar_passes_or_says_why_it_does_not(sandbox: Sandbox) -> None:
    sandbox.check(GOOD)
    for _ in range(2):  # remembered the second time
        with pytest.raises(GrammarError, match="unclosed group"):
            sandbox.check(grammar_of("start: /(a/", {}))


def test_a_grammar_that_overflows_the_stack_is_refused_and_the_next_one_passes(sandbox: Sandbox) -> None:
    with pytest.raises(GrammarError, match="depth"):
        sandbox.check(row_of_references(20_000))
    sandbox.check(row_of_references(10))


def test_several_threads_ask_at_once(sandbox: Sandbox) -> None:
    grammars = [grammar_of("start: @value", {"value": {"const": number}}) for number in range(20)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(sandbox.check, grammars)) == [None] * 20


def test_a_grammar_that_takes_too_long_is_given_up() -> None:
    hasty = Sandbox(deadline_s=0.0)
    began_s = time.monotonic()
    with pytest.raises(GrammarError, match="longer than 0 s"):
        hasty.check(GOOD)
    assert time.monotonic() - began_s < 30
    hasty.close()


def test_who_finds_every_process_taken_is_asked_to_try_again() -> None:
    busy = Sandbox(wait_s=0.01)
    with busy._process(), busy._process(), pytest.raises(RequestFailed) as caught:
        busy.check(GOOD)
    assert (caught.value.failure.status, caught.value.failure.code) == (503, "schemas_busy")
    busy.check(GOOD)
    busy.close()


def test_its_processes_end_with_it() -> None:
    made = Sandbox()
    made.check(GOOD)
    process = made._idle.queue[-1]
    assert process is not None
    assert process.alive
    made.close()
    assert process._popen.returncode is not None
