"""Databases with nothing in them, or next to nothing: every page says what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dashboard_stores
import http_server
import pytest
from browser_driver import settle, violations
from fp4tune.api.dashboard.page import address
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store

IN_NAVIGATION = [page.slug for page in PAGES if page.label]


def test_every_page_of_an_empty_database_says_what_to_do(tmp_path: Path, visit: Any, keep: Any):
    path = tmp_path / "empty.db"
    dashboard_stores.empty(path)
    with Store.open(path) as store, http_server.running(store) as server:
        page = visit("/dashboard/", server=server)
        for slug in IN_NAVIGATION:
            page.goto(address(slug))
            settle(page)
            keep(page, f"empty-{slug or 'gains'}", rare=True)
            assert violations(page) == [], slug
            assert page.locator("h1").inner_text().strip()
            steps = page.get_by_role("region", name="What to do next")
            assert steps.count() == 1, slug
            assert "fp4tune tune" in page.locator("main").inner_text() or slug == "search", slug


def test_pages_that_need_to_be_told_what_to_show_say_so(tmp_path: Path):
    path = tmp_path / "empty.db"
    dashboard_stores.empty(path)
    with Store.open(path) as store, http_server.running(store) as server:
        for page in PAGES:
            if not page.label:
                answer = server.get(address(page.slug))
                assert answer.status_code in {200, 404, 422}, page.slug
                assert "<h1>" in answer.text
                assert "What to do next" in answer.text, page.slug


def test_a_single_failed_trial(tmp_path: Path, visit: Any, keep: Any):
    path = tmp_path / "failed.db"
    run_id = dashboard_stores.single_failure(path)
    with Store.open(path) as store, http_server.running(store) as server:
        page = visit("/dashboard/", server=server)
        for slug in IN_NAVIGATION:
            page.goto(address(slug))
            settle(page)
            assert page.locator("h1").inner_text().strip(), slug
            keep(page, f"failed-{slug or 'gains'}", rare=True)
            assert violations(page) == [], slug
        page.goto(address("failures"))
        assert "illegal memory access" in page.locator("main").inner_text()
        page.goto(address("runs"))
        assert "failed" in page.locator("main").inner_text()
        page.goto(address("run", run=run_id))
        assert "The worker died." in page.locator("main").inner_text()


def test_a_run_that_was_killed_is_not_shown_as_alive(tmp_path: Path, visit: Any, keep: Any):
    path = tmp_path / "killed.db"
    run_id = dashboard_stores.killed(path)
    with Store.open(path) as store, http_server.running(store) as server:
        page = visit(address("run", run=run_id), server=server)
        keep(page, "killed")
        assert violations(page) == []
        assert page.locator("#view[data-refresh]").count() == 0
        said = page.locator("main").inner_text()
        assert "Killed" in said
        assert f"fp4tune tune --resume {run_id}" in said
        page.goto(address("runs"))
        assert page.locator("#view[data-refresh]").count() == 0


def test_two_devices_of_the_same_name_can_be_told_apart(tmp_path: Path, visit: Any, keep: Any):
    path = tmp_path / "twins.db"
    environments = dashboard_stores.twins(path)
    with Store.open(path) as store, http_server.running(store) as server:
        page = visit("/dashboard/", server=server)
        labels = page.locator("select[name=environment] option").all_inner_texts()
        assert len(labels) == len(set(labels)) == 2
        assert all(any(one in label for label in labels) for one in environments)
        page.goto(address("devices"))
        keep(page, "twins-devices")
        said = page.locator("main").inner_text()
        assert all(device.fingerprint in said for device, _ in store.devices())
        assert "600" in said
        assert "300" in said


@pytest.mark.parametrize("slug", IN_NAVIGATION, ids=lambda slug: slug or "gains")
def test_a_database_that_a_newer_fp4tune_has_upgraded(slug: str, tmp_path: Path):
    path = tmp_path / "newer.db"
    dashboard_stores.usual(path)
    with Store.open(path) as store, http_server.running(store) as server:
        assert server.get(address(slug)).status_code == 200
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("UPDATE fp4tune_schema SET version_num = '9999'")
        answer = server.get(address(slug))
        assert answer.status_code == 503
        assert "schema 9999" in answer.text
        assert "<h1>" in answer.text
