"""Plain, frozen records that go into and come out of the store. No SQLAlchemy here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ..kernels.backend import ConfigValue, StaticFacts
from ..kernels.device import Environment
from ..kernels.problem import Problem
from .filters import Page, StaticFactsFilter, TrialFilter, WinnerFilter
from .reference_records import LatencyModel, ReferenceImport, ReferenceRow, ReferenceSource
from .run_records import NewRun, Run, RunProblem, RunProblemState
from .words import CompileStatus, Origin, Policy, RunStatus, Source, TrialStatus

__all__ = [
    "Choice",
    "CompileStatus",
    "Conditions",
    "LatencyModel",
    "Miss",
    "NewRun",
    "NewStaticFacts",
    "NewTrial",
    "NewWinner",
    "Origin",
    "Page",
    "Policy",
    "ReferenceImport",
    "ReferenceRow",
    "ReferenceSource",
    "Roofs",
    "Run",
    "RunProblem",
    "RunProblemState",
    "RunStatus",
    "SchemaState",
    "Source",
    "StaticFactsFilter",
    "StoredEnvironment",
    "StoredStaticFacts",
    "Timing",
    "Trial",
    "TrialFilter",
    "TrialStatus",
    "Winner",
    "WinnerEntry",
    "WinnerFilter",
]


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
class Conditions:
    """What a GPU was like while one config was measured, as NVML says; every figure None where it does not.

    Attributes:
        sm_clock_mhz: lowest and highest SM clock seen.
        memory_clock_mhz: lowest and highest memory clock seen.
        temperature_c: highest GPU temperature seen, degrees Celsius.
        power_w: highest board power seen, watts.
        throttle_reasons: NVML's names of what held the clocks back (`sw_power_cap`, `hw_thermal_slowdown`), sorted;
            idling and clocks that an application set are none.
        throttled_samples: indices into the samples during or after which such a reason was on, ascending.
    """

    sm_clock_mhz: tuple[int, int] | None = None
    memory_clock_mhz: tuple[int, int] | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    throttled_samples: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Roofs:
    """What a card reaches at most, measured on it. Source `measured`.

    Attributes:
        copy_bytes_per_s: bytes read plus bytes written per second of a device-to-device copy much larger than L2.
        bf16_flops_per_s: multiply and add operations per second of a large BF16 matrix product of random operands.
        measured_at: UTC.
    """

    copy_bytes_per_s: float
    bf16_flops_per_s: float
    measured_at: datetime


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
        policy: the measuring policy (`cpu.warm`, `cuda.graph`, `cuda.eager`); figures of two are never compared.
        source: where the figures come from.
        compile_s: seconds of compiler, on whatever core it ran, which `wall_s` need not contain; 0 if nothing was
            compiled.
        conditions: what the card was like; None on a CPU or if nothing was timed.
        roof_share: time that the measured roofs allow at least, over `time_us`; None without roofs or timing.
        facts: what the compiler says of the config (source `compiled`), if it does.

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
    compile_s: float = 0.0
    conditions: Conditions | None = None
    roof_share: float | None = None
    facts: StaticFacts | None = None

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
    compile_s: float = 0.0
    conditions: Conditions | None = None
    roof_share: float | None = None
    facts: StaticFacts | None = None


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
    """What is served for (problem, environment, policy) from now on.

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
        compile_s, conditions, roof_share, facts: of the trial that measured `choice`, as in NewTrial; None without it.
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
    compile_s: float | None = None
    conditions: Conditions | None = None
    roof_share: float | None = None
    facts: StaticFacts | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast as the default: default time over served time."""
        return self.default.time_us / self.choice.time_us


@dataclass(frozen=True, slots=True)
class NewStaticFacts:
    """What a compiler says of a config without any device. Source `compiled`, always.

    Attributes:
        problem: what it computes.
        backend: whose config. config: decoded config.
        target: what it was compiled for: `sm_90a`, `sm_120a`.
        versions: what compiled it, `{"triton": "3.9.0"}`.
        status: what came of it.
        facts: there if status is ok, may be if it is unsupported (they say why), else None; of the same target.
        compile_s: seconds of compiler.
        error: one or more lines; empty if ok.

    Raises:
        ValueError: ok without facts, facts of what did not compile, or facts of another target.
    """

    problem: Problem
    backend: str
    config: Mapping[str, ConfigValue]
    target: str
    versions: Mapping[str, str]
    status: CompileStatus
    facts: StaticFacts | None
    compile_s: float
    error: str = ""

    def __post_init__(self) -> None:
        """Check that what compiled carries facts, and those of its target."""
        if self.status is not CompileStatus.UNSUPPORTED and (self.facts is None) == (self.status is CompileStatus.OK):
            raise ValueError(f"static facts with status {self.status} and facts {self.facts}")
        if self.facts is not None and self.facts.target != self.target:
            raise ValueError(f"static facts for target {self.target!r} that are of {self.facts.target!r}")


@dataclass(frozen=True, slots=True)
class StoredStaticFacts:
    """Stored static facts: NewStaticFacts' fields with an id.

    Attributes:
        id: database id, growing; an entry that is replaced keeps it.
        source: `compiled`.
        created_at: UTC, when this entry, not the one that it replaced, was stored.
        The rest: as in NewStaticFacts.
    """

    id: int
    problem: Problem
    backend: str
    config: Mapping[str, ConfigValue]
    target: str
    versions: Mapping[str, str]
    status: CompileStatus
    facts: StaticFacts | None
    compile_s: float
    error: str
    source: Source
    created_at: datetime


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
