"""The dashboard without a mouse."""

from __future__ import annotations

from typing import Any

import pytest
from browser_driver import wait
from fp4tune.api.dashboard.pages import PAGES

SLUGS = [page.slug for page in PAGES]

FOCUSED = """() => {
    const one = document.activeElement;
    const box = one.getBoundingClientRect();
    return {
        tag: one.tagName, text: one.textContent.trim().slice(0, 60), id: one.id, href: one.getAttribute('href') ?? '',
        place: one.closest('nav') ? 'nav' : one.closest('form.filters') ? 'filters' : one.closest('table.grid') ? 'grid'
            : one.closest('header') ? 'header' : one.closest('main') ? 'main' : one.closest('footer') ? 'footer' : '',
        seen: box.width > 0 && box.height > 0,
        ring: getComputedStyle(one).outlineStyle !== 'none' || getComputedStyle(one).boxShadow !== 'none',
    };
}"""


def tab_until(page: Any, place: str, most: int = 80) -> list[dict[str, Any]]:
    """Press Tab until something in a place has the focus; everything that had it on the way."""
    passed = []
    for _ in range(most):
        page.keyboard.press("Tab")
        passed.append(page.evaluate(FOCUSED))
        if passed[-1]["place"] == place and passed[-1]["tag"] in {"A", "SELECT", "INPUT", "BUTTON"}:
            return passed
    raise AssertionError(f"{place} was not reached: {[one['text'] or one['id'] for one in passed]}")


def test_the_first_stop_skips_to_the_content(visit: Any, addresses: dict[str, str]):
    page = visit(addresses[""])
    page.keyboard.press("Tab")
    first = page.evaluate(FOCUSED)
    assert (first["tag"], first["href"]) == ("A", "#view")
    assert page.locator("a.skip").is_visible()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED)["place"] in {"main", "filters", "grid"}


def test_tab_goes_through_navigation_filters_and_cells_and_enter_opens_a_problem(visit: Any, addresses: dict[str, str]):
    page = visit(addresses[""])
    passed = tab_until(page, "nav")
    passed += tab_until(page, "filters")
    passed += tab_until(page, "grid", 200)
    places = list(dict.fromkeys(one["place"] for one in passed if one["place"] in {"nav", "filters", "grid"}))
    assert places == ["nav", "filters", "grid"]
    assert all(one["seen"] and one["ring"] for one in passed), [
        one for one in passed if not (one["seen"] and one["ring"])
    ]
    cell = passed[-1]
    assert cell["href"].startswith("/dashboard/problem?")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/problem?**")
    assert page.locator(".question").is_visible()


def test_the_page_that_is_shown_is_marked_in_the_navigation(visit: Any, addresses: dict[str, str]):
    page = visit("/dashboard/runs")
    assert page.locator("nav [aria-current=page]").get_attribute("href") == "/dashboard/runs"


def test_the_copy_button_copies_the_command(visit: Any, addresses: dict[str, str]):
    page = visit(addresses["problem"], permissions=["clipboard-read", "clipboard-write"])
    commands = page.locator("main .command")
    assert commands.count() >= 2
    texts = []
    for i in range(commands.count()):
        one = commands.nth(i)
        text = one.locator("code").inner_text()
        button = one.locator("button.copy")
        button.focus()
        page.keyboard.press("Enter")
        wait(page, "text => navigator.clipboard.readText().then(copied => copied === text)", arg=text)
        texts.append(text)
    assert any(text.startswith("curl ") for text in texts)
    assert any(text.startswith("fp4tune ") for text in texts)
    assert page.locator("#said").inner_text().strip()


STOPS = """() => {
    // Rows are alike: of each table a few are enough, and a page is walked through in a second.
    document.querySelectorAll('main tbody tr:nth-child(n+4)').forEach(one => one.remove());
    document.querySelectorAll('main details').forEach(one => { one.open = true; });
    const some = document.querySelectorAll('a[href], button, input, select, summary, textarea, [tabindex]');
    const stops = [...some].filter(one => one.tabIndex >= 0 && !one.disabled && one.type !== 'hidden' && one.checkVisibility());
    window.stops = stops;
    return stops.length;
}"""
"""Notes everything that Tab ought to stop at, in the order of the page."""

AT = """() => {
    const one = document.activeElement, boxes = [...one.getClientRects()], style = getComputedStyle(one);
    const inside = ({x, y}) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight;
    const middle = box => ({
        x: (Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2,
        y: (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2,
    });
    const uncovered = box => {
        const at = middle(box), hit = inside(at) && document.elementFromPoint(at.x, at.y);
        return Boolean(hit) && (one.contains(hit) || hit.contains(one) && hit.closest('main, header, footer') !== null);
    };
    return {
        index: window.stops.indexOf(one), html: one.outerHTML.slice(0, 120),
        seen: boxes.some(box => box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight
            && box.right > 0 && box.left < innerWidth),
        uncovered: boxes.some(uncovered),
        ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none',
    };
}"""
"""What has the focus: which of the stops it is, and whether one sees that."""


@pytest.mark.parametrize("slug", SLUGS, ids=lambda slug: slug or "gains")
def test_tab_goes_through_the_page_from_top_to_end(slug: str, visit: Any, addresses: dict[str, str]):
    page = visit(addresses[slug])
    n = page.evaluate(STOPS)
    passed = []
    for _ in range(n):
        page.keyboard.press("Tab")
        passed.append(page.evaluate(AT))
    assert [one["index"] for one in passed] == list(range(n)), passed
    assert n > 10
    for what in ("seen", "uncovered", "ring"):
        assert not [one for one in passed if not one[what]], what
    # The end is no trap: from there Tab leaves the page, or begins again.
    page.keyboard.press("Tab")
    assert page.evaluate(AT)["index"] in {-1, 0}
    back = []
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
        back.append(page.evaluate(AT)["index"])
    assert [index for index in back if index >= 0][:2] == [n - 1, n - 2]
