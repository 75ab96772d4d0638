"""One process at a time measures on a device: an exclusive lock by UUID, across processes and users.

A `flock` on a file in a directory that all users share. The kernel frees it when its holder ends, however it ends, so
nothing is ever stale; the file stays, and what it says of its last holder is only read while the lock is held. The
name of a file in such a directory can be taken by anybody first, so it is opened without following a symbolic link and
must be a regular file without other names: nothing but a lock file of ours is ever written to. It is first opened
without O_CREAT, because the kernel refuses O_CREAT on somebody else's file in a sticky directory
(fs.protected_regular, proc(5)).

Containers share the lock only if they share the directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import platform
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from ...kernels.device import Device, device_uuid
from ...kernels.errors import BusyError, UnsupportedError

SHARED_DIRECTORIES = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - shared on purpose, see the module's docstring
"""Where locks lie: the first of these that every user may write to. Not TMPDIR, which may differ from user to user."""

POLL_S = 0.5
"""Seconds between two attempts while waiting."""

ATTEMPTS = 3
"""Before a lock counts as held: who only asks for the holder holds it for an instant, too."""

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_EVERYBODY = stat.S_IWOTH | stat.S_ISVTX
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock.

    Attributes:
        pid: process id, as the holder sees it (a container has its own). user, host: names. command: what it runs.
        since: UTC.
    """

    pid: int
    user: str
    host: str
    command: str
    since: datetime

    def __str__(self) -> str:
        """`fp4tune tune ... (pid 123, user anna), since 12:03`, in local time; the host if it is not this one."""
        since = self.since.astimezone()
        clock = f"{since:%H:%M}" if since.date() == datetime.now(UTC).astimezone().date() else f"{since:%Y-%m-%d %H:%M}"
        host = "" if self.host == platform.node() else f", host {self.host}"
        return f"{self.command} (pid {self.pid}, user {self.user}{host}), since {clock}"


