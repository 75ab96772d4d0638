"""The databases of `dashboard_stores`, each made once a process: for tests that read them and do not write.

Making one takes a tenth of a second, and every page is tested with forty.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dashboard_stores
from fp4tune.db import Store


@functools.cache
def _folder() -> Path:
    """Where they lie, until the process ends."""
    path = Path(tempfile.mkdtemp(prefix="evil"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.lru_cache(maxsize=None, typed=True)  # 0 and 0.0 are two
def _made(kind: str, what: str | float) -> tuple[Path, tuple[str, str]]:
    """The path of `dashboard_stores.<kind>(path, what)`, and the ids of its runs."""
    path = _folder() / f"{_made.cache_info().currsize}.db"
    return path, getattr(dashboard_stores, kind)(path, what)


@contextmanager
def _opened(kind: str, what: str | float) -> Iterator[tuple[Store, tuple[str, str]]]:
    path, runs = _made(kind, what)
    with Store.open(path, mode="read") as store:
        yield store, runs


def hostile(text: str):
    """A store in which every string that somebody may choose is `text`, and the ids of its runs; for reading."""
    return _opened("hostile", text)


def odd(number: float):
    """A store in which every number is `number`, and the ids of its runs; for reading."""
    return _opened("odd", number)


def orphans(table: str):
    """A store that has lost the rows of a table, and the ids of its runs; for reading."""
    return _opened("orphans", table)
