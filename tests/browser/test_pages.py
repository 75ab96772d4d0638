"""Every page as it looks: no errors, nobody else asked, no sideways scrolling, accessible, in light and dark."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from browser_driver import NARROW, WIDE, data_links, kinds, settle, slug_of, violations
from fp4tune.api.dashboard.page import address
from fp4tune.api.dashboard.pages import BY_SLUG, PAGES

SLUGS = [page.slug for page in PAGES]
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
"""Waits until what changed in the page is on the screen."""


FEWER = """() => {
    const met = new Map();
    for (const row of document.querySelectorAll('main tbody tr')) {
        const parts = [...row.querySelectorAll('*')].map(one => one.tagName + '.' + one.getAttribute('class'));
        const kind = row.closest('.table').id + parts.join();
        met.set(kind, (met.get(kind) ?? 0) + 1);
        if (met.get(kind) > 3) row.remove();
    }
}"""
"""Leaves three rows of each kind in a table: axe-core takes seconds for hundreds that are alike."""


def test_every_page_is_found_by_links(found: dict[str, list[str]]):
    assert set(found) == set(SLUGS)


def test_what_is_looked_at_has_parts_of_every_kind(contents: dict[str, Any], texts: dict[str, str]):
    """Among the pages below are full ones of what the runs of the H200 cannot fill."""
    assert set(contents) == set(SLUGS)
    shown = {
        slug: set().union(*(kinds(server.get(one).text) for server, one in some)) for slug, some in contents.items()
    }
    for here, said in texts.items():
        there = {kind for kind in kinds(said) if kind.startswith("#")}
        assert there <= shown[str(slug_of(here))], here
    assert "#figure-ratios" in shown["compare"]


@pytest.mark.parametrize("slug", SLUGS, ids=lambda slug: slug or "gains")
def test_a_page(slug: str, contents: dict[str, Any], visit: Any, keep: Any):
    for i, (server, here) in enumerate(contents[slug]):
        page = visit(here, server=server)
        assert page.title().endswith(" · fp4tune")
        assert page.locator("h1").inner_text().strip()
        assert page.locator(".question").inner_text() == BY_SLUG[slug].question
        name = f"{slug or 'gains'}{f'-{i}' if i else ''}"
        keep(page, name, rare=i > 0)
        assert page.evaluate(SIDEWAYS) <= 0, here
        # What is folded away is to be read, too.
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert page.evaluate(SIDEWAYS) <= 0, here
        page.evaluate(FEWER)
        assert violations(page) == [], here
        page.emulate_media(color_scheme="dark")
        page.evaluate(PAINTED)
        settle(page)
        keep(page, f"{name}-dark", rare=i > 0)
        assert violations(page) == [], f"{here}, dark"
        page.set_viewport_size(NARROW)
        page.evaluate(PAINTED)
        settle(page)
        assert page.evaluate(SIDEWAYS) <= 0, f"{here}, narrow"
        page.close()


@pytest.mark.parametrize(
    ("here", "status"),
    [("/dashboard/nothing", 404), (address("run", run="01ARZ3NDEKTSV4RRFFQ69G5FAV"), 404), ("/dashboard/runs?status=x", 422),
     (address("problem", problem="none"), 422), ("/dashboard/?nonsense=1&environment=x", 422)],
)  # fmt: skip
def test_a_page_of_what_went_wrong(here: str, status: int, visit: Any, h200: Any):
    assert h200.get(here).status_code == status
    page = visit(here, watch=False)
    for dark in (False, True):
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.evaluate(PAINTED)
        assert violations(page) == []
    assert page.evaluate(SIDEWAYS) <= 0
    page.set_viewport_size(NARROW)
    assert page.evaluate(SIDEWAYS) <= 0


def test_the_checks_above_see_faults(visit: Any, addresses: dict[str, str]):
    page = visit(addresses[""])
    page.set_viewport_size(WIDE)
    page.evaluate(
        "document.querySelector('h1').insertAdjacentHTML('afterend', '<img src=\"data:,\">');"
        " document.querySelector('footer').style.width = '3000px'"
    )
    assert page.evaluate(SIDEWAYS) > 0
    assert any(line.startswith("image-alt") for line in violations(page))


@pytest.mark.parametrize("slug", SLUGS, ids=lambda slug: slug or "gains")
def test_every_table_as_csv_and_as_json(slug: str, addresses: dict[str, str], h200: Any):
    links = data_links(h200.get(addresses[slug]).text)
    tables: dict[str, dict[str, Any]] = {}
    for link in links:
        answer = h200.get(link)
        assert answer.status_code == 200, link
        form = "csv" if ".csv?" in link else "json"
        tables.setdefault(link.replace(f".{form}?", "?"), {})[form] = answer
    for link, both in tables.items():
        assert set(both) == {"csv", "json"}, link
        document = both["json"].json()
        names, *rows = csv.reader(io.StringIO(both["csv"].text, newline=""))
        assert names == [column["name"] for column in document["columns"]]
        assert len(set(names)) == len(names)
        assert len(rows) == len(document["rows"])
        assert all(list(row) == names for row in document["rows"])
        assert all(len(row) == len(names) for row in rows)
