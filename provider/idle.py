"""Unloads what has been idle too long, and asks again for room that a chat has refused to give up while it was open."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from provider.catalog import Model
from provider.granting import Granting
from provider.occupancy import Occupancy

log = logging.getLogger(__name__)

REAP_EVERY_S = 1.0
SETTLE_EVERY_S = 5.0


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
