"""Processes that compile configs ahead, on cores of their own, while the device is busy with other configs."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...db.records import TrialStatus
from ...kernels.backend import family
from ...kernels.device import Device
from ...kernels.errors import UnsupportedError
from .caches import unwritable
from .inside import COMPILER, Compiled
from .process import FailedInsideError, WorkerDiedError, WorkerError, WorkerProcess, WorkerTimeoutError
from .resources import MemoryBudget, free_bytes, tree_bytes, usable_cores
from .spec import BackendSpec, is_compiled, needs_of, own_sys_path

if TYPE_CHECKING:
    from ...kernels.problem import Problem
    from ..executor import Candidate

ONE_JOB = {
    "MAX_JOBS": "1",  # ninja as PyTorch's and FlashInfer's extension builders call it
    "CMAKE_BUILD_PARALLEL_LEVEL": "1",
    "NVCC_THREADS": "1",
    "FLASHINFER_NVCC_THREADS": "1",
    "HUMMING_MAX_PARALLEL_BUILD_WORKERS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""Environment of everything that may start a compiler: nvcc takes 3 to 8 GiB, and uncapped builders start one a core
(flashinfer-ai/flashinfer#3634)."""

ENVIRONMENT = {
    **ONE_JOB,
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment of the pool's processes: no device, one core."""

ASSUMED_BYTES = 2 << 30
"""What one compiling process is assumed to need: PyTorch and Triton take 0.5 GiB, ptxas on an unrolled GEMM 1 GiB."""

MEMORY_PART = 0.75
"""Part of the free memory that the pool may take; the rest is for the tuner and its workers."""

MOST = 16
"""More processes than this outrun the device, and a sampler that has so many candidates in flight knows too little."""

START_S = 120.0
"""A new process imports PyTorch from a disk that may be slow."""


_URGENT, _LATER = 0, 1
"""Order in the queue."""


class _TookTooMuch(Exception):  # noqa: N818 - not an error that leaves this module
    """A compiler took more memory than it was given: so many bytes."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.taken = taken


@dataclass(frozen=True, slots=True)
class _Job:
    problem: Problem
    candidate: Candidate
    future: Future[Compiled]


class CompilePool:
    """Compiles configs of backends that are `Compiling`, each in one of a few processes.

    A backend whose compiler takes more memory or time than others says so (`CompileNeed`): what is being compiled never
    needs more memory than all may take, so such compilers run fewer at a time, one if it must be. Of several processes
    one is never theirs, and those that must wait are passed over: they take minutes, and the device wants work.

    Whatever a compiler does costs its own config alone: a process that dies, hangs or takes too much memory is
    replaced. `close` ends all of them and what they started; it may be called twice. They end with the tuner in any
    case.

    Args:
        backends: whose configs. device: what for.
        max_workers: most processes; None for what the machine allows: cores less two (one for the worker that
            measures, one for the tuner), and memory.
        memory_bytes: what all of them may take together; None for three quarters of what is free now.
        deadline_s: what one config may take, in seconds, where its backend does not ask for more.
        sys_path: entries for the processes' `sys.path`; None for this process's.
        preload: modules that a process imports before its first config.

    Attributes:
        size: most processes at a time.
        share_bytes: what one of them may take, what it started included, where its backend does not ask for more.
        refused: families whose cache cannot be written, each with a sentence that says what to do.
    """

    def __init__(
        self,
        backends: BackendSpec,
        device: Device,
        *,
        max_workers: int | None = None,
        memory_bytes: int | None = None,
        deadline_s: float = 60.0,
        sys_path: Sequence[str] | None = None,
        preload: Sequence[str] = ("torch",),
    ) -> None:
        memory = int(free_bytes() * MEMORY_PART) if memory_bytes is None else memory_bytes
        most = min(MOST, usable_cores() - 2) if max_workers is None else max_workers
        self.size = max(1, min(most, memory // ASSUMED_BYTES))
        self.share_bytes = memory // self.size
        self.refused = unwritable({family(name) for name in backends})
        self._budget = MemoryBudget(memory)
        self._needs = needs_of(backends)
        self._spec = backends
        self._device = device
        self._deadline_s = deadline_s
        self._preload = tuple(preload)
        self._sys_path = own_sys_path() if sys_path is None else list(sys_path)
        self._jobs: queue.PriorityQueue[tuple[int, int, _Job | None]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._large: dict[int, int] = {}
        self._passed_over: list[tuple[int, int, _Job]] = []
        self._unfinished = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._processes: set[WorkerProcess] = set()

    def submit(self, candidate: Candidate, problem: Problem, *, urgent: bool = True) -> Future[Compiled]:
        """Compile a config as soon as a process is free. Returns at once.

        Args:
            candidate: the config.
            problem: what it is for.
            urgent: False for what waits until nothing urgent does.

        Returns:
            A future with what became of it; it never holds an exception. `cancel` drops what has not begun.

        Raises:
            UnsupportedError: the cache of this family of backends cannot be written.
        """
        if reason := self.refused.get(family(candidate.backend)):
            raise UnsupportedError(reason)
        job = _Job(problem, candidate, Future())
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._unfinished += 1
            if len(self._threads) < min(self.size, self._unfinished):
                self._add_thread(warm=False)
        self._jobs.put((_URGENT if urgent else _LATER, next(self._count), job))
        return job.future

    def warm(self) -> None:
        """Start every process now, without waiting: the first configs then find them with their imports done."""
        with self._lock:
            while not self._closed and len(self._threads) < self.size:
                self._add_thread(warm=True)

    def close(self) -> None:
        """Drop what has not begun, end what has."""
        with self._lock:
            already, self._closed = self._closed, True
            passed_over, self._passed_over = self._passed_over, []
        if already:
            return
        for _, _, waiting in passed_over:
            waiting.future.cancel()
        self._budget.close()
        with contextlib.suppress(queue.Empty):
            while True:
                _, _, job = self._jobs.get_nowait()
                if job is not None:
                    job.future.cancel()
        for _ in self._threads:
            self._jobs.put((_URGENT, next(self._count), None))
        while any(thread.is_alive() for thread in self._threads):
            for worker in list(self._processes):
                worker.kill()
            time.sleep(0.01)  # one that was just being started is in the set a moment later

    def _add_thread(self, *, warm: bool) -> None:
        """One more; the lock is held. `warm`: it starts its process before it has a config for it."""
        self._threads.append(threading.Thread(target=self._work, args=(warm,), name="fp4tune-compile", daemon=True))
        self._threads[-1].start()

    def _work(self, warm: bool) -> None:  # noqa: FBT001 - a thread's arguments have no names
        """What each thread does: it owns one process at a time, and waits where the tuner must not."""
        worker: WorkerProcess | None = None
        if warm:
            with contextlib.suppress(Exception):  # the first config meets the same, and says so
                worker = self._begin()
        while (taken := self._take()) is not None:
            job, wanted = taken
            if job.future.set_running_or_notify_cancel():
                try:
                    with self._budget.reserve(wanted) as given:
                        worker, compiled = self._compile(worker, job, given)
                except Exception as error:  # noqa: BLE001 - no thread of the pool may end with a job in its hands
                    worker = self._end(worker)
                    compiled = Compiled(TrialStatus.COMPILE_FAILED, None, f"{type(error).__name__}: {error}", 0.0)
                job.future.set_result(compiled)
            self._done(job)
        self._end(worker)

    def _take(self) -> tuple[_Job, int] | None:
        """The next job, and the memory that it gets; None at the end.

        Waits for one. A large job is passed over while it does not fit beside others like it.
        """
        while True:
            urgency, number, job = self._jobs.get()
            if job is None:
                return None
            if not self._is_large(job):
                return job, self.share_bytes
            wanted = self._wanted(job)
            with self._lock:
                if self._closed:
                    job.future.cancel()
                elif not self._large or self._has_room_for(wanted):
                    self._large[id(job)] = wanted
                    return job, wanted
                else:
                    self._passed_over.append((urgency, number, job))

    def _has_room_for(self, wanted: int) -> bool:
        """Whether one more large job may run beside those that do already; the lock is held."""
        fits = sum(self._large.values()) + wanted <= self._budget.total_bytes
        return fits and len(self._large) < self.size - 1

    def _done(self, job: _Job) -> None:
        """Count a job out. If it was large, those that were passed over may have room now."""
        with self._lock:
            self._unfinished -= 1
            again: list[tuple[int, int, _Job]] = []
            if self._large.pop(id(job), None) is not None:
                again, self._passed_over = self._passed_over, []
        for entry in again:
            self._jobs.put(entry)

    @property
    def n_large(self) -> int:
        """Large jobs that are running, or waiting for others like them."""
        with self._lock:
            return len(self._large) + sum(not job.future.cancelled() for _, _, job in self._passed_over)

    def _wanted(self, job: _Job) -> int:
        """Memory that a config's compiler is given, in bytes."""
        return max(self.share_bytes, self._needs[job.candidate.backend].memory_bytes)

    def _is_large(self, job: _Job) -> bool:
        """Whether a job needs more memory than others are assumed to need, and there is something to compile."""
        needs_more = self._needs[job.candidate.backend].memory_bytes > ASSUMED_BYTES
        return needs_more and not is_compiled(self._spec, job.problem, self._device, job.candidate)

    def _compile(self, worker: WorkerProcess | None, job: _Job, given: int) -> tuple[WorkerProcess | None, Compiled]:
        """Compile one config in `worker`, or in a new one. The process to go on with, and the result."""
        if worker is not None and (not worker.alive or tree_bytes(worker.pid) > self.share_bytes // 2):
            worker = self._end(worker)  # it died idle, or earlier configs left too little for this one
        start = time.monotonic()
        status = TrialStatus.COMPILE_FAILED
        try:
            worker = worker or self._begin()
            start, pid = time.monotonic(), worker.pid
            deadline_s = max(self._deadline_s, self._needs[job.candidate.backend].seconds)
            compiled: Compiled = worker.request(
                "compile", job.problem, job.candidate, deadline_s=deadline_s, watch=lambda: self._watch(pid, given)
            )
        except _TookTooMuch as error:
            text = (
                f"The compiler took {error.taken / 2**30:.2f} GiB of memory, and {given / 2**30:.2f} GiB "
                f"are its share with {self.size} at a time; it was ended."
            )
        except WorkerTimeoutError as error:
            status, text = TrialStatus.TIMEOUT, f"Compiling took longer than {error.deadline_s:g} s and was ended."
        except WorkerDiedError as error:
            text = str(error)
        except FailedInsideError as error:
            return worker, Compiled(status, None, f"{error.type_name}: {error.text}", time.monotonic() - start)
        else:
            return worker, compiled
        return self._end(worker), Compiled(status, None, text, time.monotonic() - start)

    def _watch(self, pid: int, given: int) -> None:
        taken = tree_bytes(pid)
        if taken > given:
            raise _TookTooMuch(taken)

    def _begin(self) -> WorkerProcess:
        worker = WorkerProcess("The compiling process", environment=ENVIRONMENT, preload=self._preload)
        with self._lock:
            self._processes.add(worker)
        try:
            worker.start(COMPILER, [self._device, self._spec], sys_path=self._sys_path, deadline_s=START_S)
        except WorkerError:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: WorkerProcess | None) -> WorkerProcess | None:
        """End a process. Returns what the thread has then: none."""
        if worker is not None:
            worker.kill()
            with self._lock:
                self._processes.discard(worker)
        return None
