"""The tables. One set of models for SQLite and PostgreSQL; migrations/versions/ is what actually makes them.

Choices that hold for every table:

- Times are UTC; a column takes and gives only datetimes with a time zone.
- JSON is canonical text (`config_key`), not a JSON column: the text is the identity of a config, and must be the
  same bytes in every database.
- Rows are never updated once they say what was measured. What changes: a run's progress, a winner's
  `superseded_at`, an environment's roofs when they are measured again, what a compiler says when it is asked again,
  a latency model when it is fitted again, the counts of trials, a miss's counts, `meta`.
- Listings are by id within a filter, so that every filter of a listing has an index that ends in id.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ..kernels.errors import InvalidInputError

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names for every constraint, so that a later migration can drop one on either database."""


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """A datetime that has a time zone on the way in, and is UTC on the way out."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """To UTC; SQLite, which knows no zones, gets it without one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise InvalidInputError(f"A stored time needs a time zone, and {value.isoformat()} has none.")
        try:
            utc = value.astimezone(UTC)
        except OverflowError:
            raise InvalidInputError(f"The time {value.isoformat()} cannot be told in UTC.") from None
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """With UTC as its zone."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""Type of ids: 64 bits. SQLite's rowid must be called INTEGER."""

Id = Annotated[int, mapped_column(ID, primary_key=True)]
Int64 = Annotated[int, mapped_column(sa.BigInteger())]
Float64 = Annotated[float, mapped_column(sa.Double())]
Json = Annotated[str, mapped_column(sa.Text())]
Prose = Annotated[str, mapped_column(sa.Text())]
Name = Annotated[str, mapped_column(sa.String(255))]
Word = Annotated[str, mapped_column(sa.String(32))]
Fingerprint = Annotated[str, mapped_column(sa.String(64))]
ProblemKey = Annotated[str, mapped_column(sa.String(160))]


class Base(DeclarativeBase):
    """Base of all models."""

    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime()}  # noqa: RUF012 - SQLAlchemy's own name and type for it


def _ref(column: str) -> Any:
    """A foreign key to an id."""
    return mapped_column(ID, sa.ForeignKey(column))


class DeviceRow(Base):
    """A card or CPU, known by its fingerprint."""

    __tablename__ = "devices"
    __table_args__ = (sa.UniqueConstraint("fingerprint"),)

    id: Mapped[Id]
    fingerprint: Mapped[Fingerprint]
    kind: Mapped[Word]
    name: Mapped[Name]
    compute_capability: Mapped[Word]
    sms: Mapped[Int64]
    memory_bytes: Mapped[Int64]
    l2_bytes: Mapped[Int64]
    power_limit_w: Mapped[Float64]
    created_at: Mapped[datetime]


class EnvironmentRow(Base):
    """A device and versions, known by their fingerprint."""

    __tablename__ = "environments"
    __table_args__ = (sa.UniqueConstraint("fingerprint"),)

    id: Mapped[Id]
    fingerprint: Mapped[Fingerprint]
    device_id: Mapped[int] = _ref("devices.id")
    versions: Mapped[Json]
    created_at: Mapped[datetime]


class ProblemRow(Base):
    """A GEMM, known by its key; the columns repeat what the key says, for people who query by hand."""

    __tablename__ = "problems"
    __table_args__ = (sa.UniqueConstraint("key"),)

    id: Mapped[Id]
    key: Mapped[ProblemKey]
    op: Mapped[Word]
    m: Mapped[Int64]
    n: Mapped[Int64]
    k: Mapped[Int64]
    experts: Mapped[Int64]
    experts_total: Mapped[Int64]
    top_k: Mapped[Int64]
    routing: Mapped[Word]
    format: Mapped[Word]
    out_dtype: Mapped[Word]


