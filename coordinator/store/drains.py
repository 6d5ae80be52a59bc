"""The queries of the operators' orders to drain: one row for each provider that is to get no more requests."""

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store.tables import DrainRow


async def ordered(connection: AsyncConnection) -> frozenset[str]:
    """The ids of these providers."""
    return frozenset((await connection.execute(select(DrainRow.provider_id))).scalars())


async def order(connection: AsyncConnection, provider_id: str, token_id: int, now: datetime) -> None:
    """Ordered again, it stays the first order."""
    row = insert(DrainRow).values(provider_id=provider_id, token_id=token_id, ordered_at=now)
    await connection.execute(row.on_conflict_do_nothing())


async def take_back(connection: AsyncConnection, provider_id: str) -> None:
    await connection.execute(delete(DrainRow).where(DrainRow.provider_id == provider_id))
