"""Who else computes on a device: what NVML says, so that nobody tunes beside a neighbour without knowing it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernels._host import ROOT, read_text
from ..kernels.nvml import nvml_session, nvml_text

BUSY_PERCENT = 5
"""GPU utilisation from which on a device counts as busy: NVML's figure is the share of the last sample period in which
a kernel ran, and a desktop that draws a clock stays below."""

IDLE_S = 3.0
"""Seconds that a device must have been idle: longer than the pause between two steps of a training or two requests of
a server under load, and three of NVML's sample periods, which are at most one second."""

POLL_S = 0.5
"""Seconds between two looks while waiting."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """Another process with a compute context on the device.

    Attributes:
        pid: process id, as NVML sees it (in a container it may be the host's).
        name: of its program; empty if it cannot be known.
        memory_bytes: device memory it uses; None if NVML does not say.
    """

    pid: int
    name: str
    memory_bytes: int | None

    def __str__(self) -> str:
        """`python3 (pid 123, 12.3 GiB)`."""
        memory = f", {self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes is not None else ""
        return f"{self.name or 'a process'} (pid {self.pid}{memory})"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What a device is doing for others.

    Attributes:
        others: other processes with a compute context, by pid.
        percent: GPU utilisation, 0 to 100; None if NVML does not say (a MIG slice).
    """

    others: tuple[Occupant, ...] = ()
    percent: int | None = None

    @property
    def busy(self) -> bool:
        """Whether it computes now. Who only holds memory does not."""
        return self.percent is not None and self.percent >= BUSY_PERCENT

    @property
    def shared(self) -> bool:
        """Whether figures measured now would be a shared device's."""
        return self.busy or bool(self.others)

    @property
    def sentence(self) -> str:
        """Who is there and how busy it is, for people; empty if nobody is and it is idle."""
        if not self.shared:
            return ""
        load = "" if self.percent is None else f", at {self.percent} % load"
        who = ", ".join(map(str, self.others)) or "a process that cannot be seen from here"
        return f"in use by {who}{load}"


def look(uuid: str, *, nvml: Any = None) -> Occupancy | None:
    """Who is on a device now, this process and its children apart.

    Args:
        uuid: the device's, with its prefix.
        nvml: NVML's bindings, initialised; None opens them.

    Returns:
        None if NVML is not there or does not know the device.
    """
    with contextlib.nullcontext(nvml) if nvml is not None else nvml_session() as bindings:
        if not bindings or not uuid:
            return None
        try:
            handle = bindings.nvmlDeviceGetHandleByUUID(uuid)
        except bindings.NVMLError:
            return None
        return Occupancy(_others(bindings, handle), _percent(bindings, handle))


def wait_until_idle(
    uuid: str,
    *,
    timeout_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
    observe: Callable[[str], Occupancy | None] = look,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Occupancy | None:
    """Wait until a device has been idle for IDLE_S.

    Args:
        uuid: the device's.
        timeout_s: longest wait; None waits for ever.
        tell: told one sentence when the wait begins and whenever another set of processes is there.
        observe: looks.
        clock: gives seconds.
        sleep: takes seconds.

    Returns:
        What was seen last: still busy if the time was out, None if NVML cannot say, which is not waited for.
    """
    started = idle_since = clock()
    told: object = None
    while True:
        seen = observe(uuid)
        now = clock()
        if seen is None:
            return None
        if seen.busy:
            idle_since = now
            pids = tuple(other.pid for other in seen.others)
            if pids != told:
                tell(f"waiting until the device is idle: {seen.sentence}")
                told = pids
        elif now - idle_since >= IDLE_S:
            return seen
        if timeout_s is not None and now - started > timeout_s:
            return seen
        sleep(POLL_S)


def _others(nvml: Any, handle: Any) -> tuple[Occupant, ...]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ()
    mine = _own_family()
    found = {process.pid: process for process in running if process.pid not in mine}
    return tuple(
        Occupant(pid, _name(nvml, pid), getattr(process, "usedGpuMemory", None))
        for pid, process in sorted(found.items())
    )


def _percent(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        return None


def _name(nvml: Any, pid: int) -> str:
    """The program's name: the kernel's, or else NVML's, which knows processes outside of this container."""
    own = read_text(ROOT / f"proc/{pid}/comm")
    if own:
        return _printable(own)
    with contextlib.suppress(nvml.NVMLError):
        return _printable(Path(nvml_text(nvml.nvmlSystemGetProcessName(pid))).name)
    return ""


def _printable(text: str) -> str:
    """A process may call itself anything."""
    return "".join(c if c.isprintable() else "?" for c in text)[:64]


def _own_family() -> set[int]:
    """This process and those that descend from it: its workers are no neighbours."""
    parents: dict[int, int] = {}
    for entry in (ROOT / "proc").glob("[0-9]*"):
        # "pid (comm) state ppid ...", where comm may hold anything, brackets included.
        fields = read_text(entry / "stat").rpartition(")")[2].split()
        if len(fields) > 1:
            parents[int(entry.name)] = int(fields[1])
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= grown
    return family
