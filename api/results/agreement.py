"""Whether two runs serve the same: the promise that tuning again changes nothing that matters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...db.records import Choice, Winner
from ...kernels.backend import config_key
from ...kernels.errors import InvalidInputError
from ...kernels.problem import Problem
from .gather import RunResult


class Verdict(StrEnum):
    """How what two runs serve for one problem compares."""

    SAME = "same config"
    TIED = "inside the tie set"
    """The config of one run is in the tie set of the other: it could not be told apart from its fastest."""
    DIFFERENT = "different"
    ONE_ONLY = "served by one run only"


class Serves(Protocol):
    """What one run serves for a problem: `choice`, and `tie_set`, which it could not tell apart from its fastest."""

    @property
    def choice(self) -> Choice:
        """What is served."""
        ...

    @property
    def tie_set(self) -> Sequence[Choice]:
        """What is tied with the fastest, the served one included."""
        ...


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two runs, problem by problem.

    Attributes:
        first, second: ids of the runs.
        verdicts: every problem that both of them have, in the first's order, with its verdict and what each serves.
    """

    first: str
    second: str
    verdicts: tuple[tuple[Problem, Verdict, Choice | None, Choice | None], ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How often each verdict, all of them named."""
        counted = Counter(verdict for _, verdict, _, _ in self.verdicts)
        return {verdict: counted[verdict] for verdict in Verdict}


def agreement(first: RunResult, second: RunResult) -> Agreement:
    """Compare what two runs serve.

    Raises:
        InvalidInputError: they are of two environments or policies, or have no problem in common.
    """
    if first.environment.fingerprint != second.environment.fingerprint:
        raise InvalidInputError(
            f"Run {second.run.id} belongs to environment {second.environment.fingerprint} and run {first.run.id} to "
            f"{first.environment.fingerprint}: two environments need not agree, so there is nothing to compare."
        )
    if (mine := first.run.settings.get("policy")) != (theirs := second.run.settings.get("policy")):
        raise InvalidInputError(
            f"The runs are measured by two policies, {mine} and {theirs}, which are never compared."
        )
    others = {one.problem: one.winner for one in second.problems}
    verdicts = tuple(
        (one.problem, verdict_on(one.winner, others[one.problem]), _choice(one.winner), _choice(others[one.problem]))
        for one in first.problems
        if one.problem in others and (one.winner or others[one.problem])
    )
    if not verdicts:
        raise InvalidInputError(f"Runs {first.run.id} and {second.run.id} serve no problem in common.")
    return Agreement(first.run.id, second.run.id, verdicts)


def verdict_on(mine: Serves | None, theirs: Serves | None) -> Verdict:
    """How what two runs serve for one problem compares; None is a run that serves nothing."""
    if mine is None or theirs is None:
        return Verdict.ONE_ONLY
    if _key(mine.choice) == _key(theirs.choice):
        return Verdict.SAME
    tied = _key(theirs.choice) in map(_key, mine.tie_set) or _key(mine.choice) in map(_key, theirs.tie_set)
    return Verdict.TIED if tied else Verdict.DIFFERENT


def _choice(winner: Winner | None) -> Choice | None:
    return winner.choice if winner else None


def _key(choice: Choice) -> str:
    return f"{choice.backend} {config_key(choice.config)}"
