"""The finals over worker processes: in every round each entrant once, in random order, in its own family's worker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...db.records import Conditions, TrialStatus
from ...kernels.backend import family
from ..executor import MIN_ROUNDS, Evaluation
from ..measure import timing_of
from .blame import Blame
from .families import Families
from .family import WorkerLostError
from .process import FailedInsideError, WorkerError

if TYPE_CHECKING:
    from ...kernels.problem import Problem
    from ..executor import Candidate


@dataclass(slots=True)
class _Entrant:
    """A candidate in the rounds.

    Attributes:
        candidate: what. family: whose worker runs it.
        result: what the gate said, or why it was dropped. dropped: whether it was.
        number: what its worker calls it, once it has entered there.
        samples_us: microseconds. throttled: indices into them.
        conditions: of every worker that it has been in.
    """

    candidate: Candidate
    family: str
    result: Evaluation
    dropped: bool = False
    number: int = -1
    samples_us: list[float] = field(default_factory=list)
    throttled: list[int] = field(default_factory=list)
    conditions: list[Conditions] = field(default_factory=list)

    def drop(self, status: TrialStatus, sentence: str) -> None:
        self.dropped = True
        self.result = Evaluation(status, None, sentence, self.result.rel_error, 0.0)


class Rounds:
    """One run of rounds over one problem.

    Args:
        families: the workers. blame: who is not let near one, and who will not be. problem: that is open.
    """

    def __init__(self, families: Families, blame: Blame, problem: Problem) -> None:
        self._families = families
        self._blame = blame
        self._problem = problem
        self._entrants: list[_Entrant] = []

    def run(self, candidates: Sequence[Candidate], *, n_rounds: int, budget_s: float, seed: int) -> list[Evaluation]:
        """See Executor.rounds."""
        start = time.monotonic()
        self._entrants = [self._entrant(candidate) for candidate in candidates]
        names = {entrant.family for entrant in self._entrants if not entrant.dropped}
        for name in sorted(names):
            self._families.begin(name)
        for name in sorted(names):
            self._enter(name)
        shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
        order = list(self._entrants)
        for done in range(n_rounds):
            if done >= MIN_ROUNDS and time.monotonic() - start > budget_s:
                break
            shuffle(order)
            for entrant in order:
                if not entrant.dropped:
                    self._sample(entrant)
        for name in sorted(names):
            self._leave(name)
        share_s = (time.monotonic() - start) / max(1, len(candidates))
        return [replace(_result(entrant), wall_s=share_s) for entrant in self._entrants]

    def _entrant(self, candidate: Candidate) -> _Entrant:
        entrant = _Entrant(candidate, family(candidate.backend), Evaluation(TrialStatus.OK, None, "", None, 0.0))
        if verdict := self._blame.verdict(self._problem, candidate):
            entrant.drop(TrialStatus.CRASHED, verdict)
        return entrant

    def _of(self, name: str) -> Iterable[_Entrant]:
        """The entrants of a family that are still in the race."""
        return [entrant for entrant in self._entrants if entrant.family == name and not entrant.dropped]

    def _enter(self, name: str) -> None:
        """Until all entrants of a family are in one and the same process. Each worker that dies costs one entrant."""
        while True:
            worker = self._families.ready(name)
            if worker.refusal is not None:
                for entrant in self._of(name):
                    entrant.drop(worker.refusal.status, worker.refusal.error)
                return
            number = 0
            try:
                for entrant in self._of(name):
                    try:
                        evaluation = worker.enter(entrant.candidate)
                    except WorkerLostError as lost:
                        self._lost(entrant, lost)
                        raise
                    if evaluation.status is not TrialStatus.OK:
                        entrant.drop(evaluation.status, evaluation.error)
                        continue
                    entrant.result = evaluation
                    entrant.number, number = number, number + 1
            except WorkerLostError:
                continue
            return

    def _sample(self, entrant: _Entrant) -> None:
        """One sample, in the worker that the family has then."""
        try:
            sample = self._families[entrant.family].sample(entrant.number)
        except WorkerLostError as lost:
            self._lost(entrant, lost)
            self._enter(entrant.family)
        except FailedInsideError as error:
            entrant.drop(TrialStatus.CRASHED, f"{error.type_name}: {error.text}")
        else:
            if sample.throttled:
                entrant.throttled.append(len(entrant.samples_us))
            entrant.samples_us.append(sample.us)

    def _lost(self, entrant: _Entrant, lost: WorkerLostError) -> None:
        """The worker is gone, and this entrant was running: it is dropped."""
        self._blame.add(self._problem, entrant.candidate, lost.sentence)
        entrant.drop(TrialStatus.TIMEOUT if lost.timed_out else TrialStatus.CRASHED, lost.sentence)

    def _leave(self, name: str) -> None:
        """Get the conditions. A worker that cannot say is none: everything was sampled."""
        worker = self._families[name]
        if not worker.is_open:
            return
        try:
            conditions = worker.leave()
        except WorkerError:
            worker.end()
            return
        for entrant in self._of(name):
            if entrant.number in conditions:
                entrant.conditions.append(conditions[entrant.number])


def _result(entrant: _Entrant) -> Evaluation:
    if entrant.dropped or not entrant.samples_us:
        return entrant.result
    timing = timing_of(entrant.samples_us)
    conditions = entrant.conditions[-1] if entrant.conditions else None
    if conditions is not None:
        # Those of before the family's worker was replaced are lost, but which samples were throttled is not.
        conditions = replace(conditions, throttled_samples=tuple(entrant.throttled))
    return replace(entrant.result, timing=timing, conditions=conditions)
