"""The first schema.

Revision ID: 0001
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def _col(name: str, type_: Any, *, null: bool = False) -> sa.Column[Any]:
    """A column."""
    return sa.Column(name, type_, nullable=null)


def _ref(name: str, table: str, of: str) -> tuple[sa.Column[Any], sa.ForeignKeyConstraint]:
    """A column that holds the id of another table's row, and its constraint."""
    return _col(name, ID), sa.ForeignKeyConstraint([name], [f"{table}.id"], name=f"fk_{of}_{name}")


def _only(condition: str) -> dict[str, Any]:
    """A partial index, on either database."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _names(*names: str, length: int) -> list[sa.Column[Any]]:
    return [_col(name, sa.String(length)) for name in names]


def _ints(*names: str) -> list[sa.Column[Any]]:
    return [_col(name, sa.BigInteger()) for name in names]


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [_col(name, sa.Text()) for name in names]


def upgrade() -> None:
    """Make all tables."""
    _places()
    _runs()
    _trials()
    _winners()
    _misses()
    meta = op.create_table(
        "meta",
        _col("key", sa.String(32)),
        _col("value", sa.BigInteger()),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
    op.bulk_insert(meta, [{"key": "generation", "value": 0}, {"key": "misses", "value": 0}])


def _places() -> None:
    """Devices, environments, problems: what the other tables refer to."""
    op.create_table(
        "devices",
        _col("id", ID),
        _col("fingerprint", sa.String(64)),
        _col("kind", sa.String(32)),
        _col("name", sa.String(255)),
        _col("compute_capability", sa.String(32)),
        *_ints("sms", "memory_bytes", "l2_bytes"),
        _col("power_limit_w", sa.Double()),
        _col("created_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint("fingerprint", name="uq_devices_fingerprint"),
    )
    op.create_table(
        "environments",
        _col("id", ID),
        _col("fingerprint", sa.String(64)),
        *_ref("device_id", "devices", "environments"),
        _col("versions", sa.Text()),
        _col("created_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_environments"),
        sa.UniqueConstraint("fingerprint", name="uq_environments_fingerprint"),
    )
    op.create_table(
        "problems",
        _col("id", ID),
        _col("key", sa.String(160)),
        _col("op", sa.String(32)),
        *_ints("m", "n", "k", "experts", "experts_total", "top_k"),
        *_names("routing", "format", "out_dtype", length=32),
        sa.PrimaryKeyConstraint("id", name="pk_problems"),
        sa.UniqueConstraint("key", name="uq_problems_key"),
    )


def _runs() -> None:
    """Runs and their problems."""
    op.create_table(
        "runs",
        _col("id", ID),
        _col("ulid", sa.String(26)),
        _col("status", sa.String(32)),
        *_ref("environment_id", "environments", "runs"),
        *_texts("checkpoint", "settings"),
        _col("seed", sa.BigInteger()),
        _col("host", sa.String(255)),
        _col("pid", sa.BigInteger()),
        _col("process_scope", sa.String(255)),
        _col("process_birth", sa.BigInteger()),
        _col("version", sa.String(255)),
        _col("started_at", TIME),
        _col("heartbeat_at", TIME),
        _col("finished_at", TIME, null=True),
        *_ints("n_problems", "n_done", "n_trials"),
        _col("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("ulid", name="uq_runs_ulid"),
    )
    op.create_index("ix_runs_running", "runs", ["id"], **_only("status = 'running'"))
    op.create_table(
        "run_problems",
        *_ref("run_id", "runs", "run_problems"),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        *_ref("problem_id", "problems", "run_problems"),
        _col("role", sa.String(255)),
        _col("phases", sa.Text()),
        _col("layers", sa.BigInteger()),
        _col("done", sa.Boolean()),
        _col("outcome", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", "position", name="pk_run_problems"),
    )


def _trials() -> None:
    """Trials, with one index for each filter of a listing."""
    op.create_table(
        "trials",
        _col("id", ID),
        *_ref("run_id", "runs", "trials"),
        *_ref("problem_id", "problems", "trials"),
        *_ref("environment_id", "environments", "trials"),
        *_ref("device_id", "devices", "trials"),
        _col("number", sa.BigInteger()),
        _col("backend", sa.String(255)),
        _col("config", sa.Text()),
        *_names("origin", "status", length=32),
        _col("time_us", sa.Double(), null=True),
        _col("time_us_low", sa.Double(), null=True),
        _col("time_us_high", sa.Double(), null=True),
        _col("samples", sa.LargeBinary()),
        _col("n_samples", sa.BigInteger()),
        _col("error", sa.Text()),
        _col("rel_error", sa.Double(), null=True),
        _col("seed", sa.BigInteger()),
        *_names("optimizer", "optimizer_version", length=255),
        _col("started_at", TIME),
        _col("wall_s", sa.Double()),
        _col("policy", sa.String(255)),
        _col("source", sa.String(32)),
        sa.CheckConstraint("(status = 'ok') = (time_us IS NOT NULL)", name=op.f("ck_trials_ok_has_time")),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("run_id", "problem_id", "number", name="uq_trials_run_id_problem_id_number"),
    )
    for column in ("run_id", "problem_id", "environment_id", "device_id", "backend", "status"):
        op.create_index(f"ix_trials_{column}_id", "trials", [column, "id"])


def _winners() -> None:
    """Winners: one current one for each (problem, environment), and the history."""
    op.create_table(
        "winners",
        _col("id", ID),
        *_ref("run_id", "runs", "winners"),
        *_ref("problem_id", "problems", "winners"),
        *_ref("environment_id", "environments", "winners"),
        *_ref("device_id", "devices", "winners"),
        _col("backend", sa.String(255)),
        _col("config", sa.Text()),
        *(_col(name, sa.Double()) for name in ("time_us", "time_us_low", "time_us_high")),
        _col("default_backend", sa.String(255)),
        _col("default_config", sa.Text()),
        *(_col(f"default_{name}", sa.Double()) for name in ("time_us", "time_us_low", "time_us_high")),
        _col("tie_set", sa.Text()),
        _col("n_ties", sa.BigInteger()),
        _col("depends_on", sa.Text()),
        *_ints("trial_number", "n_trials"),
        _col("policy", sa.String(255)),
        _col("source", sa.String(32)),
        _col("created_at", TIME),
        _col("superseded_at", TIME, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_winners"),
        sqlite_autoincrement=True,
    )
    current = _only("superseded_at IS NULL")
    op.create_index("uq_winners_current", "winners", ["problem_id", "environment_id"], unique=True, **current)
    op.create_index("ix_winners_current_id", "winners", ["id"], **current)
    for column in ("run_id", "problem_id", "environment_id", "device_id", "backend"):
        op.create_index(f"ix_winners_{column}_id", "winners", [column, "id"])


def _misses() -> None:
    """Questions without an answer, counted."""
    op.create_table(
        "misses",
        _col("id", ID),
        *_names("device_fingerprint", "environment_fingerprint", length=64),
        _col("problem_key", sa.String(160)),
        _col("count", sa.BigInteger()),
        _col("first_at", TIME),
        _col("last_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_misses"),
        sa.UniqueConstraint(
            "device_fingerprint", "environment_fingerprint", "problem_key", name="uq_misses_question"
        ),
    )  # fmt: skip
