"""Which models are resident on this machine. Owner: the event loop; loads, unloads and grants go through one gate.

Implements provider.generation.Serving for the API and the coordinator link. State changes are synchronous; whoever
waits asks again afterwards whatever was true before.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from provider.api import wire
from provider.capacity import Capacity, capacity_of
from provider.catalog import Factory, Model
from provider.config import ProviderConfig
from provider.errors import ConfigError, ModelError, RequestFailed, SelfTestFailed, WorkerError
from provider.generation import Delta, Finished, GenerationRequest, Notice
from provider.granting import Granting
from provider.loading import MAX_RESIDENT_MODELS, READ_TRIES, Loading, LoadRefused, ReadMemory
from provider.memory.floors import FloorTable, shipped_table
from provider.memory.refusal import MemoryRefusal
from provider.models.checkpoint import Checkpoint
from provider.mtp.policy import Reason
from provider.occupancy import Bounds, Occupancy
from provider.protocol import ModelAd, MtpStatus, Stats
from provider.runner import ProcessRunner, Runner
from provider.slot import ModelSlot
from provider.system_memory import SystemMemory

log = logging.getLogger(__name__)

LOADS_PER_REQUEST = 3
"""A request whose model is evicted again before its turn asks for it this often."""
REAP_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadError:
    """The last load that failed, for doctor and the fleet's view. `at` is Unix seconds."""

    model: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Retired:
    """A build that failed its self-test. `digest` None: nobody knows which, so every build of the model is refused."""

    digest: str | None

    def covers(self, digest: str | None) -> bool:
        return self.digest is None or digest is None or digest == self.digest


