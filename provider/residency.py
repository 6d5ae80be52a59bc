"""Which models are resident on this machine. Owner: the event loop; loads, unloads and grants go through one gate.

Implements provider.generation.Serving for the API and the coordinator link. State changes are synchronous; whoever
waits asks again afterwards whatever was true before.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from provider.admittance import Admittance
from provider.advertisement import model_ad, stats_of
from provider.api import wire
from provider.background import Background
from provider.capacity import Capacity, picture
from provider.catalog import Factory, Files, LocalFiles, Model
from provider.config import ProviderConfig
from provider.errors import ExactUnavailable, ModelError, RequestFailed, SelfTestFailed, WorkerError
from provider.exact.policy import Mode as ExactMode
from provider.exact_setting import ExactSetting
from provider.exactness import foreseen
from provider.generation import Delta, Finished, GenerationRequest, Notice
from provider.granting import Granting
from provider.idle import heal, reap, settle
from provider.listeners import Listeners
from provider.loading import Loading, LoadRefused, ReadMemory, nothing_read
from provider.memory.floors import FloorTable
from provider.named import Named
from provider.occupancy import Bounds, Occupancy
from provider.protocol import ModelAd, Stats
from provider.retirement import Retirement
from provider.runner import ProcessRunner, Runner
from provider.slot import ModelSlot
from provider.system_memory import MemoryKind

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadError:
    """The last load that failed, for doctor and the fleet's view. `at` is Unix seconds."""

    model: str
    message: str
    at: float


