"""Create the tables of keys, usage and providers."""

import sqlalchemy as sa
from alembic import op

revision = "20261129_create_tokens_and_usage"
down_revision = None
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("revoked_at", WHEN, nullable=True),
        sa.Column("last_used_at", WHEN, nullable=True),
        sa.CheckConstraint("kind in ('provider', 'api', 'admin')", name=op.f("ck_tokens_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    op.create_index(op.f("ix_tokens_name"), "tokens", ["name"])
    op.create_table(
        "usage",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("token_id", sa.BigInteger(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("provider_id", sa.String(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("chunks", sa.BigInteger(), nullable=False),
        sa.Column("parks", sa.Integer(), nullable=False),
        sa.Column("recomputes", sa.Integer(), nullable=False),
        sa.Column("started_at", WHEN, nullable=False),
        sa.Column("finished_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_token_id_finished_at"), "usage", ["token_id", "finished_at"])
    op.create_table(
        "providers",
        sa.Column("provider_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("backend", sa.String(), nullable=False),
        sa.Column("chip", sa.String(), nullable=False),
        sa.Column("first_seen_at", WHEN, nullable=False),
        sa.Column("last_seen_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("provider_id", name=op.f("pk_providers")),
    )


def downgrade() -> None:
    op.drop_table("providers")
    op.drop_table("usage")
    op.drop_table("tokens")
