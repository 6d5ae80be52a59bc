"""The scheduler as a state machine: random pools and schedules, and the rules of thumb as examples."""

from dataclasses import replace
from typing import Any

from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from provider.scheduler.sequence import End, How, Park, Plan


def run(scheduler: Scheduler, plan: Plan, accepted: int = 0) -> list[str]:
    """Carries a plan out as an engine does, with up to `accepted` right drafts a row; returns who ended by count."""
    scheduler.commit_moves(plan)
    for chunk in plan.prefill:
        scheduler.commit_chunk(chunk)
    scheduler.commit_decode(
        {id: 1 + min(accepted, drafts) for id, drafts in zip(plan.decode, plan.drafts, strict=True)}
    )
    drew = [chunk.id for chunk in plan.prefill if chunk.samples] + list(plan.decode)
    ended = [id for id in drew if scheduler.end_of(id)]
    for id in ended:
        scheduler.remove(id)
    return ended


def run_out(scheduler: Scheduler, steps: int = 10_000) -> list[str]:
    ended = []
    while scheduler.open:
        plan = scheduler.plan()
        assert plan, "work exists and nothing is planned"
        ended += run(scheduler, plan)
        steps -= 1
        assert steps, "no end in sight"
    return ended


def scheduler_of(tokens: int = 10_000, n_ctx: int = 4096, **limits: Any) -> Scheduler:
    return Scheduler(Limits(**{"max_concurrent": 8, "n_ctx": n_ctx, **limits}), Pool(tokens))


def test_a_prompt_is_prefilled_in_chunks_on_the_grid_and_its_last_chunk_draws() -> None:
    scheduler = scheduler_of(chunk_tokens=100)
    scheduler.add("a", 250, 3)
    chunks = []
    while not any(chunk.completes for chunk in chunks):
        plan = scheduler.plan()
        chunks += plan.prefill
        run(scheduler, plan)
    assert [(chunk.start, chunk.count) for chunk in chunks] == [(0, 96), (96, 96), (192, 58)]
    assert [chunk.samples for chunk in chunks] == [False, False, True]


def test_running_rows_decode_in_every_step_beside_one_chunk() -> None:
    scheduler = scheduler_of(chunk_tokens=64)
    scheduler.add("a", 10, 50)
    run(scheduler, scheduler.plan())
    scheduler.add("b", 1000, 5)
    for _ in range(5):
        plan = scheduler.plan()
        assert plan.decode == ("a",)
        assert sum(chunk.count for chunk in plan.prefill) <= 64
        run(scheduler, plan)


def test_short_prompts_share_a_chunk() -> None:
    scheduler = scheduler_of(chunk_tokens=512)
    for id in "abcd":
        scheduler.add(id, 100, 5)
    assert [chunk.id for chunk in scheduler.plan().prefill] == list("abcd")


def test_admission_keeps_arrival_order_with_priority_first() -> None:
    scheduler = scheduler_of(max_concurrent=1)
    scheduler.add("a", 10, 1)
    scheduler.add("b", 10, 1)
    scheduler.add("c", 10, 1, priority=5)
    assert run_out(scheduler) == ["c", "a", "b"]


def test_a_large_head_of_line_is_not_overtaken() -> None:
    scheduler = scheduler_of(tokens=1000)
    scheduler.add("a", 600, 300)
    run(scheduler, scheduler.plan())
    scheduler.add("large", 500, 1)
    scheduler.add("small", 10, 1)
    for _ in range(10):
        plan = scheduler.plan()
        assert not plan.enter
        run(scheduler, plan)


def test_a_sequence_enters_when_its_prompt_and_one_step_fit() -> None:
    scheduler = scheduler_of(tokens=104)
    scheduler.add("a", 50, 1000)
    run(scheduler, scheduler.plan())
    scheduler.add("b", 50, 1000)
    assert scheduler.plan().enter == ("b",)  # 51 + 1 for a, 50 + 1 for b


def test_the_youngest_is_parked_when_the_next_step_does_not_fit_and_both_finish() -> None:
    scheduler = scheduler_of(tokens=120)
    scheduler.add("a", 50, 40)
    scheduler.add("b", 50, 40)
    parked = []
    while scheduler.open:
        plan = scheduler.plan()
        parked += [park.id for park in plan.park]
        run(scheduler, plan)
    assert parked == ["b"]


def test_a_low_priority_sequence_is_parked_before_a_younger_one() -> None:
    scheduler = scheduler_of(tokens=120)
    scheduler.add("low", 50, 40, priority=-1)
    run(scheduler, scheduler.plan())
    scheduler.add("young", 50, 40)
    parks: tuple[Park, ...] = ()
    while not parks:
        plan = scheduler.plan()
        parks = plan.park
        run(scheduler, plan)
    assert parks == (Park("low", How.DROPPED),)


