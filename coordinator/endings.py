"""What a client is told of an attempt that has failed: the provider's own words, or why there were none."""

from typing import assert_never

from coordinator import refusals
from coordinator.inbox import Broken
from coordinator.refusals import RETRY_AFTER_S
from provider.api.wire import Failure, internal_error, unavailable
from provider.protocol import InferenceError

LONGEST_WAIT_S = 3600
"""That a provider may ask a client for."""

SAID_APART = frozenset({"code", "message"})
"""Members of an error object that its frame has in fields of their own."""


def failed(frame: InferenceError) -> Failure:
    """The provider's own words and status; a status that is no error becomes 502."""
    status = frame.status if 400 <= frame.status <= 599 else 502
    detail = {name: value for name, value in frame.detail.items() if name not in SAID_APART}
    kind = detail.pop("type", None)
    param = detail.pop("param", None)
    wait = detail.pop("retry_after_s", None)
    return Failure(
        status=status,
        type=kind if isinstance(kind, str) else _type_of(status),
        code=frame.code,
        message=frame.message,
        param=param if isinstance(param, str) else None,
        retryable=frame.retryable,
        retry_after_s=wait if isinstance(wait, int) and 0 <= wait <= LONGEST_WAIT_S else _retry_after(status),
        detail=detail,
    )


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status == 503:
        return "service_unavailable"
    return "invalid_request_error" if status < 500 else "internal_error"


def _retry_after(status: int) -> int | None:
    return RETRY_AFTER_S if status in (429, 503) else None


def broken(why: Broken) -> Failure:
    match why:
        case Broken.PROVIDER_LOST:
            return unavailable("The connection to the provider was lost.", why.value, RETRY_AFTER_S)
        case Broken.PROVIDER_BUSY:
            return unavailable("The provider's connection takes no more requests.", why.value)
        case Broken.STOPPING:
            return refusals.stopping()
        case Broken.SLOW_CLIENT:
            message = "The stream was read too slowly and has ended."
            return Failure(503, "service_unavailable", why.value, message)
        case Broken.SEQUENCE_GAP:
            return internal_error("The provider's stream has a gap.", why.value, retryable=True)
        case Broken.MALFORMED:
            message = "The provider has sent a part of the answer that cannot be read."
            return Failure(502, "internal_error", why.value, message, retryable=True)
        case _:
            assert_never(why)
