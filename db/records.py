"""Plain, frozen records that go into and come out of the store. No SQLAlchemy here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from ..kernels.backend import ConfigValue
from ..kernels.device import Environment
from ..kernels.problem import Problem

T = TypeVar("T")


class TrialStatus(StrEnum):
    """How a trial ended. Only `ok` has samples."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    COMPILE_FAILED = "compile_failed"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


class Origin(StrEnum):
    """Why a config was tried."""

    DEFAULT = "default"
    SEED = "seed"
    SAMPLER = "sampler"
    ENUMERATED = "enumerated"
    FINAL = "final"
    """A re-measurement of a finalist, interleaved with the default."""


class Source(StrEnum):
    """Where a number comes from. Never mixed without saying so."""

    MEASURED = "measured"
    REFERENCE = "reference"
    COMPILED = "compiled"
    MODEL = "model"


class RunStatus(StrEnum):
    """State of a run. `interrupted`: stopped by the user or found dead; it can be resumed."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured of one config.

    Attributes:
        time_us: median over the samples, microseconds.
        time_us_low: lower end of the 95% interval of the median, microseconds.
        time_us_high: upper end of it, microseconds.
        samples_us: the samples in the order they were taken, microseconds; may be a subset of n_samples.
        n_samples: how many samples the median is over.

    Raises:
        ValueError: a figure is not finite or not positive, or low <= median <= high does not hold.
    """

    time_us: float
    time_us_low: float
    time_us_high: float
    samples_us: Sequence[float]
    n_samples: int

    def __post_init__(self) -> None:
        """Check the figures."""
        if not 0 < self.time_us_low <= self.time_us <= self.time_us_high < float("inf"):
            raise ValueError(
                "timing needs 0 < low <= median <= high < inf, not "
                f"{self.time_us_low}, {self.time_us}, {self.time_us_high}"
            )


@dataclass(frozen=True, slots=True)
class RunProblem:
    """One problem of a run, with what it stands for in the model.

    Attributes:
        problem: the GEMM.
        role: role in the model, `moe.w13`, `attn.qkv`, ...; empty for a bare shape.
        phases: `decode`, `verify`, `draft_extend`, `draft_decode`, `prefill`; empty for a bare shape.
        layers: how many layers share it; 1 for a bare shape.
    """

    problem: Problem
    role: str = ""
    phases: tuple[str, ...] = ()
    layers: int = 1


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known when a run starts.

    Attributes:
        environment: where it runs.
        problems: what it tunes, in order.
        checkpoint: preset name or path as the user gave it; empty for bare shapes.
        settings: every setting that decides what the run does (backends, budget, trials, seed, ...).
        seed: the seed of every random choice.
        host: host name. pid: process id. version: fp4tune's version.
    """

    environment: Environment
    problems: Sequence[RunProblem]
    checkpoint: str
    settings: Mapping[str, Any]
    seed: int
    host: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run.

    Attributes:
        id: 26 characters, sortable by start time.
        status: see RunStatus.
        checkpoint, settings, seed, host, pid, version: as in NewRun.
        environment_fingerprint, device_fingerprint, device_name: where it runs.
        started_at, heartbeat_at: UTC. finished_at: UTC or None while it runs.
        n_problems, n_done, n_trials: progress.
        error: why it failed; empty otherwise.
    """

    id: str
    status: RunStatus
    checkpoint: str
    settings: Mapping[str, Any]
    seed: int
    host: str
    pid: int
    version: str
    environment_fingerprint: str
    device_fingerprint: str
    device_name: str
    started_at: datetime
    heartbeat_at: datetime
    finished_at: datetime | None
    n_problems: int
    n_done: int
    n_trials: int
    error: str


@dataclass(frozen=True, slots=True)
class RunProblemState:
    """A problem of a stored run and whether it is done.

    Attributes:
        position: 0-based place in the run.
        item: the problem and what it stands for.
        done: True once its winner was selected (or it was found that no backend can run it).
        outcome: one sentence about the end; empty while it is not done.
    """

    position: int
    item: RunProblem
    done: bool
    outcome: str


