"""Files that appear under their name complete or not at all, and never replace another."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ..kernels.errors import InvalidInputError, NotFoundError, StoreError


@contextlib.contextmanager
def new_file(path: Path, what: str) -> Iterator[Path]:
    """A path to write to; the file gets its name when the block ends, and is gone if the block raises.

    Args:
        path: the file to make; it must not exist.
        what: what it is, for sentences: `backup`, `export`.

    Raises:
        InvalidInputError: the path exists.
        NotFoundError: its directory does not exist.
        StoreError: it could not be written.
    """
    if not os.path.isdir(path.parent):  # noqa: PTH112 - Path.is_dir raises where it may not look
        raise NotFoundError(f"The directory {path.parent} of the {what} {path} does not exist: create it first.")
    if os.path.lexists(path):
        raise _exists(path, what)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        _publish(partial, path, what)
    except OSError as error:
        raise StoreError(f"The {what} {path} was not made: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _publish(partial: Path, path: Path, what: str) -> None:
    """Give the file its name, without replacing anything."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        os.link(partial, path)
    except FileExistsError:
        raise _exists(path, what) from None
    except OSError:
        # No hard links on this file system: look once more, then rename.
        if os.path.lexists(path):
            raise _exists(path, what) from None
        partial.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _exists(path: Path, what: str) -> InvalidInputError:
    return InvalidInputError(f"The {what} {path} exists already, and is never overwritten: give another name.")
