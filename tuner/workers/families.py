"""The workers of all families, opened side by side, and what it means if they cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...db.records import TrialStatus
from ...kernels.device import Device, device_uuid
from ...kernels.errors import Fp4tuneError
from ...kernels.nvml import nvml_session
from ..executor import Evaluation
from .family import FamilyWorker, WorkerLostError
from .sticky import no_device

if TYPE_CHECKING:
    from ...kernels.problem import Problem

FRESH_ATTEMPTS = 2
"""New processes that must fail to open a problem before its family is refused."""


class Families:
    """Opens problems in the workers that are needed.

    Args:
        device: that all of them use. workers: by family.
    """

    def __init__(self, device: Device, workers: Iterable[FamilyWorker]) -> None:
        self._device = device
        self._uuid = device_uuid(device)
        self._workers = {worker.name: worker for worker in workers}
        self._fresh: dict[str, bool] = {}
        self._problem: Problem | None = None
        self._seed = 0

    def __getitem__(self, name: str) -> FamilyWorker:
        return self._workers[name]

    def set_problem(self, problem: Problem, seed: int) -> None:
        """What workers open when they are needed from now on."""
        self.forget()
        self._problem, self._seed = problem, seed

    def begin(self, name: str) -> None:
        """Have a family's worker open the problem, without waiting, unless it has or is refused."""
        worker = self._workers[name]
        if self._problem is not None and worker.refusal is None and not worker.is_open and not worker.is_opening:
            self._fresh[name] = worker.begin_open(self._problem, self._seed)

    def ready(self, name: str) -> FamilyWorker:
        """The worker of a family, with the problem open unless its `refusal` says why not.

        Waits until none is opening any more: it would disturb what is timed.

        Raises:
            Fp4tuneError: the device is gone.
        """
        self.begin(name)
        for worker in self._workers.values():
            if worker.is_opening:
                self._finish(worker)
        return self._workers[name]

    def renew(self, name: str) -> FamilyWorker:
        """The same with a new process."""
        self._workers[name].end()
        return self.ready(name)

    def forget(self) -> None:
        """Have every worker forget the problem."""
        for worker in self._workers.values():
            worker.close()
        self._problem = None

    def end(self) -> None:
        """End every worker."""
        for worker in self._workers.values():
            worker.end()

    def _finish(self, worker: FamilyWorker) -> None:
        lost: list[WorkerLostError] = []
        while True:
            try:
                worker.finish_open()
            except WorkerLostError as error:
                if self._fresh[worker.name]:
                    lost.append(error)
            else:
                return
            if len(lost) == FRESH_ATTEMPTS:
                break
            self.begin(worker.name)
        self._raise_if_gone(worker, lost)
        sentence = f"The worker {worker.name} could not open the problem. {lost[-1].sentence}"
        worker.refusal = Evaluation(TrialStatus.CRASHED, None, sentence, None, 0.0)

    def _raise_if_gone(self, worker: FamilyWorker, lost: list[WorkerLostError]) -> None:
        """New processes failed to open a problem: is it the problem or the family, or does nobody reach the device?"""
        suspicious = all(error.timed_out or no_device(error.sentence) for error in lost)
        if not suspicious and not self._nvml_says_lost():
            return
        if any(other.answers() for other in self._workers.values() if other is not worker):
            return
        raise Fp4tuneError(
            f"The device {self._device.name} ({self._device.torch_device}) is gone: new processes cannot use it any "
            f"more ({lost[-1].sentence.splitlines()[0]}). What was found is stored; see what nvidia-smi and the "
            "system's log say, then go on with `fp4tune tune --resume last`."
        )

    def _nvml_says_lost(self) -> bool:
        if not self._uuid:
            return False
        with nvml_session() as nvml:
            if nvml is None:
                return False
            try:
                nvml.nvmlDeviceGetTemperature(nvml.nvmlDeviceGetHandleByUUID(self._uuid), nvml.NVML_TEMPERATURE_GPU)
            except nvml.NVMLError as error:
                return getattr(error, "value", 0) in {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NOT_FOUND}
        return False
