"""The measuring policies: how prepared calls are run and timed on a device. docs/measuring.md says what each means.

A clock is given one callable for each operand set and gives back what it made of them, loaded: from then on every
sample goes through all sets, so that none is in L2 when its turn comes.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..kernels.device import Device
from ..kernels.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import torch

Run = Callable[[], None]

POLICIES = {"cpu": ("cpu.warm",), "cuda": ("cuda.graph", "cuda.eager")}
"""Measuring policies by kind of device; the first is what is used when nobody says."""

MIN_SAMPLE_CPU_US = 200.0
"""A sample spans at least this long: perf_counter costs about 0.1 µs and ticks in 1 ns on Linux, so clock error stays
far under 0.1 %; shorter calls are repeated inside one sample."""

MIN_SAMPLE_CUDA_US = 1000.0
"""As above. CUDA events tick in 0.5 µs (CUDA runtime API, cudaEventElapsedTime), and between an event and the graph
beside it lie a few microseconds in which nothing runs: together well under 1 %, and the same for every config."""

LONG_CALL_US = 10_000.0
"""On a CPU in the rounds a shorter call runs once untimed before its sample, to bring back into the caches what the
previous candidate evicted: refilling 32 MiB of last-level cache at 10 GB/s takes 3 ms, which a longer call hardly
feels. On a GPU a longer sample needs nothing in front: what the host takes to launch is under 0.2 % of it."""

MAX_ROTATION_S = 0.25
"""A rotation that would take longer, judged by the host's clock, is cut to its first sets. Whatever is cut reads less
than a thousandth of what the card could in that time, so what is in L2 does not decide its figure."""

MAX_CALLS = 4096
"""Calls in a graph at most, for calls so short that the estimate of how many are needed cannot be trusted."""


class Loaded(Protocol):
    """Prepared calls that are ready to be timed.

    Attributes:
        call_us: what a call took when it was last timed, microseconds; rough.
        n_sets: how many of the operand sets are run, the first ones.
    """

    call_us: float
    n_sets: int

    def run(self) -> None:
        """Run every set at least once, as a sample does, and wait until it is done."""
        ...

    def warm_up(self, seconds: float) -> None:
        """Run until this long has passed, at least once; what load() ran already may count."""
        ...

    def sample_us(self, *, after_others: bool = False, meanwhile: Callable[[], None] | None = None) -> float:
        """Take a sample: microseconds per call.

        Args:
            after_others: something else ran since the last sample, and may have evicted what this one finds in caches.
            meanwhile: called while the device is at work, if it works beside the host.
        """
        ...

    def release(self) -> None:
        """Free what was made for it on the device. May be called twice."""
        ...


class Clock(Protocol):
    """Times calls on one device.

    Attributes:
        policy: name of the measuring policy, stored with every trial so that policies are never mixed.
        rotates: True if what it loads runs otherwise than one call after another from here, and must be checked, too.
    """

    policy: str
    rotates: bool

    def load(self, runs: Sequence[Run], *, call_s: float) -> Loaded:
        """Make calls ready.

        Args:
            runs: one callable for each operand set; each has already run, or its equal on another set has.
            call_s: how long a call took just before, by the host's clock, in seconds.

        Raises:
            UnsupportedError: the calls cannot be run under this policy.
        """
        ...


def policy_for(device: Device, policy: str = "") -> str:
    """The full name of a policy.

    Args:
        device: what is timed.
        policy: one of POLICIES of the device's kind; empty for the first.

    Raises:
        InvalidInputError: the policy is not one for this kind of device.
    """
    known = POLICIES[device.kind]
    if policy and policy not in known:
        raise InvalidInputError(f"A {device.kind} device is measured by {' or '.join(known)}, not by {policy!r}.")
    return policy or known[0]


def clock_for(device: Device, policy: str = "") -> Clock:
    """The clock of a policy, see `policy_for`. One for a CUDA device makes a context there."""
    clocks: dict[str, Callable[[], Clock]] = {
        CpuClock.policy: CpuClock,
        CudaGraphClock.policy: partial(CudaGraphClock, device),
        CudaEagerClock.policy: partial(CudaEagerClock, device),
    }
    return clocks[policy_for(device, policy)]()


class CpuClock:
    """Wall clock around synchronous calls, caches as the previous call left them."""

    policy = "cpu.warm"
    rotates = False

    def load(self, runs: Sequence[Run], *, call_s: float) -> Loaded:
        """See Clock."""
        return _CpuLoaded(tuple(runs), call_s)


class _CpuLoaded:
    """Calls on the CPU; see Loaded."""

    def __init__(self, runs: tuple[Run, ...], call_s: float) -> None:
        self._runs = runs
        self._ran_s = call_s
        self.call_us = call_s * 1e6
        self.n_sets = len(runs)

    def run(self) -> None:
        """See Loaded."""
        for run in self._runs:
            run()

    def warm_up(self, seconds: float) -> None:
        """See Loaded."""
        deadline = time.monotonic() + seconds - self._ran_s
        while self.call_us <= 0 or time.monotonic() < deadline:
            self.call_us = self._time(1)

    def sample_us(self, *, after_others: bool = False, meanwhile: Callable[[], None] | None = None) -> float:  # noqa: ARG002
        """See Loaded; a CPU does not work beside the host."""
        if after_others and self.call_us < LONG_CALL_US:
            self.run()
        return self._time(max(1, round(MIN_SAMPLE_CPU_US / self.call_us / len(self._runs))))

    def _time(self, rotations: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(rotations):
            for run in self._runs:
                run()
        return (time.perf_counter_ns() - start) / 1e3 / rotations / len(self._runs)

    def release(self) -> None:
        """See Loaded; there is nothing to free."""


class _CudaClock:
    """What both CUDA policies share: a stream of their own and two events, made once since making them takes time."""

    rotates = True

    def __init__(self, device: Device) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device.torch_device)
        with torch.cuda.device(self._device):
            self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._start, self._end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[torch.cuda.Stream]:
        """The device and the stream are the current ones inside, for torch and for whoever asks torch for them."""
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            yield self._stream

    def time_us(self, launch: Run, *, lead_in: bool, meanwhile: Callable[[], None] | None = None) -> float:
        """Microseconds between an event before and one after what `launch` launches.

        With `lead_in` the same is launched once more in front, so that the device is at work, as in a server, while the
        host launches what is timed: without, the first microseconds of the sample would be the host's.
        """
        with self.on_stream():
            if lead_in:
                launch()
            self._start.record()
            launch()
            self._end.record()
            if meanwhile is not None:
                meanwhile()
            self._end.synchronize()
            return float(self._start.elapsed_time(self._end)) * 1e3

    def _launch_once(self, runs: Sequence[Run]) -> None:
        """Run every set on the clock's stream: libraries make a workspace for each stream, outside of any capture."""
        with self.on_stream() as stream:
            stream.wait_stream(self._torch.cuda.default_stream(self._device))
            for run in runs:
                run()
            stream.synchronize()


