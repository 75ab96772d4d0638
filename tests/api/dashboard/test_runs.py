"""The page of runs, newest first."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS, killed, running
from evil_databases import hostile, odd, orphans
from fp4tune.api.dashboard.model import Cell, Mark
from fp4tune.api.dashboard.views.runs import PAGE_SIZE
from fp4tune.db import Store
from fp4tune.db.records import RunStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import CPU, ON_CPU, Clock, new_run


def values(row) -> list:
    return [one.value if isinstance(one, Cell) else one for one in row]


def rows(view) -> list[list]:
    return [values(row) for row in view.sections[0].table.rows]


# Bad input


@pytest.mark.parametrize("status", ["ok", "killed", "x"])
def test_a_status_that_no_run_has_is_refused(h200: Store, show, status: str):
    with pytest.raises(InvalidInputError, match="interrupted"):
        show(h200, "runs", status=status)


def test_a_device_that_is_not_stored_is_not_found(h200: Store, show):
    with pytest.raises(NotFoundError, match="0000000000000000"):
        show(h200, "runs", device="0" * 16)


@pytest.mark.parametrize("cursor", ["x", "AAAA", "=~.", "kvtLAfNSGLJ38FG_pxmLVDk5NzcxMA"])
def test_a_token_that_nobody_gave_is_refused(h200: Store, show, cursor: str):
    with pytest.raises(InvalidInputError, match="cursor"):
        show(h200, "runs", cursor=cursor)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_break_nothing(show, text: str):
    with hostile(text) as (store, _):
        assert len(rows(show(store, "runs"))) == 2


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, number: float):
    with odd(number) as (store, _):
        assert len(rows(show(store, "runs"))) == 2


@pytest.mark.parametrize("lost", ["devices", "environments", "problems"])
def test_lost_rows_break_nothing(show, lost: str):
    with orphans(lost) as (store, _):
        for row in show(store, "runs").sections[0].table.rows:
            assert (row[6].value is None) == (row[6].link == "") == (lost != "problems")


@pytest.mark.parametrize("settings", ["[]", "null", '"text"', '{"tp":"two"}', '{"tp":true}', '{"tp":{}}'])
def test_settings_of_any_form_break_nothing(empty: Store, show, settings: str):
    empty.create_run(new_run())
    with empty._writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET settings = ?", (settings,))
    (row,) = rows(show(empty, "runs"))
    assert row[5] in (1, None)


# What it says


def test_an_empty_store_says_what_to_do(empty: Store, show):
    view = show(empty, "runs")
    assert view.sections == ()
    assert view.next_steps[0].command.startswith("fp4tune tune ")


def test_runs_newest_first(h200: Store, show):
    view = show(h200, "runs")
    newest, *_, oldest = view.sections[0].table.rows
    assert values(oldest)[1:] == [
        "finished", h200.runs()[-1].started_at, pytest.approx(169.913, abs=1e-3), "qwen3.5-397b-a17b-nvfp4", 8, "NVIDIA H200",
        "0d4323886a8821a4", 10, 10, 752, 0,
    ]  # fmt: skip
    assert values(newest)[4:6] == ["shapes", None]
    assert newest[0].link == f"/dashboard/run?run={h200.runs()[0].id}"
    assert oldest[7].link == "/dashboard/environments?environment=0d4323886a8821a4"
    assert view.refresh_s is None
    assert view.lead == "None of these is running. The newest is finished."
    assert view.sections[0].table.more == ""


def test_a_killed_run_is_said_to_be_killed_and_how_to_go_on(tmp_path: Path, show):
    run_id = killed(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        view = show(store, "runs")
    status = view.sections[0].table.rows[0][1]
    assert (status.value, status.marks) == ("killed", (Mark.BAD,))
    assert view.next_steps[0].command == f"fp4tune tune --resume {run_id}"
    assert view.refresh_s is None
    assert "killed" in view.lead


def test_a_run_that_lives_makes_the_page_ask_again(tmp_path: Path, show):
    running(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        view = show(store, "runs")
    assert rows(view)[0][1] == "running"
    assert view.refresh_s == 10
    assert view.next_steps == ()
    assert view.lead.startswith("1 of these is running now")


def test_pages_and_filters(tmp_path: Path, show):
    clock = Clock()
    with Store.open(tmp_path / "a.db", clock=clock) as store:
        ids = []
        for n in range(PAGE_SIZE + 5):
            ids.append(store.create_run(new_run(environment=ON_CPU) if n < 3 else new_run()))
            clock.advance(1)
        store.finish_run(ids[0], RunStatus.FAILED, "no disk")
        first = show(store, "runs")
        token = first.sections[0].table.more.split("cursor=")[1]
        second = show(store, "runs", cursor=token)
        assert [row[0] for row in (*rows(first), *rows(second))] == ids[::-1]
        assert second.sections[0].table.more == ""
        with pytest.raises(InvalidInputError, match="cursor"):
            show(store, "runs", cursor=token, status="failed")
        assert [row[0] for row in rows(show(store, "runs", device=CPU.fingerprint))] == ids[2::-1]
        assert [row[0] for row in rows(show(store, "runs", status="failed"))] == ids[:1]
        none = show(store, "runs", status="finished")
        assert none.sections == ()
        assert [step.link for step in none.next_steps] == ["/dashboard/runs"]
