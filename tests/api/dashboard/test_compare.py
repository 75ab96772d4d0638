"""What changed? Real winners of an H200 beside the same in another environment."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from fp4tune.api.dashboard.figures import figure_json
from fp4tune.api.dashboard.model import Cell, Mark, Table, View
from fp4tune.api.dashboard.verdicts import CARD_BAND
from fp4tune.api.dashboard.views.compare import view as compare
from fp4tune.db import Store
from fp4tune.db.dashboard import compare as questions
from fp4tune.db.records import Roofs
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from store_factory import CARD, LARGE, ON_CARD, ON_CPU, SMALL, choice, new_run, new_winner
from winners_again import H200, UPDATED, tune_again

NEWER = Environment(CARD, {**ON_CARD.versions, "driver": "590.12"})


def value(cell):
    return cell.value if isinstance(cell, Cell) else cell


def column(table: Table, name: str) -> list:
    at = [one.name for one in table.columns].index(name)
    return [value(row[at]) for row in table.rows]


def table(view: View, name: str) -> Table:
    return next(section.table for section in view.sections if section.table and section.table.name == name)


def given(link: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(link).query))


def serve(store: Store, at: Environment, problems=(SMALL,), time_us: float = 10.0, **more) -> None:
    run = store.create_run(new_run(environment=at))
    more = {"policy": "cuda.graph", "choice": choice(time_us), **more}
    store.add_winners([new_winner(run, environment=at, problem=problem, **more) for problem in problems])


# What cannot be shown


def test_an_empty_store_says_what_to_do(empty, show):
    view = show(empty, "compare")
    assert not view.sections
    assert view.next_steps[0].command.startswith("fp4tune tune")


def test_one_environment_says_how_to_get_another(h200, show):
    view = show(h200, "compare")
    assert not view.sections
    assert "two environments" in view.next_steps[0].text
    assert [step.command.split()[:3] for step in view.next_steps] == [
        ["fp4tune", "tune", "qwen3.5-397b-a17b-nvfp4"],
        ["fp4tune", "db", "import"],
    ]
    assert H200.fingerprint in {option.value for option in view.filters[0].options}


@pytest.mark.parametrize(
    "where",
    [
        {"a": "0123456789abcdef"}, {"b": "0123456789abcdef"}, {"policy": "cpu.warm"},
        {"a": H200.fingerprint, "b": "0" * 16}, {"a": H200.fingerprint, "policy": "cuda.eager"},
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(h200, show, where):
    with pytest.raises(NotFoundError, match="Nothing is served"):
        show(h200, "compare", **where)


def test_an_environment_is_not_compared_with_itself(h200, show):
    view = show(h200, "compare", a=H200.fingerprint, b=H200.fingerprint)
    assert view.next_steps[0].text == "A and B are the same environment: choose another one."
    assert not view.sections


def test_environments_measured_by_two_policies_are_not_compared(empty, show):
    serve(empty, ON_CARD)
    serve(empty, NEWER, policy="cuda.eager")
    view = show(empty, "compare", a=ON_CARD.fingerprint, b=NEWER.fingerprint)
    assert "No policy has measured in both" in view.next_steps[0].text
    assert not show(empty, "compare").sections


def test_an_altered_page_token_is_refused(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.0, default=1.0)
    with pytest.raises(InvalidInputError, match="cursor"):
        show(h200_copy, "compare", cursor="AAAA")


def test_nonsense_in_the_store_breaks_nothing(tmp_path: Path, show):
    path = tmp_path / "evil.db"
    evil = "<script>alert(1)</script>'; DROP TABLE winners; --" + "x" * 10_000
    with Store.open(path) as store:
        problems = [replace(SMALL, m=m) for m in range(1, 7)]
        named = [
            Environment(replace(CARD, name=evil[:200]), {"<i>": evil[:200], "driver": driver})
            for driver in ("1", "<2>")
        ]
        for at in named:
            serve(store, at, problems)
    with closing(sqlite3.connect(path)) as connection:
        for id_, figure in enumerate(("9e999", "'x'", "-1", "0", "1e308"), start=1):
            connection.execute(
                f"UPDATE winners SET time_us = {figure}, time_us_high = {figure}, backend = ?, config = ? WHERE id = ?",
                (evil, evil, id_),
            )
        connection.execute("DELETE FROM runs")
        connection.execute("DELETE FROM problems WHERE id = 6")
        connection.commit()
    with Store.open(path, mode="read") as store:
        view = show(store, "compare")
    assert len(table(view, "problems").rows) == 6
    assert "6 not enough evidence" in view.lead  # the sixth has wide intervals
    assert any("no positive number" in one for one in view.warnings)
    figure_json(next(section.figure for section in view.sections if section.figure))


# What is


def test_what_differs_and_what_does_not(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.0, default=1.0, throttled=10)
    h200_copy.set_roofs(UPDATED, Roofs(4.0e12, 8.0e14, datetime(2026, 11, 30, tzinfo=UTC)))
    view = show(h200_copy, "compare")
    assert [[value(cell) for cell in row] for row in table(view, "differences").rows] == [
        ["driver", "580.159.04", "590.12"]
    ]
    same = dict(zip(column(table(view, "same"), "name"), column(table(view, "same"), "both"), strict=True))
    assert same["device"] == "NVIDIA H200"
    assert same["triton"] == "3.6.0"
    assert same["power limit"] == "700 W"
    assert "driver" not in same
    measured = {row[0]: row[1:] for row in table(view, "measured").rows}
    assert measured["copy bandwidth, GB/s"][1] == pytest.approx(4000)
    assert measured["BF16 rate, TFLOP/s"][1] == pytest.approx(800)
    assert measured["BF16 rate, TFLOP/s"][2] == pytest.approx(800 / measured["BF16 rate, TFLOP/s"][0] - 1)
    assert measured["SM clock, lowest seen, MHz"][1] == 1890
    assert measured["throttled samples, mean share"][1] == pytest.approx(0.25)
    assert 0 < measured["throttled samples, mean share"][0] < 0.1


def test_the_two_newest_environments_of_one_device_are_compared(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.0, default=1.0)
    serve(h200_copy, ON_CARD)  # newest of all, and alone on its device
    view = show(h200_copy, "compare")
    assert [(one.name, one.value) for one in view.filters] == [
        ("a", H200.fingerprint), ("b", UPDATED.fingerprint), ("policy", "cuda.graph"),
    ]  # fmt: skip
    assert {option.value for option in view.filters[0].options} == {
        H200.fingerprint, UPDATED.fingerprint, ON_CARD.fingerprint,
    }  # fmt: skip
    assert "68 problems are served in both: 0 regressed, 0 not enough evidence, 0 improved, 68 unchanged." in view.lead
    assert "B takes as long as A (geometric mean of the ratios: 1.0000)" in view.lead
    swapped = show(h200_copy, "compare", a=UPDATED.fingerprint)
    assert [one.value for one in swapped.filters[:2]] == [UPDATED.fingerprint, H200.fingerprint]


def test_a_slower_environment(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.05, default=1.05)
    view = show(h200_copy, "compare")
    assert "68 regressed" in view.lead
    assert "B takes 5.0 % longer (geometric mean of the ratios: 1.0500)" in view.lead
    back = show(h200_copy, "compare", a=UPDATED.fingerprint, b=H200.fingerprint)
    assert "68 improved" in back.lead
    found = table(view, "problems")
    assert set(column(found, "config")) == {"same config"}
    assert any("Likely the environment, and not the choice" in why for why in column(found, "why"))
    assert found.rows[0][1].marks == (Mark.BAD,)
    assert found.rows[0][0].link.startswith("/dashboard/history?")


def test_the_worst_is_first(h200_copy, show):
    for i, factor in enumerate((1.02, 1.3, 0.8, 1.0)):
        tune_again(h200_copy, UPDATED, served=factor, default=1.0, only=lambda j, i=i: j % 4 == i)
    found = table(show(h200_copy, "compare"), "problems")
    changes = column(found, "change")
    assert changes[0] == pytest.approx(0.3)
    order = ["regressed", "not enough evidence", "improved", "unchanged"]
    verdicts = column(found, "verdict")
    assert verdicts == sorted(verdicts, key=order.index)
    assert set(verdicts) == {"regressed", "improved", "unchanged"}
    regressed = [c for c, v in zip(changes, verdicts, strict=True) if v == "regressed"]
    assert regressed == sorted(regressed, reverse=True)


def test_the_picture_is_that_of_its_table(h200_copy, show):
    for i, factor in enumerate((1.02, 1.3, 0.8, 1.0)):
        tune_again(h200_copy, UPDATED, served=factor, default=1.0, only=lambda j, i=i: j % 4 == i)
    section = next(one for one in show(h200_copy, "compare").sections if one.figure)
    figure, rows = json.loads(figure_json(section.figure)), section.table
    drawn = {
        x: (trace["name"], y, y + up, y - down)
        for trace in figure["traces"]
        for x, y, up, down in zip(
            trace["x"], trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"], strict=True
        )
    }
    ends = [column(rows, name) for name in ("change", "change_high", "change_low")]
    for i, verdict in enumerate(column(rows, "verdict")):
        assert drawn[i + 1][0] == verdict
        assert drawn[i + 1][1:] == pytest.approx([1 + end[i] for end in ends])
    assert len(drawn) == len(rows.rows) == 68
    assert len({trace["marker"]["symbol"] for trace in figure["traces"]}) == len(figure["traces"])
    assert figure["layout"]["yaxis"]["type"] == "log"
    band = figure["layout"]["shapes"][0]
    assert (band["y0"], band["y1"]) == pytest.approx((1 / (1 + CARD_BAND), 1 + CARD_BAND))


def test_problems_come_in_pages(monkeypatch, h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.05, default=1.05)
    monkeypatch.setattr(compare, "ROWS", 30)
    pages = [table(show(h200_copy, "compare"), "problems")]
    while pages[-1].more:
        pages.append(table(show(h200_copy, "compare", **given(pages[-1].more)), "problems"))
    assert [len(one.rows) for one in pages] == [30, 30, 8]
    assert len({key for one in pages for key in column(one, "problem")}) == 68


def test_what_is_served_in_one_only(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.0, default=1.0, only=lambda i: i < 10)
    serve(h200_copy, UPDATED, [LARGE])
    view = show(h200_copy, "compare")
    assert len(table(view, "only_a").rows) == 50
    assert "There are more" in table(view, "only_a").note
    assert column(table(view, "only_b"), "problem") == [LARGE.key]
    assert column(table(view, "only_b"), "time_us") == [10.0]
    assert view.lead.startswith("10 problems are served in both")


def test_where_nothing_is_shared_it_says_what_to_tune(empty, show):
    serve(empty, ON_CARD, [LARGE, SMALL])
    serve(empty, NEWER, [replace(SMALL, m=64)])
    view = show(empty, "compare")
    assert view.lead == "No problem is served in both environments."
    assert view.next_steps[0].command == "fp4tune tune --shape 512x2048x4096 --shape 16x2048x4096"
    assert all(section.figure is None for section in view.sections)


def test_two_devices_only_where_both_are_chosen(empty, show):
    serve(empty, ON_CARD)
    weaker = Environment(replace(CARD, power_limit_w=300.0), ON_CARD.versions)
    serve(empty, weaker, time_us=12.0)
    serve(empty, ON_CPU, policy="cpu.warm")
    assert "choose A and B" in show(empty, "compare").next_steps[-1].text
    view = show(empty, "compare", a=ON_CARD.fingerprint, b=weaker.fingerprint)
    assert "two devices, Test Card" in view.warnings[0]
    assert column(table(view, "differences"), "name") == ["power limit"]
    assert "1 problem is served in both" in view.lead
    other = show(empty, "compare", a=ON_CARD.fingerprint, b=ON_CPU.fingerprint)
    assert not other.sections


def test_what_is_left_out_is_said(monkeypatch, h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.2, default=1.2, only=lambda i: i < 20)
    tune_again(h200_copy, UPDATED, served=1.001, default=1.0, only=lambda i: i >= 20)
    monkeypatch.setattr(questions, "MAX_PAIRS", 20)
    view = show(h200_copy, "compare")
    assert "68 problems are served in both; of the 20 whose times are furthest apart: 20 regressed" in view.lead
    assert "the other 48 differ by at most 0.10 %." in view.warnings[0]
    monkeypatch.setattr(questions, "MAX_SHARED", 30)
    monkeypatch.setattr(compare, "MAX_SHARED", 30)
    assert any(one.startswith("Only 30 problems are compared") for one in show(h200_copy, "compare").warnings)
