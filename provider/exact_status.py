"""What a provider says of exact concurrency: what is wanted, who wants it, and what has come of it in each model."""

from collections.abc import Mapping, Sequence
from typing import Any

from provider.advertisement import exact_report
from provider.catalog import Model
from provider.exact.policy import Mode as ExactMode
from provider.exact_setting import ExactSetting
from provider.pipe import ExactReport


def overall(models: Sequence[Model], setting: ExactSetting) -> tuple[str, str | None]:
    """`on`, `off` or `unavailable`, and why: `on` only where every model that was loaded, or tried, is."""
    reports = {one.id: exact_report(one) for one in models if _tried(one)}
    for state in ("unavailable", "off"):
        if any(one.state == state for one in reports.values()):
            return state, _reasons(reports, state, setting)
    if reports:
        return "on", None
    return "off", _switched_off(setting) if setting.wanted == "off" else "no model is loaded yet"


def settings_object(models: Sequence[Model], setting: ExactSetting) -> dict[str, Any]:
    """As GET and PUT /v1/settings/exact-concurrency answer it."""
    actual, reason = overall(models, setting)
    return {
        "mode": setting.stored,
        "wanted": setting.wanted,
        "overridden_by": setting.overridden_by,
        "actual": actual,
        "reason": reason,
        "models": [{"id": one.id, **exact_object(one)} for one in models],
    }


def exact_object(model: Model) -> dict[str, Any]:
    """Of one model; `mode`: what its worker was told, or the one that was refused."""
    report = exact_report(model)
    return {
        "mode": _mode(model),
        "state": report.state,
        "reason": report.reason,
        "code": report.code,
        "remedy": report.remedy,
        "lane_rows": report.lane_rows,
        "lane_rows_from": report.lane_rows_from,
    }


def _mode(model: Model) -> ExactMode | None:
    if model.slot.loaded is not None:
        return model.slot.spec.exact
    return None if model.exact_refusal is None else "on"  # nothing is refused under another


def _tried(model: Model) -> bool:
    return model.slot.loaded is not None or model.exact_refusal is not None


def _reasons(reports: Mapping[str, ExactReport], state: str, setting: ExactSetting) -> str:
    told = {id: one.reason or _because_off(setting) for id, one in reports.items() if one.state == state}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return "; ".join(f"{id}: {reason}" for id, reason in told.items())


def _because_off(setting: ExactSetting) -> str:
    """Of a model that was loaded without."""
    if setting.wanted == "off":
        return _switched_off(setting)
    return f"it was loaded with exact off, and {setting.wanted} counts from the next load on"


def _switched_off(setting: ExactSetting) -> str:
    by = "" if setting.overridden_by is None else f" ({setting.overridden_by})"
    return f"exact concurrency is switched off{by}"
