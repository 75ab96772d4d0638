"""The page of what a word finds."""

from __future__ import annotations

import re

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS
from evil_databases import hostile, odd, orphans
from fp4tune.api.dashboard.model import Cell
from fp4tune.api.dashboard.views.search import QUERY
from fp4tune.db import Store
from fp4tune.kernels.errors import InvalidInputError
from store_factory import new_run


def values(row) -> list:
    return [one.value if isinstance(one, Cell) else one for one in row]


def tables(view) -> dict:
    return {section.table.name: section.table for section in view.sections}


@pytest.mark.parametrize("text", ["", "x" * 201, "a\x00", "a\nb", "\x1b[31m", "\x7f", "\ud800"])
def test_what_may_not_stand_in_the_address(text: str):
    assert not re.fullmatch(QUERY.pattern, text)


@pytest.mark.parametrize("text", ["x" * 200, "%_'\"\\<script>", "\u6f22\U0001f680", " "])
def test_what_may(text: str):
    assert re.fullmatch(QUERY.pattern, text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_stores_and_words_break_nothing(show, text: str):
    with hostile(text) as (store, _):
        words = [found for found in (text[:200], "nvfp4", "e") if re.fullmatch(QUERY.pattern, found)]
        for word in words:
            for section in show(store, "search", q=word).sections:
                for row in section.table.rows:
                    assert row[0].link == "" or row[0].link.startswith("/dashboard/")


@pytest.mark.parametrize("number", ODD_NUMBERS.values())
def test_odd_numbers_break_nothing(show, number: float):
    with odd(number) as (store, _):
        assert show(store, "search", q="h200").sections


@pytest.mark.parametrize("lost", ["devices", "environments", "runs", "problems"])
def test_lost_rows_break_nothing(show, lost: str):
    with orphans(lost) as (store, _):
        show(store, "search", q="nvfp4")


def test_a_text_that_no_database_can_look_for_is_refused(h200: Store, show):
    with pytest.raises(InvalidInputError):
        show(h200, "search", q="a\x00b")


@pytest.mark.parametrize("text", ["", "   "])
def test_without_a_word_it_says_what_can_be_searched(h200: Store, show, text: str):
    view = show(h200, "search", q=text)
    assert view.sections == ()
    assert view.next_steps[0].text.startswith("Search for a shape")
    assert view.filters[0].name == "q"


def test_nothing_found_says_what_can_be_searched(h200: Store, show):
    view = show(h200, "search", q="no such thing")
    assert view.sections == ()
    assert [step.text[:7] for step in view.next_steps] == ["Nothing", "Search "]
    assert view.filters[0].value == "no such thing"


def test_an_empty_store_finds_nothing(empty: Store, show):
    assert show(empty, "search", q="nvfp4").sections == ()


def test_a_shape_leads_to_its_problem(h200: Store, show):
    view = show(h200, "search", q="16x4096x7168")
    (row,) = tables(view)["problems"].rows
    assert values(row) == ["dense:16x4096x7168:uniform:nvfp4:bf16", None, True]
    assert row[0].link == "/dashboard/problem?problem=dense%3A16x4096x7168%3Auniform%3Anvfp4%3Abf16"
    assert view.lead == "Found: 1 problem."


def test_an_exact_hit_is_a_list_all_the_same(h200: Store, show):
    run = h200.runs()[0]
    view = show(h200, "search", q=run.id)
    (row,) = tables(view)["runs"].rows
    assert row[0].link == f"/dashboard/run?run={run.id}"
    assert values(row)[1:4] == ["finished", "shapes", "NVIDIA H200"]


def test_kinds_are_apart(h200: Store, show):
    view = show(h200, "search", q="triton")
    assert list(tables(view)) == ["environments", "backends"]
    (environment,) = tables(view)["environments"].rows
    assert environment[0].link == "/dashboard/environments?environment=0d4323886a8821a4"
    assert "driver 580.159.04" in environment[2]
    (backend,) = tables(view)["backends"].rows
    assert values(backend) == ["triton.dequant", 3498, 68]
    view = show(h200, "search", q="H200")
    assert list(tables(view)) == ["devices", "environments"]
    assert view.lead == "Found: 1 device, 1 environment."
    assert tables(view)["devices"].rows[0][0].link == "/dashboard/environments?device=4affdf8e47e7ee5b"


def test_more_than_fit_is_said(h200: Store, show):
    view = show(h200, "search", q="nvfp4")
    assert len(tables(view)["problems"].rows) == 50
    assert "more than these 50" in tables(view)["problems"].note
    assert view.lead.startswith("Found: more than 50 problems, 3 runs")


def test_versions_that_are_none_are_shown_as_they_are(empty: Store, show):
    empty.create_run(new_run())
    with empty._writing() as connection:
        connection.exec_driver_sql("UPDATE environments SET versions = '[broken'")
    (row,) = tables(show(empty, "search", q="broken"))["environments"].rows
    assert row[2] == "[broken"
