"""Runs a tuning job from the command line: backends, executor, device, progress, signals."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ...kernels.errors import InvalidInputError, UnsupportedError
from .output import console
from .session import device_session, say

if TYPE_CHECKING:
    from ...db.records import RunProblem
    from ...db.store import Store
    from ...kernels.backend import Backend
    from ...kernels.device import Device, Environment
    from ...tuner.context import JobSettings, StopFlag
    from ...tuner.executor import Executor
    from ...tuner.job import JobResult
    from ...tuner.workers.device_lock import DeviceLock


NOBODYS_CAPABILITY = "0.9"
"""A compute capability that no card has and no backend is for."""

NOBODYS_KIND = "unheard-of"
"""A kind of device that no backend is for."""


class PolicyName(StrEnum):
    """How a GPU is measured, as the command line calls it."""

    GRAPH = "graph"
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Means:
    """With what a job is run.

    Attributes:
        device: where.
        backends: the race, by name, all available.
        policy: the measuring policy. compile_workers: most compiling processes; None for what the machine allows.
        wait: wait for the device. lock_dir: where its lock lies; None for the usual place.
        words: the command without secrets, for those who find the device locked.
        left_out: backends that would race but for something that can be mended, and what that is; see `left_out`.
    """

    device: Device
    backends: Mapping[str, Backend]
    policy: str
    compile_workers: int | None
    wait: bool
    lock_dir: Path | None
    words: Sequence[str]
    left_out: Mapping[str, str] = field(default_factory=dict)


def policy_for(device: Device, name: PolicyName | None, compile_workers: int | None) -> str:
    """The measuring policy of a device.

    Raises:
        InvalidInputError: a CPU has no choice of policies, and nothing to compile.
    """
    if device.kind == "cpu":
        given = "--policy" if name is not None else "--compile-workers" if compile_workers is not None else ""
        if given:
            raise InvalidInputError(f"{given} is about GPUs, and the device is a CPU: leave it out.")
        return "cpu.warm"
    return f"cuda.{name or PolicyName.GRAPH}"


def execute(
    store: Store,
    means: Means,
    settings: JobSettings,
    *,
    resume: str = "",
    items: Sequence[RunProblem] = (),
    checkpoint: str = "",
    extra: Mapping[str, object] | None = None,
) -> JobResult:
    """Run the job with a progress display, orderly on signals, holding the device.

    Args:
        store: open for writing.
        means: with what.
        settings: how hard to search.
        resume: id of a run to go on with; else `items`, `checkpoint` and `extra` make a new one.
        items: the problems.
        checkpoint: what the user named.
        extra: further settings to remember.

    Raises:
        BusyError: somebody else measures on the device. Others as `TuningJob`.
    """
    from ...kernels.backend import load_backends
    from ...kernels.device import current_environment
    from ...tuner.context import JobContext
    from ...tuner.job import TuningJob
    from ...tuner.known_roofs import known_roofs
    from .progress import TuneDisplay

    with device_session(means.device, means.words, wait=means.wait, lock_dir=means.lock_dir) as (lock, seen):
        # Of every backend that is available, not of those in this race alone: what is served must not depend on
        # --backend.
        environment: Environment = current_environment(means.device, load_backends().values())
        remembered = dict(extra or {})
        if means.left_out:
            remembered["left_out"] = dict(means.left_out)
            for name, reason in means.left_out.items():
                say(f"note: {name} is left out: {reason}")
        if seen is not None and seen.shared:
            remembered["shared_with"] = [seen.sentence]
        roofs = known_roofs(store, environment, tell=say)
        executor = _executor(means, lock)
        problem_s = settings.budget_s + settings.finals_s
        try:
            with (
                _stop_on_signals() as stop,
                TuneDisplay(console(stderr=True), trials=settings.trials, problem_s=problem_s) as display,
            ):
                settings = replace(settings, policy=means.policy)
                context = JobContext(environment, means.backends, executor, settings, display, stop, roofs=roofs)
                job = TuningJob(store, context)
                return job.resume(resume) if resume else job.start(items, checkpoint=checkpoint, extra=remembered)
        finally:
            executor.shutdown()


def ready_backends(device: Device, names: Sequence[str] | None) -> dict[str, Backend]:
    """The backends to race: those named, which must be available, else all that are.

    Raises:
        NotFoundError: an unknown name. UnsupportedError: a named one, or every one, is not available.
    """
    from ...kernels.backend import get_backend, load_backends

    chosen = {name: get_backend(name) for name in names} if names else load_backends()
    states = {name: backend.probe(device) for name, backend in chosen.items()}
    reasons = [f"{name}: {state.reason}" for name, state in states.items() if not state.available]
    if names and reasons:
        raise UnsupportedError(f"A backend that was asked for cannot be used on {device.name}. {' '.join(reasons)}")
    ready = {name: backend for name, backend in chosen.items() if states[name].available}
    if not ready:
        # Without it no backend runs, whatever else each of them lacks.
        if importlib.util.find_spec("torch") is None:
            raise UnsupportedError(
                "PyTorch is not installed, and tuning needs it: tune where your models are served, with the Python "
                "that serves them, or install fp4tune[cuda]. Serving and looking at what was found work without it."
            )
        raise UnsupportedError(f"No backend can be used on {device.name}. {' '.join(reasons)}")
    return ready


def left_out(device: Device, ready: Iterable[str]) -> dict[str, str]:
    """The backends that would race on a device but for something that its user can mend, and what that is.

    Nothing is said of one that is for other devices, nor of an engine that nobody installed: those are opt-in.

    Args:
        device: where.
        ready: names of those that do race.
    """
    from ...kernels.backend import load_backends

    states = {name: (one, one.probe(device)) for name, one in load_backends().items() if name not in set(ready)}
    return {
        name: state.reason
        for name, (backend, state) in states.items()
        if not state.available and not _is_for_others(backend, device, state.reason) and not _is_not_wanted(name)
    }


def _is_for_others(backend: Backend, device: Device, reason: str) -> bool:
    """Whether it is the device that a backend refuses, not what is installed.

    Every `probe` looks at the device first. So a backend that refuses the device says the same, kind or compute
    capability apart, of a device that nothing is for; one that misses something says something else of that.
    """
    from ...kernels.backend import UnavailableBackend

    if isinstance(backend, UnavailableBackend):
        return False  # its package is broken, and what it is for cannot be asked
    of_kind = backend.probe(replace(device, kind=NOBODYS_KIND)).reason
    of_capability = backend.probe(replace(device, compute_capability=NOBODYS_CAPABILITY)).reason
    return of_kind.replace(NOBODYS_KIND, device.kind) == reason or (
        NOBODYS_CAPABILITY in of_capability
        and of_capability.replace(NOBODYS_CAPABILITY, device.compute_capability) == reason
    )


def _is_not_wanted(name: str) -> bool:
    """Whether a backend is of an engine that is not installed."""
    from ...kernels.backend import family
    from ...kernels.flashinfer_gemm import versions as flashinfer
    from ...kernels.humming_gemm import versions as humming

    engines = {"flashinfer": flashinfer.installed_version, "humming": humming.installed_version}
    return family(name) in engines and not engines[family(name)]()


def _executor(means: Means, lock: DeviceLock) -> Executor:
    """Worker processes for a GPU, this process for a CPU."""
    if means.device.kind == "cpu":
        from ...tuner.executor import LocalExecutor

        return LocalExecutor(means.device, means.backends)
    from ...tuner.workers.executor import WorkerExecutor

    executor = WorkerExecutor(
        means.device, means.backends, policy=means.policy, compile_workers=means.compile_workers, lock=lock
    )
    for sentence in executor.refused.values():
        say(f"warning: {sentence}")
    return executor


@contextmanager
def _stop_on_signals() -> Iterator[StopFlag]:
    """The first Ctrl-C or SIGTERM asks for an orderly end, the second ends at once."""
    from ...tuner.context import StopFlag

    flag = StopFlag()

    def handle(_signal: int, _frame: object) -> None:
        if flag.requested:
            raise KeyboardInterrupt
        flag.requested = True
        # The signal may have met a write to the same stream (RuntimeError), or the terminal may be gone (OSError).
        with suppress(RuntimeError, OSError):
            console(stderr=True).print("stopping after this trial; again to stop at once", markup=False)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
