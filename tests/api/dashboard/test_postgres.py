"""Every page from PostgreSQL, and from databases whose numbers are NaN: PostgreSQL's columns take it, and so does JSON.

SQLite makes NULL of NaN, so that only JSON brings it there.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from html import unescape
from pathlib import Path

import httpx
import pytest
import reference_rows
import results_store
import sqlalchemy as sa
from dashboard_stores import usual
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store
from fp4tune.db.models import Base
from fp4tune.db.records import LatencyModel
from fp4tune.kernels.device import Environment
from http_server import running
from postgres_server import Postgres
from store_factory import START, miss

NAN = re.compile(r"\bnan\b", re.IGNORECASE)
ADDRESS = re.compile(r'href="(/dashboard/[^"]*)"')
PAGE_ADDRESSES = [*(f"/dashboard/{page.slug}" for page in PAGES if page.slug != "run"), "/dashboard/search?q=4096"]
TIMES = ("time_us", "time_us_low", "time_us_high")
MOST = 150
"""Addresses that the pages of a small database lead to."""


@pytest.fixture
def on_postgres(postgres_server: Postgres, tmp_path: Path) -> Iterator[Store]:
    """The usual database, exported and imported, with what an export leaves out."""
    usual(tmp_path / "usual.db")
    with Store.open(tmp_path / "usual.db", mode="read") as store:
        store.export(tmp_path / "usual.fp4tune.gz")
    url = postgres_server.new()
    with Store.open(url) as store:
        store.import_from(tmp_path / "usual.fp4tune.gz")
        device = results_store.CARD.device
        store.import_reference(
            reference_rows.source(device=device.name), [reference_rows.dense(m, n=4096, k=7168) for m in (4, 8)]
        )
        store.add_misses([miss()])
        store.save_latency_model(
            LatencyModel(
                device.fingerprint, "dense", "nvfp4", "cuda.graph", 4.25, 1.25e12, 1.125e15, 3.5, 1, 4096, 12, 0.06, 0.25, START
            )
        )  # fmt: skip
        yield store
    postgres_server.drop_all()


def test_every_page_comes_from_postgres_and_bears_nan_in_every_column(on_postgres: Store):
    """While it is served: a service does not start on winners that have no times."""
    with running(on_postgres) as served:
        before = ask_all(served.client)
        assert {status for status, _ in before.values()} == {200}, "of a database that nobody damaged"
        assert any("triton.dequant" in text for _, text in before.values())
        assert spoil_with_nan(on_postgres) > 20
        assert_bears(ask_all(served.client))
        for status, text in ask_all(served.client, [*before]).values():  # of an environment that is not there now
            assert status < 500
            assert not NAN.search(text)


def spoil_with_nan(store: Store) -> int:
    """Put NaN wherever a column takes it and has something; in how many columns."""
    n_columns = 0
    with store._writing() as connection:
        for table in Base.metadata.sorted_tables:
            for column in table.columns:
                if type(column.type) is sa.Double:
                    nan = {column.name: float("nan")}
                    changed = connection.execute(sa.update(table).where(column.is_not(None)).values(nan))
                    assert changed.rowcount > 0, f"{table.name}.{column.name} has nothing to spoil"
                    n_columns += 1
        # A limit of NaN watts makes another device: give it the name that follows.
        device = replace(results_store.CARD.device, power_limit_w=float("nan"))
        there = Environment(device, results_store.CARD.versions)
        for table, old, new in (
            ("devices", results_store.CARD.device.fingerprint, device.fingerprint),
            ("environments", results_store.CARD.fingerprint, there.fingerprint),
        ):
            renamed = sa.text(f"UPDATE {table} SET fingerprint = :new WHERE fingerprint = :old")
            assert connection.execute(renamed, {"old": old, "new": new}).rowcount == 1
    return n_columns


def test_every_page_bears_nan_in_json(tmp_path: Path):
    path = tmp_path / "usual.db"
    usual(path)
    with Store.open(path, mode="read") as store, running(store) as served:
        before = ask_all(served.client)
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute("SELECT id, conditions FROM trials WHERE conditions IS NOT NULL").fetchall()
        rows = rows or [(id_, None) for (id_,) in connection.execute("SELECT id FROM trials WHERE status = 'ok'")]
        for id_, _ in rows:
            nan = float("nan")
            spoilt = {
                "sm_clock_mhz": [nan, nan], "memory_clock_mhz": [nan, nan], "temperature_c": nan, "power_w": nan,
                "throttle_reasons": ["sw_power_cap"], "throttled_samples": [nan],
            }  # fmt: skip
            connection.execute("UPDATE trials SET conditions = ? WHERE id = ?", (json.dumps(spoilt), id_))
        assert rows
        for id_, text in connection.execute("SELECT id, tie_set FROM winners").fetchall():
            spoilt_ties = [{**tie, **dict.fromkeys(TIMES, float("nan"))} for tie in json.loads(text)]
            connection.execute("UPDATE winners SET tie_set = ? WHERE id = ?", (json.dumps(spoilt_ties), id_))
    with Store.open(path, mode="read") as store, running(store) as served:
        assert_bears(ask_all(served.client, [*before]))


def ask_all(client: httpx.Client, addresses: Sequence[str] = ()) -> dict[str, tuple[int, str]]:
    """Status and text of some addresses; without any, of every page and of whatever those lead to."""
    found = {address: _get(client, address) for address in addresses or PAGE_ADDRESSES}
    if not addresses:
        links = [unescape(link) for _, text in found.values() for link in ADDRESS.findall(text)]
        more = [link for link in dict.fromkeys(links) if link not in found and "/static/" not in link]
        assert 40 < len(more) <= MOST
        found |= {link: _get(client, link) for link in more}
    return found


def _get(client: httpx.Client, address: str) -> tuple[int, str]:
    response = client.get(address, headers={"accept": "text/html"})
    return response.status_code, response.text


def assert_bears(found: dict[str, tuple[int, str]]) -> None:
    """No page fails, and none says that something is not a number."""
    said = []
    for address, (status, text) in found.items():
        assert status < 500, (address, text[:2000])
        said += [(address, text[max(0, one.start() - 150) : one.end() + 50]) for one in NAN.finditer(text)]
    assert said == []
    n_shown = sum(status == 200 for status, _ in found.values())
    assert n_shown > len(found) * 0.8, "pages are still there"
