"""A request's way to a model that is loaded: what was true before a suspension is asked again after it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from provider.api import wire
from provider.catalog import Model
from provider.errors import ExactUnavailable, ModelError, RequestFailed, WorkerError
from provider.loading import LoadRefused
from provider.memory.refusal import MemoryRefusal
from provider.occupancy import Occupancy
from provider.slot import ModelSlot

LOADS_PER_REQUEST = 3
"""A request whose model is evicted again before its turn asks for it this often."""
NOT_EXACT_AGAIN_S = 60
"""A client that waits for an operator need not ask often."""

Served = Callable[[str], Model]
"""Raises RequestFailed for a model that is not served (any more), or when the provider is ending."""
Load = Callable[[str], Awaitable[None]]
Feasible = Callable[[Model], Awaitable[MemoryRefusal | None]]


class Admittance:
    def __init__(self, occupancy: Occupancy, served: Served, load: Load, feasible: Feasible) -> None:
        self._occupancy = occupancy
        self._served = served
        self._load = load
        self._feasible = feasible

    async def check(self, model_id: str) -> None:
        """Raises RequestFailed for a request that would be refused once accepted."""
        model = self._served(model_id)
        if model.slot.loaded is not None or model_id in self._occupancy.loading:
            return
        _check_may_be_loaded(model)
        refusal = await self._feasible(model)
        if refusal is not None:
            raise refused_request(refusal)

    async def ready(self, model_id: str) -> ModelSlot:
        """The slot of a model that is loaded now. The caller enters it with nothing waited for in between."""
        for _ in range(LOADS_PER_REQUEST):
            model = self._served(model_id)
            if self._occupancy.takes_requests(model):
                return model.slot
            if model_id not in self._occupancy.loading:
                _check_may_be_loaded(model)
            await self._await_load(model_id)
        raise RequestFailed(wire.unavailable(f"The model {model_id} was unloaded before its turn.", "slot_state", 5))

    async def _await_load(self, model_id: str) -> None:
        """Whoever waits for a model keeps it from being evicted before it has had its turn."""
        awaited = self._occupancy.awaited
        awaited[model_id] = awaited.get(model_id, 0) + 1
        try:
            await self._load(model_id)
        except LoadRefused as refused:
            raise refused_request(refused.refusal) from refused
        except ExactUnavailable as refused:
            raise not_exact(refused) from refused
        except (ModelError, WorkerError) as error:
            slot = self._served(model_id).slot
            if slot.status == "failed":
                raise RequestFailed(slot.standing.refusal) from error
            message = f"The model {model_id} cannot be loaded: {error}"
            raise RequestFailed(wire.unavailable(message, "slot_state", 5)) from error
        finally:
            awaited[model_id] -= 1
            if not awaited[model_id]:
                del awaited[model_id]


def _check_may_be_loaded(model: Model) -> None:
    """Raises RequestFailed where another load would end as the last one did, as far as is known."""
    if model.slot.status == "failed":
        raise RequestFailed(model.slot.standing.refusal)
    if model.exact_refusal is not None:
        raise not_exact(model.exact_refusal)


def refused_request(refusal: MemoryRefusal) -> RequestFailed:
    return RequestFailed(wire.memory_refused(refusal.message, refusal.detail()))


def not_exact(refusal: ExactUnavailable) -> RequestFailed:
    """Another provider may be able to; here it would be the same again, until an operator has changed something."""
    detail = {"reason": refusal.cause, "remedy": refusal.remedy}
    failure = wire.unavailable(str(refusal), refusal.code, NOT_EXACT_AGAIN_S)
    return RequestFailed(replace(failure, param="model", detail=detail))
