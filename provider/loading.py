"""One load, in order: marker, room, claim, shrinks, digest, allocation gate, worker, guard; and all of its undoing.

Runs under residency's gate, so that one load at a time is between its marker and its end. After every suspension
memory is sampled first and the requirement worked out then; whether the model is still wanted is asked again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from provider.catalog import Model
from provider.errors import DarkbloomError, ModelError
from provider.granting import Granting
from provider.memory.admission import (
    Reading,
    can_load,
    ceiling_for_load,
    eviction_can_reach,
    fits_at_allocation,
    live_kv_headroom,
    usable_for_load,
)
from provider.memory.fit import largest_loadable_size
from provider.memory.ledger import Claim
from provider.memory.refusal import MemoryRefusal, Why
from provider.memory.requirement import Charge
from provider.occupancy import Occupancy
from provider.system_memory import SystemMemory

log = logging.getLogger(__name__)

MAX_RESIDENT_MODELS = 3
READ_TRIES = 3

ReadMemory = Callable[[], Awaitable[SystemMemory]]
StillWanted = Callable[[Model], None]
"""Raises when the model has been withdrawn or retired, or the provider is ending."""
Unload = Callable[[Model], Awaitable[None]]
DigestOf = Callable[[Model], Awaitable[str]]


def nothing_read(clock: Callable[[], float]) -> ReadMemory:
    """Of a system that does not tell: what the workers measure is then all that is known."""

    async def read() -> SystemMemory:
        return SystemMemory(physical_bytes=None, available_bytes=None, pressure=None, read_at_s=clock())

    return read


class LoadRefused(DarkbloomError):
    """A load that memory does not allow; nothing was evicted for one that could never fit."""

    def __init__(self, refusal: MemoryRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Loading:
    def __init__(
        self,
        occupancy: Occupancy,
        granting: Granting,
        read_memory: ReadMemory,
        still_wanted: StillWanted,
        unload: Unload,
        digest_of: DigestOf,
        clock: Callable[[], float],
    ) -> None:
        self._occupancy = occupancy
        self._granting = granting
        self._read_memory = read_memory
        self._still_wanted = still_wanted
        self._unload = unload
        self._digest_of = digest_of
        self._clock = clock

    async def load(self, model: Model, evict: bool) -> None:
        """Raises LoadRefused, ModelError or WorkerError, with everything as it was but for what was evicted.

        `evict`: whether idle models may make room.
        """
        claim = Claim(model.id)
        self._occupancy.loading.add(model.id)  # before anything is compared: the reserve rises with it
        try:
            await self._load(model, claim, evict)
        except BaseException:
            await to_the_end(self._undo(model, claim))
            raise
        self._occupancy.loading.discard(model.id)
        await self._granting.regrow()

    async def feasible(self, model: Model) -> MemoryRefusal | None:
        """Why a load would be refused now, whatever idle models it might evict; None when it would not be. Without an
        assistant: a load that it does not fit into goes on without."""
        try:
            reading = await self._sample(model)
        except LoadRefused as refused:
            return refused.refusal
        self._still_wanted(model)
        return None if model.slot.loaded is not None else self._infeasible(model, model.charge.target_only, reading)

    async def _load(self, model: Model, claim: Claim, evict: bool) -> None:
        charge = await self._make_room(model, claim, evict)
        if not await self._granting.shrink(model, charge):
            raise LoadRefused(self._refuse(model, charge, await self._sample(model), Why.LATE))
        await self._verify(model)
        await self._recheck(model, charge, claim)
        self._granting.admit(model, charge)
        model.slot.allow_drafter(charge == model.charge)
        await model.slot.start()
        self._occupancy.note_baseline(model)
        self._occupancy.ledger.release(claim)
        await self._guard(model, evict)
        self._still_wanted(model)

    async def _make_room(self, model: Model, claim: Claim, evict: bool) -> Charge:
        try:
            return await self._evict_until_it_fits(model, claim, evict)
        finally:
            self._occupancy.chosen.clear()

    async def _evict_until_it_fits(self, model: Model, claim: Claim, evict: bool) -> Charge:
        """Claims its weights in the end, with nothing waited for since it was found to fit."""
        charge, cleared = model.charge, False
        while True:
            reading = await self._sample(model)
            self._still_wanted(model)
            if self._fits(model, charge, reading) and self._occupancy.ledger.reserve(claim, charge.padded_bytes):
                return charge
            refusal = self._infeasible(model, charge, reading)
            if refusal is not None and charge.assistant_bytes:
                charge = charge.target_only
                continue
            if refusal is not None:
                raise LoadRefused(refusal)
            short = self._short_bytes(model, charge, reading)
            victims = self._victims(model, charge, short) if evict else []
            if not cleared and (not victims or 0 < short <= reading.cache_bytes):
                cleared = True  # the cheapest room there is; measured again once
                await self._clear_caches()
            elif victims:
                await self._evict(victims)
            else:
                raise LoadRefused(self._refuse(model, charge, reading, Why.IN_USE))

    def _fits(self, model: Model, charge: Charge, reading: Reading) -> bool:
        occupancy = self._occupancy
        return (
            can_load(occupancy.required(model, charge), reading, occupancy.ledger.outstanding_bytes)
            and len(occupancy.residents) < MAX_RESIDENT_MODELS
            and occupancy.shares(occupancy.reserve([model.id]), model, charge) is not None
        )

    def _infeasible(self, model: Model, charge: Charge, reading: Reading) -> MemoryRefusal | None:
        """Why not even evicting everything idle would do: asked before the first eviction."""
        occupancy, idle = self._occupancy, [one.id for one in self._occupancy.idle]
        required = occupancy.required(model, charge)
        if required > occupancy.bounds.cap_bytes:
            machine_cap = occupancy.bounds.machine_cap_bytes
            limited = machine_cap is not None and required <= machine_cap
            return self._refuse(model, charge, reading, Why.LIMITED if limited else Why.TOO_SMALL)
        if not eviction_can_reach(required, reading, occupancy.ledger.outstanding_bytes):
            return self._refuse(model, charge, reading, Why.IN_USE)
        if len(occupancy.residents) - len(idle) >= MAX_RESIDENT_MODELS:
            return self._refuse(model, charge, reading, Why.NO_PLACE)
        if occupancy.shares(occupancy.reserve([model.id]), model, charge, without=idle) is None:
            return self._refuse(model, charge, reading, Why.SHARES)
        return None

    def _short_bytes(self, model: Model, charge: Charge, reading: Reading) -> int:
        usable = usable_for_load(reading, self._occupancy.ledger.outstanding_bytes)
        return max(0, self._occupancy.required(model, charge) - usable)

    def _victims(self, model: Model, charge: Charge, short_bytes: int) -> list[Model]:
        places = len(self._occupancy.residents) + 1 - MAX_RESIDENT_MODELS
        return self._occupancy.victims(short_bytes, model, charge, places)

    async def _evict(self, victims: Sequence[Model]) -> None:
        """All of them are marked at once, so that no request can bring one back under the waiting load; the coldest
        goes, and once memory has been measured again, the others are chosen anew."""
        self._occupancy.chosen = {one.id for one in victims}
        log.info("model_evicted model=%s", victims[0].id)
        await self._unload(victims[0])

    async def _verify(self, model: Model) -> None:
        """The weights against the digest they were promised with, once."""
        if model.digest is None or model.verified:
            return
        found = await self._digest_of(model)
        self._still_wanted(model)
        if found != model.digest:
            raise ModelError(
                f"{model.id}: its weights hash to {found}, and {model.digest} was asked for: fetch it again."
            )
        model.verified = True

    async def _recheck(self, model: Model, charge: Charge, claim: Claim) -> None:
        """The allocation-time gate: the ledger holds this load's own claim, which is not held against it."""
        reading = await self._sample(model)
        self._still_wanted(model)
        ledger = self._occupancy.ledger
        required = self._occupancy.required(model, charge)
        if not fits_at_allocation(required, reading, ledger.outstanding_bytes, ledger.bytes_of(claim)):
            raise LoadRefused(self._refuse(model, charge, reading, Why.IN_USE))
        if self._occupancy.shares(self._occupancy.reserve([model.id]), model, charge) is None:
            raise LoadRefused(self._refuse(model, charge, reading, Why.SHARES))

    async def _guard(self, model: Model, evict: bool) -> None:
        """What chats can have is measured once the weights are in. Where that is too little, idle models make room;
        where all of them together would not make enough, the model goes again."""
        await model.slot.clear_cache()
        try:
            while True:
                reading = await self._sample(model)
                short = model.member.minimum_bytes - live_kv_headroom(reading, self._occupancy.reserve([model.id]))
                if short <= 0 and await self._granting.shrink():
                    return
                victims = self._victims_of_guard(model, short) if evict else []
                if not victims:
                    raise LoadRefused(self._refuse(model, Charge(0), reading, Why.AFTER_LOAD))
                await self._evict(victims)
        finally:
            self._occupancy.chosen.clear()

    def _victims_of_guard(self, model: Model, short_bytes: int) -> list[Model]:
        """The idle models, the coldest first; none where their leaving would not do."""
        idle = [one for one in self._occupancy.idle if one is not model]
        if sum(one.slot.resident_bytes for one in idle) < short_bytes:
            return []
        without = [one.id for one in idle]
        enough = self._occupancy.shares(self._occupancy.reserve([model.id]), without=without) is not None
        return idle if enough else []

    async def _undo(self, model: Model, claim: Claim) -> None:
        """All of a failed load: worker, grant, claim, caches, marker; then the reserve, and the survivors' room."""
        await model.slot.stop()
        self._granting.drop(model.id)
        if self._occupancy.ledger.bytes_of(claim):
            self._occupancy.ledger.release(claim)
        await self._clear_caches()
        self._occupancy.loading.discard(model.id)
        await self._granting.regrow()

    async def _clear_caches(self) -> None:
        await asyncio.gather(*(one.slot.clear_cache() for one in self._occupancy.residents))

    async def _sample(self, model: Model) -> Reading:
        """A fresh reading: a stale one is never decided upon."""
        for _ in range(READ_TRIES):
            memory = await self._read_memory()
            if not memory.is_stale(self._clock()):
                return self._occupancy.reading(memory)
        raise LoadRefused(self._refuse(model, model.charge, self._occupancy.reading(memory), Why.UNREADABLE))

    def _refuse(self, model: Model, charge: Charge, reading: Reading, why: Why) -> MemoryRefusal:
        occupancy = self._occupancy
        headroom = occupancy.reserve([model.id]) + model.member.minimum_bytes
        ceiling = ceiling_for_load(reading)
        return MemoryRefusal(
            model=model.id,
            why=why,
            required_bytes=occupancy.required(model, charge),
            usable_bytes=usable_for_load(reading, occupancy.ledger.outstanding_bytes),
            ceiling_bytes=ceiling,
            cap_bytes=occupancy.bounds.cap_bytes,
            largest_bytes=largest_loadable_size(ceiling, headroom),
        )


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """A cancellation that comes meanwhile is raised once the work is done."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