class RunRow(Base):
    """One execution of the tuning job. `ulid` is the id that people see."""

    __tablename__ = "runs"
    __table_args__ = (
        sa.UniqueConstraint("ulid"),
        sa.Index(None, "environment_id", "ulid"),
        sa.Index("ix_runs_running", "id", sqlite_where=sa.text("status = 'running'"),
                 postgresql_where=sa.text("status = 'running'")),
    )  # fmt: skip

    id: Mapped[Id]
    ulid: Mapped[str] = mapped_column(sa.String(26))
    status: Mapped[Word]
    environment_id: Mapped[int] = _ref("environments.id")
    checkpoint: Mapped[Prose]
    settings: Mapped[Json]
    seed: Mapped[Int64]
    host: Mapped[Name]
    pid: Mapped[Int64]
    process_scope: Mapped[Name]
    process_birth: Mapped[Int64]
    version: Mapped[Name]
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    n_problems: Mapped[Int64]
    n_done: Mapped[Int64]
    n_trials: Mapped[Int64]
    error: Mapped[Prose]


class RunProblemRow(Base):
    """One problem of a run, at its place."""

    __tablename__ = "run_problems"

    run_id: Mapped[int] = mapped_column(ID, sa.ForeignKey("runs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(sa.BigInteger(), primary_key=True, autoincrement=False)
    problem_id: Mapped[int] = _ref("problems.id")
    role: Mapped[Name]
    phases: Mapped[Json]
    layers: Mapped[Int64]
    done: Mapped[bool]
    outcome: Mapped[Prose]


class TrialRow(Base):
    """One config, on one problem, in one environment."""

    __tablename__ = "trials"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "problem_id", "number"),
        sa.Index(None, "run_id", "id"),
        sa.Index(None, "problem_id", "id"),
        sa.Index(None, "environment_id", "id"),
        sa.Index(None, "device_id", "id"),
        sa.Index(None, "backend", "id"),
        sa.Index(None, "status", "id"),
        # What failed, newest first, in one environment or in all. Trials that ran do not pay for it.
        sa.Index("ix_trials_failed", "backend", "status", "id", "environment_id",
                 sqlite_where=sa.text("status <> 'ok'"), postgresql_where=sa.text("status <> 'ok'")),
        sa.CheckConstraint("(status = 'ok') = (time_us IS NOT NULL)", name="ok_has_time"),
    )  # fmt: skip

    id: Mapped[Id]
    run_id: Mapped[int] = _ref("runs.id")
    problem_id: Mapped[int] = _ref("problems.id")
    environment_id: Mapped[int] = _ref("environments.id")
    device_id: Mapped[int] = _ref("devices.id")
    number: Mapped[Int64]
    backend: Mapped[Name]
    config: Mapped[Json]
    origin: Mapped[Word]
    status: Mapped[Word]
    time_us: Mapped[Float64 | None]
    time_us_low: Mapped[Float64 | None]
    time_us_high: Mapped[Float64 | None]
    samples: Mapped[bytes] = mapped_column(sa.LargeBinary())
    n_samples: Mapped[Int64]
    error: Mapped[Prose]
    rel_error: Mapped[Float64 | None]
    seed: Mapped[Int64]
    optimizer: Mapped[Name]
    optimizer_version: Mapped[Name]
    started_at: Mapped[datetime]
    wall_s: Mapped[Float64]
    policy: Mapped[Name]
    source: Mapped[Word]
    compile_s: Mapped[Float64] = mapped_column(server_default="0")
    conditions: Mapped[Json | None]
    roof_share: Mapped[Float64 | None]
    facts: Mapped[Json | None]


