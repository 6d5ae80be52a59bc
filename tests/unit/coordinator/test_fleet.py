from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator import fleet
from coordinator.breaker import Breaker
from coordinator.config import Timings
from coordinator.fleet import Hold, Presence, ProviderView
from provider.protocol import LoadModelStatus, ModelsUpdate, PrefetchStatus
from tests.unit.coordinator.views import MODEL, advert, beat, register, slot, view

TIMINGS = Timings()


@pytest.mark.parametrize(
    ("silence_s", "connected", "expected"),
    [
        (0, True, Presence.ALIVE),
        (14.9, True, Presence.ALIVE),
        (15, True, Presence.SUSPECT),
        (44.9, True, Presence.SUSPECT),
        (45, True, Presence.LOST),
        (0, False, Presence.DISCONNECTED),
        (44.9, False, Presence.DISCONNECTED),
        (45, False, Presence.LOST),
    ],
)
def test_presence_follows_silence(silence_s: float, connected: bool, expected: Presence) -> None:
    assert fleet.presence(view(connected=connected), silence_s, TIMINGS) is expected


@pytest.mark.parametrize(("silence_s", "gone"), [(45, False), (644, False), (645, True)])
def test_a_lost_provider_stays_listed_for_ten_minutes(silence_s: float, gone: bool) -> None:
    assert fleet.forgotten(view(), silence_s, TIMINGS) is gone


def test_a_flap_of_twenty_seconds_leaves_a_suspect_that_one_beat_restores() -> None:
    seen = view()
    assert fleet.presence(seen, 20, TIMINGS) is Presence.SUSPECT
    assert fleet.presence(fleet.beaten(seen, beat(2), 20), 20, TIMINGS) is Presence.ALIVE


def test_an_older_heartbeat_proves_life_and_changes_nothing_else() -> None:
    seen = fleet.beaten(view(), beat(7, slots=(slot(running=2),)), 1)
    stale = fleet.beaten(seen, beat(6, "draining", (slot(running=4),)), 2)
    assert stale == replace(seen, heard_s=2)


def test_capacity_numbers_restart_with_each_connection() -> None:
    seen = fleet.beaten(view(), beat(700), 1)
    again = fleet.registered(register(), generation=2, now_s=2)
    assert again.capacity_seq is None
    assert fleet.beaten(again, beat(1, "draining"), 3).draining
    assert seen.generation < again.generation


def test_the_last_words_on_a_load_and_on_a_prefetch_are_kept_apart_and_outlive_a_connection() -> None:
    seen = fleet.told(view(), LoadModelStatus(model_id=MODEL, status="started"), 1)
    seen = fleet.told(seen, LoadModelStatus(model_id=MODEL, status="failed", reason="memory_cap: no"), 2)
    seen = fleet.told(seen, PrefetchStatus(model_id=MODEL, status="verified"), 3)
    again = fleet.registered(register(), 2, 4, fleet.disconnected(seen, 4))
    assert [(note.message.status, note.at_s) for note in again.loads.values()] == [("failed", 2)]
    assert [(note.message.status, note.at_s) for note in again.prefetches.values()] == [("verified", 3)]
    assert (again.slots, again.memory) == ({}, None)


def test_a_provider_cannot_fill_the_view_with_words() -> None:
    seen = view()
    for number in range(fleet.NOTED_MODELS + 10):
        seen = fleet.told(seen, LoadModelStatus(model_id=f"m{number}", status="started"), number)
    assert len(seen.loads) == fleet.NOTED_MODELS
    assert "m0" not in seen.loads
    assert f"m{fleet.NOTED_MODELS + 9}" in seen.loads
    long = fleet.told(seen, PrefetchStatus(model_id="m", status="failed", reason="x" * 4096), 0)
    assert len(long.prefetches["m"].message.reason or "") == fleet.NOTED_CHARACTERS


def test_of_slots_a_few_are_kept_whose_model_is_not_advertised() -> None:
    strays = [slot(f"stray{number}") for number in range(fleet.STRAY_SLOTS + 5)]
    kept = fleet.beaten(view(), beat(2, slots=(*strays, slot())), 1).slots
    assert list(kept) == [*(f"stray{number}" for number in range(fleet.STRAY_SLOTS)), MODEL]


def test_a_models_update_replaces_the_whole_list() -> None:
    updated = fleet.models_replaced(view(), ModelsUpdate(models=[advert("other")]))
    assert set(updated.models) == {"other"}