class CudaGraphClock(_CudaClock):
    """CUDA graph replays between two events: what a server pays that captured its forward pass."""

    policy = "cuda.graph"

    def load(self, runs: Sequence[Run], *, call_s: float) -> Loaded:
        """See Clock."""
        runs = _affordable(runs, call_s)
        self._launch_once(runs)
        graph = self._capture(runs, 1)
        rotation_us = self.time_us(graph.replay, lead_in=True)
        rotations = _rotations(rotation_us, len(runs))
        if rotations > 1:
            graph.reset()
            graph = self._capture(runs, rotations)
        return _CudaLoaded(self, runs, graph.replay, rotations, rotation_us, graph.reset)

    def _capture(self, runs: Sequence[Run], rotations: int) -> Any:
        """One torch.cuda.CUDAGraph of `rotations` rotations, with a memory pool of its own."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        failure: Exception | None = None
        with self.on_stream(), _no_collection():
            # Not torch.cuda.graph(), which empties torch's cache of device memory every time.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(rotations):
                    for run in runs:
                        run()
            except Exception as error:  # noqa: BLE001 - whatever a backend raises, the capture must be ended
                failure = error
            try:
                graph.capture_end()
            except Exception as error:  # noqa: BLE001 - as above
                failure = failure or error
                self._abandon(pool)
        if failure is not None:
            torch.cuda.synchronize(self._device)  # raises if it is the device that is broken
            if isinstance(failure, torch.OutOfMemoryError):
                raise failure
            first = str(failure).strip().split("\n", 1)[0]
            raise UnsupportedError(
                f"It cannot be captured into a CUDA graph ({type(failure).__name__}: {first[:500]}); "
                "it can only be measured by cuda.eager."
            ) from failure
        return graph

    def _abandon(self, pool: tuple[int, int]) -> None:
        """Tell torch's allocator that a capture is over whose end failed.

        torch 2.11 leaves it waiting for that end, and it then refuses to give memory back as long as the process lives.
        """
        c = self._torch._C  # noqa: SLF001 - there is no public name; torch.cuda.use_mem_pool ends with these two
        index = self._device.index
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            with contextlib.suppress(Exception):
                getattr(c, name)(index, pool)


class CudaEagerClock(_CudaClock):
    """The same rotation launched call by call from the host, between two events: for engines without graphs."""

    policy = "cuda.eager"

    def load(self, runs: Sequence[Run], *, call_s: float) -> Loaded:
        """See Clock."""
        runs = _affordable(runs, call_s)
        self._launch_once(runs)
        rotation_us = self.time_us(partial(_launch, runs, 1), lead_in=True)
        rotations = _rotations(rotation_us, len(runs))
        return _CudaLoaded(self, runs, partial(_launch, runs, rotations), rotations, rotation_us, lambda: None)


class _CudaLoaded:
    """Calls on a CUDA device; see Loaded."""

    def __init__(
        self, clock: _CudaClock, runs: Sequence[Run], launch: Run, rotations: int, rotation_us: float, free: Run
    ) -> None:
        self._clock = clock
        self._launch = launch
        self._free = free
        self._calls = rotations * len(runs)
        self._runs: Sequence[Run] = runs  # a graph replays on their buffers, so they live as long as it
        self.call_us = rotation_us / len(runs)
        self.n_sets = len(runs)

    def run(self) -> None:
        """See Loaded."""
        with self._clock.on_stream() as stream:
            self._launch()
            stream.synchronize()

    def warm_up(self, seconds: float) -> None:
        """See Loaded."""
        deadline = time.monotonic() + seconds
        self.sample_us()
        while time.monotonic() < deadline:
            self.sample_us()

    def sample_us(self, *, after_others: bool = False, meanwhile: Callable[[], None] | None = None) -> float:  # noqa: ARG002
        """See Loaded; L2 has nothing for the first set, whoever ran before."""
        lead_in = self.call_us * self._calls < LONG_CALL_US
        self.call_us = self._clock.time_us(self._launch, lead_in=lead_in, meanwhile=meanwhile) / self._calls
        return self.call_us

    def release(self) -> None:
        """See Loaded."""
        free, self._free = self._free, lambda: None
        with contextlib.suppress(Exception):  # on a broken device nothing can be freed, and nothing needs to be
            free()
        self._launch, self._runs = _released, ()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector rests inside: what it frees of somebody else's may be a call that no capture survives."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _affordable(runs: Sequence[Run], call_s: float) -> Sequence[Run]:
    """As many of the sets as MAX_ROTATION_S allows, at least one."""
    return runs[: max(1, math.floor(MAX_ROTATION_S / call_s))] if call_s > 0 else runs


def _rotations(rotation_us: float, n_runs: int) -> int:
    """How many rotations make a sample of at least MIN_SAMPLE_CUDA_US."""
    return max(1, min(math.ceil(MIN_SAMPLE_CUDA_US / max(1.0, rotation_us)), MAX_CALLS // n_runs))


def _launch(runs: Sequence[Run], rotations: int) -> None:
    for _ in range(rotations):
        for run in runs:
            run()


def _released() -> None:
    raise RuntimeError("this config was released")
