"""Files that appear whole or not at all, and never take the place of something else by accident."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...kernels.errors import InvalidInputError


def check_target(path: Path, *, may_replace: Callable[[Path], bool], hint: str) -> None:
    """Refuse a file that could not be written, before the work that is to go into it.

    Args:
        path: the file.
        may_replace: asked if the file is there already.
        hint: what to do if it must not be replaced, as the end of a sentence.

    Raises:
        InvalidInputError: it is a directory, its directory is not there or cannot be written to, or it is there and
            must stay.
    """
    folder = path.parent
    if path.is_dir():
        raise InvalidInputError(f"{path} is a directory: name a file.")
    if not folder.is_dir():
        raise InvalidInputError(f"{path} cannot be written: there is no directory {folder}.")
    if path.exists() and not may_replace(path):
        raise InvalidInputError(f"{path} is there already: {hint}.")
    try:
        descriptor, probe = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}.") from error
    os.close(descriptor)
    Path(probe).unlink()


def beside(path: Path, text: str) -> Path:
    """Write a text to a new file beside `path`, and flush it to the disk.

    Returns:
        The new file, which `put_in_place` renames, or the caller removes.

    Raises:
        InvalidInputError: it cannot be written (the disk is full, ...); nothing is left behind.
    """
    name = ""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}.") from error
    return Path(name)


def put_in_place(new: Path, path: Path) -> None:
    """Give a file that `beside` made its name, at once: whoever reads `path` sees the old file or the new one.

    Raises:
        InvalidInputError: it cannot be renamed; the new file is removed, the old one stays.
    """
    try:
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}.") from error


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file at once. Raises InvalidInputError, and leaves what was there."""
    put_in_place(beside(path, text), path)


def _umask() -> int:
    """This process's mask: a temporary file is private to its owner, and what it becomes need not be."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
