"""A million trials: every page and every table answers, none of them at length, and none by reading all trials."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
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


def sizes_of(path: Path, big: Any) -> dict[str, int]:
    """Bytes of each page and of each table on it, by address."""
    sizes: dict[str, int] = {}
    with Store.open(path) as store, http_server.running(store) as server:

        def get(path: str) -> Any:
            response = server.client.get(path, headers={"Accept-Encoding": "identity"})
            sizes[path] = len(response.content)
            tables.extend(data_links(response.text))
            return response

        tables: list[str] = []
        found = browser_driver.crawl(get, start=deep(big), each=2)
        assert set(found) == SLUGS
        assert any(".csv?" in link for link in tables)
        assert any(".json?" in link for link in tables)
        for link in list(dict.fromkeys(tables)):
            assert get(link).status_code == 200, link
    return sizes


@pytest.mark.slow
def test_no_answer_over_a_million_trials_is_large(tmp_path: Path):
    sizes = sizes_of(tmp_path / "million.db", dashboard_stores.million(tmp_path / "million.db"))
    assert not {path: size for path, size in sizes.items() if size > MOST_BYTES}


@dataclass(frozen=True)
class Seen:
    """What pages did: the plans that SQLite makes of every statement that they sent, and the bytes of every answer."""

    plans: dict[str, set[str]]
    sizes: dict[str, int]


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def seen(request: pytest.FixtureRequest, big: Any, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Every page and table over a hundred thousand trials."""
    path = Path(shutil.copy(big.path, tmp_path_factory.mktemp("asked") / "big.db"))
    if request.param == "analyzed":
        dashboard_stores.analyze(path)
    sent: dict[str, Any] = {}

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            sent.setdefault(statement, parameters)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        sizes = sizes_of(path, big)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len(sent) > len(PAGES)
    with Store.open(path) as store, store._reading() as connection:
        plans = {
            statement: {row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)}
            for statement, parameters in sent.items()
        }
    return Seen(plans, sizes)


def test_no_answer_over_a_hundred_thousand_trials_is_large(seen: Seen):
    assert not {path: size for path, size in seen.sizes.items() if size > MOST_BYTES}


def scans(statement: str, plan: set[str]) -> list[str]:
    """Steps of a plan that read all trials, or all entries of an index of them."""
    names = {"trials", *re.findall(r"\btrials AS \"?(\w+)", statement)}
    # A search that uses no index is what SQLite calls a scan for the largest value.
    return [
        step for step in plan
        if (found := re.match(r"SCAN (\w+)|SEARCH (\w+)$", step)) and (found[1] or found[2]) in names
    ]  # fmt: skip


def test_no_page_reads_all_trials(seen: Seen):
    assert not {statement: found for statement, plan in seen.plans.items() if (found := scans(statement, plan))}


def test_the_check_above_sees_a_scan(big: Any):
    with Store.open(big.path, mode="read") as store, store._reading() as connection:
        for statement in ("SELECT count(*) FROM trials", "SELECT max(t.wall_s) FROM trials AS t"):
            plan = {row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")}
            assert scans(statement, plan), plan
