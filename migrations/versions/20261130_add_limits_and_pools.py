"""Add what limits a key, the pools of desired models, and an index for reports of usage."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_add_limits_and_pools"
down_revision = "20261129_add_memory_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Columns that may be null, so that coordinators of the version before go on beside this one."""
    op.add_column("tokens", sa.Column("models", sa.ARRAY(sa.String()), nullable=True))
    for limit in ("requests_per_minute", "tokens_per_minute"):
        op.add_column("tokens", sa.Column(limit, sa.BigInteger(), nullable=True))
        op.create_check_constraint(op.f(f"ck_tokens_{limit}"), "tokens", f"{limit} > 0")
    op.create_index(op.f("ix_usage_finished_at"), "usage", ["finished_at"])
    op.create_table(
        "desired_pools",
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("providers", sa.String(), nullable=False),
        sa.Column("min_warm", sa.Integer(), nullable=False),
        sa.CheckConstraint("min_warm >= 0", name=op.f("ck_desired_pools_not_negative")),
        sa.PrimaryKeyConstraint("revision", "position", "providers", name=op.f("pk_desired_pools")),
        sa.ForeignKeyConstraint(
            ["revision", "position"],
            ["desired_models.revision", "desired_models.position"],
            name=op.f("fk_desired_pools_revision_desired_models"),
        ),
    )


def downgrade() -> None:
    op.drop_table("desired_pools")
    op.drop_index(op.f("ix_usage_finished_at"), "usage")
    for limit in ("requests_per_minute", "tokens_per_minute"):
        op.drop_constraint(op.f(f"ck_tokens_{limit}"), "tokens")
        op.drop_column("tokens", limit)
    op.drop_column("tokens", "models")
