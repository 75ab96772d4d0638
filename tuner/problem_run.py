"""One problem of a run: its trials from the first default to the finals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from ..db.records import LatencyModel, NewTrial, Origin, Trial, TrialStatus
from ..kernels.backend import Space
from ..kernels.problem import Problem
from .context import JobContext
from .events import CompilersAwaited, FinalsStarted, TrialDone
from .executor import Candidate, Evaluation
from .plausible import Plausibility, plausibility
from .search import Proposal, Search, candidate_key
from .select import Searched, Selection, finalists, select
from .writer import TrialWriter

_POLL_S = 0.5
"""How often a stop and the budget are looked at while compilers are waited for."""

_PATIENCE_S = 5.0
"""A wait for compilers that takes longer is told: Triton's take a second or two, nvcc minutes."""


class ProblemRun:
    """Proposes, submits, collects, stores and tells, until the budget or the candidates are out.

    As many candidates as the executor wants are in flight. What is in flight when the search ends is not stored, so a
    resume may propose it again.

    Args:
        context: of the job.
        run_id: the run. position: of the problem in it. problem: what is computed.
        search: proposes candidates.
        writer: where trials go.
        earlier: committed trials of this problem in this run, in order (resume); the search learns from them.
        model: of the device, for problems like this one; times far from it are doubted.

    Attributes:
        problem: as above.
    """

    def __init__(
        self,
        context: JobContext,
        run_id: str,
        position: int,
        problem: Problem,
        search: Search,
        writer: TrialWriter,
        earlier: Sequence[Trial],
        model: LatencyModel | None = None,
    ) -> None:
        self._context = context
        self._run_id = run_id
        self._position = position
        self.problem = problem
        self._search = search
        self._writer = writer
        self._searched: list[Searched] = []
        self._in_flight: dict[str, Proposal] = {}
        self._numbers: dict[str, int] = {}
        self._next_number = 1 + max((trial.number for trial in earlier), default=-1)
        self._n_search = 0
        self._floor_us: float | None = None
        self._model = model
        self._plausible: Plausibility | None = None
        self._n_too_fast = 0
        self._deadline = 0.0
        self._spent_s = 0.0
        for trial in earlier:
            # A refused problem is stored without a config; a backend without parameters has an empty one that ran.
            if trial.origin is not Origin.FINAL and (trial.config or trial.status is not TrialStatus.UNSUPPORTED):
                self._learn(Candidate(trial.backend, trial.config), trial.time_us, trial.origin)
                self._spent_s += trial.wall_s

    @property
    def n_trials(self) -> int:
        """Trials of this problem in this run so far, those before a resume included."""
        return self._next_number

    def number_of(self, candidate: Candidate) -> int:
        """The number of the last trial of a candidate."""
        return self._numbers[candidate_key(candidate)]

    def refuse(self, backend: str, reason: str) -> None:
        """Remember that a backend cannot run the problem."""
        refused = Evaluation(TrialStatus.UNSUPPORTED, None, reason, None, 0.0)
        self._store(Candidate(backend, {}), Origin.DEFAULT, refused)

    def search(self, when_all_is_proposed: Callable[[], None] = lambda: None) -> None:
        """Try candidates until the trials, the seconds or the candidates are out, or a stop is requested.

        Seconds are those of the wall clock: the device's and those spent waiting for it or for a compiler.

        Args:
            when_all_is_proposed: called once unless a stop is requested before, as soon as nothing more will be
                submitted: from then on there are compilers without work.
        """
        settings, executor = self._context.settings, self._context.executor
        self._deadline = time.monotonic() + settings.budget_s - self._spent_s
        was_told = False
        with ThreadPoolExecutor(1, "fp4tune-proposer") as proposer:
            while not self._context.stop.requested:
                while len(self._in_flight) < max(1, executor.lookahead) and (proposal := self._propose()):
                    self._submit(proposal)
                if not was_told and len(self._in_flight) < max(1, executor.lookahead):
                    when_all_is_proposed()
                    was_told = True
                if not self._in_flight or self._is_over or not self._await_compilers():
                    break
                # The sampler takes some ten milliseconds, in which the device need not wait for it.
                ahead = proposer.submit(self._propose) if executor.lookahead > 1 else None
                candidate, evaluation = executor.collect(settings.effort, best_us=self._best_us(defaults_only=False))
                proposal = ahead.result() if ahead is not None else None
                self._finish(self._in_flight.pop(candidate_key(candidate)), evaluation)
                if proposal is not None and not self._context.stop.requested:
                    self._submit(proposal)
        self._in_flight.clear()

    @property
    def _is_over(self) -> bool:
        """Whether the seconds are out. What must be tried is waited for, however few they are."""
        return self._left_s <= 0 and not self._search.musts_left

    def _await_compilers(self) -> bool:
        """Wait until there is something to measure; False if the search ends before."""
        start, was_told = time.monotonic(), False
        while awaited := self._context.executor.await_compilers(_POLL_S):
            if self._context.stop.requested or self._is_over:
                return False
            if not was_told and time.monotonic() - start >= _PATIENCE_S:
                was_told = True
                names = tuple(sorted({candidate.backend for candidate in awaited}))
                left_s = max(0.0, self._left_s)
                self._context.tell(CompilersAwaited(self._position, names, self._search.musts_left, left_s))
        return True

    def _propose(self) -> Proposal | None:
        """The next candidate, if the budget has room for one more."""
        left = self._context.settings.trials - self._n_search - len(self._in_flight)
        # Always tried, however small the budget: what the user has today must not be lost.
        if not self._search.musts_to_propose and (self._left_s <= 0 or left <= 0):
            return None
        return self._search.propose(trials_left=max(1, left))

    def _submit(self, proposal: Proposal) -> None:
        self._in_flight[candidate_key(proposal.candidate)] = proposal
        self._context.executor.submit(proposal.candidate)

    @property
    def _left_s(self) -> float:
        """Seconds of the problem's budget that are left; negative if it is overrun."""
        return self._deadline - time.monotonic()

    def finals(self, spaces: Mapping[str, Space]) -> Selection | None:
        """Re-measure the finalists interleaved with the defaults and the baselines, and pick what is served.

        Args:
            spaces: each backend's space, for the tie rule.

        Returns:
            None if no config runs that could be served.
        """
        settings = self._context.settings
        # Six rounds are the fewest; with calls that take seconds they may take four times the budget, and no more.
        round_s = 4 * settings.finals_s / settings.effort.min_samples
        entrants = finalists(self._searched, round_s=round_s)
        if not entrants:
            return None
        self._context.tell(FinalsStarted(self._position, len(entrants)))
        evaluations = self._context.executor.rounds(
            [entrant.candidate for entrant in entrants],
            n_rounds=settings.finals_rounds,
            budget_s=settings.finals_s,
            seed=settings.seed,
        )
        for entrant, evaluation in zip(entrants, evaluations, strict=True):
            self._store(entrant.candidate, Origin.FINAL, evaluation)
        return select(entrants, evaluations, spaces)

    def _finish(self, proposal: Proposal, evaluation: Evaluation) -> None:
        """Store what became of a proposal, learn from it, tell it."""
        time_us = evaluation.timing.time_us if evaluation.timing else None
        number = self._store(proposal.candidate, proposal.origin, evaluation)
        self._learn(proposal.candidate, time_us, proposal.origin)
        self._context.tell(
            TrialDone(
                position=self._position,
                number=number,
                candidate=proposal.candidate,
                status=evaluation.status,
                time_us=time_us,
                best_us=self._best_us(defaults_only=False),
                default_us=self._best_us(defaults_only=True),
                error=evaluation.error.split("\n", 1)[0],
                seconds_left=max(0.0, self._left_s),
            )
        )

    def doubt(self, selection: Selection | None) -> str:
        """Why what is to be served, or a trial of the search, cannot have been as fast or as slow; else empty."""
        found = self._plausibility.doubt(selection.served.time_us) if selection else ""
        if not found and self._n_too_fast:
            n, least_us = self._n_too_fast, self._plausibility.floor_us
            found = f"{n} trial{'s' * (n > 1)} took less than the {least_us:,.1f} µs that reading the bytes takes"
        return found

    @property
    def _plausibility(self) -> Plausibility:
        """What times of this problem are held against."""
        if self._plausible is None:
            settings, device, roofs = self._context.settings, self._context.device, self._context.roofs
            self._plausible = plausibility(self.problem, settings.seed, device, roofs=roofs, model=self._model)
        return self._plausible

    def _learn(self, candidate: Candidate, time_us: float | None, origin: Origin) -> None:
        self._n_search += 1
        self._search.tell(candidate, time_us)
        if time_us is not None:
            self._n_too_fast += self._plausibility.is_too_fast(time_us)
            is_baseline = self._search.is_baseline(candidate.backend)
            is_default = origin is Origin.DEFAULT and not is_baseline
            self._searched.append(Searched(candidate, time_us, is_default=is_default, is_baseline=is_baseline))

    def _best_us(self, *, defaults_only: bool) -> float | None:
        """The best median so far of what could be served."""
        times = (s.time_us for s in self._searched if not s.is_baseline and (s.is_default or not defaults_only))
        return min(times, default=None)

    def _roof_share(self, evaluation: Evaluation) -> float | None:
        """Time that the card's roofs allow at least, over the time it took; None without roofs or timing."""
        roofs = self._context.roofs
        if roofs is None or evaluation.timing is None:
            return None
        if self._floor_us is None:
            from .roofs import floor_us

            self._floor_us = floor_us(self.problem, roofs, self._context.settings.seed, self._context.device)
        return self._floor_us / evaluation.timing.time_us

    def _store(self, candidate: Candidate, origin: Origin, evaluation: Evaluation) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        self._numbers[candidate_key(candidate)] = number
        self._writer.add(
            NewTrial(
                run_id=self._run_id,
                problem=self.problem,
                environment=self._context.environment,
                number=number,
                backend=candidate.backend,
                config=candidate.config,
                origin=origin,
                status=evaluation.status,
                timing=evaluation.timing,
                error=evaluation.error,
                rel_error=evaluation.rel_error,
                seed=self._context.settings.seed,
                optimizer=self._search.optimizer,
                optimizer_version=self._search.optimizer_version,
                started_at=datetime.now(UTC) - timedelta(seconds=evaluation.wall_s),
                wall_s=evaluation.wall_s,
                policy=self._context.executor.policy,
                compile_s=evaluation.compile_s,
                conditions=evaluation.conditions,
                roof_share=self._roof_share(evaluation),
                facts=evaluation.facts,
            )
        )
        return number
