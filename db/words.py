"""The words that columns hold: enumerations. `fp4tune.db.records` has them all; take them from there."""

from __future__ import annotations

from enum import StrEnum


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


class Policy(StrEnum):
    """How something was measured (docs/decisions/0008), in the order in which lookups prefer what is served.

    Figures of two policies are never compared, and a winner of one never replaces a winner of another.
    """

    CUDA_GRAPH = "cuda.graph"
    """Replays of a CUDA graph over operand sets that have left L2: what an inference server does."""
    CUDA_EAGER = "cuda.eager"
    """The same rotation, launched one by one from the host: for engines that run without graphs."""
    CPU_WARM = "cpu.warm"
    """Wall clock around calls, caches as the call before left them: the only one on CPUs."""


class CompileStatus(StrEnum):
    """What came of compiling a config without running it."""

    OK = "ok"
    COMPILE_FAILED = "compile_failed"
    UNSUPPORTED = "unsupported"
    """It compiled, and must not be run (it spills, it lacks the instruction it is there for)."""


class RunStatus(StrEnum):
    """State of a run. `interrupted`: stopped by the user or found dead; it can be resumed."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
