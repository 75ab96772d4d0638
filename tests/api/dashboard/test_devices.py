"""The page of devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS, twins
from evil_databases import hostile, odd, orphans
from fp4tune.api.dashboard.model import Cell
from fp4tune.db import Store
from fp4tune.kernels.device import Environment
from store_factory import CARD, new_run


def values(row) -> list:
    return [one.value if isinstance(one, Cell) else one for one in row]


def rows(view) -> list[dict]:
    (section,) = view.sections
    return [dict(zip([c.name for c in section.table.columns], values(row), strict=True)) for row in section.table.rows]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_break_nothing(show, text: str):
    with hostile(text) as (store, _):
        assert {row["device"] for row in rows(show(store, "devices"))} == {text}


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, number: float):
    with odd(number) as (store, _):
        assert rows(show(store, "devices"))


@pytest.mark.parametrize("lost", ["devices", "environments", "runs", "problems"])
def test_lost_rows_break_nothing(show, lost: str):
    with orphans(lost) as (store, _):
        show(store, "devices")


def test_an_empty_store_says_what_to_do(empty: Store, show):
    view = show(empty, "devices")
    assert view.sections == ()
    assert view.next_steps[0].command.startswith("fp4tune tune ")


def test_a_device_with_what_was_measured_on_it(h200: Store, show):
    view = show(h200, "devices")
    (row,) = rows(view)
    assert (row["device"], row["fingerprint"], row["told_apart_by"]) == ("NVIDIA H200", "4affdf8e47e7ee5b", None)
    assert (row["sms"], row["memory_bytes"], row["power_limit_w"]) == (132, 150109880320, 700.0)
    assert (row["environments"], row["trials"], row["winners"]) == (1, 5725, 68)
    assert row["latest_run"] == h200.runs()[0].id
    assert view.lead == "1 device."
    assert view.sections[0].table.rows[0][0].link == "/dashboard/environments?device=4affdf8e47e7ee5b"


def test_two_devices_of_one_name_are_told_apart(tmp_path: Path, show):
    twins(tmp_path / "a.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        view = show(store, "devices")
    low, high = rows(view)
    assert low["device"] == high["device"]
    assert low["fingerprint"] != high["fingerprint"]
    assert (low["told_apart_by"], high["told_apart_by"]) == ("power limit 300.0 W", "power limit 600.0 W")
    assert "2 of them share a name" in view.lead


def test_everything_that_differs_is_said(empty: Store, show):
    for device in (CARD, replace(CARD, memory_bytes=48 << 30, sms=170), replace(CARD, name="Other")):
        empty.create_run(new_run(environment=Environment(device, {})))
    other, small, large = rows(show(empty, "devices"))
    assert other["told_apart_by"] is None
    assert small["told_apart_by"] == "SMs 170, memory 48 GiB"
    assert large["told_apart_by"] == "SMs 188, memory 96 GiB"


def test_more_devices_than_fit(empty: Store, show, monkeypatch: pytest.MonkeyPatch):
    from fp4tune.api.dashboard.views import devices

    monkeypatch.setattr(devices, "MAX_DEVICES", 2)
    for n in range(3):
        empty.create_run(new_run(environment=Environment(replace(CARD, name=f"Card {n}"), {})))
    view = show(empty, "devices")
    assert [row["device"] for row in rows(view)] == ["Card 2", "Card 1"]
    assert "search" in view.sections[0].table.note
