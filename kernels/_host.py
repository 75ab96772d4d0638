"""What the operating system says about the machine: its CPU, its memory, the NVIDIA driver.

Every function takes the root of the file system, so that a test can show it another machine.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

ROOT = Path("/")

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_text(path: Path) -> str:
    """The file's text without surrounding space; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def cpu_name(root: Path = ROOT) -> str:
    """`model name` of the first processor in /proc/cpuinfo; the architecture where there is none (ARM)."""
    match = re.search(r"^model name\s*:\s*(.+)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.machine() or "CPU"


def usable_cores() -> int:
    """Logical cores that this process may be scheduled on."""
    return len(os.sched_getaffinity(0))


def memory_bytes(root: Path = ROOT) -> int:
    """Physical memory, or the limit of this process's cgroup (v1 or v2) or of one above it, whichever is least."""
    match = re.search(r"^MemTotal:\s*(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    physical = int(match[1]) << 10 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_cgroup_limits(root)])


def last_level_cache_bytes(root: Path = ROOT) -> int:
    """Size of the highest data or unified cache of the first core; 0 if sysfs does not say."""
    best = (0, 0)
    for index in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size = read_text(index / "level"), read_text(index / "size")
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if level.isdigit() and match and read_text(index / "type") in {"Data", "Unified"}:
            best = max(best, (int(level), int(match[1]) * _UNITS.get(match[2], 1)))
    return best[1]


def nvidia_driver_version(root: Path = ROOT) -> str:
    """The version of the loaded NVIDIA kernel module, `580.65.06`; empty if there is none."""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read_text(root / "proc/driver/nvidia/version") + " ")
    return match[1] if match else ""


def _cgroup_limits(root: Path) -> list[int]:
    """Memory limits of this process's cgroups and their ancestors, in bytes; without those that are no limit."""
    limits: list[int] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mounts, name = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"
        elif "memory" in controllers.split(","):
            mounts, name = ["sys/fs/cgroup/memory"], "memory.limit_in_bytes"
        else:
            continue
        relative = Path(path.lstrip("/"))
        # Inside a container the path may not exist below the mount, whose root then is the container's own cgroup.
        for below in (relative, *relative.parents):
            texts = [read_text(root / mount / below / name) for mount in mounts]
            limits += [int(text) for text in texts if text.isdigit()]
    return limits
