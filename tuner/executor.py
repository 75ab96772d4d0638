"""Runs configs of one problem: prepares, gates on correctness, then times. Results are plain values.

Contract of an executor. `open` makes the operands and the expected result of one problem; nothing else may be
called before it. `evaluate` and `rounds` never raise because of a config: what a config did wrong is in the
result's status. They raise only when the executor itself is of no more use (out of memory at `open`, the device is
gone). Requests and results are plain data, so that an executor can live in another process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ..db.records import Timing, TrialStatus
from ..kernels.backend import Backend, ConfigValue
from ..kernels.device import Device
from ..kernels.errors import OutOfMemoryError, UnsupportedError
from ..kernels.problem import Problem
from .measure import Clock, Effort, calls_per_sample, clock_for, measure, timing_of, warm_up

if TYPE_CHECKING:
    import torch

    from ..kernels.operands import Operands

GATE_RUNS = 3
"""A config must be right this often in a row: races and uninitialised scales are wrong only sometimes
(flashinfer-ai/flashinfer#4841 saw 4 to 19 % of replays corrupt)."""

LONG_CALL_US = 10_000.0
"""In the rounds a shorter call runs once untimed before its sample, to bring back into the caches what the previous
candidate evicted: refilling 32 MiB of last-level cache at 10 GB/s takes 3 ms, which a longer call hardly feels."""


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
        timing: set if and only if status is ok.
        error: why not; empty if ok.
        rel_error: relative Frobenius error against the oracle; None if it was not computed.
        wall_s: seconds it took, preparing and checking included.
    """

    status: TrialStatus
    timing: Timing | None
    error: str
    rel_error: float | None
    wall_s: float


class Executor(Protocol):
    """See the module's docstring for the contract.

    Attributes:
        policy: name of the measuring policy.
    """

    policy: str

    def open(self, problem: Problem, seed: int) -> None:
        """Make operands and the expected result. Raises OutOfMemoryError, UnsupportedError."""
        ...

    def evaluate(self, candidate: Candidate, effort: Effort, *, best_us: float | None = None) -> Evaluation:
        """Prepare, check, time."""
        ...

    def rounds(self, candidates: Sequence[Candidate], *, n_rounds: int, budget_s: float, seed: int) -> list[Evaluation]:
        """Time candidates that passed the gate, interleaved: in every round each one once, in random order.

        Sample i of every candidate comes from round i, so that samples can be compared pairwise. Stops early,
        after a whole round, when the budget is out, but not before six rounds.
        """
        ...

    def close(self) -> None:
        """Free the operands."""
        ...


class LocalExecutor:
    """Runs everything in this process. Right for CPUs, where a kernel that crashes is not expected.

    A call that took longer than `timeout_s` in the gate is recorded as a timeout; it cannot be cut short here.
    """

    def __init__(self, device: Device, backends: Mapping[str, Backend], *, timeout_s: float = 60.0) -> None:
        self._device = device
        self._backends = backends
        self._timeout_s = timeout_s
        self._clock: Clock = clock_for(device)
        self._operands: Operands | None = None
        self._expected: torch.Tensor | None = None
        self.policy = self._clock.policy

    def open(self, problem: Problem, seed: int) -> None:
        """See Executor."""
        from ..kernels.operands import check_memory, make_operands
        from ..kernels.oracle import reference

        self.close()
        check_memory(problem, self._device)
        try:
            self._operands = make_operands(problem, self._device, seed)
            self._expected = reference(self._operands)
        except (MemoryError, RuntimeError) as error:
            # torch raises a RuntimeError of its own; the device may be shared, so a fitting problem can fail, too.
            if not isinstance(error, MemoryError) and "out of memory" not in str(error).lower():
                raise
            self.close()
            raise OutOfMemoryError(
                f"{problem.shape} does not fit into the memory that is free on {self._device.name}: "
                f"{str(error).splitlines()[0] if str(error) else 'out of memory'}"
            ) from error

    def close(self) -> None:
        """See Executor."""
        self._operands = None
        self._expected = None

    def evaluate(self, candidate: Candidate, effort: Effort, *, best_us: float | None = None) -> Evaluation:
        """See Executor."""
        start = time.monotonic()
        run, evaluation = self._gate(candidate)
        if run is not None:
            try:
                timing = measure(self._clock, run, effort, ran_s=evaluation.wall_s, best_us=best_us)
                evaluation = replace(evaluation, timing=timing)
            except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it is recorded, not swallowed
                evaluation = Evaluation(TrialStatus.CRASHED, None, _text(error), evaluation.rel_error, 0.0)
        return replace(evaluation, wall_s=time.monotonic() - start)

    def _gate(self, candidate: Candidate) -> tuple[Callable[[], None] | None, Evaluation]:
        """Prepare and check. The callable is None unless the evaluation is ok; then wall_s is its last call's."""
        from ..kernels.oracle import compare, poison

        if self._operands is None or self._expected is None:
            raise RuntimeError("open() was not called")
        try:
            run = self._backends[candidate.backend].prepare(self._operands.problem, self._operands, candidate.config)
        except UnsupportedError as error:
            return None, Evaluation(TrialStatus.UNSUPPORTED, None, str(error), None, 0.0)
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything; it is recorded, not swallowed
            return None, Evaluation(TrialStatus.COMPILE_FAILED, None, _text(error), None, 0.0)
        rel_error = took_s = 0.0
        for _ in range(GATE_RUNS):
            poison(self._operands.out)
            start = time.monotonic()
            try:
                run()
                self._synchronize()
            except Exception as error:  # noqa: BLE001 - as above
                return None, Evaluation(TrialStatus.CRASHED, None, _text(error), None, 0.0)
            took_s = time.monotonic() - start
            if took_s > self._timeout_s:
                sentence = f"One call took {took_s:.1f} s, and {self._timeout_s:.1f} s are allowed."
                return None, Evaluation(TrialStatus.TIMEOUT, None, sentence, None, 0.0)
            verdict = compare(self._operands.out, self._operands, self._expected)
            rel_error = max(rel_error, verdict.rel_error)
            if not verdict.ok:
                return None, Evaluation(TrialStatus.WRONG, None, verdict.sentence, verdict.rel_error, 0.0)
        return run, Evaluation(TrialStatus.OK, None, "", rel_error, took_s)

    def _synchronize(self) -> None:
        if self._device.kind == "cuda":
            import torch

            torch.cuda.synchronize(self._device.torch_device)

    def rounds(self, candidates: Sequence[Candidate], *, n_rounds: int, budget_s: float, seed: int) -> list[Evaluation]:
        """See Executor."""
        effort = Effort()
        start = time.monotonic()
        results, entrants = self._entrants(candidates, effort)
        shuffle = random.Random(seed).shuffle  # noqa: S311 - an order, not a secret
        for done in range(n_rounds):
            if done >= effort.min_samples and time.monotonic() - start > budget_s:
                break
            shuffle(entrants)
            for entrant in list(entrants):
                try:
                    if entrant.call_us < LONG_CALL_US:
                        entrant.run()
                    entrant.samples_us.append(self._clock.sample_us(entrant.run, calls_per_sample(entrant.call_us)))
                except Exception as error:  # noqa: BLE001 - recorded; the others go on
                    results[entrant.index] = Evaluation(TrialStatus.CRASHED, None, _text(error), None, 0.0)
                    entrants.remove(entrant)
        for entrant in entrants:
            results[entrant.index] = replace(results[entrant.index], timing=timing_of(entrant.samples_us))
        share_s = (time.monotonic() - start) / max(1, len(candidates))
        return [replace(result, wall_s=share_s) for result in results]

    def _entrants(self, candidates: Sequence[Candidate], effort: Effort) -> tuple[list[Evaluation], list[_Entrant]]:
        """What the gate says of each candidate, and those that passed it, warmed up."""
        results: list[Evaluation] = []
        entrants: list[_Entrant] = []
        for i, candidate in enumerate(candidates):
            run, evaluation = self._gate(candidate)
            if run is not None:
                try:
                    call_us = warm_up(self._clock, run, effort, ran_s=evaluation.wall_s)
                    entrants.append(_Entrant(i, run, call_us, []))
                except Exception as error:  # noqa: BLE001 - recorded; the others go on
                    evaluation = Evaluation(TrialStatus.CRASHED, None, _text(error), None, 0.0)
            results.append(evaluation)
        return results, entrants


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A candidate in the rounds: its place in the list, its callable, what a call takes, samples; microseconds."""

    index: int
    run: Callable[[], None]
    call_us: float
    samples_us: list[float]


def _text(error: Exception) -> str:
    """The kind and the text of somebody else's exception, cut to a size that can be stored."""
    return f"{type(error).__name__}: {error}"[:4000]
