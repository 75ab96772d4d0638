"""The page of failures: what failed by backend and class, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS, single_failure
from evil_databases import hostile, odd, orphans
from fp4tune.api.dashboard.model import Cell, View
from fp4tune.api.dashboard.views.failures.reasons import kind_of
from fp4tune.db import Store
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import ON_CARD, ON_CPU, SMALL, failed_trial, new_run, new_trial


def values(row) -> list:
    return [one.value if isinstance(one, Cell) else one for one in row]


def table(view: View, name: str):
    return next(section.table for section in view.sections if section.table.name == name)


def fill(store: Store, n: int = 120) -> str:
    """Trials of two backends, of every status, with reasons that differ in numbers."""
    run_id = store.create_run(new_run())
    trials = [new_trial(run_id, number) for number in range(n)]
    trials += [
        failed_trial(run_id, n + number, TrialStatus.CRASHED, error=f"\nneeds {number * 1024} bytes of sm_90a\nmore")
        for number in range(n)
    ]
    trials += [failed_trial(run_id, 2 * n, TrialStatus.WRONG, error="tile (3, 4) is off by 0.25", environment=ON_CPU)]
    trials += [
        failed_trial(run_id, 2 * n + 1 + number, TrialStatus.UNSUPPORTED, backend="cutlass.grouped", error="no FP4")
        for number in range(3)
    ]
    store.add_trials(trials)
    return run_id


# Bad input


@pytest.mark.parametrize("status", ["ok", "running", "nonsense"])
def test_a_status_that_is_no_failure_is_refused(h200: Store, show, status: str):
    with pytest.raises(InvalidInputError, match="compile_failed"):
        show(h200, "failures", status=status)


def test_an_environment_that_is_not_stored_is_not_found(h200: Store, show):
    with pytest.raises(NotFoundError, match="0000000000000000"):
        show(h200, "failures", environment="0" * 16)


def test_a_page_token_is_good_for_its_filters_only(empty: Store, show):
    fill(empty)
    more = table(show(empty, "failures", backend="triton.native", status="crashed"), "trials").more
    token = more.split("cursor=")[1].split("#", maxsplit=1)[0]
    show(empty, "failures", backend="triton.native", status="crashed", cursor=token)
    for other in ({"status": "wrong"}, {"environment": ON_CARD.fingerprint}, {"cursor": token[:-3] + "abc"}):
        with pytest.raises(InvalidInputError, match="cursor"):
            show(empty, "failures", **{"backend": "triton.native", "status": "crashed", "cursor": token, **other})


def test_a_backend_that_nobody_has_shows_nothing(h200: Store, show):
    view = show(h200, "failures", backend="nobody", status="crashed")
    assert all(not section.table.rows for section in view.sections)
    assert "nobody" in [option.value for option in view.filters[1].options]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_break_nothing_and_lead_nowhere(show, text: str):
    with hostile(text) as (store, _):
        view = show(store, "failures")
        rows = [row for section in view.sections for row in section.table.rows]
        assert rows
        for row in rows:
            for cell in row:
                assert not isinstance(cell, Cell) or cell.link == "" or cell.link.startswith("/dashboard/")
        for one in store.environments():
            show(store, "failures", environment=one.environment.fingerprint)


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, number: float):
    with odd(number) as (store, _):
        show(store, "failures")
        show(store, "failures", backend="triton.native", status="unsupported")


@pytest.mark.parametrize("lost", ["devices", "environments", "problems", "runs"])
def test_lost_rows_break_nothing(show, lost: str):
    with orphans(lost) as (store, _):
        assert any(section.table.rows for section in show(store, "failures").sections)


def test_a_status_of_a_later_fp4tune_is_shown_and_leads_nowhere(empty: Store, show):
    fill(empty, 5)
    with empty._writing() as connection:
        connection.exec_driver_sql("UPDATE trial_counts SET status = 'melted' WHERE status = 'wrong'")
    view = show(empty, "failures")
    found = table(view, "failures")
    (row,) = [row for row in found.rows if values(row)[1] == "melted"]
    assert row[0].link == ""
    assert "melted" in [trace["name"] for trace in view.sections[0].figure.traces]


# What it says


def test_an_empty_store_says_what_to_do(empty: Store, show):
    view = show(empty, "failures")
    assert view.sections == ()
    assert view.next_steps[0].command.startswith("fp4tune tune ")


def test_one_failed_trial(tmp_path: Path, show):
    run_id = single_failure(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        view = show(store, "failures")
        assert view.lead == "1 of 1 trials failed (100 %)."
        (row,) = table(view, "failures").rows
        assert values(row)[:6] == ["triton.native", "crashed", 1, 1.0, 1, "illegal memory access"]
        assert row[8].link == f"/dashboard/run?run={run_id}"


def test_counts_shares_and_the_newest_reason(empty: Store, show):
    fill(empty)
    view = show(empty, "failures")
    crashed, wrong = table(view, "failures").rows
    assert values(crashed)[:6] == ["triton.native", "crashed", 120, 120 / 241, 1, "needs 121856 bytes of sm_90a"]
    assert values(wrong)[:3] == ["triton.native", "wrong", 1]
    (refused,) = table(view, "unsupported").rows
    assert values(refused)[:4] == ["cutlass.grouped", "unsupported", 3, 1.0]
    assert view.lead == "121 of 244 trials failed (50 %); 3 more were not supported, which is no failure."
    # A problem's key has no capital letters, and so the link stands.
    assert SMALL.key.replace(":", "%3A") in crashed[6].link


def test_what_is_not_supported_is_told_apart(h200: Store, show):
    view = show(h200, "failures")
    assert view.lead == "0 of 5,725 trials failed; 147 more were not supported, which is no failure."
    assert table(view, "failures").rows == []
    assert [values(row)[:3] for row in table(view, "unsupported").rows] == [
        ["triton.dequant", "unsupported", 146], ["humming", "unsupported", 1],
    ]  # fmt: skip
    assert "no failure" in view.sections[1].text[0]


def test_a_figure_and_its_table_say_the_same(empty: Store, show):
    fill(empty)
    for section in show(empty, "failures").sections:
        drawn = {
            (x, trace["name"]): (y, link)
            for trace in section.figure.traces
            for x, y, link in zip(trace["x"], trace["y"], trace["customdata"], strict=True)
        }
        assert drawn == {(values(row)[0], values(row)[1]): (values(row)[2], row[0].link) for row in section.table.rows}
        assert section.figure.layout["barmode"] == "stack"
        assert section.figure.layout["yaxis"]["title"]["text"] == "trials (count)"


def test_filters_narrow(empty: Store, show):
    fill(empty)
    view = show(empty, "failures", environment=ON_CPU.fingerprint)
    assert [values(row)[1:4] for row in table(view, "failures").rows] == [["wrong", 1, 1.0]]
    assert view.filters[0].value == ON_CPU.fingerprint
    view = show(empty, "failures", status="wrong")
    assert [section.table.name for section in view.sections] == ["failures"]
    assert view.lead == "1 of 244 trials failed by ending wrong (0.4 %)."
    view = show(empty, "failures", status="unsupported")
    assert [section.table.name for section in view.sections] == ["unsupported"]
    assert view.lead == "3 of 244 trials were not supported, which is no failure."
    view = show(empty, "failures", backend="cutlass.grouped")
    assert table(view, "failures").rows == []
    assert {option.value for option in view.filters[1].options} == {"", "cutlass.grouped", "triton.native"}


def test_one_run(empty: Store, show):
    fill(empty)
    other = empty.create_run(new_run())
    empty.add_trials([failed_trial(other, error="of the other run")])
    view = show(empty, "failures", run=other)
    assert [values(row)[:4] for row in table(view, "failures").rows] == [["triton.native", "crashed", 1, 1.0]]
    assert view.lead == f"1 of 1 trials in run {other} failed (100 %)."
    link = table(view, "failures").rows[0][0].link
    assert f"run={other}" in link
    view = show(empty, "failures", run=other, backend="triton.native", status="crashed")
    assert [values(row)[5] for row in table(view, "trials").rows] == ["of the other run"]
    assert "newest 1 such" in table(view, "reasons").note
    view = show(empty, "failures", run=empty.create_run(new_run()))
    assert "has no trials" in view.next_steps[0].text
    with pytest.raises(NotFoundError):
        show(empty, "failures", run="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_reasons_are_grouped_with_numbers_apart(empty: Store, show):
    fill(empty)
    view = show(empty, "failures", backend="triton.native", status="crashed")
    (row,) = table(view, "reasons").rows
    assert values(row)[:5] == [120, 1.0, 1, "needs # bytes of sm_90a", "needs 121856 bytes of sm_90a"]
    assert "newest 120" in table(view, "reasons").note


def test_trials_come_in_pages(empty: Store, show):
    fill(empty)
    seen, more = [], "cursor="
    while more:
        token = more.split("cursor=")[1].split("#", maxsplit=1)[0]
        trials = table(show(empty, "failures", backend="triton.native", status="crashed", cursor=token), "trials")
        seen += [values(row)[2] for row in trials.rows]
        more = trials.more
        assert len(trials.rows) <= 50
    assert seen == list(range(239, 119, -1))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("needs 131072 bytes", "needs # bytes"),
        ("needs 98304 bytes", "needs # bytes"),
        ("at 0x7f3aB2: 64x128x256 took 12.5s, 1e-3 of 3,000", "at #: # took #s, # of #"),
        ("sm_90a bf16 e4m3 nvfp4 tile.3 v2", "sm_90a bf16 e4m3 nvfp4 tile.3 v2"),
        ("(3, 4)", "(#, #)"),
        ("", "(no reason was given)"),
        ("\u0663 bytes", "\u0663 bytes"),
    ],
)
def test_kinds_of_reasons(reason: str, kind: str):
    assert kind_of(reason) == kind


def test_a_kind_is_found_fast_in_a_hostile_reason():
    for text in ("0" * 600, "0x" * 300, "1x" * 300, "1,." * 200, "1e+" * 200):
        kind_of(text)
