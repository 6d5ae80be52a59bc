"""Where the recurrent rows of decoding sequences live: one array per layer and kind, one row per sequence.

A step's recurrence reads the arrays whole and replaces them whole, so nothing is stacked, split or copied per step.
A sequence that joins is written in place into a row another has left; only when there is none do the arrays grow
by a row. Rows left empty at the next step are filled from the end and cut off, so no step computes a dead row.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Captured:
    """What a layer passed through while it took W positions: `window` [N, k-1 + W, conv_dim], `states` after each."""

    window: mx.array
    states: list[mx.array]


@dataclass(slots=True)
class Recurrent:
    """One layer's state: `conv` [N, k-1, conv_dim] in model dtype, `state` [N, nv, dv, dk] float32.

    With `captured` set it stands before the captured positions, until `keep` says how many of them count.
    """

    conv: mx.array
    state: mx.array
    captured: Captured | None = None

    def keep(self, lengths: Sequence[int], rows: mx.array) -> None:
        """Moves each row on by the first `lengths[row]` of the captured positions; drops the others.
        `rows` [N, k-1, 1] are those of the window that the convolution looks back on from there."""
        captured, self.captured = self.captured, None
        assert captured is not None, "nothing has been captured"
        self.conv = mx.take_along_axis(captured.window, rows, axis=1)
        common = Counter(lengths).most_common(1)[0][0]
        states = [self.state, *captured.states]
        self.state = states[common]
        for row, length in enumerate(lengths):
            if length != common:  # written in place, as no one else holds the common rows any more
                self.state[row] = states[length][row]

    def write(self, row: int, one: "Recurrent") -> None:
        """Puts `one` (N = 1) into a row, in place."""
        self.conv[row] = one.conv[0]
        self.state[row] = one.state[0]

    def append(self, one: "Recurrent") -> None:
        self.conv = mx.concatenate([self.conv, one.conv])
        self.state = mx.concatenate([self.state, one.state])

    def move(self, source: int, target: int) -> None:
        self.conv[target] = self.conv[source]
        self.state[target] = self.state[source]

    def cut(self, rows: int) -> None:
        self.conv = self.conv[:rows]
        self.state = self.state[:rows]


class Slots:
    """The rows of all recurrent layers together. Owner: the backend."""

    def __init__(self, layers: int) -> None:
        self._layers: list[Recurrent | None] = [None] * layers
        self._rows: list[str | None] = []

    @property
    def ids(self) -> list[str]:
        """The sequences in row order; valid after `compact`."""
        return [one for one in self._rows if one is not None]

    def join(self, id: str, states: list[Recurrent]) -> None:
        """Takes over a sequence's own rows, one (N = 1) per layer."""
        if None in self._rows:
            row = self._rows.index(None)
            for held, one in zip(self._held(), states, strict=True):
                held.write(row, one)
            self._rows[row] = id
            return
        for number, one in enumerate(states):
            layer = self._layers[number]
            if layer is None:
                self._layers[number] = Recurrent(one.conv, one.state)
            else:
                layer.append(one)
        self._rows.append(id)

    def leave(self, id: str) -> None:
        if id not in self._rows:
            return
        self._rows[self._rows.index(id)] = None
        if not self.ids:
            self._rows, self._layers = [], [None] * len(self._layers)

    def take(self, id: str) -> list[Recurrent]:
        """A sequence leaves, with rows of its own: no view of arrays that go on being written."""
        row = mx.array([self._rows.index(id)])
        states = [Recurrent(mx.take(one.conv, row, axis=0), mx.take(one.state, row, axis=0)) for one in self._held()]
        self.leave(id)
        return states

    def compact(self) -> None:
        """Fills empty rows from the end, so that rows and sequences are one to one."""
        while None in self._rows:
            last = len(self._rows) - 1
            hole = self._rows.index(None)
            for layer in self._held():
                if hole != last:
                    layer.move(last, hole)
                layer.cut(last)
            self._rows[hole] = self._rows[last]
            self._rows.pop()

    def keep(self, lengths: Sequence[int]) -> None:
        """See Recurrent.keep; one length per row."""
        held = self._held()
        lookback = range(held[0].conv.shape[1]) if held else range(0)
        rows = mx.array([[length + ahead for ahead in lookback] for length in lengths])[..., None]
        for layer in held:
            layer.keep(lengths, rows)

    def layer(self, number: int) -> Recurrent:
        found = self._layers[number]
        assert found is not None, "a step without rows"
        return found

    def row(self, number: int) -> list[Recurrent]:
        """A sequence's rows, one (N = 1) per layer."""
        return [Recurrent(one.conv[number : number + 1], one.state[number : number + 1]) for one in self._held()]

    def arrays(self) -> list[mx.array]:
        return [array for one in self._held() for array in (one.conv, one.state)]

    def _held(self) -> list[Recurrent]:
        return [layer for layer in self._layers if layer is not None]
