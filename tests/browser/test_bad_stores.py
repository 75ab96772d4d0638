"""Databases with nonsense in them, and addresses with nonsense in them: every page still is a page. No browser is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import browser_driver
import dashboard_stores
import http_server
import pytest
from browser_driver import data_links, links
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS
from fp4tune.api.dashboard.page import address
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store
from page_checks import check, check_data


def look_around(server: Any, runs: Sequence[str], fine: Sequence[int]) -> dict[str, list[str]]:
    """Look at a page of each kind that links lead to, and at every table on them."""
    seen: dict[str, Any] = {}

    def get(path: str) -> Any:
        seen[path] = server.get(path)
        check(seen[path], path)
        return seen[path]

    start = [address(page.slug) for page in PAGES if page.label] + [address("run", run=run) for run in runs[:1]]
    found = browser_driver.crawl(get, start=start, fine=fine, each=2)
    asked: set[str] = set()
    for path, answer in seen.items():
        slug = str(browser_driver.slug_of(path))
        if answer.status_code == 200 and slug not in asked:
            asked.add(slug)
            for link in data_links(answer.text):
                check_data(server.get(link), link)
    return found


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_string_everywhere(kind: str, tmp_path: Path):
    path = tmp_path / "hostile.db"
    runs = dashboard_stores.hostile(path, HOSTILE[kind])
    with Store.open(path) as store, http_server.running(store) as server:
        # A link to what an address cannot name is refused, by a page.
        look_around(server, runs, fine=(200, 404, 422))


@pytest.mark.parametrize("kind", [*ODD_NUMBERS, *ODD_WHOLE_NUMBERS])
def test_an_odd_number_everywhere(kind: str, tmp_path: Path):
    path = tmp_path / "odd.db"
    runs = dashboard_stores.usual(path)
    with Store.open(path) as store, http_server.running(store) as server:
        # Meanwhile, because a service does not start over winners that took no time.
        dashboard_stores.spoil(path, {**ODD_NUMBERS, **ODD_WHOLE_NUMBERS}[kind])
        found = look_around(server, runs, fine=(200,))
        assert {"", "run", "problem"} <= set(found)


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_missing_rows(table: str, tmp_path: Path):
    """A page, or one that says that the database is damaged: never a fault of ours."""
    path = tmp_path / "orphans.db"
    runs = dashboard_stores.usual(path)
    with Store.open(path) as store, http_server.running(store) as server:
        dashboard_stores.remove(path, table)
        look_around(server, runs, fine=(200, 404, 422, 503))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("usual") / "usual.db"
    dashboard_stores.usual(path)
    with Store.open(path) as store, http_server.running(store) as server:
        yield server


NONSENSE = (
    "%3Cscript%3E", "'%20OR%201=1--", "%00", "%ff%fe", "..%2F..%2Fetc%2Fpasswd", "-1", "1e999", "NaN", "x" * 900, "%E2%80%AE", "{{7*7}}",
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "gains")
def test_parameters_with_nonsense_are_named_and_left_out(page: Any, usual: Any):
    here = address(page.slug)
    for parameter in page.parameters:
        for value in NONSENSE:
            answer = usual.get(f"{here}?{parameter.name}={value}")
            check(answer, f"{here} {parameter.name}={value}")
            # A text that one may search for is not nonsense; what is of the right form may not be there.
            assert answer.status_code in {200, 404, 422}, (parameter, value, answer.status_code)
        once = usual.get(f"{here}?{parameter.name}=a&{parameter.name}=b")
        check(once, here)
        assert once.status_code == 422
        assert parameter.name in once.text
    unknown = usual.get(f"{here}?nonsense=1")
    check(unknown, here)
    assert unknown.status_code == 422
    assert "nonsense" in unknown.text


THERE_NOT = {
    "environment": "0123456789abcdef", "device": "0123456789abcdef", "problem": "dense:1x16x16:uniform:nvfp4:bf16",
    "run": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "gains")
def test_what_is_not_there_is_a_page_that_says_so(page: Any, usual: Any):
    for name in THERE_NOT.keys() & {parameter.name for parameter in page.parameters}:
        answer = usual.get(address(page.slug, **{name: THERE_NOT[name]}))
        check(answer, f"{page.slug} {name}")
        assert answer.status_code in {200, 404}
        assert "What to do next" in answer.text or answer.status_code == 200
        if (page.slug, name) == ("run", "run"):
            assert answer.status_code == 404
        # What it says to do next can be done.
        for link in links(answer.text):
            assert usual.get(link).status_code == 200, (page.slug, name, link)
