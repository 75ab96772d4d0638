"""What was not measured here: other people's published times, and models fitted on what was.

Revision ID: 0003
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def _col(name: str, type_: Any) -> sa.Column[Any]:
    """A column."""
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    """From 0002."""
    _sources()
    _curves()
    op.create_table(
        "reference_points",
        sa.Column("curve_id", ID, autoincrement=False, nullable=False),
        sa.Column("m", sa.BigInteger(), autoincrement=False, nullable=False),
        _col("time_us", sa.Double()),
        _col("l2_hot_risk", sa.Boolean()),
        _col("suspect", sa.Text()),
        sa.ForeignKeyConstraint(["curve_id"], ["reference_curves.id"], name="fk_reference_points_curve_id"),
        sa.PrimaryKeyConstraint("curve_id", "m", name="pk_reference_points"),
        sqlite_with_rowid=False,
    )
    _models()


def _sources() -> None:
    """Files that were imported."""
    op.create_table(
        "reference_sources",
        _col("id", ID),
        _col("package", sa.String(255)),
        _col("package_version", sa.String(32)),
        _col("system", sa.String(255)),
        _col("device", sa.String(255)),
        _col("framework", sa.String(255)),
        _col("framework_version", sa.String(32)),
        _col("file", sa.String(1024)),
        _col("sha256", sa.String(64)),
        _col("attribution", sa.Text()),
        _col("imported_at", TIME),
        _col("n_rows", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_reference_sources"),
        sa.UniqueConstraint("package", "package_version", "file", name="uq_reference_sources_file"),
    )
    op.create_index("ix_reference_sources_system", "reference_sources", ["system"])


def _curves() -> None:
    """What the published times of one kernel on one layer have in common."""
    op.create_table(
        "reference_curves",
        _col("id", ID),
        _col("source_id", ID),
        _col("op", sa.String(32)),
        _col("precision", sa.String(32)),
        _col("kernel_source", sa.String(255)),
        *(_col(name, sa.BigInteger()) for name in ("n", "k", "experts", "experts_total", "top_k", "tp", "ep")),
        _col("distribution", sa.String(32)),
        _col("includes_act_quant", sa.Boolean()),
        sa.ForeignKeyConstraint(["source_id"], ["reference_sources.id"], name="fk_reference_curves_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_reference_curves"),
        sqlite_autoincrement=True,
    )
    layer = ["n", "k", "experts", "experts_total", "top_k", "op", "source_id"]
    op.create_index("ix_reference_curves_layer", "reference_curves", layer)


def _models() -> None:
    """Estimates, fitted on a device's measurements."""
    key = {"device_fingerprint": 64, "op": 32, "format": 32, "policy": 255}
    undecided = ("bandwidth_bytes_per_s", "rate_flops_per_s", "serial_us_per_1024_k")  # by every measurement there is
    op.create_table(
        "latency_models",
        *(_col(name, sa.String(length)) for name, length in key.items()),
        _col("launch_us", sa.Double()),
        *(sa.Column(name, sa.Double(), nullable=True) for name in undecided),
        *(_col(name, sa.BigInteger()) for name in ("m_low", "m_high")),
        _col("n_points", sa.BigInteger()),
        _col("median_error", sa.Double()),
        _col("p90_error", sa.Double()),
        _col("fitted_at", TIME),
        sa.PrimaryKeyConstraint(*key, name="pk_latency_models"),
    )
