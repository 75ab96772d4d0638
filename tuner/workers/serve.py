"""What runs inside a worker: a loop that reads requests and drives one object.

Started by `process.WorkerProcess` as `python -P -m fp4tune.tuner.workers.serve LABEL CHANNEL LIFE [MODULE...]`. The
first request, `start`, says which object to make; each further one names a public method of it. A worker that waits for
`start` has imported the modules named on its command line and touched no device, so it makes a good spare.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import wire
from .sticky import sticky_name

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

TEXT_LIMIT = 4000
"""Characters of somebody else's error that are kept: compilers print whole programs."""


def resolve(target: str) -> Any:
    """The object that `package.module:Qualified.name` names. Raises ImportError, AttributeError."""
    module, _, qualified = target.partition(":")
    found = importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


def die_with_parent(life: int) -> None:
    """Have the kernel kill this process and its group when the tuner is gone, however it went.

    `life` is the reading end of a pipe whose writing end the tuner alone holds. Its close sends SIGKILL to the whole
    process group (F_SETOWN with a negative number), compilers that this process started included. PR_SET_PDEATHSIG,
    which is about this process alone and fires when the *thread* that started it ends, is for kernels without F_SETSIG.
    """
    try:
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()  # select() is for descriptors below 1024
    poll.register(life, select.POLLIN)
    if poll.poll(0):  # it was gone before
        os._exit(1)


class _Loop:
    """Answers requests with one object until the other end closes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._object: Any = None

    def run(self) -> None:
        inbox = wire.Inbox(self._connection)
        while True:
            while (message := inbox.pop()) is None:
                if not inbox.read():
                    return
            self._connection.sendall(self._answer(*message))

    def _answer(self, number: int, body: bytes) -> bytes:
        try:
            method, arguments = pickle.loads(body)  # noqa: S301 - the tuner's, see wire
            value = self._method(method)(*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it is, sys.exit included, the tuner is to know
            return wire.encode(number, (False, describe(error)))
        try:
            return wire.encode(number, (True, value))
        except Exception as error:  # noqa: BLE001 - pickle raises anything
            name, text, _ = describe(error)
            return wire.encode(number, (False, (name, f"The answer to {method} cannot be sent: {text}", "")))

    def _method(self, name: str) -> Callable[..., Any]:
        if name == "start":
            return self._start
        if self._object is None or name.startswith("_"):
            raise RuntimeError(f"There is nothing that can {name}.")
        found: Callable[..., Any] = getattr(self._object, name)
        return found

    def _start(self, target: str, sys_path: Sequence[str], arguments: Sequence[Any]) -> int:
        sys.path.extend(entry for entry in sys_path if entry not in sys.path)
        self._object = resolve(target)(*arguments)
        return os.getpid()


def describe(error: BaseException) -> tuple[str, str, str]:
    """(class, text, name of the sticky CUDA error or nothing) of an exception."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - somebody else's __str__
        text = "(no text)"
    return type(error).__name__, text[:TEXT_LIMIT], sticky_name(error)


def main(arguments: Sequence[str]) -> None:
    """Serve until the tuner closes the channel."""
    channel, life = int(arguments[1]), int(arguments[2])
    for descriptor in (channel, life):
        os.set_inheritable(descriptor, False)
    die_with_parent(life)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in arguments[3:]:
        with contextlib.suppress(Exception):  # whoever needs it will say what is wrong with it
            importlib.import_module(module)
    with socket.socket(fileno=channel) as connection, contextlib.suppress(ConnectionError):
        _Loop(connection).run()


if __name__ == "__main__":
    main(sys.argv[1:])
