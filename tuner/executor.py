"""Runs configs of one problem: prepares, gates on correctness, then times. Results are plain values.

Contract of an executor. `open` makes the operands and the expected result of one problem; nothing but `prefetch` may
be called before it. `submit` begins what needs no device (compiling) and returns at once; `collect` waits for one of
those that were submitted, ready ones first, and runs it on the device. Every candidate that is submitted is collected
once, or forgotten by the next `rounds` or `close`. `collect` and `rounds` never raise because of a config: what a
config did wrong is in the result's status. They raise only when the executor itself is of no more use (the device is
gone). Requests and results are plain data, so that an executor can work through other processes.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..db.records import Conditions, Timing, TrialStatus
from ..kernels.backend import Backend, ConfigValue, StaticFacts
from ..kernels.device import Device
from ..kernels.problem import Problem
from .measure import Effort, timing_of

MIN_ROUNDS = 6
"""Rounds that the finals have at least: below six samples a median has no 95 % interval (stats.py)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend and one of its configs.

    Attributes:
        backend: backend name. config: decoded config.
    """

    backend: str
    config: Mapping[str, ConfigValue]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What became of one candidate.

    Attributes:
        status: how it ended.
        timing: set if status is ok, and only then. (Ok without a timing is a step on the way, inside an executor.)
        error: why not; empty if ok.
        rel_error: relative Frobenius error against the oracle; None if it was not computed.
        wall_s: seconds that it took of the device and of this process, preparing and checking included, compiling
            elsewhere not.
        compile_s: seconds of compiler, on whatever core it ran; 0 if nothing was compiled.
        facts: what the compiler says of it, if it does.
        conditions: what the card was like while it was timed; None on a CPU or if it was not.
    """

    status: TrialStatus
    timing: Timing | None
    error: str
    rel_error: float | None
    wall_s: float
    compile_s: float = 0.0
    facts: StaticFacts | None = None
    conditions: Conditions | None = None


class Executor(Protocol):
    """See the module's docstring for the contract.

    Attributes:
        policy: name of the measuring policy.
        lookahead: candidates that it wants in flight now, submitted and not yet collected; 1: one by one.
    """

    policy: str

    @property
    def lookahead(self) -> int:
        """See above."""
        ...

    def open(self, problem: Problem, seed: int) -> None:
        """Make operands and the expected result. Raises OutOfMemoryError, UnsupportedError."""
        ...

    def prefetch(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Candidates that a later `open` of `problem` will most likely be asked for: compile them when there is time.

        A hint. It returns at once, and what comes of it shows in `collect` alone.
        """
        ...

    def submit(self, candidate: Candidate) -> None:
        """Begin what needs no device; returns at once."""
        ...

    def await_compilers(self, timeout_s: float) -> Sequence[Candidate]:
        """Wait until `collect` need not wait for a compiler, at most so many seconds.

        Returns:
            What is being compiled, if nothing that was submitted is ready even then; else nothing.
        """
        ...

    def collect(self, effort: Effort, *, best_us: float | None = None) -> tuple[Candidate, Evaluation]:
        """Check and time one of those that were submitted, waiting for one to be ready if none is.

        Args:
            effort: how hard to measure.
            best_us: the best median so far of this problem, for giving up early.

        Raises:
            RuntimeError: nothing was submitted.
        """
        ...

    def rounds(self, candidates: Sequence[Candidate], *, n_rounds: int, budget_s: float, seed: int) -> list[Evaluation]:
        """Time candidates that passed the gate, interleaved: in every round each one once, in random order.

        Sample i of every candidate comes from round i, so that samples can be compared pairwise. Stops early,
        after a whole round, when the budget is out, but not before six rounds. Forgets what was submitted.
        """
        ...

    def close(self) -> None:
        """Free the operands, forget what was submitted."""
        ...

    def shutdown(self) -> None:
        """Give back everything, other processes and the device included. The end; may be called twice."""
        ...


class LocalExecutor:
    """Runs everything in this process, on a workbench. Right for CPUs, where a kernel that crashes is not expected.

    A call that took longer than `timeout_s` in the gate is recorded as a timeout; it cannot be cut short here.

    Args:
        device: where. backends: what can be run, by name.
        policy: the measuring policy; empty for the device's first.
        timeout_s: what one call may take in the gate, in seconds.

    Raises:
        InvalidInputError: the policy is none for this kind of device.
    """

    def __init__(
        self, device: Device, backends: Mapping[str, Backend], policy: str = "", *, timeout_s: float = 60.0
    ) -> None:
        from .workbench import Workbench

        self._bench = Workbench(device, backends, policy, timeout_s=timeout_s)
        self._submitted: deque[Candidate] = deque()
        self.policy = self._bench.policy
        self.lookahead = 1

    def open(self, problem: Problem, seed: int) -> None:
        """See Executor."""
        self.close()
        self._bench.open(problem, seed)

    def close(self) -> None:
        """See Executor."""
        self._submitted.clear()
        self._bench.close()

    def shutdown(self) -> None:
        """See Executor."""
        self.close()

    def prefetch(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Nothing is compiled ahead."""

    def submit(self, candidate: Candidate) -> None:
        """See Executor."""
        self._submitted.append(candidate)

    def await_compilers(self, timeout_s: float) -> Sequence[Candidate]:  # noqa: ARG002 - part of the protocol
        """Nothing is compiled ahead, so nothing is waited for."""
        return ()

    def collect(self, effort: Effort, *, best_us: float | None = None) -> tuple[Candidate, Evaluation]:
        """See Executor."""
        if not self._submitted:
            raise RuntimeError("nothing was submitted")
        candidate = self._submitted.popleft()
        start = time.monotonic()
        evaluation = self._bench.prepare(candidate)
        if evaluation.status is TrialStatus.OK:
            evaluation = self._bench.check()
        if evaluation.status is TrialStatus.OK:
            evaluation = self._bench.time(effort, best_us=best_us)
        return candidate, replace(evaluation, wall_s=time.monotonic() - start)

    def rounds(self, candidates: Sequence[Candidate], *, n_rounds: int, budget_s: float, seed: int) -> list[Evaluation]:
        """See Executor."""
        self._submitted.clear()
        start = time.monotonic()
        results = [self._bench.enter(candidate) for candidate in candidates]
        inside = [i for i, result in enumerate(results) if result.status is TrialStatus.OK]
        numbers = {index: number for number, index in enumerate(inside)}
        samples_us: dict[int, list[float]] = {index: [] for index in inside}
        shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
        for done in range(n_rounds):
            if done >= MIN_ROUNDS and time.monotonic() - start > budget_s:
                break
            shuffle(inside)
            for index in list(inside):
                try:
                    samples_us[index].append(self._bench.sample(numbers[index]).us)
                except Exception as error:  # noqa: BLE001 - a kernel may raise anything; recorded, the others go on
                    results[index] = Evaluation(TrialStatus.CRASHED, None, _text(error), None, 0.0)
                    inside.remove(index)
        conditions = self._bench.leave()
        for index in inside:
            timing, seen = timing_of(samples_us[index]), conditions.get(numbers[index])
            results[index] = replace(results[index], timing=timing, conditions=seen)
        share_s = (time.monotonic() - start) / max(1, len(candidates))
        return [replace(result, wall_s=share_s) for result in results]


def _text(error: Exception) -> str:
    """The kind and the text of somebody else's exception, cut to a size that can be stored."""
    return f"{type(error).__name__}: {error}"[:4000]
