"""What goes wrong in worker processes, on purpose and on the CPU. Imported there, so nothing heavy at the top."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fp4tune.db.records import Conditions, Timing, TrialStatus
from fp4tune.kernels.backend import Availability, Backend, Config, ConfigValue, Parameter, Space, StaticFacts
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import OutOfMemoryError, UnsupportedError
from fp4tune.kernels.operands import Operands
from fp4tune.kernels.problem import Problem
from fp4tune.tuner.executor import Candidate, Evaluation
from fp4tune.tuner.measure import Sample

DEVICE = Device("cpu", "A processor", "", 2, 8 << 30, 0, 0.0)
STICKY = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported asynchronously"
GONE = "No CUDA GPUs are available"


class Toy:
    """An object that does in a worker what it is asked for."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def add(self, a: int, b: int) -> int:
        return a + b

    def name(self) -> str:
        return self._name

    def pid(self) -> int:
        return os.getpid()

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "awake"

    def spin(self) -> None:
        _spin()

    def stubborn(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _spin()

    def kill(self, number: int) -> None:
        _kill(signal.Signals(number))

    def exit(self, code: int, last_words: str = "") -> None:
        _say("first")
        _exit(code, f"{last_words}\n")

    def sys_exit(self) -> None:
        sys.exit(3)

    def flood(self, megabytes: int) -> str:
        for _ in range(megabytes):
            os.write(1, b"x" * 1023 + b"\n" if megabytes < 2 else (b"x" * 1023 + b"\n") * 1024)
        os.write(2, b"the end of the flood\n")
        return "done"

    def unpicklable(self) -> Callable[[], None]:
        return lambda: None

    def fail(self, sticky: bool) -> None:
        raise RuntimeError(STICKY) if sticky else ValueError("that is no number")

    def grandchild(self) -> int:
        """A process that does not care about SIGTERM."""
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        started = subprocess.Popen(["sleep", "600"])
        signal.signal(signal.SIGTERM, before)
        return started.pid

    def close_everything(self) -> None:
        os.closerange(3, 64)
        time.sleep(60)


_armed: list[bool] = []
"""Not empty in a process that a config has corrupted: whoever is prepared next dies of it."""


def _nothing() -> None:
    """No fault."""


def _kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def _raise(error: Exception) -> None:
    raise error


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _spin() -> None:
    while True:
        pass


def _exit(code: int, last_words: str = "") -> None:
    _say(last_words)
    os._exit(code)


def _once(path: Path) -> None:
    if not path.exists():
        path.touch()
        _kill(signal.SIGKILL)


def _unplug(path: Path) -> None:
    path.touch()
    raise RuntimeError("CUDA error: GPU is lost")


def _eat() -> None:
    hog = []
    while True:
        hog.append(bytearray(16 << 20))
        time.sleep(0.01)


LATER = 40
"""Calls after which some configs go wrong: more than any gate makes."""

IN_PREPARE: Mapping[str, Callable[[], None]] = {
    "unsupported": lambda: _raise(UnsupportedError("This config cannot run here.")),
    "compiler_raises": lambda: _raise(RuntimeError("ptxas fatal")),
    "prepare_hangs": lambda: time.sleep(600),
    "dies_in_prepare": lambda: os._exit(7),
}
"""By what the config calls its fault."""

IN_RUN: Mapping[str, Callable[[int, Path], None]] = {
    "hangs": lambda _calls, _path: time.sleep(600),
    "spins": lambda _calls, _path: _spin(),
    "sigkill": lambda _calls, _path: _kill(signal.SIGKILL),
    "sigsegv": lambda _calls, _path: _kill(signal.SIGSEGV),
    "exit": lambda _calls, _path: _exit(3, "terminate called after throwing an instance of 'std::bad_alloc'"),
    "raises": lambda _calls, _path: _raise(RuntimeError("no kernel image is available")),
    "sticky": lambda _calls, _path: _raise(RuntimeError(STICKY)),
    "late": lambda _calls, _path: _armed.append(True),
    "dies_later": lambda calls, _path: _kill(signal.SIGKILL) if calls > LATER else None,
    "hangs_later": lambda calls, _path: time.sleep(600) if calls > LATER else None,
    "floods": lambda _calls, _path: _say("x" * (4 << 20)),
    "once": lambda _calls, path: _once(path),
    "unplugs": lambda _calls, path: _unplug(path),
}
"""By what the config calls its fault; called with the number of the call and the config's `path`."""

_CHILD_EATS = "import time\nhog = []\nwhile True:\n hog.append(bytearray(16 << 20)); time.sleep(0.01)"
_CAPS = ("CUDA_VISIBLE_DEVICES", "MAX_JOBS", "HUMMING_MAX_PARALLEL_BUILD_WORKERS", "OMP_NUM_THREADS")

IN_COMPILER: Mapping[str, Callable[[], object]] = {
    "slow": lambda: time.sleep(0.3),
    "hangs": lambda: subprocess.run(["sleep", "600"], check=True),
    "eats": _eat,
    "child_eats": lambda: subprocess.run([sys.executable, "-c", _CHILD_EATS], check=True),
    "dies": lambda: (_say("LLVM ERROR: out of registers"), _kill(signal.SIGABRT)),
    "raises": lambda: _raise(RuntimeError("ptxas fatal: too many resources")),
    "exits": lambda: sys.exit(1),
    "refuses": lambda: _raise(UnsupportedError("It spills 128 bytes a thread.")),
    "environment": lambda: _raise(UnsupportedError(" ".join(f"{name}={os.environ.get(name)}" for name in _CAPS))),
}


class Faulty:
    """A backend whose config says what goes wrong. Family `bad`.

    `path` names a file: `once` does it only if that file is not there yet, and makes it.
    """

    name = "bad.kernel"

    def probe(self, device: Device) -> Availability:
        return Availability(True)

    def versions(self, device: Device) -> dict[str, str]:
        return {"test": "1"}

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((Parameter("fault", ("none", "hangs", "sigkill")),))

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        return {"fault": "none"}

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        return []

    def prepare(self, problem: Problem, operands: Operands | None, config: Config) -> Callable[[], None]:
        if _armed:
            _kill(signal.SIGSEGV)
        fault, path = str(config.get("fault", "none")), Path(str(config.get("path", "/nowhere")))
        IN_PREPARE.get(fault, _nothing)()
        right = _right(operands)
        calls = 0

        def run() -> None:
            nonlocal calls
            calls += 1
            IN_RUN.get(fault, lambda _calls, _path: None)(calls, path)
            right()
            if fault == "wrong" and operands is not None:
                operands.out.zero_()

        return run


class Searched(Faulty):
    """The same with a space of faults, for a whole job."""

    name = "searched.kernel"
    faults = ("none", "wrong", "sigkill", "sticky", "unsupported")

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((Parameter("fault", self.faults),))

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:
        return [{"fault": fault} for fault in self.faults]


class Good(Faulty):
    """Another family, in which nothing goes wrong unless its config says so."""

    name = "good.kernel"


class Big(Faulty):
    """A family whose worker has not enough memory."""

    name = "big.kernel"


class Dead(Faulty):
    """A family whose worker dies whenever it opens a problem."""

    name = "dead.kernel"


class Broken(Faulty):
    """A family that cannot be made in a worker."""

    name = "broken.kernel"

    def __init__(self) -> None:
        if "fp4tune.tuner.workers.inside" in sys.modules and os.environ.get("FP4TUNE_TEST_PARENT") != str(os.getpid()):
            raise ImportError("libcudart.so.13: cannot open shared object file")


class FaultyCompiler(Faulty):
    """A backend that compiles; its config says how that goes. Family `compiled`."""

    name = "compiled.kernel"

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        what = str(config.get("compiler", "fine"))
        IN_COMPILER.get(what, _nothing)()
        facts = StaticFacts("sm_90a", 128, 0, 1024, {"HGMMA": 4})
        return replace(facts, instructions={"f": lambda: None}) if what == "unpicklable" else facts  # type: ignore[dict-item]


class HeavyCompiler(FaultyCompiler):
    """The same with a compiler that takes much, and writes down when it ran. Family `heavy`."""

    name = "heavy.kernel"
    compile_memory_bytes = 5 << 30
    compile_s = 40.0

    def compile(self, problem: Problem, device: Device, config: Config) -> StaticFacts:
        began = time.monotonic()
        facts = super().compile(problem, device, config)
        if path := os.environ.get("FP4TUNE_TEST_COMPILED"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{began} {time.monotonic()}\n")
        return facts


class Kept(HeavyCompiler):
    """The same with a cache in which there is what a config says is there. Family `kept`."""

    name = "kept.kernel"

    def is_compiled(self, problem: Problem, device: Device, config: Config) -> bool:
        if config["kept"] == "unknown":
            raise RuntimeError("the cache cannot be read")
        return bool(config["kept"])


class GpuFaulty(Faulty):
    """A backend of a GPU whose config names a kernel of triton_faults. Family `gpufaulty`."""

    name = "gpufaulty.kernel"

    def prepare(self, problem: Problem, operands: Operands | None, config: Config) -> Callable[[], None]:
        assert operands is not None
        import torch
        import triton_faults

        flag = torch.zeros(1, dtype=torch.int32, device=operands.out.device)
        scratch = torch.zeros(1, dtype=torch.float32, device=operands.out.device)
        right = _right(operands)

        def run() -> None:
            right()
            if config["fault"] == "out_of_bounds":
                triton_faults.out_of_bounds[(1,)](scratch, 1 << 44)
            if config["fault"] in ("misaligned", "trap"):
                getattr(triton_faults, str(config["fault"]))[(1,)](scratch)
            if config["fault"] == "for_ever":
                triton_faults.for_ever[(1,)](flag, scratch)

        return run


def _right(operands: Operands | None) -> Callable[[], None]:
    """Computes the problem, if there are operands."""
    if operands is None:
        return lambda: time.sleep(1e-4)
    from fp4tune.kernels.oracle import reference

    expected = reference(operands).to(operands.out.dtype)

    def run() -> None:
        operands.out.copy_(expected)

    return run


class StandInWorkbench:
    """A workbench without operands: it runs a config's callable, and does not look at what it computes.

    For what is about processes and not about measuring: it needs no torch, so that a new worker takes 0.1 s.
    """

    def __init__(self, device: Device, backends: Mapping[str, Backend], policy: str, *, sharing: int = 1) -> None:
        self._backends = backends
        self.sharing = sharing
        self._problem: Problem | None = None
        self._run: Callable[[], None] = lambda: None
        self._entrants: list[Callable[[], None]] = []

    def open(self, problem: Problem, seed: int) -> None:
        if "big.kernel" in self._backends:
            raise OutOfMemoryError(f"{problem.shape} needs 300.0 GiB, the device has 140.0 GiB.")
        if "dead.kernel" in self._backends:
            os._exit(9)
        if Path(os.environ.get("FP4TUNE_TEST_GONE", "/nowhere")).exists():
            raise RuntimeError(GONE)
        self._problem = problem

    def prepare(self, candidate: Candidate) -> Evaluation:
        assert self._problem is not None
        try:
            self._run = self._backends[candidate.backend].prepare(self._problem, None, candidate.config)
        except UnsupportedError as error:
            return _ended(TrialStatus.UNSUPPORTED, str(error))
        except Exception as error:
            return _ended(TrialStatus.COMPILE_FAILED, f"{type(error).__name__}: {error}")
        return _ended(TrialStatus.OK)

    def check(self) -> Evaluation:
        try:
            self._run()
        except Exception as error:
            return _ended(TrialStatus.CRASHED, f"{type(error).__name__}: {error}")
        return replace(_ended(TrialStatus.OK), rel_error=0.001)

    def time(self, effort: Any, *, best_us: float | None = None) -> Evaluation:
        samples = [self._once() for _ in range(6)]
        low, middle, high = min(samples), sorted(samples)[3], max(samples)
        return Evaluation(TrialStatus.OK, Timing(middle, low, high, samples, 6), "", None, 0.0)

    def enter(self, candidate: Candidate) -> Evaluation:
        evaluation = self.prepare(candidate)
        evaluation = self.check() if evaluation.status is TrialStatus.OK else evaluation
        if evaluation.status is TrialStatus.OK:
            self._entrants.append(self._run)
        return evaluation

    def sample(self, entrant: int) -> Sample:
        self._run = self._entrants[entrant]
        return Sample(self._once(), throttled=entrant == 0)

    def leave(self) -> dict[int, Conditions]:
        conditions = {i: Conditions(temperature_c=50 + i) for i in range(len(self._entrants))}
        self._entrants.clear()
        return conditions

    def close(self) -> None:
        self._problem = None
        self._entrants.clear()

    def _once(self) -> float:
        start = time.perf_counter()
        self._run()
        return (time.perf_counter() - start) * 1e6


def _ended(status: TrialStatus, error: str = "") -> Evaluation:
    return Evaluation(status, None, error, None, 0.0)


def processes() -> dict[int, str]:
    """Command lines of the processes that this one or its workers started: all of this session's tree, by pid."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ") or f"({fields[0]})"
            parents[int(folder.name)] = int(fields[1])
        except (OSError, IndexError):
            continue
    mine: dict[int, str] = {}
    pending = [os.getpid()]
    while pending:
        one = pending.pop()
        below = [pid for pid, parent in parents.items() if parent == one]
        mine |= {pid: commands[pid] for pid in below}
        pending += below
    return mine


def exists(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pids: Sequence[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def appear_within(before: Collection[int], count: int, seconds: float) -> set[int]:
    """The processes that were not there before, once there are so many."""
    deadline = time.monotonic() + seconds
    while len(new := set(processes()) - set(before)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return new


def serve_for_ever() -> None:
    """A tuner that is going to be killed: a worker that hangs, a compiler that hangs, a spare. Prints that it is ready."""
    from fp4tune.kernels.problem import parse_shape
    from fp4tune.tuner.measure import Effort
    from fp4tune.tuner.workers.executor import WorkerExecutor

    backends: dict[str, Backend] = {"bad.kernel": Faulty(), "compiled.kernel": FaultyCompiler()}
    executor = WorkerExecutor(
        DEVICE,
        backends,
        policy="test",
        workbench="worker_faults:StandInWorkbench",
        preload=(),
        spare=True,
        compile_workers=1,
    )
    executor.open(parse_shape("3x48x64"), 0)
    executor.submit(Candidate("compiled.kernel", {"compiler": "hangs"}))
    executor.submit(Candidate("bad.kernel", {"fault": "spins"}))
    threading.Timer(1.5, lambda: _say("ready")).start()
    executor.collect(Effort())
