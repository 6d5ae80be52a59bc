"""Chats that are parked, over the tensor-free backend: what they are told, and every way a copy can end."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provider.backends.base import BackendFacts, Landing
from provider.backends.sim import SimBackend
from provider.engine import Engine
from provider.generation import Delta, Event, Failed, Finished, GenerationRequest, Notice, Sampling
from provider.mtp.controller import FixedDepth
from provider.parking.lot import Tiers
from provider.scheduler.parking import ParkRules, Policy
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from tests.soak import examples

FACTS = BackendFacts("sim", 64, 512, 1000, 2, 10, 16, max_drafts=7)
DISK = Tiers(disk_bytes=10**9)


class HeldSim(SimBackend):
    """Its copies end when they are let."""

    def __init__(self, tiers: Tiers | None = DISK, open_gate: bool = True) -> None:
        super().__init__(FACTS, tiers=tiers)
        self.open_gate = open_gate
        self.fail_next = False
        self.cannot_begin = self.cannot_call_back = False

    def landings(self) -> list[Landing]:
        if not self.open_gate:
            return []
        for one in self._away:
            if self.fail_next and one.lands_s is not None:
                one.failure, self.fail_next = "broken", False
        return super().landings()

    def park(self, id: str) -> None:
        if self.cannot_begin:
            raise OSError("no device")
        super().park(id)

    def restore(self, id: str) -> None:
        if self.cannot_call_back:
            raise OSError("no device")
        super().restore(id)

    def open(self, id: str, *told: Any) -> None:
        if id == "bad":
            raise OSError("no room")
        super().open(id, *told)


class Chats:
    """An engine in a pool that is too small, and what its requests have got so far."""

    def __init__(
        self, backend: SimBackend | None = None, tokens: int = 120, rules: ParkRules | None = None, **limits: Any
    ) -> None:
        self.backend = backend or HeldSim()
        self.now_s = 0.0
        pool = Pool(tokens, kv_bytes_per_token=2, state_bytes=10, block_tokens=16)
        scheduler = Scheduler(Limits(**{"max_concurrent": 8, "n_ctx": 512, **limits}), pool, rules)
        self.engine = Engine(
            scheduler, self.backend, lambda ids, _: "".join(chr(48 + id) for id in ids), FixedDepth(0), self._now
        )
        self.events: dict[str, list[Event]] = {}

    def _now(self) -> float:
        return self.now_s

    def submit(self, id: str, prompt: Sequence[int], max_tokens: int = 40, **more: Any) -> None:
        told = {"sampling": Sampling(temperature=0), **more}
        self.note(
            self.engine.submit(GenerationRequest(request_id=id, prompt=list(prompt), max_tokens=max_tokens, **told))
        )

    def two(self) -> "Chats":
        """Which outgrow the pool; the younger one, of as much work, is parked."""
        self.submit("a", [1] * 50)
        self.submit("b", [2] * 50)
        return self

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            self.events.setdefault(event.request_id, []).append(event)

    def step(self, times: int = 1) -> "Chats":
        for _ in range(times):
            step = self.engine.step(self.note)
            self.note(step.events)
            self.now_s += 0.02 if step.plan else self.engine.idle_s()
        return self

    def until(self, state: str) -> "Chats":
        for _ in range(2000):
            if any(one.state.value == state for one in self.engine.scheduler.states()):
                return self
            self.step()
        raise AssertionError(f"nobody is ever {state}")

    def run(self) -> "Chats":
        for _ in range(20_000):
            if not self.engine.busy:
                return self
            self.step()
        raise AssertionError("no end in sight")

    def tokens(self, id: str) -> list[int]:
        return [token for event in self.events.get(id, []) if isinstance(event, Delta) for token in event.token_ids]

    def notices(self, id: str) -> list[str]:
        return [event.kind for event in self.events[id] if isinstance(event, Notice)]

    def end(self, id: str) -> Event:
        return self.events[id][-1]

    @property
    def counts(self) -> Any:
        return self.engine.scheduler.counts()


def alone(prompt: Sequence[int], max_tokens: int = 40, **more: Any) -> list[int]:
    chats = Chats(tokens=10_000)
    chats.submit("a", prompt, max_tokens, **more)
    return chats.run().tokens("a")


def check_whole(chats: Chats, *ids: str) -> None:
    """Everybody has the text it gets alone, and nothing is left."""
    for id in ids:
        assert chats.tokens(id) == alone([1 if id == "a" else 2] * 50)
    assert not chats.backend._held
    assert not chats.backend._away
    assert chats.engine.scheduler.open == 0


def test_a_saved_chat_is_told_and_goes_on_without_being_computed_again() -> None:
    chats = Chats().two().run()
    assert chats.notices("b") == ["preempted", "resumed"]
    assert chats.notices("a") == []
    assert chats.end("b") == Finished("b", "length", 50, 40, parks=1)
    check_whole(chats, "a", "b")


def test_the_notice_comes_when_it_stops_decoding_and_the_next_when_it_decodes_again() -> None:
    chats = Chats().two().until("saving")
    assert chats.notices("b") == ["preempted"]
    chats.run()
    kinds = [event.kind if isinstance(event, Notice) else "delta" for event in chats.events["b"]]
    place = kinds.index("resumed")
    assert kinds[place - 1] == "preempted"
    assert kinds[place + 1] == "delta"


def test_the_others_decode_while_a_copy_is_under_way_and_its_room_is_taken_until_it_has_landed() -> None:
    backend = HeldSim(open_gate=False)
    chats = Chats(backend).two().until("saving")
    before = len(chats.tokens("a"))
    chats.step(2)
    assert len(chats.tokens("a")) == before + 2
    assert (chats.counts.moving, chats.counts.parked) == (1, 0)
    chats.step(60)
    assert len(chats.tokens("a")) < 40, "there is no more room until the copy has landed"
    assert chats.engine.scheduler.fits
    backend.open_gate = True
    chats.run()
    check_whole(chats, "a", "b")


@pytest.mark.parametrize("state", ["saving", "parked", "restoring"])
def test_a_cancel_in_any_state_of_a_park_leaves_nothing_behind(state: str) -> None:
    backend = HeldSim()
    chats = Chats(backend).two()
    if state == "parked":
        chats.until("parked")
    elif state == "saving":
        backend.open_gate = False
        chats.until("saving")
    else:
        chats.until("parked")
        chats.engine.cancel("a")
        backend.open_gate = False
        chats.until("restoring")
    chats.engine.cancel("b")
    assert chats.engine.scheduler.get("b") is None
    chats.submit("b", [3] * 20, 5)
    chats.step(3)
    backend.open_gate = True
    chats.run()
    assert chats.tokens("b")[-5:] == alone([3] * 20, 5)
    assert not chats.backend._held
    assert not chats.backend._away


@pytest.mark.parametrize("moment", ["saving", "restoring"])
def test_a_copy_that_fails_is_told_as_a_recompute_and_loses_nothing(moment: str) -> None:
    backend = HeldSim()
    chats = Chats(backend).two().until("saving")
    if moment == "restoring":
        backend.open_gate = False
        chats.step(3)
        backend.open_gate = True
        chats.until("parked")
        chats.engine.cancel("a")
        backend.open_gate = False
        chats.until("restoring")
    backend.fail_next = backend.open_gate = True
    chats.run()
    assert chats.notices("b") == ["preempted", "resumed", "recomputed"]
    assert chats.end("b") == Finished("b", "length", 50, 40, parks=1, recomputes=1)
    check_whole(chats, "b")


def test_a_copy_that_cannot_even_be_begun_is_a_recompute() -> None:
    backend = HeldSim()
    backend.cannot_begin = True
    chats = Chats(backend).two().run()
    assert chats.notices("b") == ["preempted", "resumed", "recomputed"]
    check_whole(chats, "a", "b")


def test_a_restore_that_cannot_even_be_begun_is_a_recompute() -> None:
    backend = HeldSim()
    backend.cannot_call_back = True
    chats = Chats(backend).two().run()
    assert chats.notices("b") == ["preempted", "resumed", "recomputed"]
    check_whole(chats, "a", "b")


def test_a_newcomer_that_cannot_be_opened_fails_alone() -> None:
    chats = Chats(tokens=1000, rules=ParkRules(every=5))
    chats.submit("a", [1] * 50)
    while len(chats.tokens("a")) < 5:
        chats.step()
    chats.submit("bad", [3] * 5)
    chats.submit("b", [2] * 50)
    chats.run()
    assert isinstance(chats.end("bad"), Failed)
    check_whole(chats, "a", "b")


def test_without_a_tier_a_parked_chat_is_computed_again() -> None:
    chats = Chats(HeldSim(tiers=None)).two().run()
    assert chats.notices("b") == ["preempted", "resumed", "recomputed"]
    check_whole(chats, "a", "b")


def test_a_forced_park_is_held_for_its_time_and_the_engine_says_how_long_it_waits() -> None:
    chats = Chats(tokens=1000, rules=ParkRules(every=5, hold_s=10.5))
    chats.submit("a", [1] * 10, 8)
    chats.until("parked")
    parked = chats.engine.scheduler.get("a")
    assert parked is not None
    assert len(chats.tokens("a")) == 5
    chats.step()
    assert 0 < chats.engine.idle_s() <= 1.0
    chats.run()
    assert parked.came_s - parked.parked_s >= 10.5
    assert chats.notices("a") == ["preempted", "resumed"]
    assert chats.tokens("a") == alone([1] * 10, 8)


@pytest.mark.parametrize("tiers", [DISK, None])
def test_a_chat_that_nobody_reads_is_parked_until_somebody_does(tiers: Tiers | None) -> None:
    """Its room is free meanwhile, its neighbour goes on, and the engine waits for commands rather than spin."""
    chats = Chats(HeldSim(tiers), tokens=10_000).two()
    chats.step(6)
    chats.engine.hold("b", True)
    chats.engine.hold("unknown", True)
    chats.step(3)
    told = len(chats.tokens("b"))
    assert (chats.counts.parked, chats.counts.running) == (1, 1)
    assert chats.counts.tokens_used == 50 + len(chats.tokens("a"))
    chats.step(60)
    assert chats.end("a") == Finished("a", "length", 50, 40)
    assert len(chats.tokens("b")) == told
    assert chats.notices("b") == ["preempted"]
    assert not chats.engine.step(chats.note).plan
    assert chats.engine.idle_s() == 1.0
    chats.engine.hold("b", False)
    chats.run()
    assert chats.notices("b") == ["preempted", "resumed"] + ["recomputed"] * (tiers is None)
    check_whole(chats, "a", "b")


def test_a_chat_that_is_held_before_it_enters_does_not_enter_and_blocks_nobody() -> None:
    chats = Chats(tokens=10_000)
    chats.submit("b", [2] * 50)
    chats.engine.hold("b", True)
    chats.submit("a", [1] * 50)
    chats.step(60)
    assert (len(chats.tokens("a")), chats.tokens("b"), chats.counts.waiting) == (40, [], 1)
    chats.engine.cancel("b")
    assert not chats.engine.busy


def test_a_parked_head_of_line_takes_turns_after_two_seconds() -> None:
    """Either one alone would keep the other out for its whole answer, which takes eight seconds."""
    chats = Chats(tokens=500)
    chats.submit("a", [1] * 50, 400)
    chats.submit("b", [2] * 50, 400)
    chats.run()
    parks = {id: end.parks for id in "ab" if isinstance(end := chats.end(id), Finished)}
    assert all(1 <= count <= 6 for count in parks.values()), parks
    assert chats.tokens("a") == alone([1] * 50, 400)
    assert chats.tokens("b") == alone([2] * 50, 400)


def test_a_shrinking_grant_is_settled_only_when_what_lies_beyond_has_landed() -> None:
    backend = HeldSim(open_gate=False)
    chats = Chats(backend, tokens=1000)
    chats.submit("a", [1] * 50)
    chats.submit("b", [2] * 50)
    chats.step(3)
    pool = chats.engine.scheduler.pool
    assert chats.engine.grant(1, pool.sequence_bytes(96))
    chats.step(3)
    assert chats.engine.settled_grant() is None
    backend.open_gate = True
    chats.step(2)
    assert chats.engine.settled_grant() == 1
    check_whole(chats.run(), "a", "b")


CHAT = st.tuples(
    st.lists(st.integers(0, 63), min_size=1, max_size=120),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.8]),
    st.integers(0, 30),
    st.none() | st.integers(0, 60),
)
RULES = st.builds(ParkRules, policy=st.sampled_from(Policy), every=st.none() | st.integers(1, 16))


@settings(max_examples=examples(10_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chats=st.lists(CHAT, min_size=1, max_size=8),
    tokens=st.integers(170, 600),
    concurrent=st.integers(1, 8),
    drafts=st.integers(0, 4),
    rules=RULES,
    disk_bytes=st.none() | st.integers(0, 2000) | st.just(10**9),
    fail_every=st.none() | st.integers(1, 4),
    gates=st.lists(st.booleans(), min_size=1, max_size=12),
)
def test_however_it_is_parked_each_chat_gets_the_tokens_it_gets_alone(
    chats: list[Any],
    tokens: int,
    concurrent: int,
    drafts: int,
    rules: ParkRules,
    disk_bytes: int | None,
    fail_every: int | None,
    gates: list[bool],
) -> None:
    """`gates`: whether copies may end at one step after the other."""
    backend = HeldSim(None if disk_bytes is None else Tiers(disk_bytes, fail_every=fail_every))
    played = Chats(backend, tokens, rules, n_ctx=170, max_concurrent=concurrent)
    played.engine.depth = FixedDepth(drafts)
    step = 0
    while played.engine.busy or step <= 60:
        backend.open_gate = step > 500 or gates[step % len(gates)]
        for number, (prompt, length, temperature, joins, leaves) in enumerate(chats):
            if step == joins:
                sampling = Sampling(temperature=temperature, seed=number)
                played.submit(str(number), prompt, length, sampling=sampling)
            if leaves is not None and step == joins + leaves + 1:
                played.engine.cancel(str(number))
        played.step()
        step += 1
        assert step < 20_000, "no end in sight"
    for number, (prompt, length, temperature, _, leaves) in enumerate(chats):
        expected = alone(prompt, length, sampling=Sampling(temperature=temperature, seed=number))
        got = played.tokens(str(number))
        assert got == (expected if leaves is None else expected[: len(got)])
        if leaves is None:
            assert not isinstance(played.end(str(number)), Failed)
    assert not backend._held
    assert not backend._away
