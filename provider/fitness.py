"""Does a model fit on a machine: facts -> a report, by the arithmetic that the load gate itself uses (docs/memory.md).

Pure, for any machine that can be described: this one, now or from its files, and one in a file (provider.described).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from provider.memory.admission import Reading, ceiling_for_load, usable_for_load
from provider.memory.caps import CAP_FRACTION, MINIMUM_KV_BYTES, effective_cap
from provider.memory.fit import Alternative, Fit, fit, fitting, largest_loadable_size, largest_machine_fit
from provider.memory.floors import FloorTable, activation_reserve, serving_set, shipped_table
from provider.memory.requirement import Charge, required_for_load


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that may be loaded. `vision`: it sees images, and no floor measured on text alone is its own."""

    id: str
    size_bytes: int
    vision: bool = False
    minimum_kv_bytes: int = MINIMUM_KV_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """A machine at one moment. `available_bytes` None: the system does not tell. `advertised`: what it declares to
    serve, None where that is not known, empty where it is nothing. `resident`: weight bytes of idle models, which
    `active_bytes` counts too. `told_reserve_bytes` is DARKBLOOM_ACTIVATION_RESERVE_GB.

    `target` is the id of one of `models`."""

    physical_bytes: int
    available_bytes: int | None
    active_bytes: int = 0
    cache_bytes: int = 0
    reserve_bytes: int
    limit_bytes: int | None = None
    cap_fraction: float = CAP_FRACTION
    told_reserve_bytes: int | None = None
    advertised: tuple[str, ...] | None
    resident: Mapping[str, int] = field(default_factory=dict)
    models: tuple[Candidate, ...]
    target: str
    floors: FloorTable = field(default_factory=shipped_table)

    @property
    def cap_bytes(self) -> int:
        return effective_cap(self.physical_bytes, self.reserve_bytes, self.limit_bytes, self.cap_fraction)

    @property
    def machine_cap_bytes(self) -> int | None:
        if self.limit_bytes is None:
            return None
        return effective_cap(self.physical_bytes, self.reserve_bytes, None, self.cap_fraction)

    @property
    def reading(self) -> Reading:
        return Reading(
            physical_bytes=self.physical_bytes,
            cap_bytes=self.cap_bytes,
            available_bytes=self.available_bytes,
            active_bytes=self.active_bytes,
            cache_bytes=self.cache_bytes,
            idle_bytes=sum(self.resident.values()),
            machine_cap_bytes=self.machine_cap_bytes,
        )

    def model(self, id: str) -> Candidate:
        return next(one for one in self.models if one.id == id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """`ever`: it could be loaded here on an idle machine. `alternatives`, the largest first, and `largest_size_bytes`
    (of a checkpoint on disk with the same reserve) say what else could be served now; of a model that fits, nothing.
    `alone_bytes`: what it would require if it were advertised alone, where that is known to be less."""

    target: str
    required_bytes: int
    usable_bytes: int
    ceiling_bytes: int
    activation_reserve_bytes: int
    effective_cap_bytes: int
    verdict: Fit
    ever: bool
    alternatives: tuple[Alternative, ...] = ()
    largest_size_bytes: int | None = None
    alone_bytes: int | None = None


def judge_fit(facts: MachineFacts) -> FitReport:
    target, reading = facts.model(facts.target), facts.reading
    reserve = reserve_for(facts, facts.advertised, target)
    required = required_for_load(Charge(target.size_bytes), reserve, target.minimum_kv_bytes)
    verdict, ceiling = fit(required, reading), ceiling_for_load(reading)
    failed = verdict is Fit.FAIL
    return FitReport(
        target=target.id,
        required_bytes=required,
        usable_bytes=usable_for_load(reading),
        ceiling_bytes=ceiling,
        activation_reserve_bytes=reserve,
        effective_cap_bytes=reading.cap_bytes,
        verdict=verdict,
        ever=largest_machine_fit(required, reading.cap_bytes),
        alternatives=tuple(fitting(_alternatives(facts), ceiling)) if failed else (),
        largest_size_bytes=largest_loadable_size(ceiling, reserve + target.minimum_kv_bytes) if failed else None,
        alone_bytes=_alone_bytes(facts, target, required) if failed else None,
    )


def reserve_for(facts: MachineFacts, advertised: tuple[str, ...] | None, model: Candidate) -> int:
    """The activation reserve while `advertised` is declared and `model` is asked for."""
    seeing = {one.id for one in facts.models if one.vision}
    table = {id: size for id, size in facts.floors.items() if id not in seeing}
    charged = serving_set(advertised, facts.resident, loading=(), asked=(model.id,))
    return activation_reserve(charged, table, facts.told_reserve_bytes)


def _alternatives(facts: MachineFacts) -> list[Alternative]:
    """Every other model, with what it would require if it were served in the target's place."""
    return [
        Alternative(one.id, one.size_bytes, _required_instead(facts, one))
        for one in facts.models
        if one.id != facts.target
    ]


def _required_instead(facts: MachineFacts, model: Candidate) -> int:
    """With the serving set that would then apply: nobody's leaving is assumed where nothing is declared."""
    declared = facts.advertised
    if declared is not None:
        declared = (*(id for id in declared if id != facts.target), model.id)
    reserve = reserve_for(facts, declared, model)
    return required_for_load(Charge(model.size_bytes), reserve, model.minimum_kv_bytes)


def _alone_bytes(facts: MachineFacts, target: Candidate, required_bytes: int) -> int | None:
    """Only of a declared set can it be said that it would be smaller."""
    if facts.advertised is None:
        return None
    reserve = reserve_for(facts, (target.id,), target)
    alone = required_for_load(Charge(target.size_bytes), reserve, target.minimum_kv_bytes)
    return alone if alone < required_bytes else None
