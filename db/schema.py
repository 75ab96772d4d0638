"""Which schema a database has, and bringing an older one up to date, under a lock, once.

Alembic is imported only when there is something to migrate: opening a current database costs one SELECT.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ..kernels.errors import StoreError
from .engine import Target, use_wal, writer

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every released revision, oldest first; tests/db compares them with migrations/versions/."""

HEAD = REVISIONS[-1]

VERSION_TABLE = "fp4tune_schema"
"""Alembic's table. A name of our own, so that another program's Alembic database is not taken for one of ours."""

MIGRATIONS = Path(__file__).parent / "migrations"

# Any 64-bit number that other programs on the same PostgreSQL database do not use: ASCII "fp4tune".
_ADVISORY_LOCK = 0x66703474756E65


def revision(connection: sa.Connection, target: Target) -> str | None:
    """The revision a database is at; None if it is empty.

    Raises:
        StoreError: it has tables, and they are not fp4tune's.
    """
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    if target.path is not None:
        # On PostgreSQL extensions may have put views beside the tables.
        tables |= set(inspector.get_view_names())
    if VERSION_TABLE not in tables:
        if tables:
            raise StoreError(
                f"The database {target.shown} is not an fp4tune database (it has other tables, {min(tables)!r} "
                "for one): give another path or another database."
            )
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()  # noqa: S608 - a constant
    if len(found) != 1:
        raise StoreError(f"The database {target.shown} does not say which schema it has: restore a backup.")
    return str(found[0])


def require_current(found: str | None, target: Target) -> None:
    """Raise a StoreError unless a revision is the one that this fp4tune uses."""
    if found == HEAD:
        return
    if found is None:
        raise StoreError(f"The database {target.shown} is empty: `fp4tune db upgrade` makes the tables.")
    refuse_newer(found, target)
    raise StoreError(
        f"The database {target.shown} has schema {found}, and this fp4tune needs {HEAD}: run `fp4tune db upgrade`."
    )


def refuse_newer(found: str | None, target: Target) -> None:
    """Raise a StoreError if a revision is unknown, which means that a newer fp4tune made it."""
    if found is not None and found not in REVISIONS:
        raise StoreError(
            f"The database {target.shown} has schema {found}, and this fp4tune knows schemas up to {HEAD}: "
            "use the newer fp4tune that made it."
        )


def migrate(engine: sa.Engine, target: Target) -> str | None:
    """Bring an empty or older database to HEAD; any number of processes may do so at once.

    Returns:
        The revision that was found; None if the database was empty.

    Raises:
        StoreError: it is not fp4tune's, or of a newer schema. Nothing has been written then.
    """
    with engine.begin() as connection:
        found = revision(connection, target)
    refuse_newer(found, target)
    if found == HEAD:
        return found
    if target.path is not None:
        use_wal(engine)  # before anything is locked for long, so that readers need not wait
    with writer(engine).connect() as connection, _foreign_keys_off(connection), connection.begin():
        # On SQLite the transaction holds the writer lock since it began; on PostgreSQL this takes its place.
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        # Somebody else may have migrated while this process waited.
        now = revision(connection, target)
        refuse_newer(now, target)
        if now != HEAD:
            _run_alembic(connection, target)
    return found


@contextlib.contextmanager
def _foreign_keys_off(connection: sa.Connection) -> Iterator[None]:
    """On SQLite, do not enforce foreign keys: what a migration cannot ALTER it copies, and drops the old table.

    That must be said outside of a transaction (https://www.sqlite.org/lang_altertable.html#otheralter).
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.driver_connection
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


def _run_alembic(connection: sa.Connection, target: Target) -> None:
    """Run the migrations inside the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    # ConfigParser interpolates %.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")
    if connection.dialect.name == "sqlite" and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(
            f"The migration of {target.shown} was undone, because rows would refer to what is not there: "
            "please report this, and go on with the fp4tune that made the database."
        )
