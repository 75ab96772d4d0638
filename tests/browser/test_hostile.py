"""Strings that try to be script, markup, or something else than text; in a real browser nothing comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import browser_driver
import dashboard_stores
import http_server
import pytest
from browser_driver import wait
from dashboard_stores import FLAG, HOSTILE
from fp4tune.db import Store

SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
MARKUP = ("script", "attribute", "end of script", "address", "template", "plot", "comment")
TEXTS = {
    # It begins with a script, where nothing is clipped yet.
    "markup": "".join(HOSTILE[name] for name in MARKUP),
    "control": HOSTILE["control"] + HOSTILE["bidi"] + HOSTILE["sql"],
    "long": HOSTILE["long"],
    "long and broad": HOSTILE["long and broad"],
}
ELEMENTS = "main script:not([type='application/json']), main img, main iframe, main svg[onload], main [onerror], main [onmouseover]"


@pytest.mark.parametrize("kind", TEXTS)
def test_nothing_in_the_store_is_executed_or_breaks_a_page(kind: str, tmp_path: Path, visit: Any, keep: Any):
    path = tmp_path / "hostile.db"
    dashboard_stores.hostile(path, TEXTS[kind])
    with Store.open(path) as store, http_server.running(store) as server:
        found = browser_driver.crawl(server.get, each=2, fine=(200, 404, 422))
        shown = 0
        page = None
        for slug, addresses in found.items():
            for address in addresses[-1:]:
                if server.get(address).status_code != 200:
                    continue
                if page is None:
                    page = visit(address, server=server)
                else:
                    page.goto(address)
                    browser_driver.settle(page)
                shown += 1
                page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
                keep(page, f"hostile-{kind}-{slug or 'gains'}", rare=True)
                assert page.evaluate(f"window.{FLAG}") is None, address
                assert page.locator("h1").count() == 1, address
                assert page.locator("nav").is_visible(), address
                assert page.locator("footer").is_visible(), address
                assert page.locator(ELEMENTS).count() == 0, address
                assert page.locator("a[href^='javascript:']").count() == 0, address
                assert page.evaluate(SIDEWAYS) <= 0, address
        assert shown >= 8


def test_an_address_is_not_executed(visit: Any, h200: Any):
    page = visit("/dashboard/", watch=False)
    for tail in (f"?environment=<script>window.{FLAG}=1</script>", f"?{HOSTILE['script']}=1", f"{HOSTILE['script']}"):
        page.goto(f"/dashboard/{tail}")
        assert page.locator("h1").count() == 1
        assert page.evaluate(f"window.{FLAG}") is None


def test_the_checks_above_see_what_they_look_for(visit: Any):
    """The policy of the pages forbids what a page without one does."""
    page = visit("/dashboard/", watch=False)
    page.evaluate(
        f"document.querySelector('main').insertAdjacentHTML('beforeend', `<img src=x onerror=\"window.{FLAG}=1\">`)"
    )
    page.wait_for_timeout(200)
    assert page.locator(ELEMENTS).count() == 1
    assert page.evaluate(f"window.{FLAG}") is None
    page.route("**/plain", lambda route: route.fulfill(body="<title>x</title>", content_type="text/html"))
    page.goto("/plain")
    page.evaluate(f"document.body.insertAdjacentHTML('beforeend', `<img src=x onerror=\"window.{FLAG}=1\">`)")
    wait(page, f"window.{FLAG} === 1")


ON_A_PLAIN_PAGE = {
    "console": "console.error('x')",
    "console (a warning)": "console.warn('x')",
    "errors": "setTimeout(() => { throw new Error('x') })",
    "errors (of a promise)": "void Promise.reject(new Error('x'))",
    "elsewhere": "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://elsewhere.invalid/x.png\">')",
    "elsewhere (fetch)": "void fetch('http://elsewhere.invalid/x').catch(() => 0)",
    "dialogs": "setTimeout(() => alert('x'))",
    "refused": "void fetch('/dashboard/nothing')",
}


@pytest.mark.parametrize("kind", ON_A_PLAIN_PAGE)
def test_the_watch_sees_what_goes_wrong(kind: str, contexts: Any, visit: Any, h200: Any):
    """On a page without a policy, which forbids nothing."""
    name = kind.partition(" ")[0]
    _, watch = contexts.get(h200, color_scheme="light")
    page = visit("/dashboard/devices", watch=False)
    page.route(
        "**/plain", lambda route: route.fulfill(body="<!doctype html><title>x</title>", content_type="text/html")
    )
    page.goto("/plain")
    page.wait_for_timeout(50)
    watch.forget()
    watch.assert_quiet()
    page.evaluate(f"() => {{ {ON_A_PLAIN_PAGE[kind]} }}")
    seen = getattr(watch, name)
    for _ in range(100):
        if seen:
            break
        page.wait_for_timeout(20)
    assert seen
    with pytest.raises(AssertionError, match=name):
        watch.assert_quiet()
    watch.forget()
