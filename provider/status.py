"""What a provider says of itself over HTTP: health, props, slots, metrics. Implements api.app.ProviderStatus."""

from importlib.metadata import version
from typing import Any, Literal

import msgspec

from provider.advertisement import mtp_status
from provider.api import wire
from provider.catalog import Model
from provider.errors import RequestFailed
from provider.exact.policy import Mode as ExactMode
from provider.exact_status import exact_object, overall, settings_object
from provider.metrics import exposition
from provider.protocol import MtpStatus
from provider.residency import Residency
from provider.slot import ModelSlot


class Status:
    def __init__(self, residency: Residency) -> None:
        self._residency = residency

    def health(self) -> Literal["ok", "starting", "stalled", "draining"]:
        """A silent engine is `stalled`, and so is a model whose workers keep dying, until it may be tried again."""
        if self._residency.draining:
            return "draining"
        if not self._residency.started:
            return "starting"
        if any(slot.stalled or slot.status == "failed" for slot in self._residency.slots):
            return "stalled"
        return "ok"

    def props(self) -> dict[str, Any]:
        exact, reason = overall(self._residency.served, self._residency.exact)
        slots = self._residency.slots
        mtp = mtp_status(slots[0]) if slots else MtpStatus(active=False, reason="config_disabled")
        return {
            "version": version("darkbloom-py"),
            "backend": self._residency.config.backend,
            "default_generation_settings": {"n_ctx": slots[0].n_ctx if slots else None},
            "total_slots": sum(slot.limits.max_concurrent for slot in slots),
            "exact_concurrency": exact,
            "exact_concurrency_reason": reason,
            "mtp": {"mode": self._residency.config.engine.mtp_mode, "active": mtp.active, "reason": mtp.reason},
            "models": [self._model(one) for one in self._residency.served],
        }

    def exact_concurrency(self) -> dict[str, Any]:
        return settings_object(self._residency.served, self._residency.exact)

    def want_exact_concurrency(self, mode: ExactMode | None) -> None:
        """Raises RequestFailed."""
        try:
            self._residency.want_exact(mode)
        except OSError as error:
            message = f"The setting cannot be stored: {error}. Free some space in the data directory, or mend it."
            raise RequestFailed(wire.internal_error(message, "settings_not_stored")) from error

    async def slots(self) -> list[dict[str, Any]]:
        """One entry for each place of each model, taken or free; then those who wait for one."""
        found = []
        for slot in self._residency.slots:
            sequences = await slot.describe()
            for number, one in enumerate(sequences):
                found.append(
                    {
                        "id": number,
                        "model": slot.id,
                        "request_id": one.request_id,
                        "state": one.state,
                        "is_processing": one.state in ("running", "prefill"),
                        "is_preempted": one.state == "parked",
                        "is_transferring": one.state in ("saving", "restoring"),
                        "n_prompt_tokens": one.prompt_tokens,
                        "n_decoded": one.emitted,
                        "n_ctx": slot.n_ctx,
                        "n_recompute": one.recomputes,
                    }
                )
            inside = sum(one.state in ("running", "prefill") for one in sequences)
            for number in range(len(sequences), len(sequences) + slot.limits.max_concurrent - inside):
                found.append({"id": number, "model": slot.id, "state": "idle", "is_processing": False})
        return found

    def metrics(self) -> bytes:
        return exposition(self._residency)

    def _model(self, model: Model) -> dict[str, Any]:
        slot, checkpoint = model.slot, model.checkpoint
        return {
            "id": slot.id,
            "model_type": checkpoint.family,
            "quantization": checkpoint.quantization,
            "state": model.status,
            "reason": model.reason,
            "retry_in_s": None if slot.standing.retry_in_s is None else round(slot.standing.retry_in_s, 1),
            "worker_pid": slot.pid,
            "resident_bytes": slot.resident_bytes,
            "kv_pool_bytes": self._residency.occupancy.granted.get(slot.id),
            "device": slot.loaded.device if slot.loaded else None,
            "n_ctx": slot.loaded.n_ctx if slot.loaded else None,
            "kv_pool_tokens": slot.loaded.pool_tokens if slot.loaded else None,
            "kv_bytes_per_token": checkpoint.kv_bytes_per_token,
            "state_bytes": checkpoint.state_bytes,
            "size_bytes": checkpoint.size_bytes,
            "max_concurrent": slot.limits.max_concurrent,
            "mtp": self._mtp(slot),
            "exact": exact_object(model),
        }

    def _mtp(self, slot: ModelSlot) -> dict[str, Any]:
        """What a model drafts with, or why not; and what has come of it."""
        status, loaded, drafts = mtp_status(slot), slot.loaded, slot.engine.drafts
        return {
            "active": status.active,
            "reason": status.reason,
            "detail": loaded.drafts.detail if loaded else None,
            "block_size": loaded.drafts.block_size if loaded else None,
            "drafted": None if drafts is None else msgspec.to_builtins(drafts, str_keys=True),
        }