def test_a_recomputed_sequence_carries_on_from_its_last_token_without_drawing_it_again() -> None:
    scheduler = scheduler_of(tokens=120)
    scheduler.add("a", 50, 40)
    scheduler.add("b", 50, 40)
    drawn = {"a": 0, "b": 0}
    while scheduler.open:
        plan = scheduler.plan()
        for chunk in plan.prefill:
            if chunk.completes and not chunk.samples:
                assert chunk.id == "b"
                assert chunk.start + chunk.count == 50 + drawn["b"] - 1
        for id in [chunk.id for chunk in plan.prefill if chunk.samples] + list(plan.decode):
            drawn[id] += 1
        run(scheduler, plan)
    assert drawn == {"a": 40, "b": 40}


def test_no_max_tokens_means_to_the_end_of_the_context() -> None:
    scheduler = scheduler_of(n_ctx=64)
    assert scheduler.add("a", 60, None).max_tokens == 4


def test_a_sequence_that_outgrows_the_context_is_told_so() -> None:
    scheduler = scheduler_of(n_ctx=64)
    scheduler.add("a", 60, 100)
    while scheduler.end_of("a") is None:
        plan = scheduler.plan()
        scheduler.commit_moves(plan)
        for chunk in plan.prefill:
            scheduler.commit_chunk(chunk)
        scheduler.commit_decode(dict.fromkeys(plan.decode, 1))
    assert scheduler.end_of("a") is End.CONTEXT


def test_bytes_bind_before_positions_when_state_is_large() -> None:
    pool = Pool(10**6, bytes=1000, kv_bytes_per_token=1, state_bytes=300, block_tokens=16)
    scheduler = Scheduler(Limits(8, 4096), pool)
    assert scheduler.n_ctx == 688  # (1000 - 300) // 16 * 16
    for id in "abcd":
        scheduler.add(id, 10, 5)
    assert scheduler.plan().enter == ("a", "b", "c")


def drafting(pool: Pool, **limits: Any) -> Scheduler:
    """Two sequences of 50 positions that decode."""
    scheduler = Scheduler(Limits(**{"max_concurrent": 8, "n_ctx": 4096, **limits}), pool)
    for id in "ab":
        scheduler.add(id, 49, 40)
    run(scheduler, scheduler.plan())
    return scheduler


def test_every_row_is_given_the_drafts_that_are_wanted_where_there_is_room() -> None:
    assert drafting(Pool(10_000)).plan(2).drafts == (2, 2)
    assert drafting(Pool(10_000)).plan().drafts == (0, 0)


def test_a_row_is_given_no_more_drafts_than_it_could_emit() -> None:
    scheduler = scheduler_of(n_ctx=64)
    scheduler.add("short", 10, 3)
    scheduler.add("last", 10, 2)
    scheduler.add("deep", 61, None)
    run(scheduler, scheduler.plan())
    plan = scheduler.plan(4)
    assert dict(zip(plan.decode, plan.drafts, strict=True)) == {"short": 1, "last": 0, "deep": 1}
    assert sorted(run(scheduler, plan, accepted=4)) == ["deep", "last", "short"]


def test_drafts_shrink_before_anyone_is_parked() -> None:
    for room, drafts in ((106, (2, 2)), (105, (1, 1)), (104, (1, 1)), (103, (0, 0)), (102, (0, 0))):
        plan = drafting(Pool(room)).plan(2)
        assert (plan.drafts, plan.park) == (drafts, ())
    scheduler = drafting(Pool(102))
    run(scheduler, scheduler.plan(2))
    assert scheduler.plan(2).park == (Park("b", How.DROPPED),)


def test_drafts_shrink_before_anyone_is_kept_waiting() -> None:
    scheduler = drafting(Pool(115))
    assert scheduler.plan(2).drafts == (2, 2)
    scheduler.add("c", 9, 5)
    plan = scheduler.plan(2)
    assert (plan.enter, plan.drafts) == (("c",), (1, 1))


def test_captured_states_are_charged_to_the_bytes() -> None:
    """Of two rows with one draft each, two; 64 positions of 2 bytes and a state of 100 each are there already."""
    taken = 2 * (100 + 64 * 2)
    for spare, drafts in ((199, (0, 0)), (200, (1, 1)), (399, (1, 1)), (400, (2, 2))):
        pool = Pool(10_000, taken + spare, kv_bytes_per_token=2, state_bytes=100, block_tokens=64)
        assert drafting(pool).plan(2).drafts == drafts


def test_drafts_count_into_the_tokens_of_a_step() -> None:
    scheduler = drafting(Pool(10_000))
    scheduler.limits = replace(scheduler.limits, step_tokens=5)
    assert scheduler.plan(2).drafts == (1, 1)
    scheduler.limits = replace(scheduler.limits, step_tokens=64)
    scheduler.add("c", 200, 5)
    (chunk,) = scheduler.plan(3).prefill
    assert chunk.count == 48  # 64 - 2 * 4, on the grid