@dataclass(frozen=True, slots=True)
class NewTrial:
    """One trial as the tuner writes it.

    Attributes:
        run_id: the run it belongs to.
        problem: what was computed.
        environment: where.
        number: 0-based, unique inside (run, problem).
        backend: whose config.
        config: decoded config.
        origin: why it was tried.
        status: how it ended.
        timing: set if and only if status is ok.
        error: one or more lines; empty if ok.
        rel_error: relative Frobenius error against the oracle, if it was computed.
        seed: seed of the operands and of the sampler for this trial.
        optimizer, optimizer_version: `optuna.tpe` and Optuna's version, `enumeration`, ...
        started_at: UTC. wall_s: wall-clock seconds the trial took, preparing and checking included.
        policy: the measuring policy (`cpu.warm`, `cuda.eager`); figures of two policies are never compared.
        source: where the figures come from.

    Raises:
        ValueError: timing is there without status ok, or the other way round.
    """

    run_id: str
    problem: Problem
    environment: Environment
    number: int
    backend: str
    config: Mapping[str, ConfigValue]
    origin: Origin
    status: TrialStatus
    timing: Timing | None
    error: str
    rel_error: float | None
    seed: int
    optimizer: str
    optimizer_version: str
    started_at: datetime
    wall_s: float
    policy: str
    source: Source = Source.MEASURED

    def __post_init__(self) -> None:
        """Check that exactly the trials that ran carry a timing."""
        if (self.timing is not None) != (self.status is TrialStatus.OK):
            raise ValueError(f"a trial with status {self.status} and timing {self.timing}")


