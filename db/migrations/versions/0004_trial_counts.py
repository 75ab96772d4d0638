"""What a dashboard asks: counts of trials, kept up by whoever adds some, and indexes of its own.

They lead to the trials that failed, to what is served in each place, and to the runs of each environment. What is there
is counted, once, by one scan of the trials.

Revision ID: 0004
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

KEY = ("run_id", "problem_id", "backend", "status", "environment_id")


def _ref(name: str) -> sa.Column[Any]:
    """A column that refers to an id."""
    return sa.Column(name, ID, autoincrement=False, nullable=False)


def upgrade() -> None:
    """From 0003."""
    op.create_table(
        "trial_counts",
        _ref("run_id"),
        _ref("problem_id"),
        sa.Column("backend", sa.String(255), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        _ref("environment_id"),
        sa.Column("n", sa.BigInteger(), nullable=False),
        _ref("last_trial_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_trial_counts_run_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_trial_counts_problem_id"),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name="fk_trial_counts_environment_id"),
        sa.ForeignKeyConstraint(["last_trial_id"], ["trials.id"], name="fk_trial_counts_last_trial_id"),
        sa.PrimaryKeyConstraint(*KEY, name="pk_trial_counts"),
        sqlite_with_rowid=False,
    )
    key = ", ".join(KEY)
    op.execute(
        f"INSERT INTO trial_counts ({key}, n, last_trial_id) "  # noqa: S608 - no input in it
        f"SELECT {key}, count(*), max(id) FROM trials GROUP BY {key}"
    )
    op.create_index("ix_trial_counts_problem_id", "trial_counts", ["problem_id"])
    failed: dict[str, Any] = {name: sa.text("status <> 'ok'") for name in ("sqlite_where", "postgresql_where")}
    op.create_index("ix_trials_failed", "trials", ["backend", "status", "id", "environment_id"], **failed)
    current: dict[str, Any] = {name: sa.text("superseded_at IS NULL") for name in ("sqlite_where", "postgresql_where")}
    op.create_index(
        "ix_winners_current_place", "winners", ["environment_id", "policy", "id", "superseded_at"], **current
    )
    op.create_index("ix_runs_environment_id_ulid", "runs", ["environment_id", "ulid"])
