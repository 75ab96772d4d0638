"""From a path or a URL to an engine: SQLite's pragmas and transactions, PostgreSQL's session settings."""

from __future__ import annotations

import importlib.util
import os
import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from ..kernels.errors import InvalidInputError, NotFoundError, StoreError, UnsupportedError
from .faults import BUSY_TIMEOUT_S, translated

Mode = Literal["create", "write", "read"]

MIN_SQLITE = (3, 35, 0)
"""First SQLite with RETURNING (2021-03-12)."""

SMALLEST_PAGE = 512
"""Bytes in the smallest page, and so in the smallest database, of SQLite (https://www.sqlite.org/fileformat.html)."""

LOOK_S = (0.002, 0.02)
"""Shortest and longest time between two looks at a lock that somebody else holds, seconds."""

BEGIN = "fp4tune_begin"
"""Execution option that says how a transaction begins on SQLite."""

_FORMS = "a path, sqlite:///path or postgresql+psycopg://user:password@host/database"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a database is.

    Attributes:
        url: SQLAlchemy's URL, password included.
        path: the file; None for PostgreSQL.
    """

    url: sa.URL
    path: Path | None

    @property
    def masked(self) -> str:
        """The URL with any password masked."""
        if self.path is not None:
            return f"sqlite:///{self.shown}"
        query = {key: "***" if "password" in key else value for key, value in self.url.query.items()}
        return self.url.set(query=query).render_as_string(hide_password=True)

    @property
    def shown(self) -> str:
        """How sentences call it: the path, or the masked URL. Always printable."""
        if self.path is None:
            return self.masked
        return str(self.path).encode("utf-8", "backslashreplace").decode("utf-8")


def parse_target(url: str | Path) -> Target:
    """Read a path or URL.

    Raises:
        InvalidInputError: it is empty, not a URL, or an SQLite database in memory.
        UnsupportedError: another database than SQLite and PostgreSQL.
    """
    text = os.fspath(url)
    if not text or "\x00" in text:
        raise InvalidInputError(f"A database is named by {_FORMS}, not by {text!r}.")
    if isinstance(url, Path) or "://" not in text:
        return _file(Path(text))
    try:
        parsed = make_url(text)
        # "postgresql" alone would mean psycopg2 to SQLAlchemy; "postgres" is what libpq also understands.
        backend, _, driver = parsed.drivername.partition("+")
    except (ArgumentError, ValueError):
        # The text is not shown: it may hold a password.
        raise InvalidInputError(f"The database URL cannot be read: give {_FORMS}.") from None
    if backend == "sqlite" and driver in {"", "pysqlite"}:
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise InvalidInputError(
                f"{text!r} names no plain file: several processes share the database, so give sqlite:///path."
            )
        return _file(Path(parsed.database))
    if backend in {"postgresql", "postgres"} and driver in {"", "psycopg"}:
        return Target(parsed.set(drivername="postgresql+psycopg"), None)
    raise UnsupportedError(f"Databases of the kind {parsed.drivername!r} are not supported: give {_FORMS}.")


def _file(path: Path) -> Target:
    """The target that is a file."""
    return Target(sa.URL.create("sqlite", database=str(path)), path)


def make_engine(target: Target, mode: Mode) -> sa.Engine:
    """An engine; nothing is written, but for mode `create` a missing SQLite file is made (empty).

    Raises:
        NotFoundError: the SQLite file is missing and may not be made.
        StoreError: it cannot be opened; SQLite is too old; the driver for PostgreSQL is not installed.
    """
    if target.path is not None:
        return _sqlite_engine(target, target.path, mode)
    return _postgres_engine(target, mode)


def writer(engine: sa.Engine) -> sa.Engine:
    """The same engine; on SQLite, its transactions take the writer lock when they begin."""
    return engine.execution_options(**{BEGIN: "BEGIN IMMEDIATE"})


# SQLite


def _sqlite_engine(target: Target, path: Path, mode: Mode) -> sa.Engine:
    """An engine on a file whose connections follow docs/decisions/0002."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise StoreError(
            f"SQLite {sqlite3.sqlite_version} is too old: fp4tune needs {'.'.join(map(str, MIN_SQLITE))} or newer."
        )
    try:
        _require_file(path, mode)
    except OSError as error:  # the path is too long, or leads through a directory that is closed to this user
        raise StoreError(f"The database {target.shown} cannot be opened: {error.strerror}.") from error
    with translated(target.shown):
        # The file is made here, once: connections open what exists, so that a file that is removed while the
        # store is open is not silently replaced by an empty one.
        sqlite3.connect(_uri(path, "rwc" if mode == "create" else "ro"), uri=True).close()
    engine = sa.create_engine(
        "sqlite://",
        creator=_sqlite_connector(path, mode),
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=56,
        pool_timeout=BUSY_TIMEOUT_S,
    )
    event.listen(engine, "begin", _begin)
    return engine


