"""Which models are resident on this machine, each in a slot of its own. Owner: one asyncio task.

Implements provider.generation.Serving for the API and the coordinator link, and answers for the whole provider:
what it advertises, how its slots stand, what memory it uses.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from provider.api import wire
from provider.config import ProviderConfig
from provider.errors import ConfigError, RequestFailed
from provider.generation import Delta, Finished, GenerationRequest, Notice
from provider.memory.caps import (
    effective_cap,
    kv_budget,
    minimum_serviceable_kv,
)
from provider.memory.floors import DEFAULT_FLOOR_BYTES
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.models.resolve import resolve_model
from provider.models.tokenizer import ModelTokenizer
from provider.pipe import LoadSpec
from provider.protocol import MemoryReport, ModelAd, MtpStatus, Slot, SlotState, Stats
from provider.runner import ProcessRunner, Runner
from provider.slot import ModelSlot, SlotLimits

log = logging.getLogger(__name__)

MAX_RESIDENT_MODELS = 3


@dataclass(frozen=True, slots=True)
class Resident:
    """A model this provider serves: what its files say, and the slot that runs it."""

    checkpoint: Checkpoint
    slot: ModelSlot


class Residency:
    """Loads the configured models at start and keeps them."""

    def __init__(
        self, config: ProviderConfig, physical_bytes: int, create_runner: Callable[[], Runner] = ProcessRunner
    ) -> None:
        """Reads the checkpoints' facts; raises ModelError or ConfigError. Nothing is loaded yet."""
        self.config = config
        self.physical_bytes = physical_bytes
        self.draining = False
        self._residents = self._plan(create_runner)

    async def start(self) -> None:
        """Loads every model; raises the first ModelError or WorkerError, with nothing left running."""
        try:
            for resident in self._residents.values():
                await resident.slot.start()
        except BaseException:
            await self.stop()
            raise

    async def drain(self, grace_s: float) -> None:
        """Takes no more requests and gives the running ones `grace_s` seconds to finish."""
        self.draining = True
        deadline = asyncio.get_running_loop().time() + grace_s
        while any(one.slot.open for one in self._residents.values()):
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await asyncio.gather(*(one.slot.stop() for one in self._residents.values()))

    def models(self) -> Sequence[ModelSlot]:
        return self.slots

    def model(self, model_id: str) -> ModelSlot:
        resident = self._residents.get(model_id)
        if resident is None:
            raise RequestFailed(wire.model_not_found(model_id, sorted(self._residents)))
        return resident.slot

    def generate(self, model_id: str, request: GenerationRequest) -> AsyncGenerator[Delta | Notice | Finished]:
        slot = self.model(model_id)
        if self.draining:
            raise RequestFailed(wire.unavailable("This provider is shutting down.", "draining"))
        return slot.generate(request)

    @property
    def slots(self) -> list[ModelSlot]:
        return [one.slot for one in self._residents.values()]

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        return {id: one.checkpoint for id, one in self._residents.items()}

    @property
    def effective_cap_bytes(self) -> int:
        return effective_cap(self.physical_bytes, self.config.memory_reserve_bytes, self.config.memory_limit_bytes)

    def mtp_status(self) -> MtpStatus:
        """Drafting is not part of this engine yet: say so rather than seem to draft."""
        if self.config.mtp_killed:
            return MtpStatus(active=False, reason="kill_switch_disabled")
        return MtpStatus(active=False, reason="config_disabled" if self._mtp_off else "engine_inactive")

    def exactness(self) -> tuple[str, str | None]:
        if self.config.engine.exact == "off":
            return "off", "exact concurrency is switched off"
        return "unavailable", "exact concurrency is not part of this release"

    def advertised(self) -> list[ModelAd]:
        """What the coordinator is told of each model."""
        return [
            ModelAd(
                id=id,
                model_type=one.checkpoint.family,
                quantization=one.checkpoint.quantization,
                size_bytes=one.checkpoint.size_bytes,
                context_length=one.slot.n_ctx,
                kv_bytes_per_token=one.checkpoint.kv_bytes_per_token,
                state_bytes=one.checkpoint.state_bytes,
                vision=False,  # a checkpoint may have a vision tower; its text part alone is served
                exact="off" if self.config.engine.exact == "off" else "unavailable",
                mtp=self.mtp_status(),
            )
            for id, one in self._residents.items()
            if one.slot.loaded is not None
        ]

    def slot_reports(self) -> list[Slot]:
        return [_slot_report(one) for one in self.slots]

    def memory_report(self, available_bytes: int | None) -> MemoryReport:
        """`available_bytes`: what the operating system says is free; None where that cannot be read."""
        active = sum(one.engine.active_bytes for one in self.slots)
        cache = sum(one.engine.cache_bytes for one in self.slots)
        reachable = self.physical_bytes if available_bytes is None else available_bytes + active + cache
        reserve = max(self.config.memory_reserve_bytes, self.physical_bytes - self.effective_cap_bytes)
        free = min(self.physical_bytes, reachable) - reserve - DEFAULT_FLOOR_BYTES
        return MemoryReport(
            physical_bytes=self.physical_bytes,
            effective_cap_bytes=self.effective_cap_bytes,
            active_bytes=active,
            cache_bytes=cache,
            activation_reserve_bytes=DEFAULT_FLOOR_BYTES,
            free_for_load_bytes=max(0, free),
        )

    def stats(self) -> Stats:
        totals = [one.totals for one in self.slots]
        return Stats(
            requests=sum(one.requests for one in totals),
            tokens=sum(one.tokens for one in totals),
            parks=sum(one.parks for one in totals),
            recomputes=sum(one.recomputes for one in totals),
        )

    @property
    def _mtp_off(self) -> bool:
        return self.config.engine.mtp_mode == "off"

    def _plan(self, create_runner: Callable[[], Runner]) -> dict[str, Resident]:
        if self.config.engine.exact == "on":
            raise ConfigError("--exact on: exact concurrency is not part of this release; use --exact auto or off.")
        if len(self.config.models) > MAX_RESIDENT_MODELS:
            raise ConfigError(
                f"--model: at most {MAX_RESIDENT_MODELS} models are resident, not {len(self.config.models)}."
            )
        resolved = [resolve_model(one) for one in self.config.models]
        checkpoints = {one.id: read_checkpoint(one.directory) for one in resolved}
        if len(checkpoints) < len(resolved):
            raise ConfigError("--model: two of the models have the same id; each id is served once.")
        weights = sum(one.size_bytes for one in checkpoints.values())
        budget = kv_budget(self.effective_cap_bytes, weights, DEFAULT_FLOOR_BYTES)
        return {
            id: Resident(one, self._slot(id, one, budget // len(checkpoints), create_runner))
            for id, one in checkpoints.items()
        }

    def _slot(
        self, id: str, checkpoint: Checkpoint, share_bytes: int, create_runner: Callable[[], Runner]
    ) -> ModelSlot:
        engine = self.config.engine
        n_ctx = engine.context_length or checkpoint.context_length
        if n_ctx > checkpoint.context_length:
            log.warning("context_beyond_training model=%s context=%d trained=%d", id, n_ctx, checkpoint.context_length)
        full_context = checkpoint.state_bytes + n_ctx * checkpoint.kv_bytes_per_token
        floor = minimum_serviceable_kv(full_context, engine.max_concurrent)
        spec = LoadSpec(
            backend=self.config.backend,
            directory=str(checkpoint.directory),
            max_concurrent=engine.max_concurrent,
            context_length=engine.context_length,
            kv_pool_tokens=engine.kv_pool_tokens,
            kv_pool_bytes=max(share_bytes, floor),
        )
        limits = SlotLimits(engine.max_concurrent, self.config.max_waiting)
        return ModelSlot(id, ModelTokenizer(checkpoint.directory), spec, limits, create_runner)


def _slot_report(slot: ModelSlot) -> Slot:
    state, loaded = slot.engine, slot.loaded
    return Slot(
        model=slot.id,
        state=_slot_state(slot),
        running=state.running + state.prefill,
        waiting=slot.waiting,
        parked=state.parked,
        max_concurrency=slot.limits.max_concurrent,
        tokens_used=state.tokens_used,
        tokens_queued=state.tokens_queued,
        tokens_max=0 if loaded is None else loaded.pool_tokens,
        kv_bytes_per_token=0 if loaded is None else loaded.kv_bytes_per_token,
        decode_tps=slot.rates.decode_tps,
        prefill_tps=slot.rates.prefill_tps,
    )


def _slot_state(slot: ModelSlot) -> SlotState:
    match slot.status:
        case "loading":
            return "loading"
        case "failed":
            return "failed"
        case "stopped":
            return "unloading"
        case "ready":
            return "running" if slot.open else "idle"
