"""What a provider's socket says first: who it is, and soon."""

import asyncio

from coordinator.connection import Connection
from coordinator.link import LONG_FRAME, Link
from coordinator.metrics import Metrics
from provider.protocol import CLOSE_BAD_VERSION, CLOSE_PROTOCOL_ERROR, PROTOCOL_VERSION, Register, is_uuid


async def registration(link: Link, metrics: Metrics, within_s: float) -> Register | None:
    """None where the socket is closed: by us, or by the peer. Raises Malformed."""
    try:
        async with asyncio.timeout(within_s):
            return await _first(link, Connection(link, metrics))
    except TimeoutError:
        link.close(CLOSE_PROTOCOL_ERROR, "no register")
        return None


async def _first(link: Link, pending: Connection) -> Register | None:
    async for frame in link.frames():
        told = pending.parse(frame)
        if len(frame) >= LONG_FRAME:
            await asyncio.sleep(0)
        match told:
            case Register() as message if message.protocol != PROTOCOL_VERSION:
                link.close(CLOSE_BAD_VERSION, f"this coordinator speaks version {PROTOCOL_VERSION}")
                return None
            case Register() as message if not is_uuid(message.provider_id):
                pending.complain("register: provider_id: must be a UUID")
            case Register() as message:
                return message
            case None:
                pass
            case _:
                pending.complain("register must come first")
    return None
