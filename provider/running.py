"""What a running provider has written of itself, as doctor needs it. Tolerant: an older or newer one says less."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provider.state import DaemonState, path_in, read_state

FRESH_S = 90.0
"""A provider writes every few seconds; what it wrote longer ago is not judged upon."""


@dataclass(frozen=True, slots=True)
class LoadError:
    """`at`: seconds since 1970, None where it is not told."""

    model: str
    message: str
    at: float | None


@dataclass(frozen=True, slots=True)
class FailedSlot:
    """A model whose workers keep dying. `retry_in_s`: when another one may be tried; None: not by itself."""

    model: str
    reason: str
    retry_in_s: float | None


@dataclass(frozen=True, slots=True)
class Unroutable:
    """A model that a coordinator sends no requests for."""

    url: str
    model: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Linked:
    """One coordinator. `reason`: why it is not connected, where that is told. What it has said of models counts while
    it is."""

    url: str
    connected: bool
    reason: str
    routable: tuple[str, ...] = ()
    unroutable: tuple[Unroutable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """`advertised` None: it has not said yet. `resident`: weight bytes of loaded models, `idle` those without work."""

    pid: int
    age_s: float
    advertised: tuple[str, ...] | None
    active_bytes: int = 0
    cache_bytes: int = 0
    reserve_bytes: int | None = None
    resident: Mapping[str, int] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    load_error: LoadError | None = None
    failed: tuple[FailedSlot, ...] = ()
    links: tuple[Linked, ...] = ()

    @property
    def fresh(self) -> bool:
        return self.age_s <= FRESH_S


def read_running(data_dir: Path, now_s: float) -> Running | None:
    """None when no provider runs with this data directory. `now_s`: seconds since 1970."""
    state = read_state(data_dir)
    if state is None:
        return None
    try:
        written_s = path_in(data_dir).stat().st_mtime
    except OSError:
        return None
    return running_of(state, max(0.0, now_s - written_s))


def running_of(state: DaemonState, age_s: float) -> Running:
    details = state.details if isinstance(state.details, Mapping) else {}
    memory = _mapping(details.get("memory"))
    resident = {id: size for id, size in _mapping(details.get("resident")).items() if _count(size) is not None}
    return Running(
        pid=int(state.pid),
        age_s=age_s,
        advertised=None if state.advertised_models is None else tuple(map(str, state.advertised_models)),
        active_bytes=_count(memory.get("active_bytes")) or 0,
        cache_bytes=_count(memory.get("cache_bytes")) or 0,
        reserve_bytes=_count(memory.get("activation_reserve_bytes")),
        resident=resident,
        idle=frozenset(resident) & _idle_models(details.get("slots")),
        load_error=_load_error(_mapping(details.get("last_load_error"))),
        failed=tuple(_failed(id, _mapping(told)) for id, told in _mapping(details.get("failed")).items()),
        links=tuple(_linked(link) for link in _mappings(details.get("coordinators")) if link.get("url")),
    )


def _idle_models(slots: Any) -> frozenset[str]:
    return frozenset(str(one.get("model")) for one in _mappings(slots) if one.get("state") == "idle")


def _load_error(told: Mapping[str, Any]) -> LoadError | None:
    if not told:
        return None
    at = told.get("at")
    moment = float(at) if isinstance(at, int | float) else None
    return LoadError(str(told.get("model", "a model")), str(told.get("message", "no reason told")), moment)


def _failed(model: str, told: Mapping[str, Any]) -> FailedSlot:
    left_s = told.get("retry_in_s")
    retry_in_s = float(left_s) if isinstance(left_s, int | float) else None
    return FailedSlot(model, str(told.get("reason") or "no reason told"), retry_in_s)


def _linked(link: Mapping[str, Any]) -> Linked:
    url, told = str(link.get("url", "")), _mapping(link.get("routability"))
    said = {model: one for model, one in told.items() if isinstance(one, Mapping)}
    return Linked(
        url=url,
        connected=link.get("connected") is not False,
        reason=str(link.get("reason") or ""),
        routable=tuple(model for model, one in said.items() if one.get("routable") is True),
        unroutable=tuple(
            Unroutable(url, model, str(one.get("reason")), str(one.get("detail") or ""))
            for model, one in said.items()
            if one.get("routable") is False
        ),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    """`Any`: JSON that another process wrote."""
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
