"""The dashboard without a mouse."""

from __future__ import annotations

from typing import Any

from browser_driver import wait

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
