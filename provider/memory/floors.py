"""Activation floors: what a forward pass may take beyond weights and KV, measured, never computed.

Convention of every figure: batch 8, prompts of at least 4k tokens, peak minus active memory, KV growth subtracted. A
model that is not in the table, or that sees images without a vision-inclusive measurement, has the default floor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provider.memory.caps import GIB

MIB = 2**20
DEFAULT_FLOOR_BYTES = 11 * GIB // 2
"""5.5 GiB: measured by darkbloom on its worst model at batch 8, plus slack."""


@dataclass(frozen=True, slots=True)
class Floor:
    """One measured entry. `since` is the first release of the provider that holds it."""

    floor_bytes: int
    basis: str
    measured_on: str
    since: str


SHIPPED_FLOORS: Mapping[str, Floor] = {
    "gpt-oss-20b": Floor(
        7 * GIB // 2,
        "darkbloom, M4 Max 128 GB: 2.7 GiB beyond KV at batch 8 with 4k-token prompts, plus 0.8 of margin",
        "2026-08-30",
        "0.8.16",
    ),
    "darkbloom-demo": Floor(
        158 * MIB,
        "x86-64 CPU, bfloat16: 126 MiB beyond KV at batch 8 with 4000-token prompts, plus a quarter",
        "2026-11-29",
        "0.9.0",
    ),
}
"""By exact catalog id."""

SHIPPED_RESIDENCY_BYTES: Mapping[str, int] = {"gpt-oss-20b": 23 * GIB // 2}
"""Measured resident weights (11.5 GiB). For what follows a load; no admission counts them."""

FloorTable = Mapping[str, int]
"""Floor in bytes by model id: the shipped table, and what this machine has measured."""


def shipped_table() -> dict[str, int]:
    return {id: floor.floor_bytes for id, floor in SHIPPED_FLOORS.items()}


def floor_table(measured_here: Mapping[str, int], seeing: Iterable[str] = ()) -> dict[str, int]:
    """What a machine charges: the shipped floor of an id, else one measured here; none for models that see images."""
    without = set(seeing)
    return {id: size for id, size in {**measured_here, **shipped_table()}.items() if id not in without}


def floor(ids: Iterable[str], table: FloorTable) -> int:
    """The largest floor among `ids`; the default for none of them, and for each that nobody has measured."""
    return max((table.get(id, DEFAULT_FLOOR_BYTES) for id in ids), default=DEFAULT_FLOOR_BYTES)


def activation_reserve(ids: Iterable[str], table: FloorTable, told_bytes: int | None = None) -> int:
    """`told_bytes`: DARKBLOOM_ACTIVATION_RESERVE_GB, which only raises."""
    return max(floor(ids, table), told_bytes or 0)


def serving_set(
    advertised: Iterable[str] | None, resident: Iterable[str], loading: Iterable[str], asked: Iterable[str] = ()
) -> frozenset[str]:
    """Whose floors are charged. `advertised` None: not declared; empty: declared, and nothing is served, so that
    anything may come (the empty set answers with the default floor). `asked`: the models in question, or about to be
    advertised."""
    others = frozenset(resident) | frozenset(loading) | frozenset(asked)
    if advertised is None:
        return others
    declared = frozenset(advertised)
    return declared | others if declared else frozenset()