class Residency:
    """The models of one provider: loaded when asked for, evicted when idle and in the way, never while serving."""

    def __init__(
        self,
        config: ProviderConfig,
        physical_bytes: int,
        create_runner: Callable[[], Runner] = ProcessRunner,
        read_memory: ReadMemory | None = None,
        floors: FloorTable | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the checkpoints' facts; raises ModelError or ConfigError. Nothing is loaded yet.

        `read_memory` None: nothing is known beside what the workers measure.
        """
        self.config = config
        self.draining = False
        self.started = False
        self.last_load_error: LoadError | None = None
        self.retired: dict[str, Retired] = {}
        self.factory = Factory(config, create_runner, self._on_worker_given_up)
        self.occupancy = Occupancy(_bounds(config, physical_bytes, floors))
        self.granting = Granting(self.occupancy)
        self._read_memory = read_memory or _nothing_read(clock)
        self._clock = clock
        self._loading = Loading(
            self.occupancy, self.granting, self._read_memory, self._check_wanted, self._end_worker, clock
        )
        self._gate = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_change: list[Callable[[], None]] = []
        self._on_room: list[Callable[[], None]] = []
        self._enlist_configured()

    # Life

    async def start(self) -> None:
        """Loads what is to be loaded at start. Raises the first ModelError or WorkerError, with nothing left running;
        what memory refuses is left for later, unless nothing at all could be loaded."""
        try:
            refused = [error for id in self._preloaded() if (error := await self._preload(id)) is not None]
            if refused and not self.occupancy.residents:
                raise refused[0]
        except BaseException:
            await self.stop()
            raise
        self.started = True
        self._spawn(self._reap())

    async def drain(self, grace_s: float) -> None:
        """Takes no more requests and gives the running ones `grace_s` seconds to finish."""
        self.draining = True
        self._changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(one.wait_empty() for one in self.slots))

    async def stop(self) -> None:
        self.draining = True
        tasks = [*self._tasks, *self._loads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in self.slots))

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called, at once, whenever what is served or what there is room for has changed."""
        self._on_change.append(callback)

    def on_room(self, callback: Callable[[], None]) -> None:
        """Called when memory has been given back, or the reserve has fallen: what was put off may be tried again."""
        self._on_room.append(callback)

    # Serving

    def models(self) -> Sequence[ModelSlot]:
        return [self.occupancy.models[id].slot for id in self.advertised_ids]

    def model(self, model_id: str) -> ModelSlot:
        return self._served(model_id).slot

    async def generate(self, model_id: str, request: GenerationRequest) -> AsyncGenerator[Delta | Notice | Finished]:
        """See provider.generation.Serving. The model is loaded first if it is not."""
        slot = await self._ready(model_id)
        async with aclosing(slot.generate(request)) as events:  # nothing is waited for before it is admitted
            async for event in events:
                yield event

    async def pre_accept(self, model_id: str) -> None:
        """Raises RequestFailed for a request that would be refused once accepted, by the same requirement and
        feasibility as a load's, so that another provider can be asked instead."""
        model = self._served(model_id)
        self._check_wanted(model)
        if model.slot.loaded is None and model_id not in self._loads:
            refusal = await self._loading.feasible(model)
            if refusal is not None:
                raise refused_request(refusal)

    # Operations

    async def load(self, model_id: str, evict: bool = True) -> None:
        """Loads a model that is served here; at once when it is loaded. Raises LoadRefused, ModelError or WorkerError,
        or RequestFailed for a model that is not served or is leaving. `evict`: whether idle models may make room."""
        self._served(model_id)
        task = self._loads.get(model_id)
        if task is None:
            task = self._loads[model_id] = asyncio.create_task(self._load(model_id, evict))
            task.add_done_callback(lambda done: self._forget_load(model_id, done))
        await asyncio.shield(task)

    async def unload(self, model_id: str) -> None:
        """Lets the model finish the chats it has, takes no more for it, and unloads it."""
        model = self.occupancy.models.get(model_id)
        if model is None:
            raise RequestFailed(wire.model_not_found(model_id, sorted(self.advertised_ids)))
        if model.slot.loaded is None:
            return
        model.slot.draining = True
        self._changed()
        await model.slot.wait_empty()
        async with self._gate:
            if model.slot.draining:
                await self._end_worker(model)
                await self.granting.regrow()
        self._changed()
        self._room_changed()

    async def advertise(self, model: Model) -> bool:
        """Adds a model to what is served, the raise of the reserve first. False, and nothing changes, when that would
        leave a resident model less KV room than it can serve with, or this build has been retired."""
        async with self._gate:
            occupancy = self.occupancy
            declared = [*dict.fromkeys([*self.advertised_ids, model.id])]
            if occupancy.shares(occupancy.reserve([model.id], declared)) is None:
                return False
            occupancy.joining.add(model.id)
            try:
                if not await self.granting.shrink() or self.is_retired(model):
                    return False
                occupancy.models[model.id] = model
                occupancy.advertised = declared
                self.retired.pop(model.id, None)
            finally:
                occupancy.joining.discard(model.id)
        self._changed()
        return True

    def withdraw(self, ids: Iterable[str]) -> None:
        """Stops serving these models: new requests are refused from now on, those that run finish, and what is resident
        is then unloaded."""
        gone = set(ids) & set(self.advertised_ids)
        if not gone:
            return
        self.occupancy.advertised = [id for id in self.advertised_ids if id not in gone]
        self._changed()
        for id in sorted(gone):
            self._spawn(self._leave(id))

    def retire(self, model_id: str, digest: str | None) -> None:
        """A build that computes nonsense here: not served any more, and not again while this process lives."""
        self.retired[model_id] = Retired(digest)
        log.error("model_retired model=%s digest=%s", model_id, digest)
        self.withdraw([model_id])

    # What it says of itself

    @property
    def advertised_ids(self) -> list[str]:
        return self.occupancy.advertised or []

    @property
    def slots(self) -> list[ModelSlot]:
        """Of every model that is served, or still loaded."""
        found = self.occupancy.models.values()
        return [one.slot for one in found if one.id in self.advertised_ids or one.slot.status != "unloaded"]

    def ever_fits(self, model: Model) -> bool:
        """Whether it could be loaded here, on an idle machine: what never can is not worth advertising."""
        return self.occupancy.required(model, model.charge) <= self.occupancy.bounds.cap_bytes

    def advertised(self) -> list[ModelAd]:
        """What the coordinator is told of each model."""
        return [self._ad(self.occupancy.models[id]) for id in self.advertised_ids]

    def stats(self) -> Stats:
        totals = [one.slot.totals for one in self.occupancy.models.values()]
        return Stats(
            requests=sum(one.requests for one in totals),
            tokens=sum(one.tokens for one in totals),
            parks=sum(one.parks for one in totals),
            recomputes=sum(one.recomputes for one in totals),
        )

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        return {id: one.checkpoint for id, one in self.occupancy.models.items()}

    async def capacity(self) -> Capacity:
        """A coherent picture: when the grants move while memory is read, it is read again (three times at most), and
        what is said of them is taken after the reading."""
        for _ in range(READ_TRIES):
            epoch = self.granting.epoch
            memory = await self._read_memory()
            if epoch == self.granting.epoch:
                break
        return capacity_of(self.occupancy, memory)

    def mtp_status(self, slot: ModelSlot) -> MtpStatus:
        """Whether a model drafts, and why not, as its worker found when it loaded it."""
        if slot.loaded is None:
            return MtpStatus(active=False, reason=Reason.ENGINE_INACTIVE.value)
        return MtpStatus(active=slot.loaded.drafts.active, reason=slot.loaded.drafts.reason)

    def _ad(self, model: Model) -> ModelAd:
        facts = model.checkpoint
        return ModelAd(
            id=model.id,
            model_type=facts.family,
            quantization=facts.quantization,
            size_bytes=facts.size_bytes,
            context_length=model.slot.n_ctx,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            state_bytes=facts.state_bytes,
            vision=False,  # a checkpoint may have a vision tower; its text part alone is served
            exact="off" if self.config.engine.exact == "off" else "unavailable",
            mtp=self.mtp_status(model.slot),
            weight_digest=model.digest if model.verified else None,
        )

    def exactness(self) -> tuple[str, str | None]:
        if self.config.engine.exact == "off":
            return "off", "exact concurrency is switched off"
        return "unavailable", "exact concurrency is not part of this release"

    # A request's way in

    async def _ready(self, model_id: str) -> ModelSlot:
        """The slot of a model that is loaded now; what was true before a suspension is asked again after it."""
        for _ in range(LOADS_PER_REQUEST):
            model = self._served(model_id)
            self._check_wanted(model)
            slot = model.slot
            if slot.status == "failed" or (slot.loaded is not None and not slot.draining):
                return slot  # a failed one says so itself
            await self._await_load(model_id)
        raise RequestFailed(wire.unavailable(f"The model {model_id} was evicted before its turn.", "slot_state", 5))

    async def _await_load(self, model_id: str) -> None:
        """Whoever waits for a model keeps it from being evicted before it has had its turn."""
        awaited = self.occupancy.awaited
        awaited[model_id] = awaited.get(model_id, 0) + 1
        try:
            await self.load(model_id)
        except LoadRefused as refused:
            raise refused_request(refused.refusal) from refused
        except (ModelError, WorkerError) as error:
            message = f"The model {model_id} cannot be loaded: {error}"
            raise RequestFailed(wire.unavailable(message, "slot_state", 5)) from error
        finally:
            awaited[model_id] -= 1
            if not awaited[model_id]:
                del awaited[model_id]

    def _served(self, model_id: str) -> Model:
        if model_id in self.advertised_ids:
            return self.occupancy.models[model_id]
        if model_id in self.retired:
            raise RequestFailed(wire.unavailable(f"The model {model_id} has failed its self-test here.", "slot_state"))
        raise RequestFailed(wire.model_not_found(model_id, sorted(self.advertised_ids)))

    def _check_wanted(self, model: Model) -> None:
        """Raises RequestFailed when the model is not served any more, or the provider is ending."""
        if self.draining:
            raise RequestFailed(wire.unavailable("This provider is shutting down.", "draining"))
        self._served(model.id)

    def is_retired(self, model: Model) -> bool:
        mark = self.retired.get(model.id)
        return mark is not None and mark.covers(model.digest)

    # Under the gate

    async def _load(self, model_id: str, evict: bool) -> None:
        async with self._gate:
            model = self._served(model_id)
            self._check_wanted(model)
            if model.slot.loaded is not None:
                return
            try:
                await self._loading.load(model, evict)
            except (LoadRefused, ModelError, WorkerError) as error:
                self._note_failed_load(model, error)
                raise
            finally:
                self._changed()
        log.info("model_loaded model=%s resident=%d", model_id, len(self.occupancy.residents))
        self._room_changed()

    def _note_failed_load(self, model: Model, error: Exception) -> None:
        self.last_load_error = LoadError(model.id, str(error), time.time())
        log.warning("load_failed model=%s error=%s", model.id, error)
        if isinstance(error, SelfTestFailed):
            self.retire(model.id, model.digest)

    async def _end_worker(self, model: Model) -> None:
        """Its room is free once the process has been reaped; the regrow is the caller's."""
        model.slot.draining = True
        await model.slot.stop()
        self.granting.drop(model.id)
        self._changed()

    async def _regrow(self) -> None:
        async with self._gate:
            await self.granting.regrow()
        self._changed()
        self._room_changed()

    # In the background

    async def _leave(self, model_id: str) -> None:
        """Of a model that is not served any more: unloaded once it is idle, and the others get what it pinned."""
        await self.unload(model_id)
        await self._regrow()

    async def _reap(self) -> None:
        """Unloads what has been idle for idle_timeout_mins."""
        patience_s = (self.config.idle_timeout_mins or 0) * 60
        while patience_s:
            await asyncio.sleep(min(REAP_EVERY_S, patience_s))
            for model in self.occupancy.idle:
                if model.slot.idle and self._clock() - model.slot.used_at >= patience_s:
                    log.info("idle_timeout model=%s", model.id)
                    await self.unload(model.id)

    def _on_worker_given_up(self, model_id: str, self_test: bool) -> None:
        """Called by a slot whose worker keeps dying: its room is the others' from now on."""
        self.granting.drop(model_id)
        if self_test:
            self.retire(model_id, self.occupancy.models[model_id].digest)
        self._spawn(self._regrow())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, done: "asyncio.Task[None]") -> None:
        self._tasks.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("residency_task_failed", exc_info=error)

    def _forget_load(self, model_id: str, done: "asyncio.Task[None]") -> None:
        self._loads.pop(model_id, None)
        if not done.cancelled():
            done.exception()  # it may be that nobody waits for it any more

    # At start

    def _enlist_configured(self) -> None:
        if self.config.engine.exact == "on":
            raise ConfigError("--exact on: exact concurrency is not part of this release; use --exact auto or off.")
        models = [self.factory.create(one) for one in self.config.models]
        self._named = dict(zip(self.config.models, (one.id for one in models), strict=True))
        self.occupancy.models = {one.id: one for one in models}
        if len(self.occupancy.models) < len(models):
            raise ConfigError("--model: two of the models have the same id; each id is served once.")
        self.occupancy.advertised = list(self.occupancy.models)

    def _preloaded(self) -> list[str]:
        if self.config.preload is None:
            return self.advertised_ids[:MAX_RESIDENT_MODELS]
        ids = [self._named.get(one, one) for one in self.config.preload]
        for id in ids:
            if id not in self.occupancy.models:
                raise ConfigError(f"models.preload: {id!r} is not among the served models: {self.advertised_ids}.")
        return ids

    async def _preload(self, model_id: str) -> ModelError | None:
        """Why it could not be loaded now and may be later. The requirement is that of this moment, and nobody is
        evicted."""
        try:
            await self.load(model_id, evict=False)
        except LoadRefused as refused:
            log.warning("preload_refused model=%s reason=%s", model_id, refused)
            return ModelError(str(refused))
        except SelfTestFailed as error:
            return error
        return None

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()

    def _room_changed(self) -> None:
        for callback in self._on_room:
            callback()


def refused_request(refusal: MemoryRefusal) -> RequestFailed:
    return RequestFailed(wire.memory_refused(refusal.message, refusal.detail()))


def _bounds(config: ProviderConfig, physical_bytes: int, floors: FloorTable | None) -> Bounds:
    return Bounds(
        physical_bytes,
        config.memory_reserve_bytes,
        config.memory_limit_bytes,
        config.cap_fraction,
        config.activation_reserve_bytes,
        shipped_table() if floors is None else floors,
    )


def _nothing_read(clock: Callable[[], float]) -> ReadMemory:
    async def read() -> SystemMemory:
        return SystemMemory(physical_bytes=None, available_bytes=None, pressure=None, read_at_s=clock())

    return read
