"""GET /ws/provider: where providers dial in (docs/protocol.md)."""

import asyncio
from contextlib import suppress

from fastapi import APIRouter
from starlette.websockets import WebSocket

from coordinator.api.auth import secret_of, started
from coordinator.errors import StoreDown
from coordinator.services import Services
from coordinator.store.records import Token, TokenKind
from provider.protocol import CLOSE_BAD_TOKEN

CLOSE_TRY_LATER = 1013
START_WAIT_S = 10
"""A provider started with its coordinator need not dial twice."""

router = APIRouter()


@router.websocket("/ws/provider")
async def provider(socket: WebSocket) -> None:
    """Accepted before the token is judged: a refused handshake could carry no close code."""
    await socket.accept()
    with suppress(TimeoutError):
        async with asyncio.timeout(START_WAIT_S):
            await socket.app.state.opened.wait()
    services = started(socket)
    if services is None or services.dispatcher.draining:
        return await socket.close(CLOSE_TRY_LATER, "the coordinator is starting or shutting down")
    try:
        token = await _welcome(socket, services)
    except StoreDown:
        return await socket.close(CLOSE_TRY_LATER, "the store of keys does not answer")
    if token is None:
        return await socket.close(CLOSE_BAD_TOKEN, "the token is unknown, revoked or of another kind")
    return await _serve_until_revoked(socket, services, token)


async def _welcome(socket: WebSocket, services: Services) -> Token | None:
    secret = secret_of(socket)
    token = None if secret is None else await services.keys.token(secret)
    return token if token is not None and token.kind is TokenKind.PROVIDER else None


async def _serve_until_revoked(socket: WebSocket, services: Services, token: Token) -> None:
    """A provider whose token is revoked is left; it dials again, and is told."""
    with services.keys.holding(secret_of(socket) or "") as revoked:
        serving = asyncio.create_task(services.hub.serve(socket, token.id))
        ending = asyncio.create_task(revoked.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            serving.cancel()
            await asyncio.wait({serving, ending})
    if not serving.cancelled():
        serving.result()
