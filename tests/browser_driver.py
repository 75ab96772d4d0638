"""Chromium, driven by Playwright: how it is found and started, and what is watched while it shows a page."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urlsplit

from fp4tune.api.dashboard.page import ROOT
from fp4tune.api.dashboard.pages import BY_SLUG, PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

REQUIRED = "FP4TUNE_TEST_BROWSER"
"""Environment variable; where it is set, tests that cannot run in a browser fail."""

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic",
    # No name but this machine's leads anywhere, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
"""What axe-core looks for."""

WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 1024, "height": 768}


def why_not() -> str:
    """Why there is no browser to test in; empty if there is one."""
    if not executable():
        return f"no Chromium ({', '.join(NAMES)}) on this machine: make browser-setup"
    try:
        import playwright.sync_api  # noqa: F401 - whether it can be imported
    except ImportError as error:
        return f"Playwright cannot be imported ({error}): make setup"
    return ""


def executable() -> str:
    """Chromium's path; empty if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


def required() -> bool:
    """Whether to fail where there is no browser."""
    return os.environ.get(REQUIRED, "") not in ("", "0")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, until the block ends.

    Playwright's loop counts as running in this thread until then, so that nothing else can run one here.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watch:
    """What went wrong while pages were shown.

    Attributes:
        base: where the pages are from; what asks anybody else is noted and stopped.
        console: errors and warnings of the console. errors: what scripts raised and did not catch.
        elsewhere: addresses of others that were asked for. dialogs: texts of dialogs that opened.
        refused: status and address of what the server did not answer by 2xx or 3xx.
    """

    base: str
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def attach(self, context: BrowserContext) -> None:
        """Watch every page of a context."""
        context.route(lambda url: not self._ours(url), self._stop)
        context.on("console", self._said)
        context.on("weberror", lambda raised: self.errors.append(str(raised.error)))
        context.on("request", lambda request: None if self._ours(request.url) else self.elsewhere.append(request.url))
        context.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        context.on(
            "response",
            lambda answer: self.refused.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None,
        )

    def forget(self) -> None:
        """Forget what was seen so far."""
        for one in (self.console, self.errors, self.elsewhere, self.dialogs, self.refused):
            one.clear()

    def assert_quiet(self) -> None:
        """Fail if anything went wrong."""
        seen = {name: getattr(self, name) for name in ("console", "errors", "elsewhere", "dialogs", "refused")}
        assert not any(seen.values()), {name: value for name, value in seen.items() if value}

    def _ours(self, url: str) -> bool:
        return url.startswith((f"{self.base}/", "data:", "blob:", "about:"))

    def _stop(self, route: Route) -> None:
        self.elsewhere.append(route.request.url)
        route.abort()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self.console.append(f"{message.type}: {message.text}")


class _Links(HTMLParser):
    """The addresses that a document links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.found.append(href)
        # The other forms need what is chosen in them.
        if tag == "form" and dict(attrs).get("role") == "search" and (action := dict(attrs).get("action")):
            self.found.append(action)


def links(html: str) -> list[str]:
    """The addresses of pages that a page links to, without their anchors, in order, each once."""
    parser = _Links()
    parser.feed(html)
    found = [urldefrag(href).url for href in parser.found]
    return [href for href in dict.fromkeys(found) if slug_of(href) is not None]


def slug_of(address: str) -> str | None:
    """The page that an address of this service leads to; None if it leads to none."""
    parts = urlsplit(address)
    head = f"{ROOT}/"
    if parts.netloc or not parts.path.startswith(head):
        return None
    slug = parts.path.removeprefix(head)
    return slug if slug in BY_SLUG else None


def crawl(
    get: Callable[[str], Any], *, start: Sequence[str] = (), each: int = 3, fine: Sequence[int] = (200,)
) -> dict[str, list[str]]:
    """Addresses of every page by slug, found by following links from the first page.

    Args:
        get: answers an address by a response with `status_code` and `text`.
        start: addresses to begin with, besides the first page's.
        each: how many addresses of a slug are asked for.
        fine: statuses that an answer may have.
    """
    found: dict[str, list[str]] = {}
    asked: dict[str, int] = {}
    todo = deque(dict.fromkeys([*start, f"{ROOT}/"]))
    seen = set(todo)
    while todo:
        address = todo.popleft()
        slug = slug_of(address)
        assert slug is not None, address
        found.setdefault(slug, []).append(address)
        asked[slug] = asked.get(slug, 0) + 1
        if asked[slug] > each:
            continue
        response = get(address)
        assert response.status_code in fine, (response.status_code, address)
        for link in links(response.text):
            if link not in seen:
                seen.add(link)
                todo.append(link)
    return found


def addresses(found: dict[str, list[str]]) -> dict[str, str]:
    """One address for each page: the first with parameters that was found, or else the bare one."""
    made = {
        slug: next((one for one in some if "?" in one), some[0])
        for slug in [page.slug for page in PAGES]
        if (some := found.get(slug))
    }
    return made | ({"search": f"{ROOT}/search?q=qwen"} if "search" in made else {})


SETTLED = """() => document.readyState === 'complete' && !document.querySelector('.htmx-request, .htmx-settling')
    && [...document.querySelectorAll('main figure > .plot')].every(one => one.querySelector('svg.main-svg'))"""


def settle(page: Page) -> None:
    """Wait until a page has loaded and every picture is drawn."""
    wait(page, SETTLED)


def wait(page: Page, expression: str, arg: Any = None, *, timeout_s: float = 20) -> None:
    """Wait until an expression of JavaScript is true, or a function of `arg` says so.

    Playwright's own `wait_for_function` evaluates text inside of the page, which the pages' policy forbids.
    """
    from playwright.sync_api import Error

    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(Error):  # between two pages there is nothing to ask
            if page.evaluate(expression, arg):
                return
        assert time.monotonic() < deadline, f"waited in vain for {expression} of {arg!r}"
        page.wait_for_timeout(20)


def violations(page: Page) -> list[str]:
    """What axe-core finds against WCAG A and AA, a line each."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": list(RULES)}, "resultTypes": ["violations"]})
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found.response["violations"]
    ]


def kinds(html: str) -> set[str]:
    """Of what kinds the parts of a page are: its pictures, tables and filters by name, and what marks them."""
    main = html[html.find("<main") : html.find("</main>")]
    classes = {one for some in re.findall(r' class="([^"]*)"', main) for one in some.split()}
    return classes | {f"#{one}" for one in re.findall(r' id="([^"]*)"', main)}


def data_links(html: str) -> list[str]:
    """The addresses of tables, as CSV and JSON, that a page links to."""
    parser = _Links()
    parser.feed(html)
    ends = (".csv", ".json")
    return [
        href
        for href in dict.fromkeys(parser.found)
        if href.startswith(f"{ROOT}/") and urlsplit(href).path.endswith(ends)
    ]
