"""The simulator of policies: the same figures each time, and copies that cost next to nothing."""

from provider.backends.sim_timing import DEVICES
from provider.bench.simulated import DISK, FACTS, Chat, Outcome, Run
from provider.parking.lot import Tiers
from provider.scheduler.parking import ParkRules

POOL_BYTES = 3 * (FACTS.state_bytes + 768 * FACTS.kv_bytes_per_token)
EIGHT = [Chat(0.0, 100, 900)] * 8


def outcome(tiers: Tiers | None = DISK, copy_bytes_per_s: float = 1e9) -> Outcome:
    device = DEVICES["m3-max"]
    return Run(EIGHT, ParkRules(), device, POOL_BYTES, tiers, copy_bytes_per_s=copy_bytes_per_s).outcome()


def test_eight_chats_in_room_for_three_keep_nine_tenths_of_what_they_get_when_copies_take_no_time() -> None:
    found, bound = outcome(), outcome(copy_bytes_per_s=float("inf"))
    assert found.parks > 0
    assert found.recomputed_tokens == 0
    assert found.tokens_per_s >= 0.9 * bound.tokens_per_s


def test_without_a_tier_the_same_trace_is_computed_again_and_comes_to_its_end() -> None:
    found = outcome(tiers=None)
    assert found.recomputed_tokens > 0
    assert found == outcome(tiers=None)
