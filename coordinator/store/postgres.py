"""Every query of the coordinator. Rows become frozen values before they leave."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, func, make_url, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from coordinator.errors import BadConfiguration, StoreDown
from coordinator.store import desired, drains, report
from coordinator.store.records import (
    UNLIMITED,
    Desired,
    DesiredList,
    Grouping,
    KeyLimits,
    MemoryTables,
    Record,
    Residency,
    Sighting,
    Token,
    TokenKind,
    Touch,
    Usage,
    UsageSum,
)
from coordinator.store.tables import FloorRow, ProviderRow, ResidencyRow, TokenRow, UsageRow
from provider.memory.floors import Floor

CONNECT_TIMEOUT_S = 3
ANSWER_TIMEOUT_S = 5
_USAGE = tuple(one.name for one in fields(Usage))
_ADD_USAGE = insert(UsageRow).on_conflict_do_nothing(index_elements=[UsageRow.job_id])


def driver_url(url: str) -> str:
    """`url` with the one driver that is installed (psycopg 3), whatever way it was written.

    Raises BadConfiguration when it does not name a Postgres.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadConfiguration("The database URL must read postgresql://USER@HOST:PORT/DATABASE.") from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise BadConfiguration("The database URL must begin with postgresql://.")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


class Store:
    """Raises StoreDown from every method when the database does not answer in time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_async_engine(
            driver_url(url),
            pool_size=4,
            max_overflow=4,
            pool_timeout=CONNECT_TIMEOUT_S,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
        )

    async def close(self) -> None:
        await self._engine.dispose()

    async def live_tokens(self, hashes: Collection[bytes]) -> dict[bytes, Token]:
        """Those of the hashes that belong to a live token, by hash."""
        query = select(TokenRow.__table__).where(TokenRow.sha256.in_(hashes), TokenRow.revoked_at.is_(None))
        async with self._transaction() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return {bytes(row["sha256"]): _token(row) for row in rows}

    async def tokens(self) -> list[Token]:
        async with self._transaction() as connection:
            rows = await connection.execute(select(TokenRow.__table__).order_by(TokenRow.id))
            return [_token(row) for row in rows.mappings()]

    async def add_token(
        self, kind: TokenKind, name: str, sha256: bytes, now: datetime, limits: KeyLimits = UNLIMITED
    ) -> Token:
        async with self._transaction() as connection:
            return await _add_token(connection, kind, name, sha256, now, limits)

    async def replace_token(self, kind: TokenKind, name: str, sha256: bytes, now: datetime) -> Token:
        """The only live token of that kind and name from now on."""
        same = (TokenRow.kind == kind.value) & (TokenRow.name == name) & (TokenRow.sha256 != sha256)
        async with self._transaction() as connection:
            await _revoke(connection, same, now)
            return await _add_token(connection, kind, name, sha256, now, UNLIMITED)

    async def revoke_tokens(self, name_or_id: str, now: datetime) -> list[Token]:
        """The live tokens of that name or id, now revoked."""
        named: ColumnElement[bool] = TokenRow.name == name_or_id
        if name_or_id.isascii() and name_or_id.isdigit() and len(name_or_id) < 19:
            named = or_(named, TokenRow.id == int(name_or_id))
        async with self._transaction() as connection:
            return await _revoke(connection, named, now)

    async def revoke_token(self, id: int, now: datetime) -> Token | None:
        """The live token of that id, now revoked."""
        async with self._transaction() as connection:
            revoked = await _revoke(connection, TokenRow.id == id, now)
        return revoked[0] if revoked else None

    async def write(self, records: Sequence[Record]) -> None:
        """All or none; those of a kind in their order. A usage row whose job is already there changes nothing."""
        usage = [record for record in records if isinstance(record, Usage)]
        async with self._transaction() as connection:
            if usage:
                await _add_usage(connection, usage)
            for record in records:
                if not isinstance(record, Usage):
                    await _note(connection, record)

    async def memory_tables(self) -> MemoryTables:
        async with self._transaction() as connection:
            floors = (await connection.execute(select(FloorRow.__table__))).mappings().all()
            residency = (await connection.execute(select(ResidencyRow.__table__))).mappings().all()
        return MemoryTables(
            {row["model_id"]: _floor(row) for row in floors}, {row["model_id"]: _residency(row) for row in residency}
        )

    async def desired(self) -> DesiredList | None:
        """The list of the highest revision; None when there has never been one."""
        async with self._transaction() as connection:
            return await desired.current(connection)

    async def desire(self, models: Sequence[Desired], token_id: int, now: datetime) -> DesiredList:
        """That list with its revision: the next, or the same again when nothing has changed."""
        async with self._transaction() as connection:
            return await desired.replace(connection, models, token_id, now)

    async def drains(self) -> frozenset[str]:
        """The ids of the providers that operators have ordered to drain."""
        async with self._transaction() as connection:
            return await drains.ordered(connection)

    async def order_drain(self, provider_id: str, drain: bool, token_id: int, now: datetime) -> None:
        """Or, without `drain`, its end. Idempotent."""
        async with self._transaction() as connection:
            if drain:
                await drains.order(connection, provider_id, token_id, now)
            else:
                await drains.take_back(connection, provider_id)

    async def usage(self, since: datetime, until: datetime, by: Collection[Grouping]) -> list[UsageSum]:
        """Of the jobs that ended in [since, until), in the order of day, key and model."""
        async with self._transaction() as connection:
            return await report.usage(connection, since, until, by)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), self._engine.begin() as connection:
                yield connection
        except (OperationalError, InterfaceError, PoolTimeout, TimeoutError, OSError) as error:
            raise StoreDown(_said(error)) from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise StoreDown(_said(error)) from error


def _said(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__


def _token(row: object) -> Token:
    values = dict(row)  # type: ignore[call-overload]  # a RowMapping; its key type is private
    return Token(
        id=values["id"],
        kind=TokenKind(values["kind"]),
        name=values["name"],
        created_at=values["created_at"],
        revoked_at=values["revoked_at"],
        last_used_at=values["last_used_at"],
        limits=KeyLimits(
            models=None if values["models"] is None else frozenset(values["models"]),
            requests_per_minute=values["requests_per_minute"],
            tokens_per_minute=values["tokens_per_minute"],
        ),
    )


def _floor(row: RowMapping) -> Floor:
    return Floor(row["floor_bytes"], row["basis"], row["measured_on"], row["since_release"])


def _residency(row: RowMapping) -> Residency:
    return Residency(row["resident_bytes"], row["basis"], row["since_release"])


async def _add_token(
    connection: AsyncConnection, kind: TokenKind, name: str, sha256: bytes, now: datetime, limits: KeyLimits
) -> Token:
    """A secret that is already known is made live again, under this name and with these limits."""
    values = {
        "kind": kind.value,
        "name": name,
        "revoked_at": None,
        "models": None if limits.models is None else sorted(limits.models),
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
    }
    statement = insert(TokenRow).values(**values, sha256=sha256, created_at=now)
    upsert = statement.on_conflict_do_update(index_elements=[TokenRow.sha256], set_=values)
    row = await connection.execute(upsert.returning(TokenRow.__table__))
    return _token(row.mappings().one())


async def _revoke(connection: AsyncConnection, which: ColumnElement[bool], now: datetime) -> list[Token]:
    live = update(TokenRow).where(which, TokenRow.revoked_at.is_(None)).values(revoked_at=now)
    rows = await connection.execute(live.returning(TokenRow.__table__))
    return [_token(row) for row in rows.mappings()]


async def _add_usage(connection: AsyncConnection, usage: Sequence[Usage]) -> None:
    """There is one with every request: so all of them are one statement, which is compiled once."""
    await connection.execute(_ADD_USAGE, [_storable({name: getattr(one, name) for name in _USAGE}) for one in usage])


async def _note(connection: AsyncConnection, record: Sighting | Touch) -> None:
    match record:
        case Sighting():
            await _see(connection, record)
        case Touch():
            later = func.greatest(TokenRow.last_used_at, record.used_at)
            await connection.execute(update(TokenRow).where(TokenRow.id == record.token_id).values(last_used_at=later))


def _storable(values: dict[str, Any]) -> dict[str, Any]:
    """Postgres' text holds no NUL, which a provider's strings may."""
    return {key: one.replace("\0", "\ufffd") if isinstance(one, str) else one for key, one in values.items()}


async def _see(connection: AsyncConnection, sighting: Sighting) -> None:
    facts = {
        "name": sighting.name,
        "version": sighting.version,
        "backend": sighting.backend,
        "chip": sighting.chip,
        "last_seen_at": sighting.seen_at,
    }
    facts = _storable(facts)
    statement = insert(ProviderRow).values(provider_id=sighting.provider_id, first_seen_at=sighting.seen_at, **facts)
    later = ProviderRow.last_seen_at <= sighting.seen_at
    upsert = statement.on_conflict_do_update(index_elements=[ProviderRow.provider_id], set_=facts, where=later)
    await connection.execute(upsert)
