"""The worker of one family of backends: opened for a problem, asked step by step, replaced when it is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...db.records import TrialStatus
from ...kernels.device import Device
from ..executor import Evaluation
from ..measure import SLOW_PATIENCE
from .compile_pool import ONE_JOB
from .inside import BENCH
from .process import FailedInsideError, WorkerDiedError, WorkerError, WorkerProcess, WorkerTimeoutError
from .spec import BackendSpec
from .sticky import no_device

if TYPE_CHECKING:
    from ...db.records import Conditions
    from ...kernels.problem import Problem
    from ..executor import Candidate
    from ..measure import Effort, Sample

REFUSALS = frozenset({"UnsupportedError", "OutOfMemoryError", "MemoryError"})
"""Classes of errors at `open` that are about the problem: ours, torch's of the same name, Python's."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a worker may take for one request before it is killed, in seconds.

    Attributes:
        start: import PyTorch and the backends, on a disk that may be slow.
        open: draw and quantise operands, compute the reference.
        prepare: build a config's callables; what the pool compiled is loaded, what it did not is compiled here.
        check: the gate: a few runs and comparisons.
        time_margin: timing, on top of the effort's budget and the patience with slow configs.
        sample: one sample in the rounds, or anything else that is short.
    """

    start: float = 120.0
    open: float = 300.0
    prepare: float = 60.0
    check: float = 30.0
    time_margin: float = 30.0
    sample: float = 30.0

    def time(self, effort: Effort) -> float:
        """For timing with `effort`: a slow config may overrun its budget several times over (see `measure`)."""
        return (1 + SLOW_PATIENCE) * effort.budget_s + self.time_margin

    def enter(self) -> float:
        """For preparing, checking and warming up in one."""
        return self.prepare + self.check + self.sample


class WorkerLostError(WorkerError):
    """A worker had to be given up; its family has none now.

    Args:
        stage: what it was asked for. sentence: what happened. timed_out: whether it is there no more because it hung.
    """

    def __init__(self, stage: str, sentence: str, *, timed_out: bool = False) -> None:
        super().__init__(sentence)
        self.stage = stage
        self.sentence = sentence
        self.timed_out = timed_out


class Spares:
    """Makes worker processes, one ahead: a spare has imported what takes long, and has touched no device.

    Args:
        preload: modules that a process imports before its first request.
        keep: whether to have a spare; importing it takes a core for some seconds.
        first: how many to have at the beginning, when so many are going to be taken at once.
    """

    def __init__(self, preload: Sequence[str], *, keep: bool, first: int = 1) -> None:
        self._preload = tuple(preload)
        self._keep = keep
        self._spares = [self._make() for _ in range(max(1, first))] if keep else []

    def take(self, label: str) -> WorkerProcess:
        """A process that lives and waits for `start`."""
        taken: WorkerProcess | None = None
        while taken is None and self._spares:
            taken = self._spares.pop(0)
            if not taken.alive:
                taken.kill()
                taken = None
        if taken is None:
            taken = self._make()
        taken.label = label
        if self._keep and not self._spares:
            self._spares.append(self._make())
        return taken

    def close(self) -> None:
        """End what was not taken. May be called twice."""
        self._keep = False
        while self._spares:
            self._spares.pop().kill()

    def _make(self) -> WorkerProcess:
        return WorkerProcess("fp4tune worker", environment=ONE_JOB, preload=self._preload)


class FamilyWorker:
    """At most one process at a time, for the backends of one family.

    Args:
        name: of the family.
        spec: its backends. device: where. policy: how to measure. workbench: class of the workbench.
        sharing: families that have a worker on the device, this one included.
        sys_path: entries for the process's `sys.path`.
        spares: makes processes. deadlines: of every request.

    Attributes:
        name: as above.
        refusal: what every candidate gets for the problem that is open, if this family cannot open it.
        previous: the config that ran last in the process that there is now; None if none did.
        is_opening, is_open: whether the process is being given, or has, the problem.
    """

    def __init__(
        self,
        name: str,
        *,
        spec: BackendSpec,
        device: Device,
        policy: str,
        workbench: str,
        sharing: int,
        sys_path: Sequence[str],
        spares: Spares,
        deadlines: Deadlines,
    ) -> None:
        self.name = name
        self.refusal: Evaluation | None = None
        self.previous: Candidate | None = None
        self.is_opening = False
        self.is_open = False
        self._arguments = (device, dict(spec), policy, workbench, sharing)
        self._sys_path = list(sys_path)
        self._spares = spares
        self._deadlines = deadlines
        self._process: WorkerProcess | None = None
        self._sent: list[tuple[str, int, float, float]] = []

    def begin_open(self, problem: Problem, seed: int) -> bool:
        """Have the worker open a problem, without waiting: `finish_open` does.

        Returns:
            Whether a new process does it; an old one may have been damaged by what it ran before.
        """
        self.is_opening, self.is_open, self.refusal, self.previous = True, False, None, None
        self._sent = []
        is_new = self._process is None or not self._process.alive
        if is_new:
            self.end()
            self.is_opening = True
            self._process = self._spares.take(f"The worker {self.name}")
        try:
            start_s = 0.0
            if is_new:
                start_s = self._deadlines.start
                self._send("start", start_s, BENCH, self._sys_path, self._arguments)
            self._send("open", start_s + self._deadlines.open, problem, seed)
        except WorkerDiedError:
            pass  # finish_open meets the same
        return is_new

    def finish_open(self) -> None:
        """Wait until the problem is open, or is refused. Raises WorkerLostError."""
        self.is_opening = False
        stage = "start"
        try:
            for stage, number, deadline, allowed_s in self._sent:
                if self._process is not None:
                    self._process.receive(number, stage, deadline=deadline, allowed_s=allowed_s)
            self.is_open = stage == "open"
            if not self.is_open:  # it died between the two
                raise WorkerLostError("open", f"The worker {self.name} ended before it could open the problem.")
        except FailedInsideError as error:
            self.end()  # also gives back the memory that it has, which the other families may need
            if error.sticky or no_device(error.text):
                raise WorkerLostError(stage, f"{error.type_name}: {error.text}") from error
            self.refusal = self._refusal(stage, error)
        except WorkerTimeoutError as error:
            self.end()
            raise WorkerLostError(stage, str(error), timed_out=True) from error
        except WorkerError as error:
            self.end()
            raise WorkerLostError(stage, str(error)) from error
        finally:
            self._sent = []

    def evaluate(self, candidate: Candidate, effort: Effort, best_us: float | None) -> Evaluation:
        """Prepare, check, time. Raises WorkerLostError."""
        start = time.monotonic()
        evaluation = self.prepare(candidate)
        compile_s = evaluation.compile_s
        if evaluation.status is TrialStatus.OK:
            evaluation = self._step("check", self._deadlines.check)
        rel_error = evaluation.rel_error
        if evaluation.status is TrialStatus.OK:
            evaluation = self._step("time", self._deadlines.time(effort), effort, best_us)
        return replace(
            evaluation,
            rel_error=rel_error if evaluation.rel_error is None else evaluation.rel_error,
            wall_s=time.monotonic() - start,
            compile_s=compile_s,
        )

    def prepare(self, candidate: Candidate) -> Evaluation:
        """The first step alone. Raises WorkerLostError."""
        evaluation = self._step("prepare", self._deadlines.prepare, candidate)
        self.previous = candidate
        return evaluation

    def enter(self, candidate: Candidate) -> Evaluation:
        """Take a config into the rounds. Raises WorkerLostError."""
        evaluation = self._step("enter", self._deadlines.enter(), candidate)
        self.previous = candidate
        return evaluation

    def sample(self, entrant: int) -> Sample:
        """One sample of an entrant. Raises WorkerLostError, FailedInsideError."""
        sample: Sample = self._request("sample", self._deadlines.sample, entrant)
        return sample

    def leave(self) -> dict[int, Conditions]:
        """The end of the rounds: conditions of every entrant. Raises WorkerLostError, FailedInsideError."""
        conditions: dict[int, Conditions] = self._request("leave", self._deadlines.sample)
        return conditions

    def answers(self) -> bool:
        """Whether it is there and reaches its device. It is given up if not."""
        if not self.is_open:
            return False
        try:
            self._request("synchronize", self._deadlines.sample)
        except WorkerError:
            return False
        return True

    def close(self) -> None:
        """Have the worker forget the problem; one that does not is ended."""
        self.refusal = None
        if self.is_opening:
            self.end()
        if self.is_open:
            self.is_open = False
            try:
                self._request("close", self._deadlines.sample)
            except WorkerError:
                self.end()

    def end(self) -> None:
        """End the process, if there is one."""
        self.is_open = self.is_opening = False
        self.previous = None
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _send(self, method: str, deadline_s: float, *arguments: Any) -> None:
        if self._process is not None:
            number = self._process.send(method, *arguments)
            self._sent.append((method, number, time.monotonic() + deadline_s, deadline_s))

    def _step(self, method: str, deadline_s: float, *arguments: Any) -> Evaluation:
        """A request whose answer is an evaluation; so is what goes wrong with it, short of losing the worker."""
        try:
            evaluation: Evaluation = self._request(method, deadline_s, *arguments)
        except FailedInsideError as error:
            status = TrialStatus.UNSUPPORTED if error.type_name in REFUSALS else TrialStatus.CRASHED
            text = error.text if error.type_name == "UnsupportedError" else f"{error.type_name}: {error.text}"
            return Evaluation(status, None, text, None, 0.0)
        return evaluation

    def _request(self, method: str, deadline_s: float, *arguments: Any) -> Any:
        """Ask the worker. Raises WorkerLostError, FailedInsideError if it can go on."""
        if self._process is None:
            raise WorkerLostError(method, f"The worker {self.name} is gone.")
        try:
            return self._process.request(method, *arguments, deadline_s=deadline_s)
        except FailedInsideError as error:
            if not error.sticky and not no_device(error.text):
                raise
            self.end()
            what = error.sticky or "lost device"
            raise WorkerLostError(method, f"{what[0].upper()}{what[1:]}: {error.text}") from error
        except WorkerError as error:
            self.end()
            raise WorkerLostError(method, str(error), timed_out=isinstance(error, WorkerTimeoutError)) from error

    def _refusal(self, stage: str, error: FailedInsideError) -> Evaluation:
        if stage == "start":
            text = f"The backends of {self.name} cannot be loaded in a worker: {error.type_name}: {error.text}"
            return Evaluation(TrialStatus.UNSUPPORTED, None, text, None, 0.0)
        if error.type_name in REFUSALS:
            return Evaluation(TrialStatus.UNSUPPORTED, None, error.text, None, 0.0)
        text = f"The worker {self.name} could not open the problem: {error.type_name}: {error.text}"
        return Evaluation(TrialStatus.CRASHED, None, text, None, 0.0)
