"""How many cores and how much memory compilers may have, and how much a process and what it started take.

Functions that read the machine take the root of the file system, so that a test can show them another one.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ...kernels import _host

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryBudget:
    """Memory that several threads share: each takes its part before it starts something, and waits while there is none.

    First come, first served: what needs much is not passed over for ever by what needs little.

    Args:
        total_bytes: all of it.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: deque[object] = deque()
        self._closed = False

    @contextlib.contextmanager
    def reserve(self, n_bytes: int) -> Iterator[int]:
        """Hold so many bytes; all that there are if it is more than that. Gives what is held."""
        held = min(n_bytes, self.total_bytes)
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(
                lambda: self._closed or (self._waiting[0] is ticket and self._taken + held <= self.total_bytes)
            )
            self._waiting.remove(ticket)
            self._taken += held
            self._changed.notify_all()  # the next in line may fit, too
        try:
            yield held
        finally:
            with self._changed:
                self._taken -= held
                self._changed.notify_all()

    def close(self) -> None:
        """Let everybody pass, because nothing is started any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def usable_cores(root: Path = _host.ROOT) -> int:
    """Cores that this process may be scheduled on, or the quota of its cgroup (v1 or v2), whichever is less."""
    cores = float(_host.usable_cores())
    for folder in _cgroup_folders(root):
        quota, _, period = _host.read_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota = _host.read_text(folder / "cpu.cfs_quota_us")
            period = _host.read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" and -1 are no limit
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


def free_bytes(root: Path = _host.ROOT) -> int:
    """Memory that can still be had: what the kernel calls available, or what is left of the cgroup's limit."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", _host.read_text(root / "proc/meminfo"), re.MULTILINE)
    limit = _host.memory_bytes(root)
    free = [limit, *(left for folder in _cgroup_folders(root) if (left := _cgroup_left(folder)) is not None)]
    if match:
        free.append(int(match[1]) << 10)
    return max(0, min(free))


def tree_bytes(pid: int, root: Path = _host.ROOT) -> int:
    """Memory of a process and all it started, in bytes, without files that are mapped; 0 if it is gone.

    /proc/<pid>/statm (proc(5)): resident pages less shared ones, since every worker maps the same libraries.
    """
    total = 0
    for one in _tree(pid, root):
        fields = _host.read_text(root / f"proc/{one}/statm").split()
        if len(fields) > 2:
            total += (int(fields[1]) - int(fields[2])) * PAGE_BYTES
    return total


def _tree(pid: int, root: Path) -> Iterator[int]:
    """`pid` and its descendants."""
    pending = [pid]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        with contextlib.suppress(OSError):  # it is gone
            for task in (root / f"proc/{one}/task").iterdir():
                pending += map(int, _host.read_text(task / "children").split())


def _cgroup_folders(root: Path) -> list[Path]:
    """Where this process's cgroups and the ones above them may be; those that are not there have no files."""
    folders: list[Path] = []
    for line in _host.read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = Path(path.lstrip("/"))
        mounts = ["", "unified"] if not controllers else [*controllers.split(","), controllers]
        # Inside a container the path may not exist below the mount, whose root then is the container's own cgroup.
        folders += [root / "sys/fs/cgroup" / mount / one for mount in mounts for one in (relative, *relative.parents)]
    return folders


def _cgroup_left(folder: Path) -> int | None:
    """What is left of a cgroup's limit, with what can be reclaimed; None if it has no limit."""
    limit = _host.read_text(folder / "memory.max") or _host.read_text(folder / "memory.limit_in_bytes")
    used = _host.read_text(folder / "memory.current") or _host.read_text(folder / "memory.usage_in_bytes")
    if not limit.isdigit() or not used.isdigit():
        return None
    cache = re.search(r"^(?:total_)?inactive_file (\d+)$", _host.read_text(folder / "memory.stat"), re.MULTILINE)
    return int(limit) - int(used) + (int(cache[1]) if cache else 0)