def test_a_hold_lasts_until_a_heartbeat_after_its_acceptance_counts_it() -> None:
    counts = (slot(running=1),)
    held = fleet.held(view(), "j.1", Hold(MODEL, 10))
    assert "j.1" in fleet.beaten(held, beat(2, slots=counts), 1).holds
    taken = fleet.accepted(held, "j.1")
    assert "j.1" in taken.holds
    assert "j.1" in fleet.beaten(taken, beat(2, slots=(slot(),)), 1).holds
    assert "j.1" not in fleet.beaten(taken, beat(2, slots=counts), 1).holds


def test_release_and_acceptance_of_what_is_not_held_change_nothing() -> None:
    seen = view()
    assert fleet.released(seen, "x.1") is seen
    assert fleet.accepted(seen, "x.1") is seen


def test_holds_outlive_a_connection_and_are_counted_by_the_first_beat_of_the_next() -> None:
    seen = fleet.held(fleet.accepted(fleet.held(view(), "j.1", Hold(MODEL, 10)), "j.1"), "k.1", Hold(MODEL, 20))
    counted = fleet.disconnected(fleet.beaten(seen, beat(2, slots=(slot(running=1),)), 1), 2)
    assert (list(counted.holds), list(counted.counted)) == (["k.1"], ["j.1"])
    again = fleet.registered(register(), 2, 3, counted)
    assert (set(again.holds), again.counted) == ({"j.1", "k.1"}, {})
    beaten = fleet.beaten(again, beat(1, slots=(slot(running=1),)), 4)
    assert (list(beaten.holds), list(beaten.counted)) == (["k.1"], ["j.1"])
    assert not fleet.released(fleet.released(beaten, "j.1"), "k.1").at_it(MODEL)


def test_a_provider_lost_for_its_silence_is_lost_from_when_it_fell_silent() -> None:
    assert fleet.presence(fleet.lost(view()), 45, TIMINGS) is Presence.LOST
    assert fleet.presence(fleet.disconnected(view(), 45), 45, TIMINGS) is Presence.DISCONNECTED


