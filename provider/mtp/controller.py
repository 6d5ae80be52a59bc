"""How many drafts a step should have: what yields the most tokens per second at the present batch width, measured.

Pure: widths, tokens and seconds come in, a depth goes out, so the same steps give the same decisions. Drafting usually
pays at one stream and loses as the batch grows; where it loses it is parked, and tried again after a while.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

WINDOW_STEPS = 8
"""Steps of one depth that are judged together. The first after another depth still ends that one's work: left out."""
MARGIN = 1.05
"""Another depth must be this much faster to be changed to, and drafting than plain decoding to be begun with."""
FIRST_HOLD_S, LONGEST_HOLD_S = 2.0, 64.0
"""How long a decision stands before its neighbours are tried again; twice as long each time it is confirmed."""
SMOOTHING = 0.5
WIDE = 4
"""From this width on drafting has to show that it pays: plain decoding is measured first."""
HOPELESS, HOPELESS_STEPS = 0.9, 3
"""A depth that is tried and is this much slower than another after so many steps is not measured to the end."""
ALONE = 1
"""The width at which every new request is drafted for, whatever was found before: its text may be another kind."""


class DepthState(StrEnum):
    """`exploring`: some depth has not been measured at this width, or is being tried again."""

    EXPLORING = "exploring"
    DRAFTING = "drafting"
    PARKED = "parked"


class Depth(Protocol):
    """Decides the drafts of each step, and is told what came of it."""

    def depth(self, width: int) -> int:
        """For a step of `width` rows."""
        ...

    def joined(self) -> None:
        """A new request has entered."""
        ...

    def note(self, width: int, depth: int, tokens: int, seconds: float) -> None:
        """A step of `width` rows and at most `depth` drafts each gave so many tokens in that time."""
        ...


@dataclass(frozen=True, slots=True)
class FixedDepth:
    """Implements Depth without measuring."""

    drafts: int = 0

    def depth(self, width: int) -> int:
        return self.drafts

    def joined(self) -> None: ...

    def note(self, width: int, depth: int, tokens: int, seconds: float) -> None: ...


@dataclass(slots=True)
class Window:
    """Steps of one depth at one width."""

    steps: int = 0
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        if self.steps > 1:
            self.tokens += tokens
            self.seconds.append(seconds)

    @property
    def full(self) -> bool:
        return len(self.seconds) >= WINDOW_STEPS

    @property
    def rate(self) -> float:
        """Tokens per second, as if every step had taken the median: a pause of the machine says nothing of a depth."""
        median = sorted(self.seconds)[len(self.seconds) // 2]
        return self.tokens / (len(self.seconds) * max(median, 1e-9))


@dataclass(slots=True)
class Record:
    """What is known at one width. `trying`: the depth of the present window; `best`: the one decided for."""

    trying: int
    best: int | None = None
    rates: dict[int, float] = field(default_factory=dict)
    held_s: float = 0.0
    hold_s: float = FIRST_HOLD_S


class DepthController:
    """Implements Depth, for 0 to `most` drafts."""

    def __init__(self, most: int, default: int = 1) -> None:
        self.most = most
        self._default = min(default, most)
        self._records: dict[int, Record] = {}
        self._width = 0
        self._window = Window()
        self.parked_s = 0.0

    @property
    def state(self) -> DepthState:
        record = self._records.get(self._width)
        if record is None or record.best is None or record.trying != record.best:
            return DepthState.EXPLORING
        return DepthState.DRAFTING if record.best else DepthState.PARKED

    @property
    def rates(self) -> dict[int, float]:
        """Tokens per second by depth, at the present width."""
        record = self._records.get(self._width)
        return {} if record is None else dict(record.rates)

    def depth(self, width: int) -> int:
        if width != self._width:
            self._width, self._window = width, Window()
        return self._record.trying

    def joined(self) -> None:
        record = self._records.get(ALONE)
        if record is not None and record.trying == 0 and self._default:
            self._try(record, self._default)

    def note(self, width: int, depth: int, tokens: int, seconds: float) -> None:
        record = self._records.get(width)
        if record is None or width != self._width or depth != record.trying:
            return
        if record.best == depth == 0:
            self.parked_s += seconds
        record.held_s += seconds
        self._window.add(tokens, seconds)
        if self._window.full or self._is_hopeless(record):
            self._judge(record, self._window.rate)

    @property
    def _record(self) -> Record:
        first = self._default if self._width < WIDE else 0
        return self._records.setdefault(self._width, Record(trying=first))

    def _is_hopeless(self, record: Record) -> bool:
        if record.trying == record.best or len(self._window.seconds) < HOPELESS_STEPS:
            return False
        others = [rate for depth, rate in record.rates.items() if depth != record.trying]
        return self._window.rate < HOPELESS * max(others, default=0.0)

    def _judge(self, record: Record, rate: float) -> None:
        """A window of the depth being tried has ended."""
        old = record.rates.get(record.trying, rate)
        record.rates[record.trying] = old + SMOOTHING * (rate - old)
        unknown = self._worth_a_first_try(record)
        if unknown is not None:
            self._try(record, unknown)
            return
        best = _fastest(record)
        if best != record.best:
            record.best, record.held_s, record.hold_s = best, 0.0, FIRST_HOLD_S
            self._try(record, best)
        elif record.held_s >= record.hold_s:
            record.held_s, record.hold_s = 0.0, min(2 * record.hold_s, LONGEST_HOLD_S)
            self._try(record, self._neighbour(record, best))
        else:
            self._try(record, best)

    def _worth_a_first_try(self, record: Record) -> int | None:
        """No drafts at all, to compare with; then one more draft for as long as each has been worth it."""
        if 0 not in record.rates:
            return 0
        deepest = max(record.rates)
        if deepest < self.most and record.rates[deepest] >= max(record.rates.values()):
            return deepest + 1
        return None

    def _neighbour(self, record: Record, best: int) -> int:
        """The one that was nearly as fast."""
        near = [depth for depth in (best - 1, best + 1) if depth in record.rates]
        return max(near, key=lambda depth: record.rates[depth], default=best)

    def _try(self, record: Record, depth: int) -> None:
        self._window = Window(steps=0 if depth != record.trying else 1)
        record.trying = depth


def _fastest(record: Record) -> int:
    """The present one, unless another is faster by the margin."""
    fastest = max(record.rates, key=lambda depth: record.rates[depth])
    present = 0 if record.best is None else record.best
    return present if record.rates[fastest] < MARGIN * record.rates.get(present, 0.0) else fastest
