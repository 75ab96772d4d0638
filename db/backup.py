"""A copy of an SQLite database while it is in use."""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path

from ..kernels.errors import InvalidInputError, NotFoundError, StoreError
from .faults import sentence


def backup(source: sqlite3.Connection, path: Path) -> None:
    """Copy a database with SQLite's online backup, verify the copy, and only then give it its name.

    The copy is one moment of the database; writers go on meanwhile. It is a single file (no -wal beside it), synced to
    disk, and appears under its name complete or not at all.

    Args:
        source: a connection to the database.
        path: the file to make; it must not exist.

    Raises:
        InvalidInputError: the path exists.
        NotFoundError: its directory does not exist.
        StoreError: the copy could not be written, or is damaged.
    """
    if not os.path.isdir(path.parent):  # noqa: PTH112 - Path.is_dir raises where it may not look
        raise NotFoundError(f"The directory {path.parent} of the backup {path} does not exist: create it first.")
    if os.path.lexists(path):
        raise _exists(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        _copy(source, partial)
        _publish(partial, path)
    except sqlite3.Error as error:
        raise StoreError(f"The backup {path} was not made. {sentence(str(path), error)}") from error
    except OSError as error:
        raise StoreError(f"The backup {path} was not made: {error.strerror}.") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{partial}{suffix}").unlink(missing_ok=True)


def _copy(source: sqlite3.Connection, partial: Path) -> None:
    """Copy, and check that the copy is whole."""
    copy = sqlite3.connect(partial)
    try:
        # All pages in one step: in WAL mode that holds up nobody, while several steps start anew at each write.
        source.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")
        problems = [row[0] for row in copy.execute("PRAGMA integrity_check").fetchall()]
    finally:
        copy.close()
    if problems != ["ok"]:
        raise StoreError(f"The database is damaged ({problems[0]}), so no backup was made: restore an older one.")


def _publish(partial: Path, path: Path) -> None:
    """Give the copy its name, without replacing anything."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        os.link(partial, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        # No hard links on this file system: look once more, then rename.
        if os.path.lexists(path):
            raise _exists(path) from None
        partial.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _exists(path: Path) -> InvalidInputError:
    return InvalidInputError(f"The backup {path} exists already, and a backup never overwrites: give another name.")
