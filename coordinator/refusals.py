"""What a client is told of a request that no provider takes."""

from collections.abc import Iterable
from dataclasses import replace

from coordinator.estimates import Tokens
from coordinator.reasons import BUSY, Reason
from coordinator.routing import Beyond, Refused
from provider.api.wire import Failure, context_exceeded, model_not_found, queue_full, unavailable

RETRY_AFTER_S = 2
MOST_NAMED = 50
"""Models in one message."""


def refusal(model: str, models: Iterable[str], tokens: Tokens, refused: Refused) -> Failure:
    """Of what waiting does not help; `models` are those that could be asked for instead."""
    if refused.beyond is not None:
        return _too_long(model, tokens, refused.beyond)
    reason = named_reason(refused)
    if reason is Reason.MODEL_NOT_SERVED:
        return not_served(model, models)
    message = f"No provider can take a request for {model!r} now: {tally(refused)}."
    if reason in BUSY:
        return replace(queue_full(message), code=reason.value)
    return unavailable(message, reason.value, RETRY_AFTER_S)


def not_served(model: str, models: Iterable[str]) -> Failure:
    """`models`: those that could be asked for instead."""
    told = list(models)
    more = len(told) - MOST_NAMED
    return model_not_found(model, told if more <= 0 else [*told[:MOST_NAMED], f"and {more} more"])


def named_reason(refused: Refused) -> Reason:
    """The one that counts, of a fleet that may be empty."""
    reason = refused.reason if refused.listed else Reason.MODEL_NOT_SERVED
    assert reason is not None, "whoever is listed has a reason"
    return reason


def no_room(model: str, waiting: int, retry_after_s: int) -> Failure:
    return queue_full(f"{waiting} requests are waiting for {model!r} already; try again later.", retry_after_s)


def waited_in_vain(
    model: str, waited_s: float, reason: str, eta_s: float | None, refused: Refused | None, retry_after_s: int
) -> Failure:
    why = "it is being loaded" if refused is None else tally(refused)
    message = f"No provider could take a request for {model!r} within {waited_s:.0f} s: {why}."
    detail: dict[str, int | str | None] = {"reason": reason, "waited_s": round(waited_s)}
    if eta_s is not None:
        detail["eta_s"] = round(eta_s)
    return replace(unavailable(message, "queue_timeout", retry_after_s), detail=detail)


def stopping() -> Failure:
    return replace(unavailable("This coordinator is shutting down.", "draining", RETRY_AFTER_S), retryable=False)


def tally(refused: Refused) -> str:
    """How many providers give which reason, the nearest to a yes first."""
    told = {reason: count for reason, count in refused.counts.items() if reason is not Reason.MODEL_NOT_SERVED}
    return ", ".join(f"{told[kind]} {kind.value}" for kind in sorted(told, key=lambda reason: -reason.nearness))


def _too_long(model: str, tokens: Tokens, beyond: Beyond) -> Failure:
    # Token ids are counted; text is judged by its bytes.
    has = "has" if tokens.least == tokens.likely else "has at least"
    message = (
        f"The prompt {has} {tokens.least} tokens, and no provider of {model!r} has room for more than "
        f"{beyond.longest_tokens}: shorten the prompt."
    )
    failure = context_exceeded(tokens.least, beyond.longest_tokens, message)
    return replace(failure, detail={**failure.detail, "reason": beyond.reason.value})
