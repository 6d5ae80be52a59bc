"""Where the recurrent rows of decoding sequences live in exact mode: in banks that all have the same number of rows,
whoever decodes. A row that nobody has is computed with the others, and never looked at."""

from collections import Counter
from collections.abc import Mapping, Sequence

import mlx.core as mx

from provider.backends.mlx.recurrent import Recurrent

Seat = tuple[int, int]
"""(bank, row)"""


class Bank:
    """`layers`: of each recurrent layer the rows, `size` in all, of the sequences named in `ids`."""

    def __init__(self, size: int) -> None:
        self.ids: list[str | None] = [None] * size
        self.layers: list[Recurrent] = []

    def write(self, row: int, id: str, states: Sequence[Recurrent]) -> None:
        if not self.layers:
            self.layers = [_filled_up(one, len(self.ids)) for one in states]
        if len(self.ids) > 1:
            for held, one in zip(self.layers, states, strict=True):
                held.write(row, one)
        self.ids[row] = id

    def read(self, row: int) -> list[Recurrent]:
        """A sequence's rows apart: no view of arrays that go on being written."""
        if len(self.ids) == 1:
            return self.layers
        at = mx.array([row])
        return [Recurrent(mx.take(one.conv, at, axis=0), mx.take(one.state, at, axis=0)) for one in self.layers]

    def keep(self, lengths: Mapping[str, int]) -> None:
        """See Recurrent.keep. A sequence that is not named had no part in the pass."""
        common = Counter(lengths.values()).most_common(1)[0][0]
        counts = [common if id is None else lengths.get(id, 0) for id in self.ids]
        lookback = range(self.layers[0].conv.shape[1])
        rows = mx.array([[count + ahead for ahead in lookback] for count in counts])[..., None]
        for layer in self.layers:
            layer.keep(counts, rows)


class Banks:
    """Owner: the forward pass of exact mode. Sequences and rows are one to one, from the first bank's first row on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.banks: list[Bank] = []

    @property
    def seats(self) -> dict[str, Seat]:
        """In their order."""
        return {id: (n, row) for n, bank in enumerate(self.banks) for row, id in enumerate(bank.ids) if id is not None}

    def join(self, id: str, states: Sequence[Recurrent]) -> None:
        if not self.banks or None not in self.banks[-1].ids:
            self.banks.append(Bank(self.size))
        last = self.banks[-1]
        last.write(last.ids.index(None), id, states)

    def leave(self, id: str) -> None:
        """The last one takes its row. Unknown ids are ignored."""
        seats = self.seats
        if id not in seats:
            return
        bank, row = seats.pop(id)
        if self.size == 1:
            del self.banks[bank]
            return
        last_id, (last, last_row) = list(seats.items())[-1] if seats else (id, (bank, row))
        if (last, last_row) > (bank, row):
            self.banks[bank].write(row, last_id, self.banks[last].read(last_row))
            self.banks[last].ids[last_row] = None
        else:
            self.banks[bank].ids[row] = None
        if all(one is None for one in self.banks[-1].ids):
            self.banks.pop()

    def take(self, id: str) -> list[Recurrent]:
        """It leaves, with rows of its own."""
        bank, row = self.seats[id]
        states = self.banks[bank].read(row)
        self.leave(id)
        return states

    def arrays(self) -> list[mx.array]:
        return [array for bank in self.banks for one in bank.layers for array in (one.conv, one.state)]


def _filled_up(one: Recurrent, size: int) -> Recurrent:
    if size == 1:
        return one
    conv, state = (mx.zeros((size, *array.shape[1:]), array.dtype) for array in (one.conv, one.state))
    return Recurrent(conv, state)
