"""Filters by mouse and by keyboard, with and without scripts; the back button."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import browser_driver
import pytest
from browser_driver import wait
from fp4tune.api.dashboard.pages import PAGES

SLUGS = [page.slug for page in PAGES]
CHOICES = "form.filters select, form.filters input[type=text]"
CONTENT = """() => {
    const copy = document.querySelector('#view').cloneNode(true);
    copy.querySelector('form.filters')?.remove();
    return copy.textContent.replace(/\\s+/g, ' ');
}"""
"""What a page says apart from its filters."""


@pytest.fixture(scope="module")
def many(busy: Any) -> dict[str, list[str]]:
    """Addresses of the pages of the busy database, by slug."""
    return browser_driver.crawl(busy.get)


@pytest.fixture(scope="module")
def one_each(many: dict[str, list[str]]) -> dict[str, str]:
    return browser_driver.addresses(many)


def choices(page: Any) -> list[dict[str, Any]]:
    """Every filter of a page: its name, its value, and values that are there besides it."""
    return page.evaluate(
        f"""() => [...document.querySelectorAll({CHOICES!r})].map(one => ({{
            id: one.id, name: one.name, value: one.value, select: one.tagName === 'SELECT',
            others: [...(one.options ?? [])].map(option => option.value).filter(value => value !== one.value)}}))"""
    )


def chosen(page: Any, name: str) -> str:
    """A parameter of a page's address."""
    return parse_qs(urlsplit(page.url).query).get(name, [""])[0]


def another_problem(addresses: list[str], here: str) -> str:
    """A problem that a page can show in the same environment as the one that an address names; empty if there is none."""
    asked = [parse_qs(urlsplit(one).query) for one in [here, *addresses]]
    same = [
        one["problem"][0] for one in asked if "problem" in one and one.get("environment") == asked[0].get("environment")
    ]
    return same[-1] if len(set(same)) > 1 else ""


def wait_for(page: Any, name: str, value: str, before: str) -> None:
    """Wait until a filter's value is in the address, and what the page says has changed."""
    wait(page, "([name, value]) => (new URL(location).searchParams.get(name) ?? '') === value", arg=[name, value])
    wait(page, f"before => ({CONTENT})() !== before", arg=before)


@pytest.mark.parametrize("slug", SLUGS, ids=lambda slug: slug or "gains")
def test_every_filter_by_mouse_and_by_keyboard(
    slug: str, one_each: dict[str, str], many: dict[str, list[str]], busy: Any, visit: Any
):
    typed = {"problem": another_problem(many.get(slug, []), one_each[slug])}
    page = visit(one_each[slug], server=busy)
    for one in choices(page):
        for hand in ("mouse", "keyboard"):
            page.goto(one_each[slug])
            browser_driver.settle(page)
            before, field = page.evaluate(CONTENT), page.locator(f"#{one['id']}")
            if not one["select"]:
                field.click() if hand == "mouse" else field.focus()
                page.keyboard.press("Control+A")
                value = typed.get(one["name"], "zzz")
                page.keyboard.type(value)
                page.get_by_role("button", name="Show").click() if hand == "mouse" else page.keyboard.press("Enter")
            elif not one["others"]:
                continue
            elif hand == "mouse":
                value = one["others"][-1]
                field.click()
                field.select_option(value)
            else:
                field.focus()
                index = field.evaluate("one => one.selectedIndex")
                key = "ArrowDown" if index + 1 <= len(one["others"]) else "ArrowUp"
                value = field.evaluate("(one, i) => one.options[i].value", index + (1 if key == "ArrowDown" else -1))
                page.keyboard.press(key)
            wait_for(page, one["name"], value, before)
            assert field.input_value() == value
            # The page of the new address is the same as the one that came by htmx.
            came = page.evaluate(CONTENT)
            page.reload()
            browser_driver.settle(page)
            assert re.sub(r"\d+ s ago", "", page.evaluate(CONTENT)) == re.sub(r"\d+ s ago", "", came)


def test_there_are_filters_with_a_choice(one_each: dict[str, str], busy: Any):
    with_choice = {slug for slug, address in one_each.items() if busy.get(address).text.count("<option") > 1}
    assert {"", "failures", "runs"} <= with_choice


def test_back_after_a_filter_shows_what_was_there(busy: Any, visit: Any, one_each: dict[str, str]):
    page = visit(one_each[""], server=busy)
    before, at = page.evaluate(CONTENT), page.url
    one = next(one for one in choices(page) if one["others"])
    page.locator(f"#{one['id']}").select_option(one["others"][0])
    wait_for(page, one["name"], one["others"][0], before)
    after = page.evaluate(CONTENT)
    page.go_back()
    wait(page, f"before => ({CONTENT})() === before", arg=before)
    assert page.url == at
    assert page.locator(f"#{one['id']}").input_value() == one["value"]
    page.go_forward()
    wait(page, f"after => ({CONTENT})() === after", arg=after)
    assert chosen(page, one["name"]) == one["others"][0]


@pytest.mark.parametrize("slug", ["", "failures", "runs"], ids=lambda slug: slug or "gains")
def test_without_scripts_a_button_applies_filters(slug: str, busy: Any, visit: Any, one_each: dict[str, str]):
    page = visit(one_each[slug], server=busy, java_script_enabled=False)
    assert page.locator("main table").first.is_visible()
    # The last of those with a choice: what it offers goes with all that is chosen before it.
    field = page.locator(f"{CHOICES}").filter(has=page.locator("option:not([selected])")).last
    name, value = field.get_attribute("name"), field.locator("option:not([selected])").last.get_attribute("value")
    assert name
    assert value
    field.select_option(value)
    page.get_by_role("button", name="Show").click()
    page.wait_for_load_state()
    assert chosen(page, name) == value
    assert page.locator("main table, main .empty").first.is_visible()
    assert page.locator(f"[name={name}] option[selected]").get_attribute("value") == value


def test_the_search_field_finds(busy: Any, visit: Any, one_each: dict[str, str]):
    page = visit(one_each[""], server=busy)
    page.locator("#search").click()
    page.keyboard.type("gemma")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/search?q=gemma")
    assert "gemma" in page.locator("main").inner_text()
    assert page.locator("main a[href^='/dashboard/']").count()
