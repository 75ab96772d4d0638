"""Prepares, gates and times configs of one problem in the process it lives in.

Contract. One problem at a time: `open` comes first, and frees what the previous one held. One config at a time goes
through `prepare`, `check`, `time`; `enter` takes one through the first two and keeps it, so that several can be sampled
in turns. What a config does wrong is in the evaluation's status and never raised, with one exception: `sample` raises
what the config raised, since a config that fails after its gate has nothing to give. Statuses:

- unsupported: the backend refuses it, device memory does not suffice, or it cannot run under the measuring policy;
- compile_failed: preparing raised anything else; crashed: running did; `error` is then "Class: text" of the exception;
- wrong: the oracle says so; timeout: one call took longer than is allowed, which is only noticed after it returned.

Every launch in `prepare` and `check` is followed by a synchronisation, so that an error that the device reports late is
not taken for the next config's.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..db.records import Conditions, TrialStatus
from ..kernels.backend import Backend
from ..kernels.device import Device
from ..kernels.errors import OutOfMemoryError, UnsupportedError
from ..kernels.problem import Problem
from .clocks import Clock, Loaded, Run, clock_for, policy_for
from .executor import Candidate, Evaluation
from .gate import Gate
from .measure import Effort, Sample, take_sample, take_samples
from .monitor import Monitor, Watch, monitor_for

if TYPE_CHECKING:
    from ..kernels.operands import Operands

ENTRY_WARMUP_S = 0.02
"""How long an entrant of the rounds runs before its first sample."""

IDLE_PART = 1 / 32
"""Part of the device's memory that may lie idle in this process: 4 GiB of an H200's, 1 GiB of an RTX 5090's."""

_ERROR_LIMIT = 4000
"""Characters of an exception that are kept: compilers print whole programs."""


