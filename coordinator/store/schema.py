"""Brings a database to the schema of this version."""

from pathlib import Path

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

import coordinator
from coordinator.errors import StoreDown
from coordinator.store.postgres import CONNECT_TIMEOUT_S, driver_url

MIGRATING = 0x6461726B626C6F6F
"""The advisory lock under which one coordinator at a time migrates ("darkbloo")."""


def migrate(url: str) -> None:
    """Idempotent, and safe beside another coordinator that does the same. Raises StoreDown."""
    # Alembic takes 0.2 s to import, which no other command needs.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
    try:
        with engine.begin() as connection:
            connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except OperationalError as error:
        raise StoreDown(f"The database cannot be migrated: {' '.join(str(error.orig).split())}") from error


def migrations() -> Path:
    """Beside the packages in a source tree, inside this one in an installed wheel (pyproject.toml)."""
    package = Path(coordinator.__file__).parent
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"
