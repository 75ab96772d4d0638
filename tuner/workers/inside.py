"""The objects that live inside worker processes: one that runs configs, one that compiles them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...db.records import TrialStatus
from ...kernels.backend import Compiling, StaticFacts
from ...kernels.device import Device
from ...kernels.errors import UnsupportedError
from .serve import TEXT_LIMIT, resolve
from .spec import BackendSpec, build
from .sticky import StickyError, sticky_in, sticky_name

if TYPE_CHECKING:
    from ...db.records import Conditions
    from ...kernels.problem import Problem
    from ..executor import Candidate, Evaluation
    from ..measure import Effort, Sample

WORKBENCH = "fp4tune.tuner.workbench:Workbench"
COMPILER = "fp4tune.tuner.workers.inside:Compiler"
BENCH = "fp4tune.tuner.workers.inside:Bench"

NICENESS = 10
"""Of a compiling process: who measures, and launches kernels for it, goes first where there are too few cores."""


class Bench:
    """A workbench that knows when its process has become useless.

    Every step that went wrong, and every beginning of another config, is followed by a synchronisation with the device:
    an error that comes late then comes before the next config, and StickyError says so.

    Args:
        device: where. backends: what. policy: how to measure.
        workbench: class of the workbench, `package.module:Name`.
        sharing: workers that have the same problem open on the device, this one included.
    """

    def __init__(
        self, device: Device, backends: BackendSpec, policy: str, workbench: str = WORKBENCH, sharing: int = 1
    ) -> None:
        self._device = device
        self._bench: Any = resolve(workbench)(device, build(backends), policy, sharing=sharing)

    def open(self, problem: Problem, seed: int) -> None:
        """See Workbench."""
        self._bench.open(problem, seed)
        self.synchronize()

    def prepare(self, candidate: Candidate) -> Evaluation:
        """See Workbench. Raises StickyError, also for what an earlier config did."""
        self.synchronize()
        return self._checked(self._bench.prepare(candidate))

    def check(self) -> Evaluation:
        """See Workbench. Raises StickyError."""
        return self._checked(self._bench.check())

    def time(self, effort: Effort, best_us: float | None) -> Evaluation:
        """See Workbench. Raises StickyError."""
        evaluation = self._checked(self._bench.time(effort, best_us=best_us))
        self.synchronize()
        return evaluation

    def enter(self, candidate: Candidate) -> Evaluation:
        """See Workbench. Raises StickyError."""
        self.synchronize()
        return self._checked(self._bench.enter(candidate))

    def sample(self, entrant: int) -> Sample:
        """See Workbench."""
        taken: Sample = self._bench.sample(entrant)
        return taken

    def leave(self) -> dict[int, Conditions]:
        """See Workbench."""
        conditions: dict[int, Conditions] = self._bench.leave()
        return conditions

    def close(self) -> None:
        """See Workbench."""
        self._bench.close()

    def synchronize(self) -> None:
        """Wait for the device, if there is one. Raises StickyError if it does not answer as it should."""
        if self._device.kind != "cuda":
            return
        import torch

        try:
            torch.cuda.synchronize(self._device.torch_device)
        except Exception as error:
            raise StickyError(sticky_name(error) or "lost context", f"{type(error).__name__}: {error}") from error

    def _checked(self, evaluation: Evaluation) -> Evaluation:
        """`evaluation`, unless what went wrong has made this process useless."""
        if evaluation.status in {TrialStatus.CRASHED, TrialStatus.COMPILE_FAILED}:
            type_name, _, text = evaluation.error.partition(":")
            if name := sticky_in(type_name, text):
                raise StickyError(name, evaluation.error)
        if evaluation.status is not TrialStatus.OK:
            self.synchronize()
        return evaluation


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of compiling one config.

    Attributes:
        status: ok, unsupported, compile_failed, timeout.
        facts: what the compiler says; None unless ok.
        error: why not; empty if ok.
        compile_s: seconds that it took.
    """

    status: TrialStatus
    facts: StaticFacts | None
    error: str
    compile_s: float


class Compiler:
    """Compiles configs into the backends' caches.

    Args:
        device: what for. backends: whose.
    """

    def __init__(self, device: Device, backends: BackendSpec) -> None:
        os.nice(NICENESS)
        self._device = device
        self._spec = backends

    def compile(self, problem: Problem, candidate: Candidate) -> Compiled:
        """Compile one config. What its compiler raises is in the result."""
        start = time.monotonic()
        facts: StaticFacts | None = None
        status, text = TrialStatus.OK, ""
        try:
            # Made anew each time, which is cheap: a family whose package is broken must not end another one's compiler.
            backend = build({candidate.backend: self._spec[candidate.backend]})[candidate.backend]
            if isinstance(backend, Compiling):
                facts = backend.compile(problem, self._device, candidate.config)
        except UnsupportedError as error:
            status, text = TrialStatus.UNSUPPORTED, str(error)
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything; it is recorded, not swallowed
            status, text = TrialStatus.COMPILE_FAILED, f"{type(error).__name__}: {error}"[:TEXT_LIMIT]
        return Compiled(status, facts, text, time.monotonic() - start)
