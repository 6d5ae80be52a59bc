"""What comes due while nobody asks: unloads what has been idle too long, asks again for room that a chat has refused to
give up while it was open, and tells of models that had been given up once they may be tried again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from provider.catalog import Model
from provider.granting import Granting
from provider.occupancy import Occupancy

log = logging.getLogger(__name__)

REAP_EVERY_S = 1.0
SETTLE_EVERY_S = 5.0
HEAL_EVERY_S = 1.0


async def reap(
    occupancy: Occupancy,
    patience_s: float,
    clock: Callable[[], float],
    unload: Callable[[Model], Awaitable[None]],
) -> None:
    """`patience_s` 0: nothing is ever idle too long."""
    while patience_s:
        await asyncio.sleep(min(REAP_EVERY_S, patience_s))
        for model in occupancy.idle:
            if model.slot.idle and clock() - model.slot.used_at >= patience_s:
                log.info("idle_timeout model=%s", model.id)
                await unload(model)


async def settle(granting: Granting, gate: asyncio.Lock, regrow: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(SETTLE_EVERY_S)
        if not gate.locked() and not granting.settled:
            await regrow()


async def heal(occupancy: Occupancy, recovered: Callable[[Model], None]) -> None:
    while True:
        await asyncio.sleep(HEAL_EVERY_S)
        for model in list(occupancy.models.values()):
            if model.slot.standing.recover():
                log.info("slot_recovered model=%s", model.id)
                recovered(model)
