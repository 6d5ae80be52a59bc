"""Add the tables of activation floors, measured residency and desired models."""

import sqlalchemy as sa
from alembic import op

revision = "20261129_add_memory_tables"
down_revision = "20261129_create_tokens_and_usage"
branch_labels = None
depends_on = None

MIB = 2**20
GIB = 2**30
FLOORS = [
    {
        "model_id": "gpt-oss-20b",
        "floor_bytes": 7 * GIB // 2,
        "basis": "darkbloom, M4 Max 128 GB: 2.7 GiB beyond KV at batch 8 with 4k-token prompts, plus 0.8 of margin",
        "measured_on": "2026-08-30",
        "since_release": "0.8.16",
    },
    {
        "model_id": "darkbloom-demo",
        "floor_bytes": 158 * MIB,
        "basis": "x86-64 CPU, bfloat16: 126 MiB beyond KV at batch 8 with 4000-token prompts, plus a quarter",
        "measured_on": "2026-11-29",
        "since_release": "0.9.0",
    },
]
RESIDENCY = [
    {
        "model_id": "gpt-oss-20b",
        "resident_bytes": 23 * GIB // 2,
        "basis": "darkbloom: 11.25 GiB measured, plus 2 %",
        "since_release": "0.8.16",
    },
]


def upgrade() -> None:
    """The rows are written out: what a migration does must not change with the code beside it."""
    floors = op.create_table(
        "floors",
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("floor_bytes", sa.BigInteger(), nullable=False),
        sa.Column("basis", sa.String(), nullable=False),
        sa.Column("measured_on", sa.String(), nullable=False),
        sa.Column("since_release", sa.String(), nullable=False),
        sa.CheckConstraint("floor_bytes > 0", name=op.f("ck_floors_positive")),
        sa.PrimaryKeyConstraint("model_id", name=op.f("pk_floors")),
    )
    residency = op.create_table(
        "residency",
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("resident_bytes", sa.BigInteger(), nullable=False),
        sa.Column("basis", sa.String(), nullable=False),
        sa.Column("since_release", sa.String(), nullable=False),
        sa.CheckConstraint("resident_bytes > 0", name=op.f("ck_residency_positive")),
        sa.PrimaryKeyConstraint("model_id", name=op.f("pk_residency")),
    )
    op.bulk_insert(floors, FLOORS)
    op.bulk_insert(residency, RESIDENCY)
    op.create_table(
        "desired_revisions",
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("token_id", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_desired_revisions")),
    )
    op.create_table(
        "desired_models",
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("revision", "position", name=op.f("pk_desired_models")),
        sa.ForeignKeyConstraint(
            ["revision"], ["desired_revisions.revision"], name=op.f("fk_desired_models_revision_desired_revisions")
        ),
    )


def downgrade() -> None:
    op.drop_table("desired_models")
    op.drop_table("desired_revisions")
    op.drop_table("residency")
    op.drop_table("floors")
