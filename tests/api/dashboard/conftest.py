"""A store with real runs of an H200 in it, and what a view needs to answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dashboard_views import sound
from fp4tune.api.dashboard.page import Asked, Context
from fp4tune.api.dashboard.pages import BY_SLUG
from fp4tune.api.http.cursors import Cursors
from fp4tune.db import Store

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="session")
def h200_database(tmp_path_factory) -> Path:
    """A database with the runs of the pages of the H200; copy it to write to it."""
    path = tmp_path_factory.mktemp("h200") / "h200.db"
    with Store.open(path, mode="create") as store:
        for name in ("h200", "h200-dense"):
            store.import_from(RESULTS / f"{name}.fp4tune.gz")
    return path


@pytest.fixture
def h200(h200_database: Path) -> Iterator[Store]:
    """The runs of the H200, for reading."""
    with Store.open(h200_database, mode="read") as store:
        yield store


@pytest.fixture
def h200_copy(h200_database: Path, tmp_path: Path) -> Iterator[Store]:
    """The runs of the H200 in a database of one test's own."""
    with Store.open(Path(shutil.copy(h200_database, tmp_path / "copy.db")), mode="create") as store:
        yield store


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Store]:
    """A store with nothing in it."""
    with Store.open(tmp_path / "empty.db", mode="create") as store:
        yield store


def context_of(store: Store) -> Context:
    """What a view has to answer with."""
    return Context(store, Cursors("test"), NOW, "http://127.0.0.1:8765")


@pytest.fixture
def show() -> Callable:
    """`show(store, "roof", environment="...")`: the view of a page, as the route would make it."""

    def make(store: Store, slug: str, **values: str):
        return sound(BY_SLUG[slug].view(context_of(store), Asked(slug, {k: v for k, v in values.items() if v})))

    return make