class DeviceLock:
    """The right to measure on a device. A context manager over a lock that is held; for a CPU it locks nothing.

    Args:
        device: which.
        command: what the holder runs, for those who find it held.
        directory: where the lock files lie; None for the first of SHARED_DIRECTORIES that serves. It must exist.
        uuid: of the device; None asks the driver.

    Raises:
        UnsupportedError: there is no directory for the lock.
    """

    def __init__(self, device: Device, *, command: str, directory: Path | None = None, uuid: str | None = None) -> None:
        self._command = command
        self._fd = -1
        self._path: Path | None = None
        if device.kind != "cpu":
            # A driver that does not say its UUID: all devices of that ordinal on this machine share one lock.
            self._uuid = (device_uuid(device) if uuid is None else uuid) or f"ordinal-{device.index}"
            self._label = f"GPU {device.name} ({self._uuid})"
            self._path = lock_directory(directory) / f"fp4tune-{self._uuid}.lock"

    @property
    def path(self) -> Path | None:
        """The lock file; None for a CPU."""
        return self._path

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            BusyError: somebody holds it; the sentence says who.
            UnsupportedError: the lock file cannot be used.
        """
        holder = None
        for _ in range(ATTEMPTS):
            if self._try():
                return
            holder = self.holder()
            time.sleep(0.05)
        raise BusyError(self._busy(holder))

    def wait(self, timeout_s: float | None = None, *, tell: Callable[[str], None] = lambda _: None) -> None:
        """Take the lock as soon as it is free.

        Args:
            timeout_s: longest wait; None waits for ever.
            tell: told one sentence at the start of the wait and whenever the holder changes.

        Raises:
            BusyError: it did not become free in time. UnsupportedError: the lock file cannot be used.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told: Holder | str | None = ""
        while not self._try():
            holder = self.holder()
            if holder != told:
                tell(f"waiting for {self._label}, in use by {holder or 'an unknown process'}")
                told = holder
            if deadline is not None and time.monotonic() > deadline:
                raise BusyError(self._busy(holder))
            time.sleep(POLL_S)

    def release(self) -> None:
        """Give it back. May be called twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)

    def holder(self) -> Holder | None:
        """Who holds the lock; None if nobody does, or nobody that can be known."""
        if self._path is None:
            return None
        fd = self._open()
        try:
            if self._fd < 0 and self._flock(fd):
                return None
            for _ in range(5):  # whoever took it this moment may not have written who it is
                text = os.pread(fd, _MAX_BYTES, 0)
                if text:
                    return _parse(text)
                time.sleep(0.02)
            return None
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        """The lock, which must be held."""
        if self._path is not None and self._fd < 0:
            raise RuntimeError("acquire() or wait() was not called")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        self.release()

    def _try(self) -> bool:
        """Take the lock if nobody has it. True for a CPU."""
        if self._path is None or self._fd >= 0:
            return True
        while True:
            fd = self._open()
            try:
                locked = self._flock(fd)
            except UnsupportedError:
                os.close(fd)
                raise
            if not locked:
                os.close(fd)
                return False
            # Somebody may have removed the file between open and lock: a lock on what has no name excludes nobody.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), self._path.stat(follow_symlinks=False)):
                    break
            os.close(fd)
        me = Holder(os.getpid(), _user(), platform.node(), self._command[:1000], datetime.now(UTC))
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({**asdict(me), "since": me.since.isoformat()}).encode()[:_MAX_BYTES], 0)
        self._fd = fd
        return True

    def _open(self) -> int:
        """The lock file, made if it is missing.

        Raises:
            UnsupportedError: it cannot be opened, or is not a lock file.
        """
        assert self._path is not None  # noqa: S101 - callers look
        refused: OSError | None = None
        for _ in range(50):
            try:
                fd = os.open(self._path, _FLAGS)
            except FileNotFoundError:
                self._make(self._path)
                continue
            except PermissionError as error:
                refused = error  # it may have been made this moment, and gets its mode the next
                time.sleep(0.01)
                continue
            except OSError as error:
                raise self._unusable(error) from error
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                return fd
            os.close(fd)
            # No name at all: it was removed between open and now, and is made anew.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise UnsupportedError(f"The lock file {self._path} is no plain file of its own: remove it.")
        raise self._unusable(refused or OSError(errno.EAGAIN, "somebody keeps removing it")) from refused

    def _make(self, path: Path) -> None:
        """Make the lock file, if nobody else just did."""
        try:
            fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return
        except OSError as error:
            raise self._unusable(error) from error
        os.fchmod(fd, 0o666)  # whatever the umask is: other users must be able to lock it
        os.close(fd)

    def _flock(self, fd: int) -> bool:
        """Lock without waiting. False if somebody else holds it.

        Raises:
            UnsupportedError: the file system knows no locks.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unusable(error) from error
        return True

    def _unusable(self, error: OSError) -> UnsupportedError:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
        return UnsupportedError(
            f"The lock file {self._path} cannot be used: {why}. Remove it, or set FP4TUNE_LOCK_DIR to a directory that "
            "all users of the device may write to."
        )

    def _busy(self, holder: Holder | None) -> str:
        return f"{self._label} is in use by {holder or 'an unknown process'}; wait with --wait."


def lock_directory(directory: Path | None = None) -> Path:
    """Where lock files lie.

    Args:
        directory: this one, if given; else the first of SHARED_DIRECTORIES that every user may write to, and where no
            user may remove another's file.

    Raises:
        UnsupportedError: it does not exist, or none serves.
    """
    if directory is not None:
        if not directory.is_dir():
            raise UnsupportedError(
                f"Device locks should lie in {directory} (--lock-dir, FP4TUNE_LOCK_DIR): no directory."
            )
        return directory
    for candidate in SHARED_DIRECTORIES:
        with contextlib.suppress(OSError):
            mode = candidate.stat().st_mode
            if stat.S_ISDIR(mode) and mode & _EVERYBODY == _EVERYBODY and os.access(candidate, os.W_OK | os.X_OK):
                return candidate
    tried = ", ".join(map(str, SHARED_DIRECTORIES))
    raise UnsupportedError(f"None of {tried} is a directory that every user may write to: set FP4TUNE_LOCK_DIR.")


def _user() -> str:
    """The user's name, or the number of one without a name (containers)."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # KeyError up to Python 3.12
        return str(os.getuid())


def _parse(text: bytes) -> Holder | None:
    """A holder as written. None if it is not one: the file can be written by anybody."""
    try:
        found = json.loads(text)
        holder = Holder(
            int(found["pid"]),
            _printable(found["user"]),
            _printable(found["host"]),
            _printable(found["command"]),
            datetime.fromisoformat(found["since"]),
        )
    except (ValueError, TypeError, KeyError):
        return None
    return holder if holder.since.tzinfo else None


def _printable(text: object) -> str:
    """At most 200 characters, none of which can do anything to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:200])
