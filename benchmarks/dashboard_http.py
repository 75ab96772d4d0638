"""First paint of every page of the dashboard in Chromium, with a million trials stored, and how long the server takes.

    python benchmarks/dashboard_http.py [--trials 1000000] [--rounds 3] [--db PATH]

A page is loaded with a cold cache: each load has a browser context of its own, whose first paint is the browser's own
performance entry, in milliseconds after the navigation began. Server and browser share the machine. The pages are those
that links lead to from the first one, and those of the run and the problem with a tenth of all trials.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from http_load import stamp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # the database is that of the tests

import browser_driver
import dashboard_bulk
from fp4tune.api.dashboard.page import ROOT, address
from fp4tune.api.dashboard.pages import PAGES

GOAL_S = 1.0
GOAL_BYTES = 1_000_000
PAINTS = "performance.getEntriesByType('paint').find(one => one.name === 'first-contentful-paint')?.startTime ?? null"
DRAWN = "[...document.querySelectorAll('main figure .plot')].every(one => one.querySelector('svg.main-svg'))"


@dataclass(frozen=True)
class Load:
    """One address, as it was seen.

    Attributes:
        slug: the page. address: of it.
        paint_s: medians of the first contentful paint. drawn_s: until every picture is drawn, also from the start.
        server_s: median of the server's time for the page alone, without a browser; slowest_s: of its rounds.
        n_bytes: of the page, not compressed.
    """

    slug: str
    address: str
    paint_s: float
    drawn_s: float
    server_s: float
    slowest_s: float
    n_bytes: int


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--db", type=Path, help="where to make the database; it must not exist and stays there")
    options = parser.parse_args()
    reason = browser_driver.why_not()
    if reason:
        sys.exit(f"There is {reason}")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        big = dashboard_bulk.million(options.db or Path(folder) / "million.db", options.trials)
        print(
            f"{big.n_trials} trials of {big.n_runs} runs on {big.n_problems} problems, made in "
            f"{time.perf_counter() - begin:.0f} s; {stamp()}"
        )
        with serving(big.path) as url, browser_driver.chromium() as browser:
            print(f"Chromium {browser.version}; medians of {options.rounds} loads with a cold cache")
            loads = [load(browser, url, one, options.rounds) for one in worth_asking(url, big)]
    report(loads)


@contextlib.contextmanager
def serving(path: Path) -> Iterator[str]:
    """`fp4tune serve`, as a user starts it; its address."""
    command = [str(Path(sys.executable).with_name("fp4tune")), "serve", "--db", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr or ():
            found = [word for word in line.split() if word.startswith("http://")]
            if found:
                yield found[0]
                break
        else:
            raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def worth_asking(url: str, big: dashboard_bulk.Big) -> list[str]:
    """Two addresses of each page that links lead to, and those of the deepest run and problem."""

    def get(path: str) -> Any:
        status, body, _ = ask(url, path)
        return SimpleNamespace(status_code=status, text=body.decode())

    deep = [
        address("run", run=big.deep_run),
        address("problem", problem=big.deep_problem),
        address("progress", run=big.deep_run, problem=big.deep_problem),
    ]
    found = browser_driver.crawl(get, start=deep, each=2)
    bare = [page.slug for page in PAGES if page.slug not in found]
    if bare:
        raise SystemExit(f"no link leads to {', '.join(bare)}")
    return [one for some in found.values() for one in dict.fromkeys([*some[:2], *some[-1:]])]


def ask(url: str, path: str) -> tuple[int, bytes, float]:
    """A page without a browser: status, body, seconds."""
    begin = time.perf_counter()
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        body = answer.read()
    return answer.status, body, time.perf_counter() - begin


def load(browser: Any, url: str, path: str, rounds: int) -> Load:
    """One address, in the browser and without."""
    paints, draws = [], []
    for _ in range(rounds):
        context = browser.new_context(viewport=browser_driver.WIDE)
        page = context.new_page()
        page.goto(url + path, wait_until="load")
        browser_driver.wait(page, DRAWN)
        draws.append(page.evaluate("performance.now()") / 1e3)
        browser_driver.wait(page, f"{PAINTS} !== null")
        paints.append(page.evaluate(PAINTS) / 1e3)
        context.close()
    answers = [ask(url, path) for _ in range(rounds)]
    seconds = [took for _, _, took in answers]
    slug = browser_driver.slug_of(path) or "gains"
    return Load(
        slug, path, statistics.median(paints), statistics.median(draws), statistics.median(seconds), max(seconds),
        len(answers[-1][1]),
    )  # fmt: skip


def report(loads: list[Load]) -> None:
    """Print a line for each address, and whether the goals are met."""
    print(f"{'page':14}{'first paint':>14}{'all drawn':>12}{'server':>10}{'slowest':>10}{'size':>10}  address")
    for one in sorted(loads, key=lambda one: -one.paint_s):
        shown = one.address.removeprefix(ROOT)
        print(
            f"{one.slug:14}{one.paint_s:>12.3f} s{one.drawn_s:>10.3f} s{one.server_s:>8.3f} s{one.slowest_s:>8.3f} s"
            f"{one.n_bytes / 1e3:>7.0f} KB  {shown if len(shown) <= 90 else shown[:87] + '...'}"
        )
    late = [one for one in loads if one.paint_s >= GOAL_S]
    large = [one for one in loads if one.n_bytes > GOAL_BYTES]
    print(f"goal: first paint under {GOAL_S:g} s: {'MISSED by ' + str(len(late)) if late else 'met'}")
    print(f"goal: at most {GOAL_BYTES} bytes a page: {'MISSED by ' + str(len(large)) if large else 'met'}")
    sys.exit(1 if late or large else 0)


if __name__ == "__main__":
    main()
