"""Every page as it looks: no errors, nobody else asked, no sideways scrolling, accessible, in light and dark."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from browser_driver import NARROW, WIDE, data_links, settle
from fp4tune.api.dashboard.pages import BY_SLUG, PAGES

SLUGS = [page.slug for page in PAGES]
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def violations(page: Any) -> list[str]:
    """What axe-core finds against WCAG A and AA, a line each."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": list(RULES)}, "resultTypes": ["violations"]})
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found.response["violations"]
    ]


def test_every_page_is_found_by_links(found: dict[str, list[str]]):
    assert set(found) == set(SLUGS)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("slug", SLUGS, ids=lambda slug: slug or "gains")
def test_a_page(slug: str, dark: bool, addresses: dict[str, str], visit: Any, keep: Any):
    page = visit(addresses[slug], dark=dark)
    assert page.title().endswith(" · fp4tune")
    assert page.locator("h1").inner_text().strip()
    assert page.locator(".question").inner_text() == BY_SLUG[slug].question
    keep(page, f"{slug or 'gains'}{'-dark' if dark else ''}")
    assert page.evaluate(SIDEWAYS) <= 0
    # What is folded away is to be read, too.
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert violations(page) == []
    assert page.evaluate(SIDEWAYS) <= 0
    page.set_viewport_size(NARROW)
    settle(page)
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
