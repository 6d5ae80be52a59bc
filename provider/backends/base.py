"""What an engine needs of an accelerator: one screen.

A backend owns the tensors of its sequences and knows them by id; whoever calls it sees integers only. It is
synchronous and belongs to one thread. Every implementation passes tests/contract/test_backends.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from provider.generation import Sampling, TokenLogprob
from provider.parking.mover import Lane


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a decode step: feed `token`, draw the token at output position `position`.

    With `drafts`, up to that many guesses at the tokens after it are fed beside it and verified. With `known`, that
    token has been drawn before (a recompute): it is not drawn again, and the row has no drafts.
    """

    id: str
    token: int
    position: int
    drafts: int = 0
    known: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a row drew: every draft that was right, and the token after them. `drafted` guesses were verified. Of a row
    whose token is known, that one."""

    tokens: list[int]
    drafted: int = 0

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Told:
    """What else there is to say of the last run of a sequence. `logprobs`: of each of its tokens, where its sampling
    asks for them. `failure`: its grammar has come to an end before its text has, and the run is not to be used."""

    logprobs: Sequence[TokenLogprob] | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Geometry in bytes and tokens. A sequence of n positions holds
    `state_bytes + ceil(n / block_tokens) * block_tokens * kv_bytes_per_token`. While a step verifies k drafts, each of
    its rows may stand at k positions more, and holds k * state_bytes beside its own."""

    device: str
    vocab_size: int
    context_length: int
    weight_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    block_tokens: int
    max_drafts: int = 0
    lane_rows: int | None = None
    """On how many rows its decode passes run, whoever decodes (exact mode); None: on as many as there are."""
    padding_states: int = 0
    """States that a backend holds beside those of its sequences, to fill its launches up."""


@dataclass(frozen=True, slots=True)
class BackendMemory:
    active_bytes: int
    cache_bytes: int
    peak_bytes: int


@dataclass(slots=True)
class DraftSeconds:
    """What steps with drafts have taken so far: asking for drafts; the pass that verifies them, with what the device
    still had to do for the drafts; and what comes after it, rolling back and remembering."""

    draft: float = 0.0
    verify: float = 0.0
    bookkeeping: float = 0.0


@dataclass(frozen=True, slots=True)
class Landing:
    """A copy out (`lane` SAVE) or back that has ended; `failure`: in vain, and the sequence's state is lost."""

    id: str
    lane: Lane
    size_bytes: int
    seconds: float
    failure: str | None = None


class Backend(Protocol):
    @property
    def facts(self) -> BackendFacts: ...

    def prepare(self, sampling: Sampling) -> None:
        """Makes ready what takes long, so that `open` does not: may be called from any thread, or not at all. Raises
        GrammarError."""
        ...

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        """Makes room for a sequence. `emitted`: output tokens it has already drawn (a recompute). Raises GrammarError
        for a grammar that cannot be used."""
        ...

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        """Appends `tokens` to the sequence; draws the token at output `position` from the last logits, if given.

        Any split of a prompt into calls gives the same tokens.
        """
        ...

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[Run]:
        """One run for each row, in order: 1 to 1 + drafts tokens, which are those it draws one by one without
        drafts. They depend neither on the other rows nor on what was drafted.

        `ahead` says that the next call will most likely be a decode of the same rows, fed these tokens, so the
        backend may begin with it; rows may still leave (released) or join before. Fewer guesses than `drafts` may be
        verified: none where a step begun ahead has none. A row may also stay away from a step and come again.
        """
        ...

    def told(self, id: str) -> Told:
        """Of the tokens that the last `prefill` or `decode` drew for the sequence; to be asked before the next."""
        ...

    @property
    def savable_bytes(self) -> int | None:
        """The most that one more parked sequence may take; None where none can be saved."""
        ...

    def park(self, id: str) -> None:
        """The sequence leaves the batch and its state is copied out; returns before it is. Its memory is free once the
        copy has landed. Raises when that cannot even be begun: the sequence is to be released then."""
        ...

    def restore(self, id: str) -> None:
        """Begins to bring back a sequence whose save has landed. It goes on, once this has landed, as if it had never
        been away: what it draws does not change, whatever was under way for it when it was parked."""
        ...

    def landings(self) -> list[Landing]:
        """The copies that have ended since the last call, in each lane in the order in which they were begun; those of
        sequences that have been released meanwhile too, whose memory is free only now."""
        ...

    def release(self, id: str) -> None:
        """Drops everything held for the sequence, wherever it is; unknown ids are ignored."""
        ...

    def memory(self) -> BackendMemory: ...

    @property
    def draft_seconds(self) -> DraftSeconds: ...

    @property
    def draft_failure(self) -> str | None:
        """What ended the drafting for good: what would be drafted with has failed, and no answer with it."""
        ...

    def clear_cache(self) -> None:
        """Gives back what the allocator keeps for reuse."""
        ...

    def limit(self, size_bytes: int, cache_bytes: int) -> None:
        """What the device's allocator should try not to pass, and what it may keep for reuse: hints both; admission
        is what keeps to them."""
        ...

    def rest(self, resting: bool) -> None:
        """Nothing has run for a while: what was only kept ready (wired pages, free buffers) is the system's. Or it runs
        again."""
        ...

    def close(self) -> None: ...