class TrialCountRow(Base):
    """How many trials of a problem in a run ended how: sums over trials that are read without reading trials.

    The environment is in the key because a run that was resumed on another driver has trials in two. On SQLite the
    key is the table.
    """

    __tablename__ = "trial_counts"
    __table_args__ = (sa.Index(None, "problem_id"), {"sqlite_with_rowid": False})

    run_id: Mapped[int] = mapped_column(ID, sa.ForeignKey("runs.id"), primary_key=True, autoincrement=False)
    problem_id: Mapped[int] = mapped_column(ID, sa.ForeignKey("problems.id"), primary_key=True, autoincrement=False)
    backend: Mapped[str] = mapped_column(sa.String(255), primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    environment_id: Mapped[int] = mapped_column(
        ID, sa.ForeignKey("environments.id"), primary_key=True, autoincrement=False
    )  # fmt: skip
    n: Mapped[Int64]
    last_trial_id: Mapped[int] = _ref("trials.id")


class WinnerRow(Base):
    """What is, or was, served for (problem, environment, policy). AUTOINCREMENT: the feed of changes is by id."""

    __tablename__ = "winners"
    __table_args__ = (
        sa.Index("uq_winners_current", "problem_id", "environment_id", "policy", unique=True,
                 sqlite_where=sa.text("superseded_at IS NULL"), postgresql_where=sa.text("superseded_at IS NULL")),
        sa.Index("ix_winners_current_id", "id",
                 sqlite_where=sa.text("superseded_at IS NULL"), postgresql_where=sa.text("superseded_at IS NULL")),
        # Where anything is served, place by place, and how much. The last column is always NULL: with it SQLite knows
        # that the index says everything, and reads no winner.
        sa.Index("ix_winners_current_place", "environment_id", "policy", "id", "superseded_at",
                 sqlite_where=sa.text("superseded_at IS NULL"), postgresql_where=sa.text("superseded_at IS NULL")),
        sa.Index(None, "problem_id", "id"),
        sa.Index(None, "environment_id", "id"),
        sa.Index(None, "device_id", "id"),
        sa.Index(None, "run_id", "id"),
        sa.Index(None, "backend", "id"),
        sa.Index(None, "policy", "id"),
        {"sqlite_autoincrement": True},
    )  # fmt: skip

    id: Mapped[Id]
    run_id: Mapped[int] = _ref("runs.id")
    problem_id: Mapped[int] = _ref("problems.id")
    environment_id: Mapped[int] = _ref("environments.id")
    device_id: Mapped[int] = _ref("devices.id")
    backend: Mapped[Name]
    config: Mapped[Json]
    time_us: Mapped[Float64]
    time_us_low: Mapped[Float64]
    time_us_high: Mapped[Float64]
    default_backend: Mapped[Name]
    default_config: Mapped[Json]
    default_time_us: Mapped[Float64]
    default_time_us_low: Mapped[Float64]
    default_time_us_high: Mapped[Float64]
    tie_set: Mapped[Json]
    n_ties: Mapped[Int64]
    depends_on: Mapped[Json]
    trial_number: Mapped[Int64]
    n_trials: Mapped[Int64]
    policy: Mapped[Name]
    source: Mapped[Word]
    created_at: Mapped[datetime]
    superseded_at: Mapped[datetime | None]


class RoofsRow(Base):
    """What an environment's card reaches at most."""

    __tablename__ = "roofs"

    environment_id: Mapped[int] = mapped_column(
        ID, sa.ForeignKey("environments.id"), primary_key=True, autoincrement=False
    )  # fmt: skip
    copy_bytes_per_s: Mapped[Float64]
    bf16_flops_per_s: Mapped[Float64]
    measured_at: Mapped[datetime]


class StaticFactsRow(Base):
    """What a compiler says of a config. `key` hashes what it is known by, which may be longer than an index takes."""

    __tablename__ = "static_facts"
    __table_args__ = (
        sa.UniqueConstraint("key"),
        sa.Index(None, "problem_id", "id"),
        sa.Index(None, "backend", "id"),
        sa.Index(None, "target", "id"),
        sa.CheckConstraint("status = 'unsupported' OR (status = 'ok') = (registers IS NOT NULL)", name="ok_has_facts"),
    )

    id: Mapped[Id]
    key: Mapped[Fingerprint]
    problem_id: Mapped[int] = _ref("problems.id")
    backend: Mapped[Name]
    config: Mapped[Json]
    target: Mapped[Name]
    versions: Mapped[Json]
    registers: Mapped[Int64 | None]
    stack_bytes: Mapped[Int64 | None]
    shared_bytes: Mapped[Int64 | None]
    instructions: Mapped[Json | None]
    compile_s: Mapped[Float64]
    status: Mapped[Word]
    error: Mapped[Prose]
    source: Mapped[Word]
    created_at: Mapped[datetime]


class ReferenceSourceRow(Base):
    """One imported file of somebody else's measurements, with whose it is."""

    __tablename__ = "reference_sources"
    __table_args__ = (
        sa.UniqueConstraint("package", "package_version", "file", name="uq_reference_sources_file"),
        sa.Index(None, "system"),
    )

    id: Mapped[Id]
    package: Mapped[Name]
    package_version: Mapped[Word]
    system: Mapped[Name]
    device: Mapped[Name]
    framework: Mapped[Name]
    framework_version: Mapped[Word]
    file: Mapped[str] = mapped_column(sa.String(1024))
    sha256: Mapped[Fingerprint]
    attribution: Mapped[Prose]
    imported_at: Mapped[datetime]
    n_rows: Mapped[Int64]


class ReferenceCurveRow(Base):
    """What the published times of one kernel on one layer have in common, so that each of them takes few bytes."""

    __tablename__ = "reference_curves"
    __table_args__ = (
        sa.Index("ix_reference_curves_layer", "n", "k", "experts", "experts_total", "top_k", "op", "source_id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Id]
    source_id: Mapped[int] = _ref("reference_sources.id")
    op: Mapped[Word]
    precision: Mapped[Word]
    kernel_source: Mapped[Name]
    n: Mapped[Int64]
    k: Mapped[Int64]
    experts: Mapped[Int64]
    experts_total: Mapped[Int64]
    top_k: Mapped[Int64]
    tp: Mapped[Int64]
    ep: Mapped[Int64]
    distribution: Mapped[Word]
    includes_act_quant: Mapped[bool]


class ReferencePointRow(Base):
    """One published time. There are half a million of a package: on SQLite the key is the table."""

    __tablename__ = "reference_points"
    __table_args__ = ({"sqlite_with_rowid": False},)

    curve_id: Mapped[int] = mapped_column(
        ID, sa.ForeignKey("reference_curves.id"), primary_key=True, autoincrement=False
    )  # fmt: skip
    m: Mapped[int] = mapped_column(sa.BigInteger(), primary_key=True, autoincrement=False)
    time_us: Mapped[Float64]
    l2_hot_risk: Mapped[bool]
    suspect: Mapped[Prose]


class LatencyModelRow(Base):
    """An estimate fitted on a device's measurements; by fingerprint alone, and replaced when it is fitted again."""

    __tablename__ = "latency_models"

    device_fingerprint: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    op: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    format: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    policy: Mapped[str] = mapped_column(sa.String(255), primary_key=True)
    launch_us: Mapped[Float64]
    bandwidth_bytes_per_s: Mapped[Float64 | None]
    rate_flops_per_s: Mapped[Float64 | None]
    serial_us_per_1024_k: Mapped[Float64 | None]
    m_low: Mapped[Int64]
    m_high: Mapped[Int64]
    n_points: Mapped[Int64]
    median_error: Mapped[Float64]
    p90_error: Mapped[Float64]
    fitted_at: Mapped[datetime]


class MissRow(Base):
    """A problem that was asked for and not found; by key alone, so that questions do not fill `problems`."""

    __tablename__ = "misses"
    __table_args__ = (
        sa.UniqueConstraint("device_fingerprint", "environment_fingerprint", "problem_key", name="uq_misses_question"),
    )

    id: Mapped[Id]
    device_fingerprint: Mapped[Fingerprint]
    environment_fingerprint: Mapped[Fingerprint]
    problem_key: Mapped[ProblemKey]
    count: Mapped[Int64]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]


class MetaRow(Base):
    """Counters of the store itself. Its rows are also what writers lock on PostgreSQL."""

    __tablename__ = "meta"

    key: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    value: Mapped[Int64]
