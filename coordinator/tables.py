"""The storage of rows: one table of all machines, and one for each model of the places that it has."""

import numpy as np

from coordinator.columns import Floats, Machine, Place

FIRST_ROWS = 2
"""Most models of a large fleet have many providers; of names that only one has there may be thousands."""
NEVER_TOLD = 255
COLUMN = {name: number for number, name in enumerate(Machine._fields)}


class Cells:
    """A table that grows: `cells[column, row]`."""

    def __init__(self, columns: int) -> None:
        self.cells = np.zeros((columns, FIRST_ROWS))

    def set(self, row: int, values: tuple[float, ...]) -> None:
        while row >= self.cells.shape[1]:
            self.cells = np.concatenate([self.cells, np.zeros_like(self.cells)], axis=1)
        self.cells[:, row] = values


class Machines:
    """The machines of some places, row by row of those; a column is fetched when it is asked for."""

    def __init__(self, cells: Cells, rows: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> None:
        self._cells = cells.cells
        self._rows = rows

    def _column(self, name: str) -> Floats:
        column: Floats = self._cells[COLUMN[name]].take(self._rows)
        return column

    @property
    def open_s(self) -> Floats:
        return self._column("open_s")

    @property
    def free_bytes(self) -> Floats:
        return self._column("free_bytes")

    @property
    def slowdown(self) -> Floats:
        return self._column("slowdown")

    def slowdown_of(self, row: int) -> float:
        return float(self._cells[COLUMN["slowdown"], self._rows[row]])

    @property
    def heard_s(self) -> Floats:
        return self._column("heard_s")

    @property
    def connected(self) -> Floats:
        return self._column("connected")

    @property
    def draining(self) -> Floats:
        return self._column("draining")

    @property
    def cap_bytes(self) -> Floats:
        return self._column("cap_bytes")

    @property
    def reserve_bytes(self) -> Floats:
        return self._column("reserve_bytes")


class Places:
    """The providers of one model, in rows without gaps: the last takes the place of one that leaves."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.told = np.full(FIRST_ROWS, NEVER_TOLD, np.uint8)
        """The code of what each was told of itself last, written by whoever tells it."""
        self._cells = Cells(len(Place._fields))
        self._machine_rows = np.zeros(FIRST_ROWS, np.intp)

    @property
    def columns(self) -> Place[Floats]:
        return Place(*self._cells.cells[:, : len(self.ids)])

    @property
    def machine_rows(self) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
        return self._machine_rows[: len(self.ids)]

    def set(self, provider_id: str, machine_row: int, row: Place[float]) -> None:
        number = self.rows.get(provider_id)
        if number is None:
            number = self._append(provider_id)
        self._cells.set(number, row)
        self._machine_rows[number] = machine_row

    def remove(self, provider_id: str) -> None:
        gap, last = self.rows.pop(provider_id), len(self.ids) - 1
        mover = self.ids.pop()
        if gap == last:
            return
        self.ids[gap], self.rows[mover] = mover, gap
        self._cells.cells[:, gap] = self._cells.cells[:, last]
        self._machine_rows[gap], self.told[gap] = self._machine_rows[last], self.told[last]

    def _append(self, provider_id: str) -> int:
        number = self.rows[provider_id] = len(self.ids)
        self.ids.append(provider_id)
        if number >= len(self.told):
            self._machine_rows = np.concatenate([self._machine_rows, np.zeros_like(self._machine_rows)])
            self.told = np.concatenate([self.told, self.told])
        self.told[number] = NEVER_TOLD
        return number
