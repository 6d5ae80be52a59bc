"""Who occupies this machine's memory, and what follows from it: the reserve, requirements, shares, victims.

State and arithmetic alone; nothing here waits. Whatever is asked here after a suspension is asked anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from provider.catalog import Model
from provider.config import ProviderConfig
from provider.memory.admission import Reading
from provider.memory.caps import effective_cap, kv_budget
from provider.memory.floors import FloorTable, activation_reserve, serving_set, shipped_table
from provider.memory.grants import shares
from provider.memory.ledger import Ledger
from provider.memory.requirement import Charge, required_for_load
from provider.system_memory import SystemMemory


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the machine and its operator allow; constant for the life of a provider."""

    physical_bytes: int
    reserve_bytes: int
    limit_bytes: int | None
    cap_fraction: float
    told_activation_bytes: int | None
    floors: FloorTable

    @staticmethod
    def told(config: ProviderConfig, physical_bytes: int, floors: FloorTable | None) -> "Bounds":
        """`floors` None: the shipped ones."""
        return Bounds(
            physical_bytes,
            config.memory_reserve_bytes,
            config.memory_limit_bytes,
            config.cap_fraction,
            config.activation_reserve_bytes,
            shipped_table() if floors is None else floors,
        )

    @property
    def cap_bytes(self) -> int:
        return effective_cap(self.physical_bytes, self.reserve_bytes, self.limit_bytes, self.cap_fraction)

    @property
    def machine_cap_bytes(self) -> int | None:
        """The cap but for the operator's limit; None where there is none."""
        if self.limit_bytes is None:
            return None
        return effective_cap(self.physical_bytes, self.reserve_bytes, None, self.cap_fraction)


@dataclass(slots=True)
class Occupancy:
    """Owner: residency. `advertised` None: nobody has said what is served; empty: nothing is.

    `joining`: about to be advertised. `loading`: between the marker and the end of a load. `awaited`: requests by the
    model whose load they wait for. `chosen`: to be evicted for the load that is under way. `granted`: KV bytes in force
    by resident model.
    """

    bounds: Bounds
    models: dict[str, Model] = field(default_factory=dict)
    advertised: list[str] | None = None
    joining: set[str] = field(default_factory=set)
    loading: set[str] = field(default_factory=set)
    awaited: dict[str, int] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)
    granted: dict[str, int] = field(default_factory=dict)
    baseline_bytes: int = 0
    """What a worker's process takes beside its arrays, as last measured: charged to the next one in advance."""
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.bounds.physical_bytes)

    @property
    def residents(self) -> list[Model]:
        """Loaded models, one whose worker is just being replaced included."""
        return [one for one in self.models.values() if one.slot.loaded is not None]

    @property
    def idle(self) -> list[Model]:
        """Residents that may be evicted, the coldest first. Whoever has been chosen stays so, whoever asks for it."""
        free = [one for one in self.residents if one.slot.idle and not one.pinned and self._may_leave(one.id)]
        return sorted(free, key=lambda one: (one.slot.used_at, one.id))

    def _may_leave(self, id: str) -> bool:
        return id in self.chosen or not self.awaited.get(id)

    def takes_requests(self, model: Model) -> bool:
        """Loaded to the end, and not about to leave."""
        leaving = model.slot.draining or model.id in self.chosen
        return model.slot.loaded is not None and not leaving and model.id not in self.loading

    def reserve(self, asked: Iterable[str] = ()) -> int:
        """The activation reserve of the serving set, and of the models in question with it."""
        resident = [one.id for one in self.residents]
        declared = None if self.advertised is None else {*self.advertised, *self.joining}
        ids = serving_set(declared, resident, self.loading | self.joining, asked)
        return activation_reserve(ids, self._floors, self.bounds.told_activation_bytes)

    @property
    def _floors(self) -> FloorTable:
        """None for a model that sees images: what was measured on text alone is not its own."""
        return {id: size for id, size in self.bounds.floors.items() if not self._sees(id)}

    def _sees(self, id: str) -> bool:
        model = self.models.get(id)
        return model is not None and model.checkpoint.vision

    def required(self, model: Model, charge: Charge) -> int:
        return required_for_load(charge, self.reserve([model.id]), model.member.minimum_bytes)

    def reading(self, memory: SystemMemory) -> Reading:
        """Of a model whose worker is being replaced, what it will hold again counts as taken."""
        slots = [one.slot for one in self.models.values()]
        absent = sum(slot.absent_bytes for slot in slots)
        return Reading(
            physical_bytes=self.bounds.physical_bytes,
            cap_bytes=self.bounds.cap_bytes,
            available_bytes=None if memory.available_bytes is None else max(0, memory.available_bytes - absent),
            active_bytes=sum(slot.engine.active_bytes for slot in slots) + absent,
            cache_bytes=sum(slot.engine.cache_bytes for slot in slots),
            idle_bytes=sum(one.slot.resident_bytes for one in self.idle),
            machine_cap_bytes=self.bounds.machine_cap_bytes,
        )

    def shares(
        self,
        reserve_bytes: int,
        newcomer: Model | None = None,
        charge: Charge | None = None,
        without: Iterable[str] = (),
    ) -> dict[str, int] | None:
        """What each resident, and a newcomer charged so much, is to be granted; None when that cannot be.

        `without`: as if these had been evicted.
        """
        gone = set(without)
        members = {one.id: one.member for one in self.residents if one.id not in gone}
        weights = sum(one.slot.weight_bytes for one in self.residents if one.id not in gone)
        if newcomer is not None:
            members[newcomer.id] = newcomer.member
            weights += (charge or newcomer.charge).padded_bytes + self.baseline_bytes
        return shares(kv_budget(self.bounds.cap_bytes, weights, reserve_bytes), members)

    def note_baseline(self, model: Model) -> None:
        if model.slot.loaded is not None:
            self.baseline_bytes = model.slot.loaded.baseline_bytes

    def victims(self, short_bytes: int, newcomer: Model, charge: Charge, places: int) -> list[Model]:
        """The smallest set of idle models, the coldest among equals, whose leaving gives back `short_bytes`, lets the
        minimal shares of those who stay fit, and leaves `places` free; all idle ones when none does."""
        idle = self.idle
        for count in range(1, len(idle) + 1):
            for chosen in combinations(idle, count):
                if self._suffices(chosen, short_bytes, newcomer, charge, places):
                    return list(chosen)
        return idle

    def _suffices(
        self, chosen: Iterable[Model], short_bytes: int, newcomer: Model, charge: Charge, places: int
    ) -> bool:
        leaving = list(chosen)
        gone = {one.id for one in leaving}
        if len(leaving) < places or sum(one.slot.resident_bytes for one in leaving) < short_bytes:
            return False
        return self.shares(self.reserve([newcomer.id]), newcomer, charge, gone) is not None
