"""The waiting room: bounded, fair between keys, in order within one."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator.waiting import Full, Joined, Waiter, WaitingRoom
from tests.soak import examples

MODEL = "demo"
MOST = 6
Room = WaitingRoom[str]


def join(room: Room, key: int, guest: str, priority: int = 0, at_s: float = 0.0) -> Joined[str] | Full:
    return room.join(room.waiter(MODEL, key, priority, at_s, guest))


def order(room: Room) -> list[str]:
    return [one.guest for one in room.in_turn(MODEL)]


def served(room: Room) -> str:
    first = next(room.in_turn(MODEL))
    room.serve(first)
    return first.guest


def test_keys_take_turns_however_many_they_have_waiting() -> None:
    room = Room(20)
    for number in range(4):
        join(room, 1, f"a{number}")
    for number in range(2):
        join(room, 2, f"b{number}")
    assert order(room) == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert [served(room) for _ in range(6)] == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert room.models == []


def test_who_comes_later_with_an_own_key_has_its_turn_next() -> None:
    room = Room(20)
    for number in range(4):
        join(room, 1, f"a{number}")
    assert served(room) == "a0"
    join(room, 2, "b0")
    assert [served(room) for _ in range(3)] == ["a1", "b0", "a2"]


def test_priority_then_arrival_decide_within_a_key_and_only_there() -> None:
    room = Room(20)
    join(room, 1, "late", at_s=2.0)
    join(room, 1, "early", at_s=1.0)
    join(room, 1, "urgent", priority=1, at_s=3.0)
    join(room, 2, "other", at_s=9.0)
    assert order(room) == ["urgent", "other", "early", "late"]


def test_a_full_room_refuses_and_a_greedy_key_makes_way_for_another() -> None:
    room = Room(3)
    for number in range(3):
        assert join(room, 1, f"a{number}") == Joined()
    assert join(room, 1, "a3") == Full(3)
    joined = join(room, 2, "b0")
    assert isinstance(joined, Joined)
    assert joined.displaced is not None
    assert joined.displaced.guest == "a2"
    assert order(room) == ["a0", "b0", "a1"]
    assert join(room, 2, "b1") == Full(3)


def test_models_do_not_share_their_places() -> None:
    room = Room(1)
    assert join(room, 1, "a") == Joined()
    assert room.join(room.waiter("other", 1, 0, 0.0, "b")) == Joined()
    assert (len(room), room.models) == (2, [MODEL, "other"])


def test_a_room_without_places_refuses_everyone() -> None:
    assert join(Room(0), 1, "a") == Full(0)


class Play(RuleBasedStateMachine):
    """Random comings and goings, beside a list of who is there."""

    def __init__(self) -> None:
        super().__init__()
        self.room: WaitingRoom[int] = WaitingRoom(MOST)
        self.here: list[Waiter[int]] = []
        self.number = 0
        self.turns: Counter[int] = Counter()
        """Of each key since another that waits all the while has had one."""

    @rule(key=st.integers(1, 4), priority=st.integers(-1, 1), at_s=st.integers(0, 5))
    def comes(self, key: int, priority: int, at_s: int) -> None:
        self.number += 1
        waiter = self.room.waiter(MODEL, key, priority, float(at_s), self.number)
        shares = Counter(one.key for one in self.here)
        match self.room.join(waiter):
            case Full(waiting):
                assert waiting == MOST == len(self.here)
                assert shares[key] + 1 >= max(shares.values())
                return
            case Joined(None):
                assert len(self.here) < MOST
            case Joined(displaced):
                assert displaced is not None
                assert shares[displaced.key] == max(shares.values()) > shares[key] + 1
                assert displaced == max(
                    (one for one in self.here if one.key == displaced.key), key=lambda one: one.turn
                )
                self._gone(displaced)
        self.here.append(waiter)
        if not shares[key]:
            self.turns.clear()

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.here))
        self.room.leave(waiter)
        self.room.leave(waiter)
        self._gone(waiter)

    @precondition(lambda self: self.here)
    @rule()
    def is_served(self) -> None:
        first = next(self.room.in_turn(MODEL))
        self.room.serve(first)
        keys = {one.key for one in self.here}
        self._gone(first)
        self.turns[first.key] += 1
        for key in keys - {first.key}:
            assert self.turns[first.key] - self.turns[key] <= 1, "a key had two turns while another waited"

    def _gone(self, waiter: Waiter[int]) -> None:
        self.here.remove(waiter)
        if not any(one.key == waiter.key for one in self.here):
            self.turns.clear()

    @invariant()
    def everyone_is_there_once_and_in_order(self) -> None:
        listed = list(self.room.in_turn(MODEL))
        assert sorted(one.guest for one in listed) == sorted(one.guest for one in self.here)
        assert len(listed) == len(self.room) == self.room.waiting(MODEL) <= MOST
        for key in {one.key for one in listed}:
            turns = [one.turn for one in listed if one.key == key]
            assert turns == sorted(turns)


TestPlay = Play.TestCase
TestPlay.settings = settings(max_examples=examples(1000), stateful_step_count=40)
