"""Brings a database to the schema of this version."""

from pathlib import Path

from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

import coordinator
from coordinator.errors import StoreAway, StoreDown
from coordinator.store.postgres import CONNECT_TIMEOUT_S, driver_url

PASSING = (
    "starting up",
    "not yet accepting",
    "shutting down",
    "recovery",
    "too many clients",
    "connection slots",
    "too many connections",
)
"""In the words of a server that takes no connections just now (57P03, 53300)."""
MIGRATING = 0x6461726B626C6F6F
"""The advisory lock under which one coordinator at a time migrates ("darkbloo")."""


def migrate(url: str) -> None:
    """Idempotent, and safe beside another coordinator that does the same. Raises StoreDown; StoreAway where waiting may
    help."""
    # Alembic takes 0.2 s to import, which no other command needs.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
    try:
        connecting = engine.connect()
    except OperationalError as error:
        raise unconnected(url, _said(error)) from error
    try:
        with connecting as connection, connection.begin():
            connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise StoreDown(f"The database cannot be migrated: {_said(error)}") from error


def place_of(url: str) -> str:
    """Where the database is, for people: never its password."""
    parsed = make_url(driver_url(url))
    host, port = parsed.host or parsed.query.get("host"), parsed.port or parsed.query.get("port")
    return f"{_joined(host or 'localhost')}:{_joined(port or 5432)}"


def _joined(told: str | int | tuple[str, ...]) -> str:
    return ",".join(told) if isinstance(told, tuple) else str(told)


def unconnected(url: str, said: str) -> StoreDown:
    """A server that gives a reason, and not that it is busy with itself, will give it again. Of a connection that
    fails the driver tells words alone."""
    if "FATAL" in said and not any(one in said for one in PASSING):
        return StoreDown(f"The database at {place_of(url)} does not let us in: {said}")
    return StoreAway(f"The database at {place_of(url)} cannot be reached: {said}")


def _said(error: OperationalError) -> str:
    return " ".join(str(error.orig).split())


def migrations() -> Path:
    """Beside the packages in a source tree, inside this one in an installed wheel (pyproject.toml)."""
    package = Path(coordinator.__file__).parent
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"
