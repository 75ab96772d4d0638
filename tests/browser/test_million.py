"""A million trials: every page and every table answers, none of them at length, and none by reading all trials."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_driver
import dashboard_stores
import http_server
import pytest
import sqlalchemy as sa
from browser_driver import data_links
from fp4tune.api.dashboard.page import address
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store

MOST_BYTES = 1_000_000
SLUGS = {page.slug for page in PAGES}


def deep(big: Any) -> list[str]:
    """Addresses that ask for the run and the problem with most trials, besides those that links lead to."""
    return [
        address("run", run=big.deep_run),
        address("problem", problem=big.deep_problem),
        address("progress", run=big.deep_run, problem=big.deep_problem),
    ]


def test_no_answer_over_a_million_trials_is_large(tmp_path: Path):
    big = dashboard_stores.million(tmp_path / "million.db")
    sizes: dict[str, int] = {}
    with Store.open(big.path) as store, http_server.running(store) as server:

        def get(path: str) -> Any:
            response = server.client.get(path, headers={"Accept-Encoding": "identity"})
            sizes[path] = len(response.content)
            return response

        found = browser_driver.crawl(get, start=deep(big), each=2)
        assert set(found) == SLUGS
        tables = [link for path in list(sizes) for link in data_links(server.get(path).text)]
        assert any(".csv?" in link for link in tables)
        assert any(".json?" in link for link in tables)
        for link in dict.fromkeys(tables):
            assert get(link).status_code == 200, link
    assert not {path: size for path, size in sizes.items() if size > MOST_BYTES}


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return dashboard_stores.million(tmp_path_factory.mktemp("medium") / "medium.db", 50_000)


@pytest.fixture(params=["never analyzed", "analyzed"])
def asked(request: pytest.FixtureRequest, medium: Any, tmp_path: Path) -> Iterator[dict[str, set[str]]]:
    """Every statement that the pages send, with the plans that SQLite makes of it."""
    path = Path(shutil.copy(medium.path, tmp_path / "medium.db"))
    if request.param == "analyzed":
        dashboard_stores.analyze(path)
    sent: dict[str, Any] = {}
    with Store.open(path) as store:

        def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            if statement.lstrip().startswith(("SELECT", "WITH")):
                sent.setdefault(statement, parameters)

        sa.event.listen(store._engine, "before_cursor_execute", note)
        with http_server.running(store) as server:
            found = browser_driver.crawl(server.get, start=deep(medium))
            for slug in SLUGS:
                for link in data_links(server.get(found[slug][0]).text):
                    assert server.get(link).status_code == 200, link
        sa.event.remove(store._engine, "before_cursor_execute", note)
        assert len(sent) > len(PAGES)
        with store._reading() as connection:
            yield {
                statement: {row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)}
                for statement, parameters in sent.items()
            }


def scans(statement: str, plan: set[str]) -> list[str]:
    """Steps of a plan that read all trials, or all entries of an index of them."""
    names = {"trials", *re.findall(r"\btrials AS \"?(\w+)", statement)}
    # A search that uses no index is what SQLite calls a scan for the largest value.
    return [
        step for step in plan
        if (found := re.match(r"SCAN (\w+)|SEARCH (\w+)$", step)) and (found[1] or found[2]) in names
    ]  # fmt: skip


def test_no_page_reads_all_trials(asked: dict[str, set[str]]):
    assert not {statement: found for statement, plan in asked.items() if (found := scans(statement, plan))}


def test_the_check_above_sees_a_scan(medium: Any):
    with Store.open(medium.path) as store, store._reading() as connection:
        for statement in ("SELECT count(*) FROM trials", "SELECT max(t.wall_s) FROM trials AS t"):
            plan = {row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")}
            assert scans(statement, plan), plan
