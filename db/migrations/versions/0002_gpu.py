"""What a GPU adds: conditions, roofs, what compilers say, and winners of several measuring policies side by side.

Columns are added in place, on SQLite, too: a million trials are not copied.

Revision ID: 0002
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def _col(name: str, type_: Any, *, null: bool = False) -> sa.Column[Any]:
    """A column."""
    return sa.Column(name, type_, nullable=null)


def upgrade() -> None:
    """From 0001."""
    op.add_column("trials", sa.Column("compile_s", sa.Double(), nullable=False, server_default="0"))
    op.add_column("trials", _col("conditions", sa.Text(), null=True))
    op.add_column("trials", _col("roof_share", sa.Double(), null=True))
    op.add_column("trials", _col("facts", sa.Text(), null=True))
    _winners()
    op.create_table(
        "roofs",
        sa.Column("environment_id", ID, autoincrement=False, nullable=False),
        _col("copy_bytes_per_s", sa.Double()),
        _col("bf16_flops_per_s", sa.Double()),
        _col("measured_at", TIME),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name="fk_roofs_environment_id"),
        sa.PrimaryKeyConstraint("environment_id", name="pk_roofs"),
    )
    _static_facts()


def _winners() -> None:
    """One current winner for each (problem, environment, policy), where there was one for each of the first two."""
    current: dict[str, Any] = {name: sa.text("superseded_at IS NULL") for name in ("sqlite_where", "postgresql_where")}
    op.drop_index("uq_winners_current", "winners")
    op.create_index(
        "uq_winners_current", "winners", ["problem_id", "environment_id", "policy"], unique=True, **current
    )  # fmt: skip
    op.create_index("ix_winners_policy_id", "winners", ["policy", "id"])


def _static_facts() -> None:
    """What compilers say of configs without any device."""
    op.create_table(
        "static_facts",
        _col("id", ID),
        _col("key", sa.String(64)),
        _col("problem_id", ID),
        _col("backend", sa.String(255)),
        _col("config", sa.Text()),
        _col("target", sa.String(255)),
        _col("versions", sa.Text()),
        _col("registers", sa.BigInteger(), null=True),
        _col("stack_bytes", sa.BigInteger(), null=True),
        _col("shared_bytes", sa.BigInteger(), null=True),
        _col("instructions", sa.Text(), null=True),
        _col("compile_s", sa.Double()),
        _col("status", sa.String(32)),
        _col("error", sa.Text()),
        _col("source", sa.String(32)),
        _col("created_at", TIME),
        sa.CheckConstraint(
            "status = 'unsupported' OR (status = 'ok') = (registers IS NOT NULL)",
            name=op.f("ck_static_facts_ok_has_facts"),
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_static_facts_problem_id"),
        sa.PrimaryKeyConstraint("id", name="pk_static_facts"),
        sa.UniqueConstraint("key", name="uq_static_facts_key"),
    )
    for column in ("problem_id", "backend", "target"):
        op.create_index(f"ix_static_facts_{column}_id", "static_facts", [column, "id"])
