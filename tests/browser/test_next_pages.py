"""Addresses of a next page of rows: each leads on to the end, and one that was tampered with is refused. No browser is needed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import browser_driver
import dashboard_stores
import http_server
import pytest
from fp4tune.api.dashboard.page import CURSOR, address
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store
from page_checks import check

PAGED = [page.slug for page in PAGES if CURSOR in page.parameters]
BROAD = {"", "compare"}
"""Pages that need a store made for it, to have a second page."""

MORE = re.compile(r'class="more" href="([^"]+)"')


def following(answer: Any) -> list[str]:
    """The addresses of next pages on a page."""
    return [html.unescape(one) for one in MORE.findall(answer.text)]


@pytest.fixture(scope="module")
def broad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("broad") / "broad.db"
    dashboard_stores.broad(path)
    with Store.open(path) as store, http_server.running(store) as server:
        yield server


@pytest.fixture(scope="module")
def next_pages(busy: Any, big: Any, texts: dict[str, str], broad: Any) -> dict[str, tuple[Any, str, str]]:
    """By slug: a server, the address of a page that has a next one, and the address of that one."""
    with Store.open(big.path, mode="read") as store:
        whole = next(run.id for run in store.runs(limit=200) if run.n_problems > 100)
    found: dict[str, tuple[Any, str, str]] = {}
    starts = [address(""), address("compare")]
    paths = [(busy, one) for one in [*texts, address("run", run=whole)]] + [(broad, one) for one in starts]
    for server, path in paths:
        slug = str(browser_driver.slug_of(path))
        if slug in PAGED and slug not in found and (server is broad) == (slug in BROAD):
            more = following(server.get(path))
            if more:
                found[slug] = server, path, more[0]
    return found


@pytest.mark.parametrize("slug", PAGED, ids=lambda slug: slug or "gains")
def test_a_next_page_has_other_rows(slug: str, next_pages: dict[str, tuple[Any, str, str]]):
    assert slug in next_pages
    server, path, more = next_pages[slug]
    first, second = server.get(path), server.get(more)
    check(second, more)
    assert second.status_code == 200
    rows = [set(re.findall(r"<tr>.*?</tr>", one.text, re.DOTALL)) for one in (first, second)]
    assert rows[1] - rows[0]


@pytest.mark.parametrize("slug", PAGED, ids=lambda slug: slug or "gains")
def test_a_page_token_that_was_tampered_with(slug: str, next_pages: dict[str, tuple[Any, str, str]]):
    server, _, more = next_pages[slug]
    token = parse_qs(urlsplit(more).query)["cursor"][0]
    changed = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
    others = [parse_qs(urlsplit(one).query)["cursor"][0] for name, (_, _, one) in next_pages.items() if name != slug]
    for wrong in (changed, "A" + token, token[: len(token) // 2], "AAAA", "e30.AAAA", "x" * 400, *others):
        asked = more.replace(urlencode({"cursor": token}), urlencode({"cursor": wrong}))
        assert asked != more
        answer = server.get(asked)
        check(answer, asked)
        assert answer.status_code == 422, (slug, wrong)
        said = re.search(r'role="alert".*?</div>|class="lead".*?</p>', answer.text, re.DOTALL)
        assert said is not None, (slug, wrong)
        assert "page" in said[0], (slug, wrong)
