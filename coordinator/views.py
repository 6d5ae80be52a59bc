"""All providers as they are known, and beside each view its rows for routing, kept up to date as views change."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.columns import Estimator, Floats, Machine, Place, free_bytes, machine, place
from coordinator.fleet import ProviderView
from coordinator.store.records import MemoryTables
from coordinator.tables import Cells, Machines, Places


@dataclass(frozen=True, slots=True)
class Seen:
    """A model's providers: the row numbers of all that is given here agree. To be used before the next change."""

    ids: list[str]
    rows: Mapping[str, int]
    own: Place[Floats]
    machine: Machines


class Views(Mapping[str, ProviderView]):
    """Providers by id, in the order in which they came. Owned by the event loop.

    Setting a view renews the rows of what has changed in it, and no others: two or three of a heartbeat, one of a
    request that is sent.
    """

    def __init__(self) -> None:
        self._views: dict[str, ProviderView] = {}
        self._machines = Cells(len(Machine._fields))
        self._machine_rows: dict[str, int] = {}
        self._free_rows: list[int] = []
        self._models: dict[str, Places] = {}
        self._here: Counter[str] = Counter()
        """By model, how many advertise it who are connected."""
        self._sorted: dict[str, list[str]] = {}
        """What is told of the models' names, until they are others."""
        self._estimator = Estimator(MemoryTables({}, {}))
        self._listeners: list[Callable[[str], None]] = []

    def __getitem__(self, provider_id: str) -> ProviderView:
        return self._views[provider_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __setitem__(self, provider_id: str, view: ProviderView) -> None:
        former = self._views.get(provider_id)
        self._views[provider_id] = view
        if former is None:
            self._machine_rows[provider_id] = self._free_rows.pop() if self._free_rows else len(self._machine_rows)
        if former is None or _moved(former, view):
            self._machines.set(self._machine_rows[provider_id], machine(view, self._estimator.tables))
        self._leave(former, view)
        if former is None or former.connected is not view.connected or former.models is not view.models:
            self._count_here(former, view)
        for model in _changed(former, view):
            self._renew(model, view)
        self._tell(provider_id)

    def __delitem__(self, provider_id: str) -> None:
        view = self._views.pop(provider_id)
        self._free_rows.append(self._machine_rows.pop(provider_id))
        for model in view.models:
            self._remove(model, provider_id)
        self._count_here(view, None)
        self._tell(provider_id)

    def copied(self) -> dict[str, ProviderView]:
        """As they are now; a view itself never changes."""
        return dict(self._views)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Called, after each change of a provider's view, with its id; not to change views itself."""
        self._listeners.append(listener)

    @property
    def models(self) -> list[str]:
        """What anybody listed advertises. Not to be changed."""
        return self._in_order("listed", self._models)

    @property
    def present(self) -> list[str]:
        """Of those, what anybody advertises who is connected. Not to be changed."""
        return self._in_order("here", self._here)

    def most_served(self, most: int) -> list[str]:
        """So many of the models, those that the most providers advertise."""
        if len(self._models) <= most:
            return self.models
        return heapq.nlargest(most, self._models, key=lambda model: len(self._models[model].ids))

    def context_length(self, model: str) -> int | None:
        """The longest that anybody listed has for it; None where nobody knows."""
        places = self._models.get(model)
        lengths = [] if places is None else [self._views[one].models[model].context_length for one in places.ids]
        return max(lengths, default=0) or None

    def seen(self, model: str, tables: MemoryTables) -> Seen | None:
        """None where nobody advertises it."""
        self._follow(tables)
        places = self._models.get(model)
        if places is None:
            return None
        return Seen(places.ids, places.rows, places.columns, Machines(self._machines, places.machine_rows))

    def told(self, model: str) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """By row of that model: the code that the provider was told last, to be written by whoever tells it."""
        places = self._models[model]
        return places.told[: len(places.ids)]

    def told_of(self, model: str, provider_id: str) -> int | None:
        """None where it does not serve that model any more."""
        places = self._models.get(model)
        row = None if places is None else places.rows.get(provider_id)
        return None if places is None or row is None else int(places.told[row])

    def _in_order(self, which: str, models: Iterable[str]) -> list[str]:
        if which not in self._sorted:
            self._sorted[which] = sorted(models)
        return self._sorted[which]

    def _count_here(self, former: ProviderView | None, view: ProviderView | None) -> None:
        self._here.update(list(view.models) if view is not None and view.connected else [])
        for model in former.models if former is not None and former.connected else ():
            self._here[model] -= 1
            if not self._here[model]:
                del self._here[model]
        self._sorted.pop("here", None)

    def _tell(self, provider_id: str) -> None:
        for listener in self._listeners:
            listener(provider_id)

    def _follow(self, tables: MemoryTables) -> None:
        """Other tables make other estimates; they change when an operator changes them."""
        if tables is self._estimator.tables:
            return
        same = tables == self._estimator.tables
        self._estimator = Estimator(tables)
        if same:
            return
        for provider_id, view in self._views.items():
            self._machines.set(self._machine_rows[provider_id], machine(view, tables))
            for model in view.models:
                self._renew(model, view)

    def _leave(self, former: ProviderView | None, view: ProviderView) -> None:
        """What it no longer serves; and what it served on another connection, of which it has been told nothing."""
        if former is None or former.models is view.models:
            return
        for model in former.models:
            if model not in view.models or former.generation != view.generation:
                self._remove(model, former.provider_id)

    def _remove(self, model: str, provider_id: str) -> None:
        places = self._models[model]
        places.remove(provider_id)
        if not places.ids:
            del self._models[model]
            self._sorted.pop("listed", None)

    def _renew(self, model: str, view: ProviderView) -> None:
        places = self._models.get(model)
        if places is None:
            places = self._models[model] = Places()
            self._sorted.pop("listed", None)
        row = place(view, view.models[model], self._estimator)
        places.set(view.provider_id, self._machine_rows[view.provider_id], row)


def _moved(former: ProviderView, view: ProviderView) -> bool:
    """Whether the machine's row differs; all else that it is made of comes with a registration or a heartbeat."""
    same = former.heard_s == view.heard_s and former.memory is view.memory and former.models is view.models
    return not same or (former.connected, former.draining, former.thermal) != (
        view.connected,
        view.draining,
        view.thermal,
    )


def _changed(former: ProviderView | None, view: ProviderView) -> set[str]:
    """The models whose rows differ between two views, by what the maker of a new view has replaced."""
    if former is None or former.models is not view.models or _loads_otherwise(former, view):
        return set(view.models)
    models: set[str] = set()
    for was, now in (
        (former.slots, view.slots),
        (former.full_until_s, view.full_until_s),
        (former.cooldowns, view.cooldowns),
        (former.breakers, view.breakers),
        (former.loading_since_s, view.loading_since_s),
    ):
        if was is not now:
            models |= was.keys() | now.keys()
    for before, after in ((former.holds, view.holds), (former.counted, view.counted)):
        if before is not after:
            models |= {hold.model for holds in (before, after) for hold in holds.values()}
    return models & view.models.keys()


def _loads_otherwise(former: ProviderView, view: ProviderView) -> bool:
    """What a load would take is not what it was."""
    if former.load_bytes_per_s != view.load_bytes_per_s:
        return True
    if former.memory is view.memory:
        return False
    before, after = free_bytes(former), free_bytes(view)
    return math.isnan(before) != math.isnan(after) or (before < 0) != (after < 0)
