import asyncio
from collections.abc import Callable

import pytest

from coordinator.orders import Awaited, End, Orders, Outcome, failure_code, lacked_memory
from provider.protocol import LoadModel, LoadModelStatus, UnloadModel

LOAD, UNLOAD = LoadModel(model_id="m"), UnloadModel(model_id="m")


def status(kind: str, model: str = "m", **values: object) -> LoadModelStatus:
    return LoadModelStatus.model_validate({"model_id": model, "status": kind, **values})


DONE, FAILED = status("succeeded"), status("failed", reason="memory_cap: no")


def outcome(order: Awaited, *events: Callable[[Orders], None]) -> Outcome | None:
    """What ends the order at provider p when this is heard; None when nothing does."""

    async def scene() -> Outcome | None:
        orders = Orders()
        with orders.awaiting("p", order) as ending:
            for event in events:
                event(orders)
            return ending.result() if ending.done() else None

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("order", "event", "expected"),
    [
        (LOAD, lambda orders: orders.told("p", status("started")), None),
        (LOAD, lambda orders: orders.told("p", DONE), DONE),
        (LOAD, lambda orders: orders.told("p", FAILED), FAILED),
        (LOAD, lambda orders: orders.told("q", DONE), None),
        (LOAD, lambda orders: orders.told("p", status("succeeded", "other")), None),
        (LOAD, lambda orders: orders.beaten("p", []), None),
        (LOAD, lambda orders: orders.lost("p"), End.PROVIDER_LOST),
        (LOAD, lambda orders: orders.lost("q"), None),
        (UNLOAD, lambda orders: orders.told("p", DONE), None),
        (UNLOAD, lambda orders: orders.told("p", FAILED), FAILED),
        (UNLOAD, lambda orders: orders.beaten("p", ["m"]), None),
        (UNLOAD, lambda orders: orders.beaten("p", ["other"]), End.UNLOADED),
        (UNLOAD, lambda orders: orders.beaten("q", []), None),
        (UNLOAD, lambda orders: orders.lost("p"), End.PROVIDER_LOST),
    ],
)
def test_an_order_ends_by_what_is_about_it(
    order: Awaited, event: Callable[[Orders], None], expected: Outcome | None
) -> None:
    assert outcome(order, event) == expected


def test_the_first_outcome_counts() -> None:
    assert outcome(LOAD, lambda orders: orders.told("p", DONE), lambda orders: orders.lost("p")) == DONE


def test_all_who_wait_for_a_load_are_told_and_then_forgotten() -> None:
    async def scene() -> None:
        orders = Orders()
        with orders.awaiting("p", LOAD) as one:
            with orders.awaiting("p", LOAD) as two:
                orders.told("p", DONE)
                assert (await one, await two) == (DONE, DONE)
            orders.lost("p")
        with orders.awaiting("p", LOAD) as three:
            assert not three.done()
            three.cancel()
            orders.told("p", DONE)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("values", "short", "code"),
    [
        ({"reason": "memory_cap: it would not fit"}, True, "memory_cap"),
        ({"reason": "anything", "required_bytes": 5, "free_bytes": 4}, True, ""),
        ({"reason": "load_failed: x", "required_bytes": 4, "free_bytes": 4}, False, "load_failed"),
        ({"reason": "a disk is full: really", "free_bytes": 4}, False, ""),
        ({}, False, ""),
    ],
)
def test_want_of_memory_is_told_from_other_failures(values: dict[str, object], short: bool, code: str) -> None:
    assert lacked_memory(status("failed", **values)) is short
    assert failure_code(status("failed", **values)) == code
    assert not lacked_memory(status("succeeded", **values))
