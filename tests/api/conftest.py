"""Stores with a few winners, and servers on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fp4tune.db import Store
from http_server import Running, Serve, fill, running
from postgres_server import Postgres


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty SQLite database."""
    with Store.open(tmp_path / "fp4tune.db") as opened:
        yield opened


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that run until the test ends."""
    with ExitStack() as stack:

        def start(store: Store | None, **given: Any) -> Running:
            return stack.enter_context(running(store, **given))

        yield start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a few winners, for the tests of a module that change nothing."""
    with Store.open(tmp_path_factory.mktemp("db") / "fp4tune.db") as store:
        fill(store)
        with running(store) as served:
            yield served


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    """The URL of a real PostgreSQL database."""
    return postgres_server.new(keep=True)


@pytest.fixture(params=["sqlite", "postgres"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty database of either kind; PostgreSQL's is shared by the session, so it may hold other tests' rows."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "fp4tune.db"
    with Store.open(url) as opened:
        yield opened
