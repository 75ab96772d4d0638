"""Whether the process that a run belongs to still lives.

A pid alone proves nothing: it may be reused, may belong to another container on a host of the same name, or to
the boot before. So a run also stores its *scope* (boot and pid namespace) and the process's *birth*. Within the same
scope a process is the run's own if and only if it was born then; no clock is involved that somebody could set.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

HEARTBEAT_TIMEOUT = timedelta(seconds=60)
"""A run elsewhere whose heartbeat is older than this is taken for dead. Tuners beat about every 10 s."""

NO_PROCESS = -1
"""The birth of a process that is not there."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a run belongs to.

    Attributes:
        host: name of its host. pid: its id there.
        scope: where that id means something, see `process_scope`.
        birth: when it was born, see `process_birth`.
    """

    host: str
    pid: int
    scope: str
    birth: int


def process_scope() -> str:
    """Where pids of this process mean something: boot id and pid namespace; empty where /proc does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def process_birth(pid: int) -> int:
    """When a process started, in clock ticks after boot (proc(5), field 22); 0 if it is there but hides that.

    Returns:
        NO_PROCESS if there is no such process, or only what its parent has not yet waited for.
    """
    if pid <= 0:
        return NO_PROCESS
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return NO_PROCESS
    except PermissionError:
        pass  # it exists, and is somebody else's
    try:
        # The second field, the name, stands in parentheses and may hold anything: count from the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except ProcessLookupError:
        return NO_PROCESS
    except OSError:
        return 0
    return NO_PROCESS if fields[0] in "ZX" else int(fields[19])


def owner(host: str, pid: int) -> Owner:
    """The process `pid` of this host, as an owner."""
    return Owner(host, pid, process_scope(), process_birth(pid))


def is_alive(who: Owner, heartbeat_at: datetime, *, host: str, now: datetime) -> bool:
    """Whether the owner of a run that says it is running lives.

    Args:
        who: the owner.
        heartbeat_at: the run's last sign of life, UTC.
        host: name of this host.
        now: the time, UTC.
    """
    if who.host == host and who.scope == process_scope():
        return who.birth != NO_PROCESS and process_birth(who.pid) == who.birth
    return now - heartbeat_at < HEARTBEAT_TIMEOUT
