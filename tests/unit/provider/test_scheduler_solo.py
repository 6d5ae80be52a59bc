"""The plans of exact mode: chunks are those that a sequence has alone, and what it has drawn is replayed, not drawn."""

import pytest

from provider.scheduler.pool import Pool
from provider.scheduler.prefilling import SOLO, Prefilling, to_fit, whole
from provider.scheduler.scheduler import Limits, Scheduler
from provider.scheduler.sequence import Chunk, How, Plan


def scheduler(**more: int) -> Scheduler:
    return Scheduler(Limits(8, 4000, chunk_tokens=64, **{"step_tokens": 256, **more}, prefilling=SOLO), Pool(10_000))


def step(one: Scheduler, drafts: int = 0) -> Plan:
    plan = one.plan(drafts)
    one.commit_moves(plan)
    for chunk in plan.prefill:
        one.commit_chunk(chunk)
    one.commit_decode(dict.fromkeys(plan.decode, 1))
    return plan


def test_a_neighbour_delays_a_chunk_and_never_cuts_it() -> None:
    one = scheduler()
    one.add("short", 40, 50)
    one.add("long", 100, 50)
    assert step(one).prefill == (Chunk("short", 0, 40, True, True),)
    assert step(one).prefill == (Chunk("long", 0, 64, False, False),)
    assert step(one).prefill == (Chunk("long", 64, 36, True, True),)


def test_chunks_that_fit_whole_share_a_step() -> None:
    one = scheduler()
    one.add("a", 30, 50)
    one.add("b", 34, 50)
    assert [(chunk.id, chunk.count) for chunk in step(one).prefill] == [("a", 30), ("b", 34)]


def test_rows_and_drafts_leave_a_step_room_for_a_whole_chunk() -> None:
    one = scheduler(step_tokens=80)
    for id in "abcdefg":
        one.add(id, 8, 50)
    one.add("long", 200, 50)
    plans = [step(one, drafts=3) for _ in range(6)]
    assert [chunk for plan in plans for chunk in plan.prefill if chunk.id == "long"] == [
        Chunk("long", 0, 64, False, False),
        Chunk("long", 64, 64, False, False),
        Chunk("long", 128, 64, False, False),
        Chunk("long", 192, 8, True, True),
    ]
    assert max(len(plan.decode) + sum(plan.drafts) for plan in plans) <= 16


def test_limits_without_room_for_rows_beside_a_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match="no progress"):
        Limits(8, 4000, chunk_tokens=64, step_tokens=64, prefilling=SOLO)


def test_what_was_dropped_is_prefilled_up_to_its_prompt_and_replayed_one_token_a_step() -> None:
    one = scheduler()
    chat = one.add("chat", 70, 50)
    for _ in range(7):
        step(one)
    assert (chat.emitted, chat.computed) == (6, 75)
    one._park(chat, How.DROPPED, 0.0)
    assert [(chunk.start, chunk.count, chunk.samples) for chunk in step(one).prefill] == [(0, 64, False)]
    assert [(chunk.start, chunk.count, chunk.samples) for chunk in step(one).prefill] == [(64, 6, False)]
    for replayed in range(5):
        assert chat.replaying
        plan = step(one, drafts=3)
        assert (plan.decode, plan.drafts) == (("chat",), (0,))
        assert (chat.emitted, chat.computed) == (6, 71 + replayed)
    assert not chat.replaying
    assert step(one, drafts=3).drafts == (3,)
    assert chat.emitted == 7


def test_a_replay_that_is_parked_goes_on_where_it_stopped() -> None:
    one = scheduler()
    chat = one.add("chat", 10, 50)
    for _ in range(9):
        step(one)
    one._park(chat, How.DROPPED, 0.0)
    for _ in range(4):
        step(one)
    assert (chat.computed, chat.emitted) == (13, 9)
    one._park(chat, How.SAVED, 0.0)
    one.saved("chat", How.SAVED)
    step(one)
    one.restored("chat")
    assert chat.replaying
    step(one)
    assert (chat.computed, chat.emitted) == (14, 9)


@pytest.mark.parametrize(
    ("start", "remaining", "room", "fitted", "alone"),
    [
        (0, 40, 64, 40, 40),
        (0, 100, 64, 64, 64),
        (0, 100, 40, 32, 0),
        (64, 36, 36, 36, 36),
        (64, 36, 35, 32, 0),
        (64, 200, 64, 64, 64),
        (0, 5, 4, 0, 0),
    ],
)
def test_worked_cuts(start: int, remaining: int, room: int, fitted: int, alone: int) -> None:
    assert to_fit(start, remaining, room, 64) == fitted
    assert whole(start, remaining, room, 64) == alone


def test_states_that_only_fill_launches_up_are_counted() -> None:
    pool = Pool(1000, 1000, kv_bytes_per_token=1, state_bytes=100, block_tokens=16, padding_states=3)
    assert pool.holds([16] * 6)
    assert not pool.holds([16] * 6, captured_states=1)
    assert pool.holds([])
    assert pool.largest() == 592
    assert Prefilling() != SOLO
