"""Databases with nonsense in them, and addresses with nonsense in them: every page still is a page. No browser is needed."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import browser_driver
import dashboard_stores
import http_server
import pytest
from browser_driver import data_links
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS
from fp4tune.api.dashboard.page import address
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store

VOID = {"meta", "link", "input", "br", "img", "hr"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
MOST_BYTES = 1_000_000


class Strict(HTMLParser):
    """Every element that is opened is closed, in order; scripts are ours or data."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if len(given) != len(attrs):
            self.faults.append(f"{tag} has an attribute twice: {attrs}"[:300])
        self.faults += [f"{tag} has {name}" for name in given if name.startswith("on") or name == "style"]
        if (given.get("href") or "").lower().lstrip().startswith("javascript:"):
            self.faults.append(f"{tag} leads to a script")
        if (
            tag == "script"
            and given.get("type") != "application/json"
            and not (given.get("src") or "").startswith("/dashboard/static/")
        ):
            self.faults.append(f"a script: {attrs}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")


def check(answer: Any, where: str) -> None:
    """The answer is a whole page, whatever its status."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8", where
    assert len(answer.content) <= MOST_BYTES, where
    parser = Strict()
    parser.feed(answer.text)
    assert not parser.faults, (where, parser.faults[:5])
    assert not parser.open, (where, parser.open)
    assert answer.text.count("<h1>") == 1, where
    assert "Traceback" not in answer.text
    # A line break within an element is the template's; whatever else controls is nobody's.
    assert not CONTROL.search(answer.text.replace("\r\n", "\n")), (where, CONTROL.search(answer.text))
    for script in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', answer.text, re.DOTALL):
        json.loads(script, parse_constant=pytest.fail)


def check_data(answer: Any, where: str) -> None:
    """The answer is a table, whatever is in it."""
    assert answer.status_code == 200, where
    assert len(answer.content) <= MOST_BYTES, where
    if ".json?" in where:
        json.loads(answer.text, parse_constant=pytest.fail)
        return
    for row in csv.reader(io.StringIO(answer.text, newline="")):
        assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row), where
        assert not any(cell.startswith("-") and not re.fullmatch(r"-[0-9.]+(e[-+]?[0-9]+)?", cell) for cell in row), (
            where
        )


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "gains")
def test_what_is_not_there_is_a_page_that_says_so(page: Any, usual: Any):
    there_not = {
        "environment": "0123456789abcdef", "device": "0123456789abcdef", "problem": "dense:1x16x16:uniform:nvfp4:bf16",
        "run": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    }  # fmt: skip
    for parameter in page.parameters:
        if parameter.name in there_not:
            answer = usual.get(address(page.slug, **{parameter.name: there_not[parameter.name]}))
            check(answer, f"{page.slug} {parameter.name}")
            assert answer.status_code in {200, 404}
            assert "What to do next" in answer.text or answer.status_code == 200


@pytest.fixture(scope="module")
def next_pages(busy: Any) -> dict[str, str]:
    """Addresses of a second page of rows, by slug."""
    found: dict[str, str] = {}

    def get(path: str) -> Any:
        answer = busy.get(path)
        for more in re.findall(r'class="more" href="([^"]+)"', answer.text):
            found.setdefault(str(browser_driver.slug_of(path)), more.replace("&amp;", "&"))
        return answer

    browser_driver.crawl(get)
    return found


def test_a_page_token_that_was_tampered_with(next_pages: dict[str, str], busy: Any):
    assert next_pages
    for slug, more in next_pages.items():
        following = busy.get(more)
        assert following.status_code == 200
        token = parse_qs(urlsplit(more).query)["cursor"][0]
        changed = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
        for wrong in (changed, "A" + token, token[: len(token) // 2], "AAAA", "e30.AAAA", "x" * 400):
            answer = busy.get(more.replace(urlencode({"cursor": token}), urlencode({"cursor": wrong})))
            check(answer, f"{slug} {wrong}")
            assert answer.status_code == 422, (slug, wrong)
            assert "page" in answer.text
