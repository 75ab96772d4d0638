"""Pictures of times show what is near what is served, and name the rest."""

from __future__ import annotations

import math

import pytest
from fp4tune.api.dashboard.near import FAR, MAX_NAMED, left_out, split
from fp4tune.api.dashboard.table_values import value_of


def rows(*times: float | None):
    return [{"name": f"b{at}", "time_us": time} for at, time in enumerate(times)]


def label(row):
    return str(value_of(row["name"]))


@pytest.mark.parametrize("served_us", [None, 0.0, -1.0, math.inf, math.nan])
def test_without_a_served_time_everything_is_drawn(served_us: float | None):
    some = rows(1.0, 1e9, None)
    assert split(some, "time_us", served_us) == (some, [])
    assert left_out([], "time_us", served_us, label) == ""


def test_what_is_far_is_left_out_and_named():
    near, far = split(rows(10.0, FAR * 10.0, FAR * 10.0 + 0.1, math.inf, math.nan, None), "time_us", 10.0)
    assert [label(row) for row in near] == ["b0", "b1", "b4", "b5"]
    assert [label(row) for row in far] == ["b2", "b3"]
    assert (
        left_out(far, "time_us", 10.0, label)
        == " Not drawn, as more than 4 times what is served: b2 (4.01x), b3 (\N{EN DASH})."
    )


def test_many_are_not_all_named():
    said = left_out(rows(*[99.0] * (MAX_NAMED + 3)), "time_us", 1.0, label)
    assert said.endswith("b5 (99.00x), and 3 more.")
    assert len(left_out(rows(*[99.0] * 300), "time_us", 1.0, lambda row: "x" * 10_000)) < 1000
