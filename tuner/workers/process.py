"""A worker process as the tuner sees it: spawned, asked with a deadline, killed with everything it started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from ...kernels.errors import Fp4tuneError
from . import wire

TICK_S = 0.1
"""While it waits the tuner looks this often whether the worker still lives, and what it takes."""

LOG_BYTES = 16 << 20
"""What a worker may print before all but the end is thrown away: one that prints in a loop must not fill a disk."""

TAIL_BYTES = 4096
"""What is kept then, and looked at for the last lines."""

GENTLE_S = 0.5
"""How long a process group has after SIGTERM, so that a compiler can remove its temporary files."""

REAP_S = 20.0
"""How long SIGKILL may take: the driver first ends what runs on the device."""


class WorkerError(Fp4tuneError):
    """A request to a worker got no answer of value."""


class WorkerTimeoutError(WorkerError):
    """No answer came in time. The worker may do anything now: kill it.

    Args:
        label: of the worker. method: what it was asked for. deadline_s: what it was given, in seconds.
    """

    def __init__(self, label: str, method: str, deadline_s: float) -> None:
        super().__init__(f"{label} did not answer to {method} within {deadline_s:g} s.")
        self.method = method
        self.deadline_s = deadline_s


class WorkerDiedError(WorkerError):
    """The process is gone, or has closed its channel.

    Args:
        label: of the worker. method: what it was asked for. ending: `was killed by SIGSEGV`, `ended with exit code 3`.
        last_lines: the last that it printed.
    """

    def __init__(self, label: str, method: str, ending: str, last_lines: Sequence[str]) -> None:
        quoted = f" Its last line: {last_lines[-1]}" if last_lines else ""
        super().__init__(f"{label} {ending} during {method}.{quoted}")
        self.method = method
        self.ending = ending
        self.last_lines = tuple(last_lines)


class FailedInsideError(WorkerError):
    """The request raised an exception inside the worker.

    Args:
        label: of the worker. method: what it was asked for.
        type_name: class of the exception. text: its text.
        sticky: what the CUDA error is called that makes the process useless; empty if it can go on.
    """

    def __init__(self, label: str, method: str, type_name: str, text: str, sticky: str) -> None:
        super().__init__(f"{label} failed in {method}: {type_name}: {text}")
        self.method = method
        self.type_name = type_name
        self.text = text
        self.sticky = sticky


class WorkerProcess:
    """A process of its own, in a process group of its own, that drives one object.

    It cannot outlive this process (see `serve.die_with_parent`), and hears no Ctrl-C of the terminal. One thread at a
    time asks it; `kill` may come from any.

    Args:
        label: how it is called in sentences and in `ps`: `The worker triton`.
        environment: variables to set on top of this process's.
        preload: modules that it imports before its first request.
    """

    def __init__(
        self, label: str, *, environment: Mapping[str, str] | None = None, preload: Sequence[str] = ()
    ) -> None:
        self.label = label
        self._number = 0
        self._ended = False
        self._lock = threading.Lock()
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._log = tempfile.TemporaryFile(prefix="fp4tune-worker-")  # noqa: SIM115 - closed by the finalizer
        flags = fcntl.fcntl(self._log, fcntl.F_GETFL)
        fcntl.fcntl(self._log, fcntl.F_SETFL, flags | os.O_APPEND)  # the child's, too: so that it can be cut short
        self._channel, theirs = socket.socketpair()
        self._inbox = wire.Inbox(self._channel)
        life, life_end = os.pipe()
        self._life = os.fdopen(life_end, "wb", buffering=0)
        # Whoever forgets to kill it still ends it: the kernel does when this end of the pipe closes.
        weakref.finalize(self, _close_all, self._life, self._channel, self._log)
        with theirs, os.fdopen(life, "rb"):
            # -P: a `kernels` folder where the tuner was started must not hide the package of that name.
            command = [sys.executable, "-P", "-m", "fp4tune.tuner.workers.serve"]
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
                [*command, label, str(theirs.fileno()), str(life), *preload],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), life),
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """Process id, which is its group's, too."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._ended and self._running()

    def start(self, target: str, arguments: Sequence[Any], *, sys_path: Sequence[str] = (), deadline_s: float) -> None:
        """Make the object that further requests are for.

        Args:
            target: its class, `package.module:Name`.
            arguments: what it is made of; plain data.
            sys_path: entries that the worker's `sys.path` gets at its end.
            deadline_s: as for `request`, which says what is raised.
        """
        self.request("start", target, list(sys_path), list(arguments), deadline_s=deadline_s)

    def request(self, method: str, *arguments: Any, deadline_s: float, watch: Callable[[], None] | None = None) -> Any:
        """Call a method of the worker's object.

        Args:
            method: its name.
            *arguments: plain data.
            deadline_s: how long the answer may take, in seconds.
            watch: called ten times a second while waiting; what it raises ends the wait.

        Raises:
            WorkerTimeoutError, WorkerDiedError, FailedInsideError: see there.
        """
        deadline = time.monotonic() + deadline_s
        return self.receive(self.send(method, *arguments), method, deadline=deadline, allowed_s=deadline_s, watch=watch)

    def send(self, method: str, *arguments: Any) -> int:
        """Ask, without waiting. Returns the number by which `receive` knows the answer. Raises WorkerDiedError."""
        self._number += 1
        message = wire.encode(self._number, (method, arguments))
        try:
            self._channel.sendall(message)
        except OSError:
            raise self._died(method) from None
        return self._number

    def receive(
        self,
        number: int,
        method: str,
        *,
        deadline: float,
        allowed_s: float,
        watch: Callable[[], None] | None = None,
    ) -> Any:
        """The answer to an earlier `send`; answers to others, an interrupted one (Ctrl-C) among them, are no answer.

        Args:
            number: what `send` returned.
            method: as it was sent, for sentences.
            deadline: on `time.monotonic`.
            allowed_s: what that was from the start, for sentences.
            watch: as for `request`, which says what is raised.
        """
        while number not in self._answers:
            left_s = deadline - time.monotonic()
            # An answer that came in time counts, however late it is fetched: this process may have been stopped
            # (Ctrl-Z), or have waited for something else.
            if left_s <= 0 and not _readable(self._channel, 0):
                raise WorkerTimeoutError(self.label, method, allowed_s)
            self._wait(max(0.0, min(left_s, TICK_S)), method)
            if watch is not None:
                watch()
        succeeded, value = self._answers.pop(number)
        if succeeded:
            return value
        raise FailedInsideError(self.label, method, *value)

    def kill(self) -> None:
        """End it and everything it started: SIGTERM, then SIGKILL, then reap. May be called twice, from any thread.

        A process that the driver holds on to for longer than REAP_S is left to the operating system, which ends it as
        soon as the driver lets go.
        """
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._signal(signal.SIGTERM)
            if not self._is_gone_within(GENTLE_S):
                self._signal(signal.SIGKILL)
            gone = self._is_gone_within(REAP_S)
            self._signal(signal.SIGKILL)  # what it started: the group is still its, for it has not been reaped
            if gone:
                self._process.wait()
            self._life.close()
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer in another thread is told

    def stop(self, *, patience_s: float = 5.0) -> None:
        """End it in good order if it comes to that by itself, else `kill`."""
        if not self._ended:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
            self._is_gone_within(patience_s)
        self.kill()

    def last_lines(self, count: int = 5) -> list[str]:
        """The last lines that it printed, without empty ones."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        lines = ("".join(c for c in line if c.isprintable()).strip() for line in tail.splitlines())
        return [line for line in lines if line][-count:]

    def _wait(self, seconds: float, method: str) -> None:
        """Until something arrives or `seconds` are over. Raises WorkerDiedError."""
        self._cut_log()
        if not _readable(self._channel, seconds):
            if not self._running() and not _readable(self._channel, 0):
                raise self._died(method)
            return
        if not self._inbox.read():
            raise self._died(method)
        try:
            while (message := self._inbox.pop()) is not None:
                number, body = message
                self._answers[number] = pickle.loads(body)  # noqa: S301 - a worker's of ours, see wire
        except Exception as error:  # noqa: BLE001 - whatever it sent, it cannot be asked again
            raise WorkerDiedError(self.label, method, f"sent no answer but garbage ({error})", []) from None

    def _died(self, method: str) -> WorkerDiedError:
        self._is_gone_within(GENTLE_S)
        return WorkerDiedError(self.label, method, self._ending(), self.last_lines())

    def _ending(self) -> str:
        """How it ended, without reaping it: as long as it is there, its group's number is its."""
        with contextlib.suppress(ChildProcessError):
            state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is None:
                return "closed its channel"
            if state.si_code == os.CLD_EXITED:
                return f"ended with exit code {state.si_status}"
            name = _signal_name(state.si_status)
            return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return "was ended"

    def _running(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def _is_gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _cut_log(self) -> None:
        size = os.fstat(self._log.fileno()).st_size
        if size > LOG_BYTES:
            tail = os.pread(self._log.fileno(), TAIL_BYTES, size - TAIL_BYTES)
            os.ftruncate(self._log.fileno(), 0)
            os.write(self._log.fileno(), tail)


def _close_all(*things: IO[bytes] | socket.socket) -> None:
    for thing in things:
        thing.close()


def _readable(connection: socket.socket, seconds: float) -> bool:
    """Whether there is something to read, its end included; waits up to `seconds`."""
    poll = select.poll()  # select() is for descriptors below 1024
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
