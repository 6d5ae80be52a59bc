"""Hands out the KV budget: everyone's share worked out from the present occupancy, told to the workers and counted.

Owner: residency, under its gate. A shrink counts when its worker has acknowledged it, a raise when it is sent; only an
explicit regrow gives anyone more than it has. Every push has an epoch, and workers ignore one older than their last.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from provider.catalog import Model
from provider.memory.grants import clamped
from provider.memory.requirement import Charge
from provider.occupancy import Occupancy

log = logging.getLogger(__name__)

ACKNOWLEDGED_WITHIN_S = 20.0
"""A worker gives room up between two steps, once it has parked what lies beyond."""


class Granting:
    """`epoch` moves with every push: whoever has built something on the grants can tell that they have changed."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.epoch = 0
        self._occupancy = occupancy
        self._under_way: set[asyncio.Future[Any]] = set()

    async def shrink(self, newcomer: Model | None = None, charge: Charge | None = None) -> bool:
        """Nobody gets more. False, and everything is as it was, when somebody would have too little, cannot give
        room up or does not say so in time."""
        occupancy = self._occupancy
        reserve = occupancy.reserve([] if newcomer is None else [newcomer.id])
        wanted = occupancy.shares(reserve, newcomer, charge)
        if wanted is None:
            return False
        survivors = {id: share for id, share in wanted.items() if id in occupancy.granted}
        former = dict(occupancy.granted)
        if await self._push(clamped(occupancy.granted, survivors), reserve):
            return True
        await self._push({id: former[id] for id in survivors if id in occupancy.granted}, reserve)
        return False

    async def regrow(self) -> None:
        """Gives the survivors what has come free. Whoever would get less by now is shrunk."""
        reserve = self._occupancy.reserve()
        wanted = self._occupancy.shares(reserve)
        if wanted is not None:
            await self._push(wanted, reserve)

    def admit(self, newcomer: Model, charge: Charge) -> None:
        """The share a newcomer starts with; the survivors have been shrunk for it."""
        reserve = self._occupancy.reserve([newcomer.id])
        wanted = self._occupancy.shares(reserve, newcomer, charge)
        assert wanted is not None, "the survivors were shrunk to make this fit"
        self._occupancy.granted[newcomer.id] = wanted[newcomer.id]
        newcomer.slot.start_with(wanted[newcomer.id], reserve)

    def drop(self, model_id: str) -> None:
        """Of a model whose worker has ended."""
        self._occupancy.granted.pop(model_id, None)

    async def _push(self, grants: dict[str, int], reserve_bytes: int) -> bool:
        self.epoch += 1
        told = [self._tell(id, share, reserve_bytes) for id, share in grants.items()]
        return all(await asyncio.gather(*told))

    async def _tell(self, model_id: str, share: int, reserve_bytes: int) -> bool:
        granted, slot = self._occupancy.granted, self._occupancy.models[model_id].slot
        answer = asyncio.ensure_future(slot.grant(self.epoch, share, reserve_bytes))
        if share >= granted.get(model_id, 0):
            granted[model_id] = share
            self._keep(answer)
            return True
        return await self._acknowledged(model_id, share, answer)

    async def _acknowledged(self, model_id: str, share: int, answer: Awaitable[bool]) -> bool:
        try:
            async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
                accepted = await answer
        except TimeoutError:
            log.warning("grant_not_acknowledged model=%s bytes=%d", model_id, share)
            return False
        if accepted:
            self._occupancy.granted[model_id] = share
        return accepted

    def _keep(self, answer: "asyncio.Future[bool]") -> None:
        """Nobody waits for it, and the event loop holds tasks weakly."""
        self._under_way.add(answer)
        answer.add_done_callback(self._under_way.discard)
