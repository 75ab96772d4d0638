"""A real browser, real servers over real databases, and pages that are watched while they are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser_driver
import dashboard_stores
import http_server
import pytest
from browser_driver import Watch
from fp4tune.db import Store
from http_server import Running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
SCREENSHOTS = Path(os.environ.get("FP4TUNE_SCREENSHOTS") or ROOT / ".make" / "screenshots")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, one for a module: while Playwright runs, no other test of this process could run a loop."""
    reason = browser_driver.why_not()
    if reason and browser_driver.required():
        pytest.fail(f"{browser_driver.REQUIRED} is set, and there is {reason}")
    if reason:
        pytest.skip(reason)
    with browser_driver.chromium() as started:
        yield started


def _serving(path: Path) -> Iterator[Running]:
    with Store.open(path) as store, http_server.running(store) as server:
        yield server


@pytest.fixture(scope="session")
def h200_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the runs of the pages of the H200; copy it to write to it."""
    path = tmp_path_factory.mktemp("browser") / "h200.db"
    with Store.open(path, mode="create") as store:
        for name in ("h200", "h200-dense"):
            store.import_from(RESULTS / f"{name}.fp4tune.gz")
    return path


@pytest.fixture(scope="session")
def h200(h200_path: Path) -> Iterator[Running]:
    """A server over the runs of the H200."""
    yield from _serving(h200_path)


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server over runs of many environments, with failures of every class, so that every filter has a choice."""
    path = tmp_path_factory.mktemp("browser") / "busy.db"
    dashboard_stores.million(path, 6_000)
    yield from _serving(path)


@pytest.fixture(scope="session")
def found(h200: Running) -> dict[str, list[str]]:
    """Addresses of the pages of the H200, by slug, as the links lead to them."""
    return browser_driver.crawl(h200.get)


@pytest.fixture(scope="session")
def addresses(found: dict[str, list[str]]) -> dict[str, str]:
    """An address for each page of the H200."""
    return browser_driver.addresses(found)


Visit = Callable[..., "Page"]


class Contexts:
    """Contexts of one browser by what tells them apart: what a page has loaded once is kept for the next page."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._made: dict[str, tuple[BrowserContext, Watch]] = {}

    def get(self, server: Running, **settings: Any) -> tuple[BrowserContext, Watch]:
        """A context for a server, and what watches it."""
        key = f"{server.url} {settings}"
        if key not in self._made:
            context = self._browser.new_context(base_url=server.url, reduced_motion="reduce", **settings)
            context.set_default_timeout(30_000)
            watch = Watch(server.url)
            watch.attach(context)
            self._made[key] = context, watch
        return self._made[key]


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> Contexts:
    """The contexts of a module."""
    return Contexts(browser)


@pytest.fixture
def visit(contexts: Contexts, h200: Running) -> Iterator[Visit]:
    """`visit(address, server=..., dark=True, ...)`: a page, shown; the test fails if anything goes wrong on it."""
    watches: list[Watch] = []
    pages: list[Page] = []

    def make(
        address: str, *, server: Running = h200, dark: bool = False, size: Any = None, watch: bool = True, **more: Any
    ) -> Page:
        context, seen = contexts.get(server, color_scheme="dark" if dark else "light", **more)
        if not any(seen is one for one in watches):
            seen.forget()
        page = context.new_page()
        pages.append(page)
        page.set_viewport_size(size or browser_driver.WIDE)
        answer = page.goto(address)
        assert answer is not None
        if watch:
            assert answer.status == 200, (answer.status, address)
            watches.append(seen)
        if more.get("java_script_enabled", True):
            browser_driver.settle(page)
        return page

    yield make
    for page in pages:
        page.close()
    for seen in watches:
        seen.assert_quiet()


@pytest.fixture
def keep() -> Callable[[Page, str], None]:
    """`keep(page, "gains")`: a screenshot, for whoever wants to look at what was tested."""

    def take(page: Page, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / (re.sub(r"[^a-z0-9-]+", "-", name or "gains") + ".png"), full_page=True)

    return take
