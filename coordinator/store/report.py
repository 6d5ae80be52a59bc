"""The query of the report of usage."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Date, cast, func, literal, literal_column, null, select
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store.records import Grouping, JobOutcome, UsageSum
from coordinator.store.tables import TokenRow, UsageRow


async def usage(
    connection: AsyncConnection, since: datetime, until: datetime, by: Collection[Grouping]
) -> list[UsageSum]:
    """Of the jobs that ended in [since, until), in the order of day, key and model."""
    day = cast(func.timezone(literal_column("'UTC'"), UsageRow.finished_at), Date)
    groups: dict[Grouping, ColumnElement[Any]] = {
        Grouping.DAY: day,
        Grouping.KEY: UsageRow.token_id.expression,
        Grouping.MODEL: UsageRow.model.expression,
    }
    chosen = [column for group, column in groups.items() if group in by]
    shown = [(column if group in by else null()).label(group.value) for group, column in groups.items()]
    sums = (
        select(*shown, *_sums())
        .where(UsageRow.finished_at >= since, UsageRow.finished_at < until)
        .group_by(*chosen)
        .order_by(*chosen)
    )
    found = (await connection.execute(sums)).mappings().all()
    names = await _names(connection, {row["key"] for row in found if row["key"] is not None})
    return [
        UsageSum(
            key_id=row["key"],
            key_name=names.get(row["key"]),
            model=row["model"],
            day=row["day"],
            **{name: int(row[name]) for name in COUNTS},
        )
        for row in found
        if row["requests"]
    ]


COUNTS = (
    "requests",
    "completed",
    "failed",
    "refused",
    "cancelled",
    "prompt_tokens",
    "completion_tokens",
    "parks",
    "recomputes",
)


def _sums() -> list[ColumnElement[Any]]:
    counted: list[ColumnElement[Any]] = [func.count().label("requests")]
    for outcome in JobOutcome:
        ended = func.count().filter(UsageRow.outcome == outcome.value)
        counted.append(ended.label(outcome.value))
    added = ("prompt_tokens", "completion_tokens", "parks", "recomputes")
    return counted + [func.coalesce(func.sum(getattr(UsageRow, name)), literal(0)).label(name) for name in added]


async def _names(connection: AsyncConnection, ids: Collection[int]) -> dict[int, str]:
    rows = await connection.execute(select(TokenRow.id, TokenRow.name).where(TokenRow.id.in_(ids)))
    return {row.id: row.name for row in rows}
