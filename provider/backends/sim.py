"""A backend without tensors: every token is a hash of the tokens before it.

Deterministic, as fast as Python, and strict about its callers: it refuses what would corrupt a real backend's
sequences. It serves any checkpoint whose facts can be read, so engines, fleets and their tests run on real geometry.
Given a device, it also takes the time that device would (sim_timing.py); without one, no longer than Python does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from provider.backends.base import BackendFacts, BackendMemory, DraftSeconds, Landing, Row, Run, Told
from provider.backends.guided import Guided
from provider.backends.sim_timing import Clock, Device, WallClock, decode_s, prefill_s
from provider.generation import Sampling, TokenLogprob
from provider.parking.lot import NoRoom, Tiers
from provider.parking.mover import Lane
from provider.randomness import uniform

if TYPE_CHECKING:
    from provider.grammar.guide import Guide

BLOCK_TOKENS = 256
COPY_BYTES_PER_S = 1e9
"""Of a device that takes time: about what an NVMe disk takes and gives."""


@dataclass(slots=True)
class Held:
    """`digest` stands for the keys, values and state of `length` positions."""

    sampling: Sampling
    length: int = 0
    digest: bytes = b""
    guide: "Guide | None" = None
    drawn: Sequence[int] = ()
    """By the last run."""

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.digest = blake2b(self.digest + token.to_bytes(4, "little"), digest_size=16).digest()
        self.length += len(tokens)

    def draw(self, position: int, vocab_size: int) -> int:
        value = int.from_bytes(self.digest[:8], "little")
        if self.sampling.temperature > 0:
            value += int(uniform(self.sampling.seed, self.sampling.index, position) * 2**32)
        return value % vocab_size if self.guide is None else self._guided(self.guide, value, vocab_size)

    def _guided(self, guide: "Guide", value: int, vocab_size: int) -> int:
        from provider.grammar.guide import allowed  # and numpy, which a fleet of thousands starts faster without

        open_to = allowed(guide, vocab_size)
        token = value % vocab_size if open_to is None else open_to[value % len(open_to)]
        guide.note(token)
        return token


@dataclass(slots=True)
class Away:
    """A parked sequence, and when the copy that is under way lands, in the clock's seconds. `held` None: it has been
    released, or its copy has failed."""

    id: str
    size_bytes: int
    held: Held | None
    lane: Lane = Lane.SAVE
    begun_s: float = 0.0
    lands_s: float | None = None
    failure: str | None = None


class SimBackend(Guided):
    """Implements provider.backends.base.Backend. Of the drafts it is asked for (up to facts.max_drafts), each is right
    with probability `acceptance`, by the hash of its place: the same in every run, whatever came before."""

    def __init__(
        self,
        facts: BackendFacts,
        device: Device | None = None,
        clock: Clock | None = None,
        acceptance: float = 0.7,
        tiers: Tiers | None = None,
        copy_bytes_per_s: float = COPY_BYTES_PER_S,
    ) -> None:
        self.facts = facts
        self.draft_seconds = DraftSeconds()
        self.draft_failure: str | None = None
        self._acceptance = acceptance
        self._device = device
        self._clock = clock or WallClock()
        self._held: dict[str, Held] = {}
        self._tiers = tiers
        self._copy_bytes_per_s = copy_bytes_per_s
        self._away: list[Away] = []
        self._saves = 0
        self._peak_bytes = facts.weight_bytes

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        if id in self._held:
            raise ValueError(f"sequence {id!r} is already open")
        guide = self._guide_of(sampling)
        if guide is not None:
            for token in emitted:
                guide.note(token)
        self._held[id] = Held(sampling, guide=guide)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        if not tokens:
            raise ValueError("an empty chunk")
        started, held = self._clock.now(), self._held[id]
        before = held.length
        held.append(tokens)
        if self._device is not None:
            self._pass(started, prefill_s(self._device, self.facts, before, len(tokens)))
        if position is None:
            return None
        held.drawn = [held.draw(position, self.facts.vocab_size)]
        return held.drawn[0]

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[Run]:
        if len({row.id for row in rows}) < len(rows):
            raise ValueError("a sequence has one row in a step")
        if any(not 0 <= row.drafts <= self.facts.max_drafts for row in rows):
            raise ValueError(f"a row has up to {self.facts.max_drafts} drafts")
        started = self._clock.now()
        lengths = [self._held[row.id].length + ahead + 1 for row in rows for ahead in range(1 + row.drafts)]
        runs = [self._decode_row(row) for row in rows]
        if self._device is not None:
            self._pass(started, decode_s(self._device, self.facts, lengths))
        return runs

    def told(self, id: str) -> Told:
        """What is simulated is certain of every token."""
        held = self._held[id]
        count = held.sampling.logprobs
        logprobs = None if count is None else [TokenLogprob(0.0, [(one, 0.0)][:count]) for one in held.drawn]
        return Told(logprobs, None if held.guide is None else held.guide.failure)

    @property
    def savable_bytes(self) -> int | None:
        if self._tiers is None:
            return None
        return self._tiers.disk_bytes + self._tiers.ram_bytes - sum(one.size_bytes for one in self._away)

    def park(self, id: str) -> None:
        self._note_peak()
        held, left = self._held[id], self.savable_bytes
        one = Away(id, self._bytes_of(held), held)
        if left is None or one.size_bytes > left:
            raise NoRoom(f"{one.size_bytes} bytes more")
        del self._held[id]
        self._away.append(one)
        self._saves += 1
        every = None if self._tiers is None else self._tiers.fail_every
        if every is not None and self._saves % every == 0:
            one.failure = "this save was told to fail"
        self._set_out(one, Lane.SAVE)

    def restore(self, id: str) -> None:
        (one,) = (it for it in self._away if it.id == id and it.lands_s is None)
        self._set_out(one, Lane.RESTORE)

    def landings(self) -> list[Landing]:
        now_s = self._clock.now()
        return [self._land(one) for one in list(self._away) if one.lands_s is not None and one.lands_s <= now_s]

    def _set_out(self, one: Away, lane: Lane) -> None:
        one.lane, one.begun_s = lane, self._clock.now()
        one.lands_s = one.begun_s + (0.0 if self._device is None else one.size_bytes / self._copy_bytes_per_s)

    def _land(self, one: Away) -> Landing:
        assert one.lands_s is not None, "under way"
        landing = Landing(one.id, one.lane, one.size_bytes, one.lands_s - one.begun_s, one.failure)
        one.lands_s = None
        if one.lane is Lane.RESTORE and one.held is not None and one.failure is None:
            self._held[one.id] = one.held
        if one.lane is Lane.RESTORE or one.held is None or one.failure is not None:
            self._away.remove(one)
        return landing

    def release(self, id: str) -> None:
        self._note_peak()  # memory only grows from one release to the next
        self._held.pop(id, None)
        for one in self._away:
            if one.id == id:
                one.held = None
        self._away = [one for one in self._away if one.held is not None or one.lands_s is not None]

    def memory(self) -> BackendMemory:
        self._note_peak()
        return BackendMemory(self._active_bytes(), 0, self._peak_bytes)

    def clear_cache(self) -> None:
        """Keeps none."""

    def limit(self, size_bytes: int, cache_bytes: int) -> None:
        """Allocates nothing."""

    def rest(self, resting: bool) -> None:
        """Keeps nothing ready."""

    def close(self) -> None:
        self._held.clear()
        self._away.clear()

    def _active_bytes(self) -> int:
        moving = [one.size_bytes for one in self._away if one.lands_s is not None]
        return self.facts.weight_bytes + sum(map(self._bytes_of, self._held.values())) + sum(moving)

    def _bytes_of(self, held: Held) -> int:
        facts = self.facts
        blocks = -(-held.length // facts.block_tokens)
        return facts.state_bytes + blocks * facts.block_tokens * facts.kv_bytes_per_token

    def _note_peak(self) -> None:
        self._peak_bytes = max(self._peak_bytes, self._active_bytes())

    def _pass(self, started: float, seconds: float) -> None:
        """Waits until `seconds` after `started`: what Python took is part of it."""
        self._clock.sleep(max(0.0, started + seconds - self._clock.now()))

    def _decode_row(self, row: Row) -> Run:
        held, tokens = self._held[row.id], [row.token]
        if row.known is not None:
            held.append(tokens)
            return Run([row.known])
        for position in range(row.position, row.position + row.drafts + 1):
            held.append(tokens[-1:])
            tokens.append(held.draw(position, self.facts.vocab_size))
            if uniform(held.sampling.seed, held.sampling.index, -1 - position) >= self._acceptance:
                break  # what was drafted for the next position is not what has been drawn
        held.drawn = tokens[1:]
        return Run(tokens[1:], row.drafts)