class OneProvider(RuleBasedStateMachine):
    """Any order of messages, losses and waits, against a plain account of what must be true."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.view: ProviderView = fleet.registered(register(), 1, 0.0)
        self.generation = 1
        self.heard = 0.0
        self.highest_seq = -1
        self.jobs = 0
        self.held: dict[str, bool] = {}
        self.counted: set[str] = set()

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(seq=st.integers(0, 20), draining=st.booleans(), running=st.integers(0, 4))
    @precondition(lambda self: self.view.connected)
    def beats(self, seq: int, draining: bool, running: int) -> None:
        status = "draining" if draining else "serving"
        self.view = fleet.beaten(self.view, beat(seq, status, (slot(running=running),)), self.now)
        self.heard = self.now
        if seq >= self.highest_seq:
            self.highest_seq = seq
            taken = [*self.counted, *(job for job, taken in self.held.items() if taken)]
            self.held = {job: taken for job, taken in self.held.items() if not taken}
            self.counted = set(self.view.counted)
            assert self.counted <= set(taken)
            assert len(self.counted) == min(running, len(taken))
            self.held |= dict.fromkeys(set(taken) - self.counted, True)
            assert self.view.draining is draining
            assert self.view.slots[MODEL].running == running

    @rule()
    def registers(self) -> None:
        self.generation += 1
        self.view = fleet.registered(register(), self.generation, self.now, self.view)
        self.heard, self.highest_seq = self.now, -1
        self.held |= dict.fromkeys(self.counted, True)
        self.counted = set()

    @rule()
    @precondition(lambda self: self.view.connected)
    def disconnects(self) -> None:
        self.view = fleet.disconnected(self.view, self.now)
        self.heard = self.now

    @rule()
    @precondition(lambda self: self.view.connected)
    def is_asked(self) -> None:
        self.jobs += 1
        self.view = fleet.held(self.view, f"{self.jobs}.1", Hold(MODEL, 5))
        self.held[f"{self.jobs}.1"] = False

    @rule()
    @precondition(lambda self: self.held)
    def accepts(self) -> None:
        job = sorted(self.held)[0]
        self.view = fleet.accepted(self.view, job)
        self.held[job] = True

    @rule()
    @precondition(lambda self: self.held)
    def finishes(self) -> None:
        job, _ = self.held.popitem()
        self.view = fleet.released(self.view, job)

    @rule()
    @precondition(lambda self: self.counted)
    def finishes_what_was_counted(self) -> None:
        self.view = fleet.released(self.view, self.counted.pop())

    @invariant()
    def holds_are_those_no_beat_has_counted(self) -> None:
        assert {job: hold.accepted for job, hold in self.view.holds.items()} == self.held
        assert set(self.view.counted) == self.counted

    @invariant()
    def presence_is_silence(self) -> None:
        silence = self.now - self.heard
        presence = fleet.presence(self.view, self.now, TIMINGS)
        assert (presence is Presence.LOST) == (silence >= 45)
        assert (presence is Presence.ALIVE) == (silence < 15 and self.view.connected)
        assert not (fleet.forgotten(self.view, self.now, TIMINGS) and presence is not Presence.LOST)

    @invariant()
    def the_highest_number_of_this_connection_is_known(self) -> None:
        assert self.view.generation == self.generation
        assert self.view.capacity_seq == (None if self.highest_seq < 0 else self.highest_seq)


TestOneProvider = OneProvider.TestCase


def test_what_a_heartbeat_counts_is_taken_off_it_when_it_ends() -> None:
    busy = fleet.accepted(fleet.held(view("p1", slot(running=1)), "a.1", Hold(MODEL, 10)), "a.1")
    assert busy.at_it(MODEL)
    counted = fleet.beaten(busy, beat(2, slots=(slot(running=2, tokens_used=50),)), 1.0)
    assert (counted.holds, list(counted.counted)) == ({}, ["a.1"])
    assert counted.at_it(MODEL)
    ended = fleet.released(counted, "a.1")
    assert not ended.at_it(MODEL)
    assert (ended.slots[MODEL].running, ended.slots[MODEL].tokens_used) == (1, 40)
    assert fleet.released(ended, "a.1") is ended


def test_whoever_stands_in_line_takes_the_place_of_what_has_ended() -> None:
    busy = fleet.accepted(fleet.held(view(), "a.1", Hold(MODEL, 10)), "a.1")
    ended = fleet.released(fleet.beaten(busy, beat(2, slots=(slot(running=4, waiting=2),)), 1.0), "a.1")
    assert (ended.slots[MODEL].running, ended.slots[MODEL].waiting) == (4, 1)


def test_an_operators_order_to_drain_outlives_beats_and_connections_until_it_is_taken_back() -> None:
    told = fleet.drain_ordered(view(), True)
    assert told.draining
    again = fleet.beaten(fleet.registered(register(), 2, 2.0, told), beat(1), 2.0)
    assert again.draining
    back = fleet.drain_ordered(again, False)
    assert not back.draining
    assert not fleet.beaten(back, beat(2), 3.0).draining


def test_taking_back_an_order_that_was_not_given_leaves_the_providers_own_word() -> None:
    draining = fleet.beaten(view(), beat(2, status="draining"), 1.0)
    assert fleet.drain_ordered(draining, False).draining


def test_a_breaker_outlives_a_connection_and_ends_with_a_success() -> None:
    failing = fleet.failed(view(), MODEL, Breaker(5, 0.0, 10.0))
    again = fleet.registered(register(), 2, 2.0, fleet.disconnected(failing, 1.0))
    assert again.breakers == failing.breakers
    assert fleet.succeeded(again, MODEL).breakers == {}
    assert fleet.succeeded(again, "other") is again


def test_what_waits_for_its_model_to_be_loaded_is_in_no_slot_and_still_there() -> None:
    busy = view()
    for number in range(3):
        busy = fleet.accepted(fleet.held(busy, f"a.{number}", Hold(MODEL, 10)), f"a.{number}")
    cold = fleet.beaten(busy, beat(2), 1.0)
    assert (len(cold.holds), len(cold.counted)) == (3, 0)
    loading = fleet.beaten(cold, beat(3, slots=(slot(state="loading", waiting=1),)), 2.0)
    assert (len(loading.holds), len(loading.counted)) == (2, 1)
    running = fleet.beaten(loading, beat(4, slots=(slot(running=2, parked=1),)), 3.0)
    assert (len(running.holds), len(running.counted)) == (0, 3)
    died = fleet.beaten(running, beat(5), 4.0)
    assert (len(died.holds), len(died.counted)) == (3, 0)
