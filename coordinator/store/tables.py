"""The tables (migrations/ makes them; a test compares the two)."""

from datetime import datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    String,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {datetime: DateTime(timezone=True), str: String()}  # noqa: RUF012


class TokenRow(Base):
    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint("kind in ('provider', 'api', 'admin')", name="kind"),
        CheckConstraint("requests_per_minute > 0", name="requests_per_minute"),
        CheckConstraint("tokens_per_minute > 0", name="tokens_per_minute"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    kind: Mapped[str]
    name: Mapped[str] = mapped_column(index=True)
    sha256: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    models: Mapped[list[str] | None] = mapped_column(ARRAY(String()))
    requests_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)


class UsageRow(Base):
    """No foreign keys: a row outlives the key and the provider it speaks of."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "token_id", "finished_at"), Index(None, "finished_at"))

    job_id: Mapped[str] = mapped_column(primary_key=True)
    token_id: Mapped[int] = mapped_column(BigInteger)
    endpoint: Mapped[str]
    model: Mapped[str]
    provider_id: Mapped[str | None]
    attempts: Mapped[int]
    outcome: Mapped[str]
    code: Mapped[str | None]
    prompt_tokens: Mapped[int | None] = mapped_column(BigInteger)
    completion_tokens: Mapped[int | None] = mapped_column(BigInteger)
    chunks: Mapped[int] = mapped_column(BigInteger)
    parks: Mapped[int]
    recomputes: Mapped[int]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]


class ProviderRow(Base):
    __tablename__ = "providers"

    provider_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    backend: Mapped[str]
    chip: Mapped[str]
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]


class FloorRow(Base):
    """provider.memory.floors, as the migrations have written it down."""

    __tablename__ = "floors"
    __table_args__ = (CheckConstraint("floor_bytes > 0", name="positive"),)

    model_id: Mapped[str] = mapped_column(primary_key=True)
    floor_bytes: Mapped[int] = mapped_column(BigInteger)
    basis: Mapped[str]
    measured_on: Mapped[str]
    since_release: Mapped[str]


class ResidencyRow(Base):
    __tablename__ = "residency"
    __table_args__ = (CheckConstraint("resident_bytes > 0", name="positive"),)

    model_id: Mapped[str] = mapped_column(primary_key=True)
    resident_bytes: Mapped[int] = mapped_column(BigInteger)
    basis: Mapped[str]
    since_release: Mapped[str]


class DesiredRevisionRow(Base):
    """One for each change of the list, an empty list included."""

    __tablename__ = "desired_revisions"

    revision: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    token_id: Mapped[int] = mapped_column(BigInteger)
    made_at: Mapped[datetime]


class DesiredModelRow(Base):
    __tablename__ = "desired_models"

    revision: Mapped[int] = mapped_column(ForeignKey(DesiredRevisionRow.revision), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[str]
    source: Mapped[str]
    digest: Mapped[str | None]


class DesiredPoolRow(Base):
    """How many of the providers whose names match shall hold the model loaded."""

    __tablename__ = "desired_pools"
    __table_args__ = (
        CheckConstraint("min_warm >= 0", name="not_negative"),
        ForeignKeyConstraint(
            ["revision", "position"], [f"{DesiredModelRow.__tablename__}.{key}" for key in ("revision", "position")]
        ),
    )

    revision: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    providers: Mapped[str] = mapped_column(primary_key=True)
    min_warm: Mapped[int]


class DrainRow(Base):
    """A provider that gets no more requests until the row is gone."""

    __tablename__ = "drains"

    provider_id: Mapped[str] = mapped_column(primary_key=True)
    token_id: Mapped[int] = mapped_column(BigInteger)
    ordered_at: Mapped[datetime]
