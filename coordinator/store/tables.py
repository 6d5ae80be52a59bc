"""The tables (migrations/ makes them; a test compares the two)."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Identity, Index, LargeBinary, MetaData, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {datetime: DateTime(timezone=True), str: String()}  # noqa: RUF012


class TokenRow(Base):
    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint("kind in ('provider', 'api', 'admin')", name="kind"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    kind: Mapped[str]
    name: Mapped[str] = mapped_column(index=True)
    sha256: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class UsageRow(Base):
    """No foreign keys: a row outlives the key and the provider it speaks of."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "token_id", "finished_at"),)

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
