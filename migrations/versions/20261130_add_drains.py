"""Add the operators' orders to drain a provider."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_add_drains"
down_revision = "20261130_add_limits_and_pools"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drains",
        sa.Column("provider_id", sa.String(), nullable=False),
        sa.Column("token_id", sa.BigInteger(), nullable=False),
        sa.Column("ordered_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("provider_id", name=op.f("pk_drains")),
    )


def downgrade() -> None:
    op.drop_table("drains")
