"""Taking a device for measuring: the lock, who else is there, and what a user should know before it starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import console

if TYPE_CHECKING:
    from ...kernels.device import Device
    from ...tuner.occupants import Occupancy
    from ...tuner.workers.device_lock import DeviceLock

Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until nobody else measures on the device and it is idle, then begin.")
]
LockDirectory = Annotated[
    Path | None,
    typer.Option("--lock-dir", envvar="FP4TUNE_LOCK_DIR", help="Directory of the device locks, shared by all users."),
]


@contextmanager
def device_session(
    device: Device, words: Sequence[str], *, wait: bool, lock_dir: Path | None
) -> Iterator[tuple[DeviceLock, Occupancy | None]]:
    """Hold a device while the body runs. Says on standard error whom it waits for and who else is there.

    Args:
        device: which; a CPU is not locked.
        words: of the command, for those who find the device locked.
        wait: wait for it instead of giving up, or of going on beside others.
        lock_dir: where the lock lies; None for a directory that all users share.

    Yields:
        The lock, and who else is on the device; None if that cannot be known.

    Raises:
        BusyError: another fp4tune holds it, and `wait` is False. UnsupportedError: it cannot be locked.
    """
    from ...kernels.device import device_uuid
    from ...tuner.occupants import look, wait_until_idle
    from ...tuner.workers.device_lock import DeviceLock

    uuid = device_uuid(device)
    lock = DeviceLock(device, command=shlex.join(["fp4tune", *words]), directory=lock_dir, uuid=uuid)
    if wait:
        lock.wait(tell=say)
    else:
        lock.acquire()
    with lock:
        seen: Occupancy | None = None
        if device.kind != "cpu":
            seen = wait_until_idle(uuid, tell=say) if wait else look(uuid)
        _warn(device, seen, waited=wait)
        yield lock, seen


def _warn(device: Device, seen: Occupancy | None, *, waited: bool) -> None:
    if device.is_slice:
        say(f"note: {device.name} is a slice of a card; what is found holds for such slices alone")
    if seen is not None and seen.shared:
        # Who holds memory and computes nothing is not waited for.
        advice = "they may begin to compute any time" if waited else "--wait waits until it is idle"
        say(f"warning: {device.name} is {seen.sentence}; what is measured beside others varies. {advice}")


def say(sentence: str) -> None:
    """A line on standard error."""
    console(stderr=True).print(sentence, markup=False, soft_wrap=True)
