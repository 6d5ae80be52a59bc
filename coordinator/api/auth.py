"""Who asks: a bearer token or an x-api-key header, of the kind that the route takes."""

from collections.abc import Awaitable, Callable
from typing import cast

from starlette.requests import HTTPConnection, Request

from coordinator.api.errors import Refusal, unauthorized, wrong_kind
from coordinator.services import Services
from coordinator.store.records import Token, TokenKind
from provider.api.wire import unavailable


def services_of(connection: HTTPConnection) -> Services:
    """Raises Refusal while the coordinator is starting."""
    services = started(connection)
    if services is None:
        raise Refusal(unavailable("The coordinator is starting.", "starting"))
    return services


def started(connection: HTTPConnection) -> Services | None:
    # Starlette's state is a bag of Any; app.py alone puts this in.
    return cast(Services | None, getattr(connection.app.state, "services", None))


def requires(*kinds: TokenKind) -> Callable[[Request], Awaitable[Token]]:
    """A dependency that yields the token, or ends the request with 401, 403 or 503."""

    async def check(request: Request) -> Token:
        secret = secret_of(request)
        if secret is None:
            raise Refusal(unauthorized("A key is needed: send `Authorization: Bearer dbk_...`."))
        token = await services_of(request).keys.token(secret)
        if token is None:
            raise Refusal(unauthorized("The key is unknown or revoked."))
        request.state.token_id = token.id
        if token.kind not in kinds:
            raise Refusal(wrong_kind(token.kind, " or ".join(kinds)))
        return token

    return check


def secret_of(connection: HTTPConnection) -> str | None:
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return connection.headers.get("x-api-key") or None
