"""What the drivers raise, told as one sentence a user can act on."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import sqlalchemy.exc

from ..kernels.errors import Fp4tuneError, InvalidInputError, StoreError

P = ParamSpec("P")
R = TypeVar("R")

BUSY_TIMEOUT_S = 30
"""How long a call waits for a lock before it gives up."""

_SAFE = "what was committed before is kept"

# https://www.sqlite.org/rescode.html: the low byte of an error code is its primary code.
_SQLITE = {
    sqlite3.SQLITE_PERM: "may not be accessed by this user",
    sqlite3.SQLITE_BUSY: f"was locked by another process for more than {BUSY_TIMEOUT_S} s; try again",
    sqlite3.SQLITE_LOCKED: f"was locked by another process for more than {BUSY_TIMEOUT_S} s; try again",
    sqlite3.SQLITE_PROTOCOL: "could not be locked; SQLite needs a file system of this host, not a network share",
    sqlite3.SQLITE_READONLY: "is read-only: make the file and its directory writable for this user",
    sqlite3.SQLITE_FULL: f"has no room left on its disk; {_SAFE}: free some space and try again",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that this user may read it and write to its directory",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore a backup, or move the file away to start a new one",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database: give another path, or move the file away",
    sqlite3.SQLITE_AUTH: "may not be accessed by this user",
}

# https://www.postgresql.org/docs/current/errcodes-appendix.html: five characters, the first two are the class.
_POSTGRES = {
    "25006": "is read-only: connect to the primary server, or as a user who may write",
    "28": "refused the login: check the user and the password",
    "3D000": "does not exist: create it (CREATE DATABASE) and try again",
    "40": f"undid this write in favour of another; {_SAFE}: try again",
    "42501": "does not let this user read or write the tables: grant the rights",
    "53100": f"has no room left on its disk; {_SAFE}: free some space and try again",
    "53300": "has no connection left: raise max_connections, or run fewer processes",
    "55P03": f"was locked by another process for more than {BUSY_TIMEOUT_S} s; try again",
    "57014": "cancelled the statement (statement_timeout, or an administrator); try again",
    "57P": f"is shutting down or starting up; {_SAFE}: try again",
    "XX001": "is damaged: restore a backup",
    "XX002": "has a damaged index: REINDEX the database, or restore a backup",
}


@contextlib.contextmanager
def translated(shown: str) -> Iterator[None]:
    """Turn whatever a driver raises inside into a StoreError.

    Args:
        shown: how the database is called in the sentence: its path, or its URL without the password.

    Raises:
        StoreError: in place of what the driver or SQLAlchemy raised. Errors of fp4tune pass as they are.
        InvalidInputError: in place of the codec's error.
    """
    try:
        yield
    except Fp4tuneError:
        raise
    except sqlalchemy.exc.StatementError as error:
        # An error of ours, raised while a parameter was bound, arrives wrapped.
        if isinstance(error.orig, Fp4tuneError):
            raise error.orig from None
        raise StoreError(sentence(shown, error.orig or error)) from error
    except sqlalchemy.exc.TimeoutError as error:
        raise StoreError(f"Too many threads use the database {shown} at once; try again.") from error
    except UnicodeEncodeError:
        raise InvalidInputError("A text holds a lone surrogate, which no database can store or look for.") from None
    except UnicodeDecodeError as error:  # SQLite quotes a damaged schema, and the driver cannot decode its message
        raise StoreError(f"The database {shown} {_SQLITE[sqlite3.SQLITE_CORRUPT]}.") from error
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(sentence(shown, error)) from error


def sentence(shown: str, error: BaseException) -> str:
    """The sentence for what a driver raised."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        tail = _SQLITE.get(code & 0xFF)
        if tail is None and code & 0xFF == sqlite3.SQLITE_IOERR:
            reason = getattr(error, "sqlite_errorname", "SQLITE_IOERR")
            tail = f"could not be read or written ({reason}); {_SAFE}: check the disk (full? a limit on file sizes?)"
        if tail is not None:
            return f"The database {shown} {tail}."
    elif isinstance(error, sqlite3.OperationalError) and "decode" in str(error):
        return f"The database {shown} {_SQLITE[sqlite3.SQLITE_CORRUPT]}."
    state = getattr(error, "sqlstate", None)
    if state is not None:
        tail = _POSTGRES.get(state) or _POSTGRES.get(state[:3]) or _POSTGRES.get(state[:2])
        if tail is not None:
            return f"The database {shown} {tail}."
    elif type(error).__module__.startswith("psycopg"):
        # Without a state the server never answered: refused, unknown host, cut connection, or a time-out.
        return f"Cannot reach the database {shown}: {_first_line(error)}."
    return f"The database {shown} failed: {_first_line(error)}."


def _first_line(error: BaseException) -> str:
    """The first line of an error's text, without a full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".: ")


# What converting a value raises that we never wrote: a time that is no time, a NULL, half a float, broken JSON.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


@contextlib.contextmanager
def reading(shown: str) -> Iterator[None]:
    """As `translated`, and a value that SQLAlchemy cannot convert is a StoreError, too."""
    with translated(shown):
        try:
            yield
        except _NONSENSE as error:
            raise StoreError(
                f"The database {shown} has a row that cannot be read ({_first_line(error)}): restore a backup."
            ) from error


def from_row(convert: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that makes a record of a row: what it cannot read is damage, not the user's input."""

    @functools.wraps(convert)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return convert(*args, **kwargs)
        except (Fp4tuneError, *_NONSENSE) as error:
            raise StoreError(f"The database has a row that cannot be read ({error}): restore a backup.") from error

    return checked
