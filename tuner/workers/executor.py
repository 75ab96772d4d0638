"""The executor over worker processes and the compile pool: whatever a config does, the run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...db.records import TrialStatus
from ...kernels.backend import Backend, Compiling, family
from ...kernels.device import Device
from ...kernels.errors import UnsupportedError
from ...kernels.operands import check_memory
from ..executor import Candidate, Evaluation
from .blame import Blame, Key, key_of
from .compile_pool import CompilePool
from .families import Families
from .family import Deadlines, FamilyWorker, Spares, WorkerLostError
from .inside import WORKBENCH, Compiled
from .rounds import Rounds
from .spec import of_family, own_sys_path, spec_of

if TYPE_CHECKING:
    from ...kernels.problem import Problem
    from ..measure import Effort
    from .device_lock import DeviceLock

AHEAD = 2
"""Candidates in flight beyond what the pool compiles at a time: one on the device, one ready for it."""

MOST_LARGE = 16
"""Candidates whose compilers take gigabytes, and minutes, that may be in flight beyond that, so as not to be in the way
of others."""

_POLL_S = 60.0
"""Seconds of one wait for a compiler in `collect`, which begins another."""

COMPILE_S = 60.0
"""Deadline for one config in the pool."""


@dataclass(frozen=True, slots=True)
class _Submitted:
    """What was submitted and not collected.

    Attributes:
        candidate: what. early: what became of it if it need not reach a worker.
        compiling: what the pool says of it; None if there is nothing to compile.
    """

    candidate: Candidate
    early: Evaluation | None = None
    compiling: futures.Future[Compiled] | None = None

    @property
    def is_ready(self) -> bool:
        return self.compiling is None or self.compiling.done()


class WorkerExecutor:
    """Implements `Executor`: one worker process a family of backends, and a pool that compiles ahead.

    It starts no thread that touches the device, and makes no CUDA context here. Everything it starts ends with
    `shutdown`, with the object, or with this process, whichever comes first.

    Args:
        device: where. backends: what is run, by name; their classes are made anew in the workers.
        policy: the measuring policy.
        compile_workers: most compiling processes; None for what the machine allows.
        deadlines: of requests to workers. compile_s: of one config in the pool, in seconds.
        lock: the right to use the device, held by whoever made this; given back by `shutdown`.
        workbench: what runs configs inside a worker, `package.module:Class`.
        preload: modules that a process imports before it is needed.
        spare: whether to start processes before they are needed: every family's and every compiler at once, and later
            one in case a worker dies. None for GPUs alone, because on a CPU their start disturbs what is timed.

    Attributes:
        policy: as above.
        refused: families of backends that cannot be compiled here, each with a sentence that says what to do.
    """

    def __init__(
        self,
        device: Device,
        backends: Mapping[str, Backend],
        *,
        policy: str,
        compile_workers: int | None = None,
        deadlines: Deadlines | None = None,
        compile_s: float = COMPILE_S,
        lock: DeviceLock | None = None,
        workbench: str = WORKBENCH,
        preload: Sequence[str] = ("torch",),
        spare: bool | None = None,
    ) -> None:
        self.policy = policy
        self._device = device
        self._lock = lock
        self._blame = Blame()
        self._problem: Problem | None = None
        self._submitted: list[_Submitted] = []
        self._prefetched: dict[Key, futures.Future[Compiled]] = {}
        self._compiled: dict[Key, Compiled] = {}
        spec = spec_of(backends)
        names = sorted({family(backend) for backend in backends})
        is_ahead = device.kind == "cuda" if spare is None else spare
        self._spares = Spares(preload, keep=is_ahead, first=len(names))
        self._families = Families(
            device,
            [
                FamilyWorker(
                    name,
                    spec=of_family(spec, name),
                    device=device,
                    policy=policy,
                    workbench=workbench,
                    sharing=len(names),
                    sys_path=own_sys_path(),
                    spares=self._spares,
                    deadlines=deadlines or Deadlines(),
                )
                for name in names
            ],
        )
        self._compiling = frozenset(name for name, backend in backends.items() if isinstance(backend, Compiling))
        self._pool: CompilePool | None = None
        if to_compile := {name: target for name, target in spec.items() if name in self._compiling}:
            self._pool = CompilePool(
                to_compile, device, max_workers=compile_workers, deadline_s=compile_s, preload=preload
            )
            if is_ahead:
                self._pool.warm()
        self.refused = dict(self._pool.refused) if self._pool else {}

    @property
    def lookahead(self) -> int:
        """See Executor."""
        return AHEAD if self._pool is None else AHEAD + self._pool.size + min(MOST_LARGE, self._pool.n_large)

    def open(self, problem: Problem, seed: int) -> None:
        """See Executor. Workers open the problem when they are first needed, which may refuse their candidates."""
        self.close()
        check_memory(problem, self._device)
        self._problem = problem
        self._families.set_problem(problem, seed)

    def prefetch(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """See Executor."""
        for candidate in candidates:
            key = key_of(problem, candidate)
            if self._pool is None or candidate.backend not in self._compiling or key in self._prefetched:
                continue
            if family(candidate.backend) not in self._pool.refused:
                self._prefetched[key] = self._pool.submit(candidate, problem, urgent=False)

    def submit(self, candidate: Candidate) -> None:
        """See Executor."""
        problem = self._opened()
        if verdict := self._blame.verdict(problem, candidate):
            early = Evaluation(TrialStatus.CRASHED, None, verdict, None, 0.0)
            self._submitted.append(_Submitted(candidate, early))
            return
        compiling = None
        if self._pool is not None and candidate.backend in self._compiling:
            prefetched = self._prefetched.pop(key_of(problem, candidate), None)
            # One that has not begun is put in again, in front of the others that only may be needed.
            if prefetched is not None and not prefetched.cancel():
                compiling = prefetched
            else:
                try:
                    compiling = self._pool.submit(candidate, problem)
                except UnsupportedError as error:
                    early = Evaluation(TrialStatus.UNSUPPORTED, None, str(error), None, 0.0)
                    self._submitted.append(_Submitted(candidate, early))
                    return
        self._families.begin(family(candidate.backend))
        self._submitted.append(_Submitted(candidate, compiling=compiling))

    def await_compilers(self, timeout_s: float) -> Sequence[Candidate]:
        """See Executor."""
        if self._submitted and not any(one.is_ready for one in self._submitted):
            compiling = [one.compiling for one in self._submitted if one.compiling]
            if not futures.wait(compiling, timeout_s, return_when="FIRST_COMPLETED").done:
                return [one.candidate for one in self._submitted]
        return ()

    def collect(self, effort: Effort, *, best_us: float | None = None) -> tuple[Candidate, Evaluation]:
        """See Executor. Raises Fp4tuneError if the device is gone."""
        if not self._submitted:
            raise RuntimeError("nothing was submitted")
        while self.await_compilers(_POLL_S):
            pass
        one = next(one for one in self._submitted if one.is_ready)
        self._submitted.remove(one)
        if one.early is not None:
            return one.candidate, one.early
        compiled = one.compiling.result() if one.compiling else None
        if compiled is not None and compiled.status is not TrialStatus.OK:
            failed = Evaluation(compiled.status, None, compiled.error, None, 0.0, compiled.compile_s, compiled.facts)
            return one.candidate, failed
        evaluation = self._evaluate(one.candidate, effort, best_us)
        if compiled is not None:
            self._compiled[key_of(self._opened(), one.candidate)] = compiled
            evaluation = replace(
                evaluation,
                compile_s=compiled.compile_s + evaluation.compile_s,
                facts=compiled.facts or evaluation.facts,
            )
        return one.candidate, evaluation

    def rounds(self, candidates: Sequence[Candidate], *, n_rounds: int, budget_s: float, seed: int) -> list[Evaluation]:
        """See Executor. Raises Fp4tuneError if the device is gone."""
        problem = self._opened()
        self._forget_submitted()
        results = Rounds(self._families, self._blame, problem).run(
            candidates, n_rounds=n_rounds, budget_s=budget_s, seed=seed
        )
        return list(self._with_facts(problem, candidates, results))

    def close(self) -> None:
        """See Executor."""
        self._forget_submitted()
        self._families.forget()
        self._compiled.clear()
        if self._problem is not None:
            for key in [key for key in self._prefetched if key[0] == self._problem.key]:
                self._prefetched.pop(key).cancel()
        self._problem = None

    def shutdown(self) -> None:
        """See Executor."""
        self._forget_submitted()
        self._spares.close()
        self._families.end()
        if self._pool is not None:
            self._pool.close()
        self._problem = None
        if self._lock is not None:
            self._lock.release()

    def _opened(self) -> Problem:
        if self._problem is None:
            raise RuntimeError("open() was not called")
        return self._problem

    def _forget_submitted(self) -> None:
        for one in self._submitted:
            if one.compiling is not None:
                one.compiling.cancel()
        self._submitted.clear()

    def _with_facts(
        self, problem: Problem, candidates: Sequence[Candidate], results: Sequence[Evaluation]
    ) -> Iterable[Evaluation]:
        """What the compiler said in the search holds in the finals, too."""
        for candidate, result in zip(candidates, results, strict=True):
            compiled = self._compiled.get(key_of(problem, candidate))
            facts = result.facts if compiled is None else compiled.facts or result.facts
            yield replace(result, facts=facts)

    def _evaluate(self, candidate: Candidate, effort: Effort, best_us: float | None) -> Evaluation:
        """Run a config in its family's worker, and find out whom to blame if that dies of it."""
        problem = self._opened()
        if verdict := self._blame.verdict(problem, candidate):  # since it was submitted
            return Evaluation(TrialStatus.CRASHED, None, verdict, None, 0.0)
        name = family(candidate.backend)
        worker = self._families.ready(name)
        if worker.refusal is not None:
            return worker.refusal
        previous = worker.previous
        try:
            return worker.evaluate(candidate, effort, best_us)
        except WorkerLostError as lost:
            if lost.timed_out:
                self._blame.add(problem, candidate, lost.sentence)
                return Evaluation(TrialStatus.TIMEOUT, None, lost.sentence, None, 0.0)
            if lost.stage == "prepare" and previous is not None and previous != candidate:
                # It had not run yet: the damage may be the previous config's.
                self._try_alone(name, previous, lost, effort)
            else:
                self._blame.add(problem, candidate, lost.sentence)
            return self._once_more(name, candidate, lost, effort, best_us)

    def _try_alone(self, name: str, suspect: Candidate, lost: WorkerLostError, effort: Effort) -> None:
        """Run a config alone, and begin another after it as its victim did. If the worker dies, it was this one."""
        worker = self._families.renew(name)
        if worker.refusal is not None:
            return
        try:
            worker.evaluate(suspect, effort, None)
            worker.prepare(suspect)
        except WorkerLostError as again:
            self._blame.add(self._opened(), suspect, f"Seen by the next config: {lost.sentence}", again.sentence)

    def _once_more(
        self, name: str, candidate: Candidate, lost: WorkerLostError, effort: Effort, best_us: float | None
    ) -> Evaluation:
        """Run a config whose worker died once more, in a new one."""
        worker = self._families.renew(name)
        if worker.refusal is not None:
            return worker.refusal
        try:
            return worker.evaluate(candidate, effort, best_us)
        except WorkerLostError as again:
            problem = self._opened()
            self._blame.add(problem, candidate, again.sentence)
            if again.timed_out:
                return Evaluation(TrialStatus.TIMEOUT, None, again.sentence, None, 0.0)
            if not self._blame.verdict(problem, candidate):  # it died the first time, too, when another was in doubt
                self._blame.add(problem, candidate, lost.sentence)
            return Evaluation(TrialStatus.CRASHED, None, self._blame.verdict(problem, candidate), None, 0.0)
