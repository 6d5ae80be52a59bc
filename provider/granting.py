"""Hands out the KV budget: everyone's share worked out from the present occupancy, told to the workers and counted.

Owner: residency, under its gate. A shrink counts when its worker has acknowledged it, a raise when it is sent; only an
explicit regrow gives anyone more than it has. Every push has an epoch, and workers ignore one older than their last.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
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
        """Nobody gets more. False when somebody would have too little, cannot give room up or does not say so in time:
        what the others have given up is theirs again at the next regrow."""
        reserve = self._occupancy.reserve([] if newcomer is None else [newcomer.id])
        wanted = self._occupancy.shares(reserve, newcomer, charge)
        if wanted is None:
            return False
        granted = self._occupancy.granted
        survivors = {id: share for id, share in wanted.items() if id in granted}
        return await self._push(clamped(granted, survivors), reserve)

    async def regrow(self) -> bool:
        """Gives everybody its share: whoever has more is shrunk first, and then the others get what has come free.
        False when that could not be."""
        while await self.shrink():
            reserve = self._occupancy.reserve()  # as it is now
            wanted = self._occupancy.shares(reserve)
            if wanted is None:
                return False
            if all(share >= self._occupancy.granted.get(id, 0) for id, share in wanted.items()):
                return await self._push(wanted, reserve)
        return False

    @property
    def settled(self) -> bool:
        """Whether everybody has exactly its share."""
        return self._occupancy.granted == self._occupancy.shares(self._occupancy.reserve())

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

    async def _push(self, grants: Mapping[str, int], reserve_bytes: int) -> bool:
        """What raises counts at once; whether all that shrinks has been acknowledged. Who has been told already is not
        told again."""
        self.epoch += 1
        shrinking = list[Coroutine[Any, Any, bool]]()
        for id, share in grants.items():
            slot, held = self._occupancy.models[id].slot, self._occupancy.granted.get(id, 0)
            if share == held and slot.was_told(share, reserve_bytes):
                continue
            answer = asyncio.ensure_future(slot.grant(self.epoch, share, reserve_bytes))
            if share < held:
                shrinking.append(self._acknowledged(id, share, answer))
            else:
                self._occupancy.granted[id] = share
                self._keep(answer)
        return all(await asyncio.gather(*shrinking))

    async def _acknowledged(self, model_id: str, share: int, answer: Awaitable[bool]) -> bool:
        try:
            async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
                accepted = await answer
        except TimeoutError:
            log.warning("grant_not_acknowledged model=%s bytes=%d", model_id, share)
            return False
        if accepted and model_id in self._occupancy.granted:  # it may have been given up meanwhile
            self._occupancy.granted[model_id] = share
        return accepted

    def _keep(self, answer: "asyncio.Future[bool]") -> None:
        """Nobody waits for it, and the event loop holds tasks weakly."""
        self._under_way.add(answer)
        answer.add_done_callback(self._under_way.discard)
