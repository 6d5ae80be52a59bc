"""Random schedules over random pools: nobody is lost, nothing is taken twice, and everybody comes to an end."""

from itertools import cycle
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provider.scheduler.costs import Costs
from provider.scheduler.parking import ParkRules, Policy
from provider.scheduler.pool import Pool
from provider.scheduler.prefilling import GRID_TOKENS, SHARED, SOLO, Prefilling
from provider.scheduler.scheduler import Limits, Scheduler
from tests.fixtures.schedule_play import Play, check_nothing_left
from tests.soak import examples

LENGTH = st.one_of(st.integers(1, 60), st.integers(1, 20), st.integers(1, 60), st.none())
REQUEST = st.tuples(st.integers(1, 200), LENGTH, st.integers(-2, 2))
ACTION = st.one_of(
    st.tuples(st.just("add"), REQUEST),
    st.tuples(st.just("step"), st.integers(1, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 25)),
    st.tuples(st.just("land"), st.tuples(st.integers(0, 5), st.booleans())),
    st.tuples(st.just("hold"), st.tuples(st.integers(0, 25), st.booleans())),
)
RULES = st.builds(
    ParkRules,
    policy=st.sampled_from(Policy),
    every=st.none() | st.integers(2, 20),
    hold_s=st.sampled_from([0.0, 0.5]),
)
COSTS = st.builds(
    Costs,
    save_bytes_per_s=st.sampled_from([1e3, 1e5, 1e9]),
    restore_bytes_per_s=st.sampled_from([1e3, 1e9]),
    prefill_tokens_per_s=st.sampled_from([10.0, 1e4]),
)


@settings(max_examples=examples(100_000, share=100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=st.integers(64, 700),
    max_bytes=st.none() | st.integers(700, 6000),
    tier_bytes=st.none() | st.integers(0, 5000),
    chunk=st.integers(GRID_TOKENS, 128),
    concurrent=st.integers(1, 6),
    drafts=st.integers(0, 7),
    held=st.lists(st.integers(0, 7), min_size=1, max_size=9),
    rules=RULES,
    costs=COSTS,
    step_s=st.sampled_from([0.01, 0.4, 40.0]),
    actions=st.lists(ACTION, min_size=1, max_size=12),
    prefilling=st.sampled_from([SHARED, SOLO]),
    padding=st.sampled_from([0, 3]),
)
def test_any_schedule_stays_within_its_pool_and_lets_everyone_finish(
    tokens: int,
    max_bytes: int | None,
    tier_bytes: int | None,
    chunk: int,
    concurrent: int,
    drafts: int,
    held: list[int],
    rules: ParkRules,
    costs: Costs,
    step_s: float,
    actions: list[tuple[str, Any]],
    prefilling: Prefilling,
    padding: int,
) -> None:
    """`held`: how many drafts are right in one step after the other. Copies land, or fail, whenever they like."""
    accepted = cycle(held)
    pool = Pool(tokens, max_bytes, kv_bytes_per_token=2, state_bytes=100, block_tokens=16, padding_states=padding)
    scheduler = Scheduler(Limits(concurrent, 256, chunk_tokens=chunk, prefilling=prefilling), pool, rules, costs)
    play, added = Play(scheduler, tier_bytes, step_s), 0
    for kind, value in actions:
        match kind:
            case "add" if value[0] < scheduler.n_ctx:
                scheduler.add(f"s{added}", *value)
                added += 1
            case "cancel":
                play.remove(f"s{value}")
            case "land":
                play.land(*value)
            case "hold":
                scheduler.hold(f"s{value[0]}", value[1])
            case "step":
                for _ in range(value):
                    play.step(drafts, next(accepted))
    play.run_out(drafts, next(accepted))
    check_nothing_left(scheduler)


@settings(max_examples=examples(2_500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=st.integers(64, 700),
    rules=RULES,
    requests=st.lists(REQUEST, min_size=2, max_size=8),
    step_s=st.sampled_from([0.01, 0.4, 40.0]),
)
def test_nobody_is_parked_more_often_than_its_tokens_pay_for(
    tokens: int, rules: ParkRules, requests: list[tuple[int, int | None, int]], step_s: float
) -> None:
    """No parking and resuming to and fro: between two parks of pressure or of turns, a sequence comes a good way on."""
    pool = Pool(tokens, kv_bytes_per_token=2, state_bytes=100, block_tokens=16)
    scheduler = Scheduler(Limits(6, 256), pool, rules)
    play = Play(scheduler, 10**9, step_s)
    for number, request in enumerate(requests):
        if request[0] < scheduler.n_ctx:
            scheduler.add(f"s{number}", *request)
    sequences = list(scheduler.states())
    play.run_out()
    for one in sequences:
        pays_for = 2 + one.emitted // 8 + (0 if rules.every is None else one.emitted // rules.every)
        assert one.parks <= pays_for + sum(it.arrival > one.arrival for it in sequences), one
