"""A run in progress: its page follows it while somebody else writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dashboard_stores
import http_server
from browser_driver import violations, wait
from fp4tune.api.dashboard.page import address
from fp4tune.db import Store
from fp4tune.db.records import RunStatus
from store_factory import new_trial, new_winner


def test_the_page_of_a_running_run_updates_itself(tmp_path: Path, visit: Any):
    path = tmp_path / "live.db"
    run_id = dashboard_stores.running(path)
    with Store.open(path, mode="read") as shown, http_server.running(shown) as server, Store.open(path) as writer:
        page = visit(address("run", run=run_id), server=server)
        loads: list[str] = []
        page.on("framenavigated", lambda frame: loads.append(frame.url))
        live = page.locator("#view[data-refresh]")
        assert live.count() == 1
        assert violations(page) == []
        before = page.locator("main").inner_text()
        opened = page.evaluate("performance.timeOrigin")
        writer.add_trials([new_trial(run_id, number) for number in range(3, 1237)])
        wait(page, "before => document.querySelector('main').innerText !== before && /1,?237/.test(document.querySelector('main').innerText)",
            arg=before,
        )  # fmt: skip
        writer.add_winners([new_winner(run_id)])
        writer.finish_problem(run_id, 0, "1.50x as fast as the default")
        wait(page, "document.querySelector('main').innerText.includes('1.50x as fast as the default')")
        writer.finish_problem(run_id, 1, "no backend can run it")
        writer.finish_run(run_id, RunStatus.FINISHED)
        wait(page, "!document.querySelector('#view').dataset.refresh")
        assert "finished" in page.locator("main").inner_text().lower()
        assert page.evaluate("performance.timeOrigin") == opened
        assert loads == []


def test_the_other_pages_of_a_running_run_update_themselves(tmp_path: Path, visit: Any):
    path = tmp_path / "live.db"
    run_id = dashboard_stores.running(path)
    with Store.open(path, mode="read") as shown, http_server.running(shown) as server, Store.open(path) as writer:
        problem = writer.run_problems(run_id)[0].item.problem.key
        here = {
            "runs": address("runs"),
            "progress": address("progress", run=run_id, problem=problem),
        }
        pages = {slug: visit(one, server=server) for slug, one in here.items()}
        opened = {slug: page.evaluate("performance.timeOrigin") for slug, page in pages.items()}
        for page in pages.values():
            assert page.locator("#view[data-refresh]").count() == 1
            assert "1,237" not in page.locator("main").text_content()
            assert violations(page) == []
        writer.add_trials([new_trial(run_id, number) for number in range(3, 1237)])
        # The list of runs asks less often: what it then gets is looked at in the end.
        wait(pages["progress"], "document.querySelector('main').textContent.includes('1,237')")
        writer.finish_problem(run_id, 0, "1.50x as fast as the default")
        writer.finish_problem(run_id, 1, "no backend can run it")
        writer.finish_run(run_id, RunStatus.FINISHED)
        for slug, page in pages.items():
            wait(page, "!document.querySelector('#view').dataset.refresh")
            assert page.evaluate("performance.timeOrigin") == opened[slug]
        assert "1,237" in pages["runs"].locator("main table").inner_text()
        assert "finished" in pages["runs"].locator("main table").inner_text()


def test_an_update_keeps_the_focus_and_the_place(tmp_path: Path, visit: Any):
    path = tmp_path / "live.db"
    run_id = dashboard_stores.running(path)
    with Store.open(path, mode="read") as shown, http_server.running(shown) as server, Store.open(path) as writer:
        page = visit(address("run", run=run_id), server=server, size={"width": 1280, "height": 400})
        link = page.locator("main a[href^='/dashboard/']").first
        href = link.get_attribute("href")
        link.focus()
        page.mouse.wheel(0, 150)
        page.wait_for_timeout(200)
        scrolled = page.evaluate("scrollY")
        version = page.locator("#view").get_attribute("data-version")
        writer.add_trials([new_trial(run_id, number) for number in range(3, 500)])
        wait(page, "version => document.querySelector('#view').dataset.version !== version", arg=version)
        assert page.evaluate("document.activeElement.getAttribute('href')") == href
        assert page.evaluate("scrollY") == scrolled


def test_a_page_whose_server_is_gone_says_so_and_comes_back(tmp_path: Path, visit: Any):
    path = tmp_path / "live.db"
    run_id = dashboard_stores.running(path)
    with Store.open(path, mode="read") as shown, http_server.running(shown) as server, Store.open(path) as writer:
        # That its requests fail is what this is about, so that nothing is watched.
        page = visit(address("run", run=run_id), server=server, watch=False)
        page.context.set_offline(True)
        wait(page, "(one => one && !one.hidden && one.innerText.trim())(document.querySelector('.stale'))")
        page.context.set_offline(False)
        writer.add_trials([new_trial(run_id, number) for number in range(3, 1237)])
        wait(page, "/1,?237/.test(document.querySelector('main').innerText)")
        assert not page.locator(".stale").is_visible()