def always() -> bool:
    return True


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
        files: Files | None = None,
        memory_kind: MemoryKind = "host",
    ) -> None:
        """Reads the checkpoints' facts; raises ModelError (where none can be served) or ConfigError. Loads nothing.

        `read_memory` None: nothing is known beside what the workers measure.
        """
        self.config = config
        self.draining = False
        self.started = False
        self.last_load_error: LoadError | None = None
        self.retired = Retirement()
        self.exact = ExactSetting(config)
        self.factory = Factory(config, files or LocalFiles(), create_runner, self, clock, memory_kind)
        self._named = Named(config, self.factory)
        for name, error in self._named.broken.items():
            self.last_load_error = LoadError(name, str(error), time.time())
        self.occupancy = Occupancy(Bounds.told(config, physical_bytes, floors), self._named.models)
        self.occupancy.advertised = list(self._named.models)
        for model in self._named.models.values():
            self._foresee(model)
        self.granting = Granting(self.occupancy)
        self._read_memory = read_memory or nothing_read(clock)
        self._clock = clock
        self._loading = Loading(
            self.occupancy, self.granting, self._read_memory, self._check_wanted, self._end_worker,
            self.factory.digest_of, clock,
        )  # fmt: skip
        self._admittance = Admittance(self.occupancy, self._wanted, self.load, self._loading.feasible)
        self._gate = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._background = Background("residency")
        self._changed, self._room = Listeners(), Listeners()

    # Life

    async def start(self) -> None:
        """Loads what is to be loaded at start (named.Named.preload); raises with nothing left running."""
        try:
            await self._named.preload(self.load)
        except BaseException:
            await self.stop()
            raise
        self.started = True
        patience_s = (self.config.idle_timeout_mins or 0) * 60
        self._background.spawn(reap(self.occupancy, patience_s, self._clock, self._unload))
        self._background.spawn(settle(self.granting, self._gate, self._regrow))
        self._background.spawn(heal(self.occupancy, self._recovered))

    async def drain(self, grace_s: float | None) -> None:
        """Takes no more requests and gives the running ones `grace_s` seconds to finish, or all they need."""
        self.draining = True
        self._changed.tell()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(one.wait_empty() for one in self.slots))

    async def stop(self) -> None:
        self.draining = True
        loads = list(self._loads.values())
        for task in loads:
            task.cancel()
        await asyncio.gather(self._background.stop(), *loads, return_exceptions=True)
        await asyncio.gather(*(one.slot.stop() for one in self.occupancy.models.values()))

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called, at once, whenever what is served or what there is room for has changed."""
        self._changed.add(callback)

    def on_room(self, callback: Callable[[], None]) -> None:
        """Called when memory has been given back, or the reserve has fallen: what was put off may be tried again."""
        self._room.add(callback)

    # Serving

    def models(self) -> Sequence[ModelSlot]:
        return [self.occupancy.models[id].slot for id in self.advertised_ids]

    def model(self, model_id: str) -> ModelSlot:
        return self._served(model_id).slot

    async def generate(self, model_id: str, request: GenerationRequest) -> AsyncGenerator[Delta | Notice | Finished]:
        """See provider.generation.Serving. The model is loaded first if it is not."""
        slot = await self._admittance.ready(model_id)
        async with aclosing(slot.generate(request)) as events:  # nothing is waited for before it is admitted
            async for event in events:
                yield event

    def hold(self, model_id: str, request_id: str, held: bool) -> None:
        """See provider.generation.Serving.hold."""
        model = self.occupancy.models.get(model_id)
        if model is not None:
            model.slot.hold(request_id, held)

    async def pre_accept(self, model_id: str) -> None:
        """Raises RequestFailed for a request that would be refused once accepted, by the same requirement and
        feasibility as a load's, so that another provider can be asked instead."""
        await self._admittance.check(model_id)

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
        await self._unload(model)

    async def advertise(self, model: Model, wanted: Callable[[], bool] = always) -> bool:
        """Adds a model to what is served, the raise of the reserve first. False, and nothing changes, when that would
        leave a resident model less KV room than it can serve with, when this build has been retired, or when it is
        not `wanted` any more once all that has been waited for."""
        async with self._gate:
            joined = await self._join(model, wanted)
        if joined:
            self._changed.tell()
        return joined

    def withdraw(self, ids: Iterable[str]) -> None:
        """Stops serving these models: new requests are refused from now on, those that run finish, and what is resident
        is then unloaded."""
        gone = set(ids) & set(self.advertised_ids)
        if not gone:
            return
        self.occupancy.advertised = [id for id in self.advertised_ids if id not in gone]
        self._changed.tell()
        for id in sorted(gone):
            self._background.spawn(self._leave(self.occupancy.models[id]))

    def want_exact(self, mode: ExactMode | None) -> None:
        """From the next load on, where nothing overrides it (None: nothing is stored any more); where that changes what
        is wanted, what was refused may be tried again. Raises OSError."""
        former = self.exact.wanted
        self.exact.store(mode)
        if self.exact.wanted != former:
            for model in self.occupancy.models.values():
                model.exact_refusal = None
                self._foresee(model)
        self._changed.tell()

    def retire(self, model: Model) -> None:
        """A build that computes nonsense here: not served any more, and not again while this process lives."""
        self.retired.mark(model.id, model.digest)
        self.withdraw([model.id])

    # What it says of itself

    @property
    def advertised_ids(self) -> list[str]:
        return self.occupancy.advertised or []

    @property
    def slots(self) -> list[ModelSlot]:
        """Of every model that is served, or still loaded."""
        return [one.slot for one in self.served]

    @property
    def served(self) -> list[Model]:
        """Models that are served, or still loaded."""
        found = self.occupancy.models.values()
        return [one for one in found if one.id in self.advertised_ids or one.slot.status != "unloaded"]

    def ever_fits(self, model: Model) -> bool:
        """Whether it could be loaded here, on an idle machine: what never can is not worth advertising."""
        return self.occupancy.required(model, model.charge.target_only) <= self.occupancy.bounds.cap_bytes

    def advertised(self) -> list[ModelAd]:
        """What the coordinator is told of each model."""
        return [model_ad(self.occupancy.models[id], self.exact.wanted) for id in self.advertised_ids]

    def stats(self) -> Stats:
        return stats_of(one.slot for one in self.occupancy.models.values())

    async def capacity(self) -> Capacity:
        return await picture(self.occupancy, self.granting, self._read_memory)

    # Who may be served

    def _served(self, model_id: str) -> Model:
        if model_id in self.advertised_ids:
            return self.occupancy.models[model_id]
        if self.retired.knows(model_id):
            raise RequestFailed(wire.unavailable(f"The model {model_id} has failed its self-test here.", "slot_state"))
        known = self.occupancy.models.get(model_id)
        if known is not None and known.slot.loaded is not None:
            raise RequestFailed(wire.unavailable(f"The model {model_id} is about to leave.", "slot_state"))
        raise RequestFailed(wire.model_not_found(model_id, sorted(self.advertised_ids)))

    def _wanted(self, model_id: str) -> Model:
        if self.draining:
            raise RequestFailed(wire.unavailable("This provider is shutting down.", "draining"))
        return self._served(model_id)

    def _check_wanted(self, model: Model) -> None:
        """Raises RequestFailed when the model is not served any more, or the provider is ending."""
        self._wanted(model.id)

    # Under the gate

    async def _load(self, model_id: str, evict: bool) -> None:
        async with self._gate:
            model = self._wanted(model_id)
            if model.slot.loaded is not None:
                return
            model.slot.want_exact(self.exact.wanted)
            try:
                await self._loading.load(model, evict)
                model.exact_refusal = None
            except (LoadRefused, ModelError, WorkerError) as error:
                self._note_failed_load(model, error)
                raise
            finally:
                self._changed.tell()
                self._room.tell()
        log.info("model_loaded model=%s resident=%d", model_id, len(self.occupancy.residents))

    def _note_failed_load(self, model: Model, error: Exception) -> None:
        self.last_load_error = LoadError(model.id, str(error), time.time())
        log.warning("load_failed model=%s error=%s", model.id, error)
        if isinstance(error, SelfTestFailed):
            self.retire(model)
        elif isinstance(error, ModelError | WorkerError) and not isinstance(error, ExactUnavailable):
            model.slot.standing.fail_again(str(error))
        if isinstance(error, ExactUnavailable) and self.exact.wanted == "on":  # somebody may have changed it meanwhile
            model.exact_refusal = error

    def _foresee(self, model: Model) -> None:
        """What a load would be refused for is told before anybody asks for one."""
        if model.slot.loaded is None and model.exact_refusal is None:
            model.exact_refusal = foreseen(self.config.backend, model.checkpoint.directory, self.exact.wanted)

    async def _join(self, model: Model, wanted: Callable[[], bool]) -> bool:
        occupancy = self.occupancy
        occupancy.joining.add(model.id)
        try:
            shrunk = await self.granting.shrink()
            retired, known = self.retired.covers(model.id, model.digest), occupancy.models.get(model.id, model)
            joins = shrunk and not retired and wanted() and (known is model or known.slot.loaded is None)
            if joins:
                occupancy.models[model.id] = model
                occupancy.advertised = list(dict.fromkeys([*self.advertised_ids, model.id]))
                model.slot.draining = False  # it may have been about to leave
                self._foresee(model)
        finally:
            occupancy.joining.discard(model.id)
        await self.granting.regrow()
        return joins

    async def _unload(self, model: Model) -> None:
        loading = self._loads.get(model.id)
        if loading is not None and model.slot.loaded is None:
            await asyncio.wait([loading])
        if model.slot.loaded is None:
            return
        model.slot.draining = True
        self._changed.tell()
        await model.slot.wait_empty()
        async with self._gate:
            if model.slot.draining:
                await self._end_worker(model)
                await self.granting.regrow()
        self._changed.tell()
        self._room.tell()

    async def _end_worker(self, model: Model) -> None:
        """Its room is free once the process has been reaped; the regrow is the caller's."""
        model.slot.draining = True
        await model.slot.stop()
        self._foresee(model)
        self.granting.drop(model.id)
        self._changed.tell()

    async def _regrow(self) -> None:
        async with self._gate:
            await self.granting.regrow()
        self._changed.tell()
        self._room.tell()

    # In the background

    async def _leave(self, model: Model) -> None:
        """Of a model that is not served any more: unloaded once it is idle, and the others get what it pinned."""
        if model.id not in self.advertised_ids:
            await self._unload(model)
        await self._regrow()

    def worker_given_up(self, model_id: str, self_test: bool) -> None:
        """Its worker keeps dying: its room is the others' from now on."""
        self.granting.drop(model_id)
        if self_test:
            self.retire(self.occupancy.models[model_id])
        self._background.spawn(self._regrow())

    def _recovered(self, model: Model) -> None:
        """It may be tried again: at once where it is to be resident, else when it is asked for."""
        self._changed.tell()
        resident = model.pinned or model.id in self._named.preloaded()
        if resident and model.id in self.advertised_ids and not self.draining:
            self._background.spawn(self._load_again(model.id))

    async def _load_again(self, model_id: str) -> None:
        with contextlib.suppress(LoadRefused, ModelError, WorkerError, RequestFailed):  # told where it was refused
            await self.load(model_id, evict=False)

    def worker_replaced(self, model_id: str) -> None:
        self._background.spawn(self._regrow())

    def _forget_load(self, model_id: str, done: "asyncio.Task[None]") -> None:
        self._loads.pop(model_id, None)
        if not done.cancelled():
            done.exception()  # it may be that nobody waits for it any more