def _require_file(path: Path, mode: Mode) -> None:
    """Say what is wrong with a path more clearly than SQLite's "unable to open database file"."""
    if path.is_dir():
        raise StoreError(f"The database {path} is a directory: give the path of a file.")
    if not path.parent.is_dir():
        raise NotFoundError(f"The directory {path.parent} of the database {path} does not exist: create it first.")
    if not path.exists():
        if mode != "create":
            raise NotFoundError(f"There is no database at {path}: `fp4tune tune` or `fp4tune db upgrade` makes one.")
        if not os.access(path.parent, os.W_OK):
            raise StoreError(f"The database {path} cannot be made: its directory is read-only for this user.")
        return
    # The file is not opened to look at it: closing it again would drop the locks that another store of this process
    # holds on it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    if not path.is_file():
        raise StoreError(f"The database {path} is no regular file: give the path of a file.")
    size = path.stat().st_size
    if size == 0 and mode != "create":
        raise StoreError(f"The database {path} is an empty file: `fp4tune db upgrade` makes a database of it.")
    # SQLite takes a file of one byte for an empty one, and would overwrite it.
    if 0 < size < SMALLEST_PAGE:
        raise StoreError(f"The database {path} is not an SQLite database: give another path, or move the file away.")


def _uri(path: Path, mode: str) -> str:
    """SQLite's URI of a file (https://www.sqlite.org/uri.html)."""
    return f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"


def _sqlite_connector(path: Path, mode: Mode) -> Callable[[], sqlite3.Connection]:
    """What makes the connections of an engine."""

    def connect() -> sqlite3.Connection:
        uri = _uri(path, "rw")
        if mode == "read" and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            # Only here: a connection that may not write cannot remove the -wal and -shm files when it closes.
            uri = _uri(path, "ro")
            if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
                # SQLite cannot open a WAL database where it cannot make the -shm file, except as one that nobody
                # changes. Without a -wal file nobody has it open (https://www.sqlite.org/wal.html#readonly).
                uri += "&immutable=1"
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA synchronous=NORMAL")  # reads the file, and so fails if it is no database
            connection.execute(f"PRAGMA query_only={int(mode == 'read')}")
        except BaseException:
            connection.close()
            raise
        return connection

    return connect


def _begin(connection: sa.Connection) -> None:
    """Begin a transaction: the driver is in autocommit mode, so that it does not begin one by its own rules."""
    raw: Any = connection.connection.driver_connection
    statement = connection.get_execution_options().get(BEGIN)
    if statement is None:
        raw.execute("BEGIN")  # takes no lock yet
        return
    # SQLite's own wait grows to 100 ms a look, so that whoever has waited longest looks least often. Looks at random
    # intervals are fair: with 16 processes that write all the time (benchmarks/store_writes.py, two cores) the p99 of
    # a call fell from 1.3 to 0.4 s, and the process that got least wrote half as much as the first, not a tenth.
    raw.execute("PRAGMA busy_timeout=0")
    try:
        _until_free(lambda: raw.execute(statement))
    finally:
        raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")


def _until_free(execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
    """Execute a statement as soon as nobody else holds the lock it needs.

    Raises:
        sqlite3.OperationalError: others held it for BUSY_TIMEOUT_S; or something else is wrong.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return execute()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*LOOK_S))  # noqa: S311 - no secret


def use_wal(engine: sa.Engine) -> None:
    """Switch the file to write-ahead logging, which lasts; a backup that was restored is not in it yet.

    Raises:
        sqlite3.OperationalError: others kept it locked for BUSY_TIMEOUT_S.
    """
    raw = engine.raw_connection()
    try:
        connection: Any = raw.driver_connection
        # The switch does not wait for other connections by itself.
        (mode,) = _until_free(lambda: connection.execute("PRAGMA journal_mode=WAL")).fetchone()
    finally:
        raw.close()
    if mode != "wal":
        raise StoreError("The database cannot use write-ahead logging: keep it on a file system of this host.")


# PostgreSQL


def _postgres_engine(target: Target, mode: Mode) -> sa.Engine:
    """An engine on PostgreSQL through psycopg 3."""
    try:
        found = importlib.util.find_spec("psycopg") is not None
    except ValueError:
        found = False
    if not found:
        raise StoreError("PostgreSQL needs the package psycopg: pip install 'fp4tune[postgres]'.")
    # No prepared statements: PostgreSQL keeps the plan that it made when a table was still empty, a scan, until
    # it is analyzed (10,000 winners took 12 s to supersede). It also allows for poolers such as PgBouncer.
    connect_args: dict[str, Any] = {"prepare_threshold": None}
    if "connect_timeout" not in target.url.query:
        connect_args["connect_timeout"] = 10
    engine = sa.create_engine(
        target.url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_size=4,
        max_overflow=12,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args=connect_args,
    )

    def on_connect(connection: Any, record: object) -> None:
        """Make the session independent of the server's settings."""
        del record
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"The database {target.shown} stores text as {encoding}, which cannot hold every name: "
                "create one with ENCODING 'UTF8'."
            )
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'UTC'")
            cursor.execute(f"SET lock_timeout = '{BUSY_TIMEOUT_S}s'")
            if mode == "read":
                cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        connection.commit()

    # First of all listeners: SQLAlchemy's own fails on a server whose texts are bytes.
    event.listen(engine, "connect", on_connect, insert=True)
    return engine