@dataclass(slots=True)
class _Current:
    """The config that is on the bench.

    Attributes:
        runs: one callable for each operand set. loaded: what the clock made of them; None before the gate.
        rel_error: of the gate. checked: True once it passed.
    """

    runs: Sequence[Run]
    loaded: Loaded | None = None
    rel_error: float | None = None


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A config in the rounds: its calls and who watches them."""

    loaded: Loaded
    watch: Watch


class Workbench:
    """See the module's docstring.

    Args:
        device: where. It is only touched from `open` on.
        backends: what can be prepared, by name.
        policy: the measuring policy; empty for the device's first.
        timeout_s: what one call in the gate may take, in seconds.
        sharing: workbenches that have the same problem open on the device at the same time, this one included.
        clock: times the calls; None for the policy's.
        monitor: looks on; None for the device's.

    Attributes:
        policy: as above, in full.

    Raises:
        InvalidInputError: the policy is none for this kind of device.
    """

    def __init__(
        self,
        device: Device,
        backends: Mapping[str, Backend],
        policy: str = "",
        *,
        timeout_s: float = 60.0,
        sharing: int = 1,
        clock: Clock | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self._device = device
        self._backends = backends
        self._timeout_s = timeout_s
        self._sharing = sharing
        self.policy = policy_for(device, policy) if clock is None else clock.policy
        self._clock = clock
        self._monitor = monitor
        self._sets: Sequence[Operands] = ()
        self._gate: Gate | None = None
        self._current: _Current | None = None
        self._entrants: list[_Entrant] = []

    def open(self, problem: Problem, seed: int) -> None:
        """Make the operand sets and what is expected of them.

        Raises:
            OutOfMemoryError: they do not fit, or not into what is free on a device that others use, too.
            UnsupportedError: they cannot be made.
        """
        from ..kernels.operands import check_memory, make_operands, operand_sets

        self.close()
        check_memory(problem, self._device)
        # From here on NVML is open: a backend that asks it while it prepares need not start it every time.
        self._the_monitor()
        try:
            operands = make_operands(problem, self._device, seed)
            self._sets = [operands]
            if self._the_clock().rotates:
                self._sets = operand_sets(operands, self._device, sharing=self._sharing)
            self._gate = Gate(self._sets, self._device, timeout_s=self._timeout_s)
        except Exception as error:
            self.close()
            if not _is_out_of_memory(error):
                raise
            raise OutOfMemoryError(
                f"{problem.shape} does not fit into the memory that is free on {self._device.name}: {_first(error)}"
            ) from error

    def close(self) -> None:
        """Forget the problem and everything prepared for it."""
        had_any = bool(self._sets)
        self.leave()
        self._drop()
        self._sets, self._gate = (), None
        if had_any:
            self._free()

    def prepare(self, candidate: Candidate) -> Evaluation:
        """Build the callables of a config, one for each operand set; ok without a timing if they are there."""
        start = time.monotonic()
        self._drop()
        if self._gate is None:
            raise RuntimeError("open() was not called")
        self._trim()
        backend = self._backends[candidate.backend]
        try:
            runs = [backend.prepare(operands.problem, operands, candidate.config) for operands in self._sets]
            self._gate.synchronize()
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything; it is recorded, not swallowed
            return self._failed(error, TrialStatus.COMPILE_FAILED, start)
        self._current = _Current(runs)
        return Evaluation(TrialStatus.OK, None, "", None, time.monotonic() - start)

    def check(self) -> Evaluation:
        """Put the config that was prepared through the gate; ok without a timing if it may be timed."""
        start = time.monotonic()
        current, gate = self._current, self._gate
        if current is None or gate is None:
            raise RuntimeError("no config is prepared")
        try:
            passed = gate.run_alone(current.runs[0])
            if passed.status is TrialStatus.OK:
                clock = self._the_clock()
                current.loaded = clock.load(current.runs, call_s=passed.call_s)
                if clock.rotates:
                    passed = gate.run_together(current.loaded, passed)
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it is recorded, not swallowed
            return self._failed(error, TrialStatus.CRASHED, start)
        if passed.status is not TrialStatus.OK:
            self._drop()
        current.rel_error = passed.rel_error
        return Evaluation(passed.status, None, passed.sentence, passed.rel_error, time.monotonic() - start)

    def time(self, effort: Effort, *, best_us: float | None = None) -> Evaluation:
        """Time the config that passed the gate.

        Args:
            effort: how hard to measure.
            best_us: the best median so far of this problem, for giving up early.
        """
        start = time.monotonic()
        current = self._current
        if current is None or current.loaded is None:
            raise RuntimeError("no config passed the gate")
        try:
            measured = take_samples(current.loaded, effort, watch=self._the_monitor().watch(), best_us=best_us)
        except Exception as error:  # noqa: BLE001 - recorded, not swallowed
            return replace(self._failed(error, TrialStatus.CRASHED, start), rel_error=current.rel_error)
        wall_s = time.monotonic() - start
        return Evaluation(
            TrialStatus.OK, measured.timing, "", current.rel_error, wall_s, conditions=measured.conditions
        )

    def enter(self, candidate: Candidate) -> Evaluation:
        """Prepare and check a config, warm it up, and keep it for `sample`.

        Returns:
            Ok without a timing if it is in. Those that are in have the numbers 0, 1, ... in the order they came.
        """
        start = time.monotonic()
        evaluation = self.prepare(candidate)
        if evaluation.status is TrialStatus.OK:
            evaluation = self.check()
        current = self._current
        if evaluation.status is TrialStatus.OK and current is not None and current.loaded is not None:
            try:
                current.loaded.warm_up(ENTRY_WARMUP_S)
            except Exception as error:  # noqa: BLE001 - recorded, not swallowed
                evaluation = replace(self._failed(error, TrialStatus.CRASHED, start), rel_error=current.rel_error)
            else:
                self._entrants.append(_Entrant(current.loaded, self._the_monitor().watch()))
                self._current = None
        return replace(evaluation, wall_s=time.monotonic() - start)

    def sample(self, entrant: int) -> Sample:
        """One sample of an entrant, by its number. Raises whatever the config raised."""
        entered = self._entrants[entrant]
        return take_sample(entered.loaded, entered.watch, after_others=True)

    def leave(self) -> dict[int, Conditions]:
        """End the rounds: forget the entrants.

        Returns:
            What the device was like during the samples of each, by its number; without those of whom nothing is known.
        """
        seen = {i: conditions for i, e in enumerate(self._entrants) if (conditions := e.watch.conditions()) is not None}
        for entrant in self._entrants:
            entrant.loaded.release()
        self._entrants.clear()
        return seen

    def _the_clock(self) -> Clock:
        """Made when the device is first touched."""
        if self._clock is None:
            self._clock = clock_for(self._device, self.policy)
        return self._clock

    def _the_monitor(self) -> Monitor:
        if self._monitor is None:
            self._monitor = monitor_for(self._device)
        return self._monitor

    def _failed(self, error: Exception, status: TrialStatus, start: float) -> Evaluation:
        """What became of a config that raised; forgets it."""
        self._drop()
        text = f"{type(error).__name__}: {error}"
        if _is_out_of_memory(error):
            status, text = TrialStatus.UNSUPPORTED, f"Out of memory on {self._device.name}: {_first(error)}"
            error.__traceback__ = None  # its frames hold the tensors that fill the memory
            self._free()
        elif isinstance(error, UnsupportedError):
            status, text = TrialStatus.UNSUPPORTED, str(error)
        return Evaluation(status, None, text[:_ERROR_LIMIT], None, time.monotonic() - start)

    def _drop(self) -> None:
        """Forget the config on the bench."""
        current, self._current = self._current, None
        if current is not None and current.loaded is not None:
            current.loaded.release()

    def _trim(self) -> None:
        """Give back what earlier configs left behind, if it is much.

        What is allocated while a graph is captured comes from a pool of that graph, and torch keeps its memory when the
        graph is gone. In this process it would take it back in need; other workers on the device cannot make it.
        """
        if self._device.kind == "cuda":
            import torch

            index = self._device.index
            idle = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
            if idle > self._device.memory_bytes * IDLE_PART:
                torch.cuda.empty_cache()

    def _free(self) -> None:
        """Give memory back to the device, so that others, and libraries with allocators of their own, can have it."""
        if self._device.kind == "cuda":
            import torch

            gc.collect()
            with contextlib.suppress(Exception):  # a broken device; whoever uses it next is told
                torch.cuda.empty_cache()


def _is_out_of_memory(error: Exception) -> bool:
    """By its text, too: torch raises RuntimeErrors, and each library on the device one of its own."""
    text = "" if isinstance(error, UnsupportedError) else str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:500] if lines else "out of memory"
