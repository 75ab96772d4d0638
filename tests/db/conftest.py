"""A fresh database for every test, on SQLite and on a real PostgreSQL that these fixtures start and stop."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.models import Base
from postgres_server import Postgres
from store_factory import Clock


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tables and nothing in them."""
    path = tmp_path_factory.mktemp("template") / "fp4tune.db"
    Store.open(path).close()
    return path


@pytest.fixture(scope="session")
def shared_postgres(postgres_server: Postgres) -> str:
    """Name of a database with the tables, which tests use one after the other."""
    postgres_server.execute("CREATE DATABASE shared TEMPLATE template0")
    Store.open(postgres_server.url("shared")).close()
    return "shared"


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """The server; databases that a test makes are dropped after it."""
    yield postgres_server
    postgres_server.drop_all()


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database that is missing (SQLite) or empty (PostgreSQL)."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'fp4tune.db'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.new()


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database with the tables and nothing in them."""
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "fp4tune.db")
        return f"sqlite:///{tmp_path / 'fp4tune.db'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    name = request.getfixturevalue("shared_postgres")
    # Ten times as fast as a database of its own; ids and the generation go on where the last test left them.
    tables = [table.name for table in reversed(Base.metadata.sorted_tables) if table.name != "meta"]
    postgres.execute("; ".join(f"DELETE FROM {table}" for table in tables), database=name)
    return postgres.url(name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store.open(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def sqlite_store(sqlite_template: Path, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store.open(shutil.copy(sqlite_template, tmp_path / "fp4tune.db"), clock=clock) as opened:
        yield opened
