"""GET /v1/admin/usage: what was used, by key, model and day."""

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request

from coordinator.api.auth import requires, services_of
from coordinator.api.errors import Refusal
from coordinator.store.records import Grouping, Token, TokenKind, UsageSum
from provider.api.wire import invalid_request

router = APIRouter(responses={"default": {"description": "An error, in OpenAI's form."}})
Operator = Annotated[Token, Depends(requires(TokenKind.ADMIN))]
DEFAULT_PERIOD = timedelta(days=30)
WHEN = "A date (its beginning, in UTC) or a time, as in ISO 8601."
From = Annotated[str | None, Query(alias="from", description=f"{WHEN} Without it, 30 days before `to`.")]
To = Annotated[str | None, Query(description=f"Exclusive. {WHEN} Without it, now.")]
Group = Annotated[str, Query(description="What to break it down by: any of key, model and day, with commas.")]


@router.get("/v1/admin/usage")
async def usage(
    request: Request, _: Operator, since: From = None, to: To = None, group: Group = "key,model,day"
) -> dict[str, Any]:
    """The jobs that ended in [from, to). `not_stored` counts the jobs that this coordinator has still to write."""
    services = services_of(request)
    until = datetime.now(UTC) if to is None else _moment("to", to)
    begin = until - DEFAULT_PERIOD if since is None else _moment("from", since)
    if begin >= until:
        raise Refusal(invalid_request("`from` must be before `to`.", "from"))
    by = _groups(group)
    sums = await services.store.usage(begin, until, by)
    return {
        "from": begin.isoformat(),
        "to": until.isoformat(),
        "group": [one.value for one in by],
        "data": [_shown(one, by) for one in sums],
        "not_stored": services.recorder.waiting,
    }


def _moment(name: str, told: str) -> datetime:
    """Raises Refusal."""
    try:
        moment = datetime.fromisoformat(told)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        today = date.today().isoformat()
        raise Refusal(invalid_request(f"`{name}` must be a date or a time such as {today}.", name)) from None


def _groups(told: str) -> list[Grouping]:
    """Raises Refusal."""
    try:
        wanted = {Grouping(one.strip()) for one in told.split(",") if one.strip()}
    except ValueError:
        raise Refusal(invalid_request(f"`group` must be any of {', '.join(Grouping)}.", "group")) from None
    return [one for one in Grouping if one in wanted]


def _shown(one: UsageSum, by: list[Grouping]) -> dict[str, Any]:
    groups: dict[Grouping, dict[str, Any]] = {
        Grouping.KEY: {"key": one.key_id, "key_name": one.key_name},
        Grouping.MODEL: {"model": one.model},
        Grouping.DAY: {"day": None if one.day is None else one.day.isoformat()},
    }
    shown: dict[str, Any] = {}
    for group in by:
        shown |= groups[group]
    return {
        **shown,
        "requests": one.requests,
        "completed": one.completed,
        "failed": one.failed,
        "refused": one.refused,
        "cancelled": one.cancelled,
        "prompt_tokens": one.prompt_tokens,
        "completion_tokens": one.completion_tokens,
        "total_tokens": one.prompt_tokens + one.completion_tokens,
        "parks": one.parks,
        "recomputes": one.recomputes,
    }
