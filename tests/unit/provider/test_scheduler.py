"""The scheduler as a state machine: random pools and schedules, and the rules of thumb as examples."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import GRID_TOKENS, Limits, Scheduler
from provider.scheduler.sequence import End, Plan, State
from tests.soak import examples


def run(scheduler: Scheduler, plan: Plan) -> list[str]:
    """Carries a plan out as an engine does; returns who ended by count."""
    scheduler.commit_moves(plan)
    for chunk in plan.prefill:
        scheduler.commit_chunk(chunk)
    scheduler.commit_decode(dict.fromkeys(plan.decode, 1))
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
        parked += plan.park
        run(scheduler, plan)
    assert parked == ["b"]


def test_a_low_priority_sequence_is_parked_before_a_younger_one() -> None:
    scheduler = scheduler_of(tokens=120)
    scheduler.add("low", 50, 40, priority=-1)
    run(scheduler, scheduler.plan())
    scheduler.add("young", 50, 40)
    parks: tuple[str, ...] = ()
    while not parks:
        plan = scheduler.plan()
        parks = plan.park
        run(scheduler, plan)
    assert parks == ("low",)


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


REQUEST = st.tuples(st.integers(1, 200), st.integers(1, 60) | st.none(), st.integers(-2, 2))
ACTION = st.one_of(
    st.tuples(st.just("add"), REQUEST),
    st.tuples(st.just("step"), st.integers(1, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 25)),
)


@settings(max_examples=examples(100_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=st.integers(64, 700),
    max_bytes=st.none() | st.integers(700, 6000),
    chunk=st.integers(GRID_TOKENS, 128),
    concurrent=st.integers(1, 6),
    actions=st.lists(ACTION, min_size=1, max_size=25),
)
def test_any_schedule_stays_within_its_pool_and_lets_everyone_finish(
    tokens: int, max_bytes: int | None, chunk: int, concurrent: int, actions: list[tuple[str, Any]]
) -> None:
    pool = Pool(tokens, max_bytes, kv_bytes_per_token=2, state_bytes=100, block_tokens=16)
    scheduler = Scheduler(Limits(concurrent, 256, chunk_tokens=chunk), pool)
    added: list[str] = []
    for kind, value in actions:
        if kind == "add":
            prompt, max_tokens, priority = value
            if prompt < scheduler.n_ctx:
                scheduler.add(f"s{len(added)}", prompt, max_tokens, priority)
                added.append(f"s{len(added)}")
        elif kind == "cancel":
            scheduler.remove(f"s{value}")
        else:
            for _ in range(value):
                checked_step(scheduler)
    steps = 0
    while scheduler.open:
        checked_step(scheduler)
        steps += 1
        assert steps < 50_000, "no end in sight"
    counts = scheduler.counts()
    assert (counts.tokens_used, counts.tokens_queued) == (0, 0)
    assert not scheduler._resident
    assert not scheduler._parked
    assert not scheduler._waiting


def snapshot(scheduler: Scheduler) -> list[Any]:
    lines = (scheduler._waiting, scheduler._resident, scheduler._parked)
    return [[(one.id, one.state, one.computed, one.emitted, one.parks) for one in line] for line in lines]


def checked_step(scheduler: Scheduler) -> None:
    before = snapshot(scheduler)
    plan = scheduler.plan()
    assert snapshot(scheduler) == before, "plan() changed something"
    if scheduler.open:
        assert plan, "work exists and nothing is planned"
    chunked = sum(one.count for one in plan.prefill)
    assert chunked <= scheduler.limits.chunk_tokens
    for one in plan.prefill:
        assert one.completes or (one.start + one.count) % GRID_TOKENS == 0
    run(scheduler, plan)
    residents = [one for one in scheduler.states() if one.state in (State.PREFILL, State.RUNNING)]
    assert len(residents) <= scheduler.limits.max_concurrent
    assert scheduler.pool.holds(one.positions for one in residents)
    counts = scheduler.counts()
    assert counts.waiting + counts.prefill + counts.running + counts.parked == scheduler.open