@dataclass(frozen=True, slots=True)
class Trial:
    """A stored trial: NewTrial's fields, flattened, with its id.

    Attributes:
        id: database id, growing.
        environment_fingerprint, device_fingerprint: where.
        time_us, time_us_low, time_us_high, samples_us, n_samples: as in Timing; None or empty if it did not run.
        The rest: as in NewTrial.
    """

    id: int
    run_id: str
    problem: Problem
    environment_fingerprint: str
    device_fingerprint: str
    number: int
    backend: str
    config: Mapping[str, ConfigValue]
    origin: Origin
    status: TrialStatus
    time_us: float | None
    time_us_low: float | None
    time_us_high: float | None
    samples_us: Sequence[float]
    n_samples: int
    error: str
    rel_error: float | None
    seed: int
    optimizer: str
    optimizer_version: str
    started_at: datetime
    wall_s: float
    policy: str
    source: Source


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, a config, and the time it took.

    Attributes:
        backend: backend name. config: decoded config.
        time_us, time_us_low, time_us_high: median and 95% interval, microseconds.
    """

    backend: str
    config: Mapping[str, ConfigValue]
    time_us: float
    time_us_low: float
    time_us_high: float


@dataclass(frozen=True, slots=True)
class NewWinner:
    """What is served for (problem, environment) from now on.

    Attributes:
        run_id, problem, environment: where it comes from.
        choice: what is served.
        default: the fastest default of any backend, measured in the same interleaved rounds.
        tie_set: every config that cannot be told apart from the fastest, the served one included.
        depends_on: names of the environment's versions that decide whether this config is still valid.
        trial_number: number of the trial (origin final) that measured `choice`.
        n_trials: trials of this problem in this run.
        policy: the measuring policy of every figure here.
        source: where the figures come from.
    """

    run_id: str
    problem: Problem
    environment: Environment
    choice: Choice
    default: Choice
    tie_set: Sequence[Choice]
    depends_on: Sequence[str]
    trial_number: int
    n_trials: int
    policy: str
    source: Source = Source.MEASURED


@dataclass(frozen=True, slots=True)
class Winner:
    """A stored winner.

    Attributes:
        id: database id, growing.
        run_id, problem, choice, default, tie_set, depends_on, n_trials, policy, source: as in NewWinner.
        environment: device and versions it was measured in.
        created_at: UTC. superseded_at: UTC, None while it is the one that is served.
    """

    id: int
    run_id: str
    problem: Problem
    environment: Environment
    choice: Choice
    default: Choice
    tie_set: Sequence[Choice]
    depends_on: Sequence[str]
    n_trials: int
    policy: str
    source: Source
    created_at: datetime
    superseded_at: datetime | None

    @property
    def speedup(self) -> float:
        """How many times as fast as the default: default time over served time."""
        return self.default.time_us / self.choice.time_us


@dataclass(frozen=True, slots=True)
class Miss:
    """A shape that was asked for and not found.

    Attributes:
        problem: what was asked for.
        device_fingerprint, environment_fingerprint: for which; empty if the question named none.
        count: how often. first_at, last_at: UTC.
    """

    problem: Problem
    device_fingerprint: str
    environment_fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class StoredEnvironment:
    """An environment as the store knows it.

    Attributes:
        environment: device and versions. created_at: UTC, when it was first seen.
        n_trials, n_winners: what was measured in it (winners that are served now).
    """

    environment: Environment
    created_at: datetime
    n_trials: int
    n_winners: int


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials to list; None means any.

    Attributes:
        run_id, problem_key, backend, status, environment_fingerprint, device_fingerprint: exact matches.
    """

    run_id: str | None = None
    problem_key: str | None = None
    backend: str | None = None
    status: TrialStatus | None = None
    environment_fingerprint: str | None = None
    device_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class WinnerFilter:
    """Which winners to list; None means any.

    Attributes:
        problem_key, backend, environment_fingerprint, device_fingerprint, run_id: exact matches.
        current: True for those that are served now, False for history, None for both.
    """

    problem_key: str | None = None
    backend: str | None = None
    environment_fingerprint: str | None = None
    device_fingerprint: str | None = None
    run_id: str | None = None
    current: bool | None = True


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a listing.

    Attributes:
        items: at most the limit that was asked for.
        next_after: pass as `after` for the next page; None on the last.
    """

    items: Sequence[T]
    next_after: int | None = field(default=None)


class WinnerEntry(NamedTuple):
    """One current winner, light: what an in-memory index of winners needs, and no more.

    A tuple and not a dataclass, because an index of 100,000 of them is built at start-up. JSON stays text: it is
    canonical (`config_key`), so it can be spliced into an answer without being parsed.

    Attributes:
        id: database id; grows with every new winner and never becomes visible out of order.
        problem, problem_key: the GEMM and its `Problem.key`.
        device_fingerprint, environment_fingerprint: where it was measured.
        run_id: the run that found it.
        backend, config_json: what is served; the config as canonical JSON.
        time_us, time_us_low, time_us_high: its median and 95% interval, microseconds.
        default_backend, default_config_json: the fastest default of any backend.
        default_time_us, default_time_us_low, default_time_us_high: its median and 95% interval, microseconds.
        n_ties: size of the tie set, the served config included.
        depends_on_json: names of the versions that decide about validity, a JSON list.
        n_trials: trials of this problem in its run.
        policy: the measuring policy of every figure here. source: where the figures come from.
        created_at: UTC.
    """

    id: int
    problem: Problem
    problem_key: str
    device_fingerprint: str
    environment_fingerprint: str
    run_id: str
    backend: str
    config_json: str
    time_us: float
    time_us_low: float
    time_us_high: float
    default_backend: str
    default_config_json: str
    default_time_us: float
    default_time_us_low: float
    default_time_us_high: float
    n_ties: int
    depends_on_json: str
    n_trials: int
    policy: str
    source: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Which schema a database has.

    Attributes:
        current: revision the database is at now; None if it has no schema yet.
        head: revision that this fp4tune reads and writes.
        found: revision it was at when the store opened it, before any migration; None if it was new.
    """

    current: str | None
    head: str
    found: str | None
