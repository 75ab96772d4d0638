"""The page of one run: while it runs, when it has ended, and when it was killed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS, killed, running
from evil_databases import hostile, odd, orphans
from fp4tune.api.dashboard.model import Cell, Mark
from fp4tune.api.dashboard.views.run import PAGE_SIZE
from fp4tune.db import Store
from fp4tune.db.records import RunStatus, TrialStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import SMALL, failed_trial, new_run, new_trial, new_winner


def values(row) -> list:
    return [one.value if isinstance(one, Cell) else one for one in row]


def table(view, name: str):
    return next(section.table for section in view.sections if section.table.name == name)


def facts(view) -> dict:
    return dict(values(row) for row in table(view, "run").rows)


# Bad input


def test_without_a_run_it_says_that_it_needs_one(h200: Store, show):
    with pytest.raises(InvalidInputError, match="needs its id"):
        show(h200, "run")


@pytest.mark.parametrize("name", ["AAAAAA", "00000000000000000000000000", "iiiiii"])
def test_a_run_that_is_not_there_is_not_found(h200: Store, show, name: str):
    with pytest.raises(NotFoundError, match="no run"):
        show(h200, "run", run=name)


def test_a_beginning_of_several_runs_names_them(h200: Store, show):
    with pytest.raises(InvalidInputError, match="Several runs begin with '01M8NR'"):
        show(h200, "run", run="01M8NR")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_break_nothing(show, text: str):
    with hostile(text) as (store, run_ids):
        for run_id in run_ids:
            rows = [row for section in show(store, "run", run=run_id).sections for row in section.table.rows]
            links = [cell.link for row in rows for cell in row if isinstance(cell, Cell)]
            assert links
            assert all(link == "" or link.startswith("/dashboard/") for link in links)


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, number: float):
    with odd(number) as (store, run_ids):
        for run_id in run_ids:
            show(store, "run", run=run_id)


@pytest.mark.parametrize("lost", ["devices", "environments", "problems"])
def test_lost_rows_break_nothing(show, lost: str):
    with orphans(lost) as (store, run_ids):
        for run_id in run_ids:
            view = show(store, "run", run=run_id)
            assert table(view, "problems").rows
            assert (facts(view)["device"] is None) == (lost != "problems")


@pytest.mark.parametrize(
    "settings",
    ["[]", "null", "3", '{"tp":"two"}', '{"tp":[]}', '{"tokens":3}', '{"roles":3,"tp":null}', '{"budget_s":{"a":1}}'],
)
@pytest.mark.parametrize("checkpoint", ["", "/models/a b"])
def test_settings_of_any_form_break_nothing(empty: Store, show, settings: str, checkpoint: str):
    run_id = empty.create_run(new_run(checkpoint=checkpoint))
    with empty._writing() as connection:
        connection.exec_driver_sql("UPDATE runs SET settings = ?", (settings,))
    show(empty, "run", run=run_id)


def test_many_and_long_settings_are_bounded(empty: Store, show):
    run_id = empty.create_run(new_run(settings={f"name{n}": "x" * 5000 for n in range(100)} | {"aa": 1 << 70}))
    settings = table(show(empty, "run", run=run_id), "settings")
    assert len(settings.rows) == 50
    assert max(len(value) for _, value in settings.rows) == 300
    assert settings.rows[0] == ("aa", str(1 << 70))
    assert "51 more" in settings.note


# What it says


def test_a_finished_run(h200: Store, show):
    view = show(h200, "run", run="01m8nqzwk7")
    assert view.title == "Run 01M8NQZWK7Y5XADD17PTDAM07E"
    assert view.lead == "Finished in 2 min 50 s: 10 of 10 problems done, 753 trials, 0 of them failed, 3 not supported."
    assert (view.refresh_s, view.warnings, view.next_steps) == (None, (), ())
    assert [section.table.name for section in view.sections] == ["problems", "run", "settings"]
    first = table(view, "problems").rows[0]
    assert values(first) == [
        0, "grouped:e512k10:1x256x4096:uniform:nvfp4:bf16", "moe.w13", True, "1.12x as fast as the default",
        "triton.dequant", pytest.approx(6.2378, abs=1e-4), pytest.approx(1.1167, abs=1e-4), 73, 0, "progress",
    ]  # fmt: skip
    assert "environment=0d4323886a8821a4&policy=cuda.graph" in first[1].link
    assert first[10].link.startswith("/dashboard/progress?run=01M8NQZWK7Y5XADD17PTDAM07E&problem=grouped%3A")
    (command,) = view.sections[1].commands
    assert command.text == "fp4tune tune qwen3.5-397b-a17b-nvfp4 --tp 8 --tokens 1,4,16,64,256"
    assert facts(view)["TP"] == 8
    assert (
        dict(table(view, "settings").rows)["backends"] == '["humming", "torch.bf16", "torch.dequant", "triton.dequant"]'
    )


def test_what_was_superseded_since_is_not_said_to_be_served(h200: Store, show):
    old = table(show(h200, "run", run="01M8NQFZ0DN3FYNYHMSAG96B2A"), "problems")
    new = table(show(h200, "run", run="01M8NQZWK7Y5XADD17PTDAM07E"), "problems")
    assert {row[5].marks for row in new.rows} == {(Mark.SERVED,)}
    assert {row[5].marks for row in old.rows} == {()}
    assert new.legend
    assert not old.legend


def test_a_run_that_lives_updates_itself_and_says_what_it_does(tmp_path: Path, show):
    run_id = running(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db") as store:
        store.add_trials([failed_trial(run_id, 9)])
        view = show(store, "run", run=run_id)
        assert view.refresh_s == 3
        assert view.lead.startswith("Running for ")
        assert view.lead.endswith(": 0 of 2 problems done, 4 trials, 1 of them failed.")
        now = {row[0]: values(row)[1] for row in table(view, "now").rows}
        assert (now["tuning"], now["place"], now["last trial"]) == (SMALL.key, "1 of 2", "triton.native: crashed")
        assert not any("--resume" in command.text for section in view.sections for command in section.commands)
        store.finish_run(run_id, RunStatus.FINISHED)
        assert show(store, "run", run=run_id).refresh_s is None


def test_a_run_that_lives_and_has_no_trial_yet(empty: Store, show):
    import socket

    run_id = empty.create_run(new_run(host=socket.gethostname(), pid=os.getpid(), problems=()))
    view = show(empty, "run", run=run_id)
    assert table(view, "now").rows == []
    assert "compiling" in table(view, "now").empty


def test_a_killed_run_says_so_and_what_to_do(tmp_path: Path, show):
    run_id = killed(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        view = show(store, "run", run=run_id)
    assert view.refresh_s is None
    assert view.lead.startswith("Killed after ")
    assert "is gone" in view.warnings[0]
    assert view.next_steps[0].command == f"fp4tune tune --resume {run_id}"
    assert view.next_steps[0].text.startswith("2 problems are left.")
    assert facts(view)["status"] == "killed"
    assert view.sections[1].commands[-1].text == f"fp4tune tune --resume {run_id}"


@pytest.mark.parametrize(("status", "said"), [(RunStatus.FAILED, "Failed"), (RunStatus.INTERRUPTED, "Interrupted")])
def test_a_run_that_did_not_finish(empty: Store, show, status: RunStatus, said: str):
    run_id = empty.create_run(new_run())
    empty.finish_run(run_id, status, "the disk was full")
    view = show(empty, "run", run=run_id)
    assert view.lead.startswith(f"{said} after ")
    assert view.warnings == (("It failed: the disk was full",) if status is RunStatus.FAILED else ())
    assert view.next_steps[0].command == f"fp4tune tune --resume {run_id}"


def test_bare_shapes_say_the_command_that_named_them(empty: Store, show):
    items = (replace(new_run().problems[0], problem=SMALL, role=""),)
    run_id = empty.create_run(new_run(checkpoint="", settings={"trials": 8}, problems=items, seed=0))
    (command, _) = show(empty, "run", run=run_id).sections[1].commands
    assert command.text == "fp4tune tune --shape 16x2048x4096 --trials 8"


def test_thousands_of_problems_come_in_pages(empty: Store, show):
    items = tuple(replace(new_run().problems[0], problem=replace(SMALL, m=m)) for m in range(1, PAGE_SIZE + 11))
    run_id = empty.create_run(new_run(problems=items, checkpoint=""))
    empty.add_trials(
        [
            new_trial(run_id, 0, problem=items[-1].problem),
            failed_trial(run_id, 1, TrialStatus.WRONG, problem=items[-1].problem),
        ]
    )
    empty.add_winner(new_winner(run_id, problem=items[-1].problem))
    first = table(show(empty, "run", run=run_id), "problems")
    token = first.more.split("cursor=")[1].split("#", maxsplit=1)[0]
    # However the run is named, the token is good.
    second = table(show(empty, "run", run=run_id[:12].lower(), cursor=token), "problems")
    assert [values(row)[0] for row in (*first.rows, *second.rows)] == list(range(PAGE_SIZE + 10))
    assert values(second.rows[-1])[5:10] == ["triton.native", 10.0, 1.5, 2, 1]
    other = empty.create_run(new_run())
    with pytest.raises(InvalidInputError, match="cursor"):
        show(empty, "run", run=other, cursor=token)
    # 110 shapes are a command yet; their number has a bound.
    assert show(empty, "run", run=run_id).sections[1].commands[0].text.count("--shape") == PAGE_SIZE + 10


def test_what_leads_to_failures_names_the_run(empty: Store, show):
    run_id = empty.create_run(new_run())
    rows = {row[0]: row[1] for row in table(show(empty, "run", run=run_id), "run").rows}
    assert rows["failed trials"].link == f"/dashboard/failures?run={run_id}"
    assert rows["process"] == "4242"
    assert json.dumps([rows["seed"]]) == '["7"]'
