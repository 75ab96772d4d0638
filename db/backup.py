"""A copy of an SQLite database while it is in use."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ..kernels.errors import StoreError
from .faults import sentence
from .publish import new_file


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
    try:
        with new_file(path, "backup") as partial:
            try:
                _copy(source, partial)
            finally:
                for suffix in ("-journal", "-wal", "-shm"):
                    Path(f"{partial}{suffix}").unlink(missing_ok=True)
    except sqlite3.Error as error:
        raise StoreError(f"The backup {path} was not made. {sentence(str(path), error)}") from error


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
