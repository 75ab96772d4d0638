"""What a tuning job tells whoever watches it. Plain values; a display or a log makes sentences of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..db.records import Choice, RunProblem, RunStatus, TrialStatus
from ..kernels.device import Environment
from .executor import Candidate
from .select import Selection


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run was created or resumed.

    Attributes:
        run_id: its id. environment: where. n_problems: how many problems. n_done: how many were done before.
    """

    run_id: str
    environment: Environment
    n_problems: int
    n_done: int


@dataclass(frozen=True, slots=True)
class ProblemStarted:
    """A problem's operands are about to be made.

    Attributes:
        position: 0-based. item: the problem. backends: in the race.
        refused: backends that cannot run it, with the reason. n_listed: legal candidates, if known.
        n_trials: trials found in the store (resume).
    """

    position: int
    item: RunProblem
    backends: tuple[str, ...]
    refused: Mapping[str, str]
    n_listed: int | None
    n_trials: int


@dataclass(frozen=True, slots=True)
class TrialDone:
    """A trial ended.

    Attributes:
        position: of the problem. number: of the trial. candidate: what. status: how it ended.
        time_us: its median, if it ran. best_us, default_us: best so far and fastest default so far, if any.
        error: first line of what went wrong. seconds_left: until the problem's budget is out.
    """

    position: int
    number: int
    candidate: Candidate
    status: TrialStatus
    time_us: float | None
    best_us: float | None
    default_us: float | None
    error: str
    seconds_left: float


@dataclass(frozen=True, slots=True)
class CompilersAwaited:
    """The device has had nothing to do for a while, because all that was submitted is still being compiled.

    Attributes:
        position: of the problem. backends: whose compilers are waited for, sorted.
        beyond_budget: whether a default is among it, which is waited for however long it takes.
        seconds_left: until the problem's budget is out.
    """

    position: int
    backends: tuple[str, ...]
    beyond_budget: bool
    seconds_left: float


@dataclass(frozen=True, slots=True)
class FinalsStarted:
    """The search of a problem is over; finalists are re-measured.

    Attributes:
        position: of the problem. n_finalists: how many.
    """

    position: int
    n_finalists: int


@dataclass(frozen=True, slots=True)
class ProblemDone:
    """A problem is done.

    Attributes:
        position: of the problem. item: the problem. outcome: one sentence.
        selection: what is served from now on; None if nothing can run it, or if what was served before stays.
        baseline: the fastest baseline, measured in the rounds of the finals, if there is one.
    """

    position: int
    item: RunProblem
    selection: Selection | None
    outcome: str
    baseline: Choice | None = None


@dataclass(frozen=True, slots=True)
class RunDone:
    """The run is over.

    Attributes:
        run_id: its id. status: finished or interrupted. n_winners: winners stored. n_trials: trials stored.
    """

    run_id: str
    status: RunStatus
    n_winners: int
    n_trials: int


Event = RunStarted | ProblemStarted | TrialDone | CompilersAwaited | FinalsStarted | ProblemDone | RunDone
