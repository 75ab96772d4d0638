"""Filters by mouse and by keyboard, with and without scripts; the back button."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import browser_driver
import pytest
from browser_driver import wait
from fp4tune.api.dashboard.page import CURSOR
from fp4tune.api.dashboard.pages import PAGES

CHOICES = "form.filters select, form.filters input[type=text]"
SAID = """const said = document => {
    const copy = document.querySelector('#view').cloneNode(true);
    copy.querySelectorAll('form.filters, .plot, .stale').forEach(one => one.remove());
    return copy.textContent.replace(/\\s+/g, ' ');
};"""
CONTENT = f"() => {{ {SAID} return said(document); }}"
"""What a page says apart from its filters and what is drawn."""

ANEW = f"""async () => {{
    {SAID}
    const text = await (await fetch(location.href, {{cache: 'reload'}})).text();
    return said(new DOMParser().parseFromString(text, 'text/html'));
}}"""
"""The same of what the server says at the page's address now."""


@pytest.fixture(scope="module")
def one_each(texts: dict[str, str]) -> dict[str, str]:
    """An address for each page of the busy database."""
    found: dict[str, list[str]] = {}
    for one in texts:
        found.setdefault(str(browser_driver.slug_of(one)), []).append(one)
    return browser_driver.addresses(found)


class Filters(HTMLParser):
    """How many values each filter of a page offers; None for a text field."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: dict[str, int | None] = {}
        self._name = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if not (given.get("id") or "filter-").startswith("filter-"):
            return
        if tag == "select":
            self._name = given["name"] or ""
            self.offered[self._name] = 0
        elif tag == "option":
            self.offered[self._name] = (self.offered[self._name] or 0) + 1
        elif tag == "input" and given.get("type") == "text":
            self.offered[given["name"] or ""] = None


def filters_of(html: str) -> dict[str, int | None]:
    """The filters of a page, and how many values each offers; None for a text field."""
    parser = Filters()
    parser.feed(html)
    return parser.offered


@pytest.fixture(scope="module")
def offers(texts: dict[str, str], busy: Any, h200: Any) -> dict[tuple[str, str], tuple[Any, str]]:
    """By page and filter, the server and the address of a page on which it has a choice."""
    found: dict[tuple[str, str], tuple[Any, str]] = {}
    # The models of the busy database are made up: of the real presets there is only little, and M hides nothing.
    real = {here: h200.get(here).text for here in ("/dashboard/",)}
    for server, some in ((h200, real), (busy, texts)):
        for here in sorted(some, key=len):
            for name, n in filters_of(some[here]).items():
                slug = str(browser_driver.slug_of(here))
                if (n is None or n > 1) and (server is h200) == ((slug, name) == ("", "tokens")):
                    found.setdefault((slug, name), (server, here))
    return found


@pytest.fixture(scope="module")
def typed(texts: dict[str, str]) -> dict[str, list[str]]:
    """What can be typed into fields, by parameter: what addresses say."""
    found: dict[str, list[str]] = {"q": ["gemma"]}
    for here in texts:
        asked = parse_qs(urlsplit(here).query)
        if browser_driver.slug_of(here) == "problem" and "problem" in asked:
            found.setdefault("problem", []).append(asked["problem"][0])
        if browser_driver.slug_of(here) == "run" and "run" in asked:
            found.setdefault("run", []).append(asked["run"][0])
    return found


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


def wait_for(page: Any, name: str, value: str, before: str) -> None:
    """Wait until a filter's value is in the address, and what the page says has changed."""
    wait(page, "([name, value]) => (new URL(location).searchParams.get(name) ?? '') === value", arg=[name, value])
    wait(page, f"before => ({CONTENT})() !== before", arg=before)


BY_LINKS = {("run", "run")}
"""Parameters that are no filter: the pages that list runs lead to each."""

PAIRS = [
    (page.slug, one.name)
    for page in PAGES
    for one in page.parameters
    if one is not CURSOR and (page.slug, one.name) not in BY_LINKS
]


def test_every_parameter_is_a_filter_and_the_other_way_round(texts: dict[str, str], offers: dict[tuple[str, str], Any]):
    there = {(str(browser_driver.slug_of(here)), name) for here, said in texts.items() for name in filters_of(said)}
    assert there | {("", "tokens")} == set(PAIRS)  # which is offered where M are hidden
    assert set(offers) == set(PAIRS), "some have no choice anywhere"


@pytest.mark.parametrize(("slug", "name"), PAIRS, ids=lambda one: one or "gains")
def test_a_filter_by_mouse_and_by_keyboard(
    slug: str, name: str, offers: dict[tuple[str, str], Any], typed: dict[str, list[str]], visit: Any
):
    server, here = offers[slug, name]
    page = visit(here, server=server)
    one = next(one for one in choices(page) if one["name"] == name)
    for hand in ("mouse", "keyboard"):
        if hand == "keyboard":
            page.goto(here)
            browser_driver.settle(page)
        before, field = page.evaluate(CONTENT), page.locator(f"#{one['id']}")
        if not one["select"]:
            value = next(value for value in typed[name] if value != one["value"])
            field.click() if hand == "mouse" else field.focus()
            page.keyboard.press("Control+A")
            page.keyboard.type(value)
            page.get_by_role("button", name="Show").click() if hand == "mouse" else page.keyboard.press("Enter")
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
        wait_for(page, name, value, before)
        assert field.input_value() == value
        # The page of the new address is the same as the one that came by htmx.
        came, anew = (re.sub(r"\d+ s ago", "", one) for one in (page.evaluate(CONTENT), page.evaluate(ANEW)))
        assert anew == came


def test_back_after_a_filter_shows_what_was_there(busy: Any, visit: Any, one_each: dict[str, str]):
    page = visit(one_each[""], server=busy)
    before, at = page.evaluate(CONTENT), page.url
    one = next(one for one in choices(page) if one["others"])
    page.locator(f"#{one['id']}").select_option(one["others"][0])
    wait_for(page, one["name"], one["others"][0], before)
    after = page.evaluate(CONTENT)
    browser_driver.settle(page)
    page.go_back()
    wait(page, f"before => ({CONTENT})() === before", arg=before)
    # The page may still load its scripts, without which nothing follows the address.
    browser_driver.settle(page)
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
