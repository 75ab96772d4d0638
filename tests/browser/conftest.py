"""A real browser, real servers over real databases, and pages that are watched while they are shown."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser_driver
import dashboard_stores
import http_server
import pytest
from browser_driver import Watch, kinds
from dashboard_stores import Big
from fp4tune.api.dashboard.page import address
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
def big(tmp_path_factory: pytest.TempPathFactory) -> Big:
    """A database of many environments and policies, with failures of every class; copy it to write to it."""
    return dashboard_stores.million(tmp_path_factory.mktemp("browser") / "big.db", 100_000)


@pytest.fixture(scope="session")
def busy(big: Big) -> Iterator[Running]:
    """A server over it: every filter has a choice."""
    yield from _serving(big.path)


TWO_POLICIES = """
SELECT p.key, e.fingerprint, d.fingerprint FROM winners w JOIN problems p ON p.id = w.problem_id
JOIN environments e ON e.id = w.environment_id JOIN devices d ON d.id = w.device_id
WHERE w.superseded_at IS NULL GROUP BY w.problem_id, w.environment_id HAVING count(DISTINCT w.policy) > 1
ORDER BY p.key, e.fingerprint LIMIT 1"""
"""A problem with winners by two policies, and where."""


@pytest.fixture(scope="session")
def texts(big: Big, busy: Running) -> dict[str, str]:
    """What pages of the busy database say, by address: those that links lead to, and those with two policies."""
    with closing(sqlite3.connect(big.path)) as raw:
        problem, environment, device = raw.execute(TWO_POLICIES).fetchone()
    start = [address(slug, environment=environment) for slug in ("", "roof", "backends", "trust")]
    start += [address("history", device=device), address("problem", problem=problem, environment=environment)]
    said: dict[str, str] = {}

    def get(path: str) -> Any:
        answer = busy.get(path)
        said[path] = answer.text
        return answer

    browser_driver.crawl(get, start=start, each=4)
    return said


@pytest.fixture(scope="session")
def found(h200: Running) -> dict[str, list[str]]:
    """Addresses of the pages of the H200, by slug, as the links lead to them."""
    return browser_driver.crawl(h200.get)


@pytest.fixture(scope="session")
def addresses(found: dict[str, list[str]]) -> dict[str, str]:
    """An address for each page of the H200."""
    return browser_driver.addresses(found)


@pytest.fixture(scope="session")
def contents(
    addresses: dict[str, str], texts: dict[str, str], h200: Running, busy: Running
) -> dict[str, list[tuple[Running, str]]]:
    """Pages by slug, the server and the address, so that each kind of part that a page can have is there once."""
    chosen: dict[str, list[tuple[Running, str]]] = {}
    met: dict[str, set[str]] = {}
    everywhere: set[str] = set()
    candidates = [(h200, one, h200.get(one).text) for one in addresses.values()]
    # The fullest of the busy ones first, so that few are needed.
    rest = sorted(texts, key=lambda one: -len(kinds(texts[one])))
    for server, one, said in [*candidates, *((busy, one, texts[one]) for one in rest)]:
        slug = str(browser_driver.slug_of(one))
        own = {kind for kind in kinds(said) if kind.startswith("#")}
        marks = kinds(said) - own
        if server is h200 or own - met[slug] or marks - everywhere:
            chosen.setdefault(slug, []).append((server, one))
            met[slug] = met.get(slug, set()) | own
            everywhere |= marks
    return chosen


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
def keep() -> Callable[..., None]:
    """`keep(page, "gains")`: a screenshot, for whoever wants to look at what was tested; rare ones only if asked for."""

    def take(page: Page, name: str, *, rare: bool = False) -> None:
        if rare and not os.environ.get("FP4TUNE_SCREENSHOTS"):
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / (re.sub(r"[^a-z0-9-]+", "-", name or "gains") + ".png"), full_page=True)

    return take
