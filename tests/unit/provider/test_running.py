"""What a running provider wrote, read tolerantly."""

import os
from pathlib import Path
from typing import Any

import pytest

from provider.running import FRESH_S, FailedSlot, Linked, LoadError, Running, Unroutable, read_running, running_of
from provider.state import DaemonState, path_in, write_state

DETAILS: dict[str, Any] = {
    "memory": {"active_bytes": 700, "cache_bytes": 30, "activation_reserve_bytes": 99, "physical_bytes": 1},
    "resident": {"a": 400, "b": 200},
    "slots": [{"model": "a", "state": "idle"}, {"model": "b", "state": "running"}, {"model": "c", "state": "idle"}],
    "failed": {"d": {"reason": "its worker keeps dying (signal 9)", "retry_in_s": 12.5}, "e": {"reason": None}},
    "last_load_error": {"model": "c", "message": "c needs 9 GiB", "at": 1000.5},
    "coordinators": [
        {
            "url": "ws://one",
            "routability": {
                "a": {"routable": True, "reason": None, "detail": None},
                "c": {"routable": False, "reason": "memory_cap", "detail": "9 GiB"},
            },
        },
        {"url": "ws://away", "connected": False, "reason": "connection lost", "routability": {}},
        {"url": "ws://two", "routability": {"b": {"routable": False, "reason": "no_kv_budget", "detail": None}}},
    ],
}


def running(details: Any, advertised: list[str] | None = None) -> Running:
    return running_of(DaemonState(7, 1.0, advertised, details), age_s=2.0)


def test_everything_that_is_told_is_taken() -> None:
    assert running(DETAILS, ["a"]) == Running(
        pid=7,
        age_s=2.0,
        advertised=("a",),
        active_bytes=700,
        cache_bytes=30,
        reserve_bytes=99,
        resident={"a": 400, "b": 200},
        idle=frozenset({"a"}),
        load_error=LoadError("c", "c needs 9 GiB", 1000.5),
        failed=(
            FailedSlot("d", "its worker keeps dying (signal 9)", 12.5),
            FailedSlot("e", "no reason told", None),
        ),
        links=(
            Linked("ws://one", True, "", ("a",), (Unroutable("ws://one", "c", "memory_cap", "9 GiB"),)),
            Linked("ws://away", False, "connection lost"),
            Linked("ws://two", True, "", (), (Unroutable("ws://two", "b", "no_kv_budget", ""),)),
        ),
    )


@pytest.mark.parametrize(("told", "taken"), [(None, None), ([], ()), (["a", "b"], ("a", "b"))])
def test_not_reported_and_none_stay_two_things(told: list[str] | None, taken: tuple[str, ...] | None) -> None:
    assert running({}, told).advertised == taken


@pytest.mark.parametrize(
    "details",
    [
        {},
        None,
        [],
        {"memory": None, "resident": None, "slots": None, "coordinators": None, "last_load_error": None},
        {"memory": [], "resident": [1], "slots": {}, "coordinators": {}, "last_load_error": "x"},
        {"memory": {"active_bytes": -1, "cache_bytes": "many", "activation_reserve_bytes": None}},
        {"resident": {"a": -4, "b": None, "c": True}, "slots": [3, {"state": "idle"}], "coordinators": [3, {}]},
    ],
)
def test_what_is_missing_or_strange_is_as_if_untold(details: Any) -> None:
    assert running(details) == Running(pid=7, age_s=2.0, advertised=None)


@pytest.mark.parametrize("told", [None, [], 3, {"a": None, "b": {"reason": "x"}, "c": {"routable": "yes"}}])
def test_a_strange_word_on_models_is_none(told: Any) -> None:
    assert running({"coordinators": [{"url": "ws://x", "routability": told}]}).links == (Linked("ws://x", True, ""),)


def test_a_state_is_as_old_as_its_file(tmp_path: Path) -> None:
    assert read_running(tmp_path, now_s=0.0) is None
    write_state(tmp_path, ["a"], DETAILS)
    os.utime(path_in(tmp_path), (5000.0, 5000.0))
    fresh, stale = read_running(tmp_path, 5000.0 + FRESH_S), read_running(tmp_path, 5001.0 + FRESH_S)

    assert fresh is not None
    assert stale is not None
    assert (fresh.age_s, fresh.fresh, stale.fresh) == (FRESH_S, True, False)
    assert fresh.pid == os.getpid()
