"""The tuning job: for every problem search, gate, measure, select, and remember all of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from itertools import zip_longest
from typing import TypeVar

from ..db.records import (
    Choice,
    LatencyModel,
    NewRun,
    NewWinner,
    Page,
    RunProblem,
    RunProblemState,
    RunStatus,
    Trial,
    TrialFilter,
    WinnerFilter,
)
from ..db.store import Store
from ..kernels.backend import Backend, can_serve, load_backends
from ..kernels.errors import InvalidInputError, OtherKindError, OutOfMemoryError, UnsupportedError
from ..kernels.problem import Problem
from .context import JobContext
from .events import ProblemDone, ProblemStarted, RunDone, RunStarted
from .executor import Candidate
from .latency_model import nearness
from .plausible import with_doubt
from .problem_run import ProblemRun
from .search import Arm, Search, first_candidates
from .select import Selection
from .writer import TrialWriter

T = TypeVar("T")

NEIGHBOUR_SEEDS = 2
"""Winners of neighbouring problems tried per backend before the sampler takes over."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How an execution of a run ended.

    Attributes:
        run_id: the run. status: finished or interrupted. n_winners: winners stored by this execution.
        n_served: problems of this execution for which something is served now, new or from before.
    """

    run_id: str
    status: RunStatus
    n_winners: int
    n_served: int


class TuningJob:
    """Tunes problems on one device. Call `start` or `resume` once.

    Args:
        store: open for writing.
        context: where, with what, how hard, who watches.
    """

    def __init__(self, store: Store, context: JobContext) -> None:
        self._store = store
        self._context = context
        self._n_served = 0
        self._left_out: dict[str, str] = {}
        self._registered: dict[str, Backend] | None = None
        self._families: dict[Problem, list[tuple[int, Choice]]] | None = None
        self._models: dict[tuple[str, str], LatencyModel | None] = {}

    def start(
        self, items: Sequence[RunProblem], *, checkpoint: str = "", extra: Mapping[str, object] | None = None
    ) -> JobResult:
        """Create a run and execute it.

        Args:
            items: the problems, in order.
            checkpoint: what the user named; empty for bare shapes.
            extra: further settings to remember with the run (tp, ep, tokens). `left_out`, name -> sentence, are
                backends that would race but for something missing: each problem remembers them as refused.

        Raises:
            InvalidInputError: there is nothing to tune. StoreError: the run cannot be stored.
        """
        if not items:
            raise InvalidInputError("There is nothing to tune: no problem was given.")
        settings = {
            **asdict(self._context.settings),
            "policy": self._context.executor.policy,
            "backends": sorted(self._context.backends),
            **(extra or {}),
        }
        run_id = self._store.create_run(
            NewRun(
                environment=self._context.environment,
                problems=items,
                checkpoint=checkpoint,
                settings=settings,
                seed=self._context.settings.seed,
                host=platform.node(),
                pid=os.getpid(),
                version=metadata.version("fp4tune"),
            )
        )
        return self._execute(run_id)

    def resume(self, run_id: str) -> JobResult:
        """Go on with a run that was interrupted or killed: done problems are skipped, committed trials are kept.

        Raises:
            NotFoundError: no such run. BusyError: it is alive. InvalidInputError: it is finished, ran elsewhere, or
                was measured by another policy.
        """
        run = self._store.run(run_id)
        if run.status is RunStatus.FINISHED:
            raise InvalidInputError(f"Run {run.id} is finished; there is nothing to resume.")
        here = self._context.environment.fingerprint
        if run.environment_fingerprint != here:
            raise InvalidInputError(
                f"Run {run.id} belongs to environment {run.environment_fingerprint} and this is {here}: timings of "
                "two environments cannot be mixed; start a new run."
            )
        policy = self._context.executor.policy
        if (run.settings.get("policy") or policy) != policy:
            raise InvalidInputError(
                f"Run {run.id} is measured by policy {run.settings['policy']} and this would be {policy}: figures of "
                "two policies are never compared; resume it with its own, or start a new run."
            )
        self._store.take_over_run(run.id, host=platform.node(), pid=os.getpid())
        return self._execute(run.id)

    def _execute(self, run_id: str) -> JobResult:
        stop = self._context.stop
        n_winners = 0
        try:
            self._left_out = dict(self._store.run(run_id).settings.get("left_out") or {})
            states = self._store.run_problems(run_id)
            n_done = sum(state.done for state in states)
            self._context.tell(RunStarted(run_id, self._context.environment, len(states), n_done))
            with TrialWriter(self._store, run_id) as writer:
                left = [state for state in states if not state.done]
                for state, following in zip_longest(left, left[1:]):
                    if not stop.requested:
                        n_winners += self._problem(run_id, state, following, writer)
        except BaseException as error:
            # What is committed stays. Say how the run ended; the caller sees the error itself.
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            ended = RunStatus.INTERRUPTED if stopped else RunStatus.FAILED
            self._store.finish_run(run_id, ended, "" if stopped else f"{type(error).__name__}: {error}")
            raise
        finally:
            self._context.executor.close()
        status = RunStatus.INTERRUPTED if stop.requested else RunStatus.FINISHED
        self._store.finish_run(run_id, status)
        self._context.tell(RunDone(run_id, status, n_winners, self._store.run(run_id).n_trials))
        return JobResult(run_id, status, n_winners, self._n_served)

    def _problem(
        self, run_id: str, state: RunProblemState, following: RunProblemState | None, writer: TrialWriter
    ) -> int:
        """Tune one problem, and prepare for the one that follows. Returns how many winners it stored: 1 or 0."""
        position, item, problem = state.position, state.item, state.item.problem
        earlier = self._earlier_trials(run_id, problem)
        current = self._current(problem)
        arms, refused = self._arms(problem, current)
        search = Search(arms, seed=self._context.settings.seed)
        names = tuple(arm.backend for arm in arms)
        self._context.tell(ProblemStarted(position, item, names, refused, search.n_listed, len(earlier)))
        run = ProblemRun(self._context, run_id, position, problem, search, writer, earlier, self._model(problem))
        known = {trial.backend for trial in earlier}
        for backend, reason in (refused | self._missing(problem)).items():
            if backend not in known:
                run.refuse(backend, reason)
        selection, outcome = self._tune(run, search, arms, following.item.problem if following else None)
        baseline = selection.baseline if selection else None
        doubt = run.doubt(selection)
        if selection is not None and current is not None and search.musts_left:
            # Stopped before what is served now had its turn: what was found has not been compared with it.
            selection, outcome = None, "what was served before is kept"
        elif selection is not None and current is not None and _is_better_outside(current, names, selection):
            outcome = (
                f"{current.backend} is served, which took {current.time_us:,.1f} µs, and is not in this race; "
                f"the best here took {selection.served.time_us:,.1f} µs"
            )
            selection = None
        outcome = with_doubt(outcome, doubt)
        writer.flush()
        if selection is not None:
            self._store.add_winner(self._winner(run_id, problem, selection, run))
            self._family(problem).append((problem.m, selection.served))
        if self._context.stop.requested:
            # What was found is served, but the search was cut short: the problem stays open for a resume.
            outcome = f"interrupted; {outcome}"
        else:
            self._store.finish_problem(run_id, position, outcome)
        self._context.tell(ProblemDone(position, item, selection, outcome, baseline))
        self._n_served += selection is not None or current is not None
        return int(selection is not None)

    def _tune(
        self, run: ProblemRun, search: Search, arms: Sequence[Arm], following: Problem | None
    ) -> tuple[Selection | None, str]:
        """Search and finals. What is selected, if anything, and one sentence about it."""
        if all(arm.is_baseline for arm in arms):
            return None, "no backend can run it" + (", baselines apart" if arms else "")
        try:
            self._context.executor.open(run.problem, self._context.settings.seed)
        except (OutOfMemoryError, UnsupportedError) as error:
            return None, str(error)
        run.search(lambda: self._prefetch(following))
        selection = run.finals({arm.backend: arm.space for arm in arms})
        if selection is not None:
            return selection, selection.sentence
        return None, "nothing was tried" if search.musts_left else "no config passed the correctness gate"

    def _prefetch(self, following: Problem | None) -> None:
        """While the device is busy with the last trials and finals, compilers are idle. Let them do the next problem's.

        What that tries first is known, but for what becomes of the problem at hand.
        """
        if following is not None and not self._context.stop.requested:
            arms, _ = self._arms(following, self._current(following))
            self._context.executor.prefetch(following, first_candidates(arms))

    def _winner(self, run_id: str, problem: Problem, selection: Selection, run: ProblemRun) -> NewWinner:
        served = selection.served
        backend = self._context.backends[served.backend]
        return NewWinner(
            run_id=run_id,
            problem=problem,
            environment=self._context.environment,
            choice=served,
            default=selection.default,
            tie_set=selection.tie_set,
            depends_on=sorted(backend.versions(self._context.device)),
            trial_number=run.number_of(Candidate(served.backend, served.config)),
            n_trials=run.n_trials,
            policy=self._context.executor.policy,
        )

    def _current(self, problem: Problem) -> Choice | None:
        """What is served for this problem in this environment, measured by this policy, now."""
        here = WinnerFilter(
            problem_key=problem.key,
            environment_fingerprint=self._context.environment.fingerprint,
            policy=self._context.executor.policy,
        )
        winners = self._store.winners(here, limit=1).items
        return winners[0].choice if winners else None

    def _arms(self, problem: Problem, current: Choice | None) -> tuple[list[Arm], dict[str, str]]:
        """The backends that can run the problem, and why the others cannot.

        Those that are for problems of another kind are not spoken of, unless there are no others.
        """
        arms: list[Arm] = []
        refused: dict[str, str] = {}
        of_other_kinds: dict[str, str] = {}
        neighbours = self._neighbours(problem)
        for name, backend in sorted(self._context.backends.items()):
            try:
                space = backend.space(problem, self._context.device)
                default = backend.default(problem, self._context.device)
                seeds = backend.seeds(problem, self._context.device)
            except UnsupportedError as error:
                (of_other_kinds if isinstance(error, OtherKindError) else refused)[name] = str(error)
                continue
            near = [choice.config for choice in neighbours if choice.backend == name][:NEIGHBOUR_SEEDS]
            served = current.config if current is not None and current.backend == name else None
            is_baseline = not can_serve(backend, problem)
            arms.append(Arm(name, space, default, [*near, *seeds], served, is_baseline))
        return arms, refused if arms else refused | of_other_kinds

    def _missing(self, problem: Problem) -> dict[str, str]:
        """What the run had to leave out and why, but for backends that say they are for problems of another kind.

        They were told once for the run, so no event speaks of them.
        """
        if self._left_out and self._registered is None:
            self._registered = load_backends()
        return {name: reason for name, reason in self._left_out.items() if not self._is_of_other_kind(name, problem)}

    def _is_of_other_kind(self, name: str, problem: Problem) -> bool:
        try:
            if self._registered and name in self._registered:
                self._registered[name].space(problem, self._context.device)
        except OtherKindError:
            return True
        except Exception:  # noqa: BLE001 - it cannot be used, so whatever else it raises says nothing new
            return False
        return False

    def _neighbours(self, problem: Problem) -> list[Choice]:
        """What is served on this device, by this policy, for problems that differ in M alone, nearest first."""
        near = self._family(problem)
        if not near:
            return []
        key = nearness(self._model(problem), problem, self._context.settings.seed)
        return [choice for _, choice in sorted(near, key=lambda one: key(one[0]))]

    def _model(self, problem: Problem) -> LatencyModel | None:
        """The latency model of this device for problems like this one, if `fp4tune model` has fitted one."""
        kind = problem.op.value, problem.format.value
        if kind not in self._models:
            device, policy = self._context.device.fingerprint, self._context.executor.policy
            self._models[kind] = self._store.latency_model(device, *kind, policy)
        return self._models[kind]

    def _family(self, problem: Problem) -> list[tuple[int, Choice]]:
        """(M, what is served) of the problem's family. Read from the store once, then kept up with by this job."""
        if self._families is None:
            self._families = {}
            wanted = WinnerFilter(
                device_fingerprint=self._context.device.fingerprint, policy=self._context.executor.policy
            )
            for winner in _all(lambda after: self._store.winners(wanted, limit=1000, after=after)):
                self._family(winner.problem).append((winner.problem.m, winner.choice))
        return self._families.setdefault(replace(problem, m=1), [])

    def _earlier_trials(self, run_id: str, problem: Problem) -> list[Trial]:
        """Every committed trial of this problem in this run, in order."""
        wanted = TrialFilter(run_id=run_id, problem_key=problem.key)
        return list(_all(lambda after: self._store.trials(wanted, limit=1000, after=after)))


def _is_better_outside(current: Choice, names: Sequence[str], selection: Selection) -> bool:
    """True if what is served now belongs to a backend that is not in the race and was no slower than its best.

    Such a race must not replace it by something slower. The two were not measured in the same rounds; that is the best
    that can be known without that backend.
    """
    return current.backend not in names and current.time_us <= selection.served.time_us


def _all(page_after: Callable[[int], Page[T]]) -> Iterator[T]:
    """Every item of a listing, page by page."""
    after: int | None = 0
    while after is not None:
        page = page_after(after)
        yield from page.items
        after = page.next_after
