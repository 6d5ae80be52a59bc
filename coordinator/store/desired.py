"""The queries of the desired models: one list for each revision, the highest counts."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store.records import Desired, DesiredList, Pool
from coordinator.store.tables import DesiredModelRow, DesiredPoolRow, DesiredRevisionRow
from provider.protocol import DesiredModel


async def current(connection: AsyncConnection) -> DesiredList | None:
    """None when there has never been one."""
    revision = await connection.scalar(select(func.max(DesiredRevisionRow.revision)))
    if revision is None:
        return None
    pools: dict[int, list[Pool]] = {}
    query = select(DesiredPoolRow.__table__).where(DesiredPoolRow.revision == revision)
    for row in (await connection.execute(query.order_by(DesiredPoolRow.providers))).mappings():
        pools.setdefault(row["position"], []).append(Pool(row["providers"], row["min_warm"]))
    listed = select(DesiredModelRow.__table__).where(DesiredModelRow.revision == revision)
    rows = (await connection.execute(listed.order_by(DesiredModelRow.position))).mappings()
    models = [
        Desired(
            DesiredModel(id=row["model_id"], source=row["source"], digest=row["digest"]),
            tuple(pools.get(row["position"], ())),
        )
        for row in rows
    ]
    return DesiredList(revision, tuple(models))


async def replace(connection: AsyncConnection, models: Sequence[Desired], token_id: int, now: datetime) -> DesiredList:
    """That list with its revision: the next, or the same again when nothing has changed."""
    # Two coordinators that change it at once get two revisions, one after the other.
    await connection.execute(text("lock table desired_revisions in exclusive mode"))
    known = await current(connection)
    wanted = tuple(_sorted(one) for one in models)
    if known is not None and known.models == wanted:
        return known
    made = DesiredList(1 if known is None else known.revision + 1, wanted)
    await _write(connection, made, token_id, now)
    return made


def _sorted(one: Desired) -> Desired:
    return Desired(one.model, tuple(sorted(one.pools, key=lambda pool: pool.providers)))


async def _write(connection: AsyncConnection, made: DesiredList, token_id: int, now: datetime) -> None:
    await connection.execute(insert(DesiredRevisionRow).values(revision=made.revision, token_id=token_id, made_at=now))
    for position, one in enumerate(made.models):
        place = {"revision": made.revision, "position": position}
        model = {"model_id": one.model.id, "source": one.model.source, "digest": one.model.digest}
        await connection.execute(insert(DesiredModelRow).values(**place, **model))
        for pool in one.pools:
            pooled = {"providers": pool.providers, "min_warm": pool.min_warm}
            await connection.execute(insert(DesiredPoolRow).values(**place, **pooled))
