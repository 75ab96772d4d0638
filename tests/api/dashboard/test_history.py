"""Did it get worse? On real runs of an H200, made again in other environments."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from fp4tune.api.dashboard import changes
from fp4tune.api.dashboard.figures import figure_json
from fp4tune.api.dashboard.model import Cell, Mark, Table, View
from fp4tune.api.dashboard.views.history import figure as history_figure
from fp4tune.api.dashboard.views.history import view as history
from fp4tune.db import Store
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from fp4tune.kernels.problem import Problem
from store_factory import CARD, ON_CPU, new_run, new_winner
from winners_again import H200, UPDATED, tune_again

KEY = "grouped:e512k10:16x256x4096:uniform:nvfp4:bf16"
ONCE = "dense:1x248320x4096:uniform:nvfp4:bf16"


def value(cell):
    return cell.value if isinstance(cell, Cell) else cell


def column(table: Table, name: str) -> list:
    at = [one.name for one in table.columns].index(name)
    return [value(row[at]) for row in table.rows]


def table(view: View, name: str) -> Table:
    return next(section.table for section in view.sections if section.table and section.table.name == name)


def given(link: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(link).query))


# What cannot be shown


def test_an_empty_store_says_what_to_do(empty, show):
    view = show(empty, "history")
    assert not view.sections
    assert view.next_steps[0].command.startswith("fp4tune tune")


@pytest.mark.parametrize(
    "where",
    [
        {"device": "0123456789abcdef"}, {"policy": "cuda.eager"}, {"problem": "dense:1x1x16:uniform:nvfp4:bf16"},
        {"problem": "nonsense"}, {"problem": KEY, "policy": "cuda.eager"}, {"problem": KEY, "device": "0" * 16},
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(h200, show, where):
    with pytest.raises(NotFoundError):
        show(h200, "history", **where)


@pytest.mark.parametrize("where", [{}, {"problem": KEY}])
def test_an_altered_page_token_is_refused(h200, show, where):
    with pytest.raises(InvalidInputError, match="cursor"):
        show(h200, "history", cursor="AAAA", **where)


def test_nonsense_in_the_store_breaks_nothing(tmp_path: Path, show):
    path = tmp_path / "evil.db"
    evil = "<script>alert(1)</script>\x00\x1b[31m'; DROP TABLE winners; --" + "x" * 10_000
    with Store.open(path) as store:
        for _ in range(6):
            run = store.create_run(new_run())
            store.add_winner(new_winner(run, policy="cuda.graph"))
    with closing(sqlite3.connect(path)) as connection:
        for id_, figure in enumerate(("9e999", "'x'", "-1", "0", "1e308"), start=1):
            connection.execute(
                f"UPDATE winners SET time_us = {figure}, time_us_low = {figure}, default_time_us_high = {figure}, "
                "backend = ?, config = ?, default_config = ? WHERE id = ?",
                (evil, evil if id_ % 2 else "[1]", '{"a":' * 5000, id_),
            )
        connection.execute("DELETE FROM runs WHERE id > 3")
        connection.execute("DELETE FROM environments")
        connection.commit()
    with Store.open(path, mode="read") as store:
        listed = show(store, "history")
        key = value(table(listed, "changes").rows[0][0])
        one = show(store, "history", problem=key)
    assert "1 not enough evidence" in listed.lead
    assert one.lead.startswith("Not enough evidence")
    assert len(table(one, "winners").rows) == 6
    assert json.loads(figure_json(one.sections[0].figure))["traces"][0]["y"].count(None) == 2
    assert changes.NOT_STORED in [row[1].text for row in table(one, "winners").rows]


def test_a_problem_that_is_missing_is_shown_as_missing(tmp_path: Path, show):
    path = tmp_path / "missing.db"
    with Store.open(path) as store:
        store.add_winner(new_winner(store.create_run(new_run())))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM problems")
        connection.commit()
    with Store.open(path, mode="read") as store:
        ((problem, *_),) = table(show(store, "history"), "once").rows
    assert (problem.text, problem.link) == (changes.NOT_STORED, "")


# Every problem


def test_two_runs_of_one_environment(h200, show):
    view = show(h200, "history")
    found = table(view, "changes")
    verdicts = column(found, "verdict")
    assert len(verdicts) == 10
    assert verdicts.count("unchanged") == 9
    assert verdicts[0] == "not enough evidence"  # another backend is served, 1.5 % slower
    assert len(table(view, "once").rows) == 58
    assert view.lead == (
        "Last change of 10 problems that were measured more than once: 0 regressed, 1 not enough evidence, 0 improved, "
        "9 unchanged. 58 more were measured once only."
    )
    assert view.next_steps[0].command == "fp4tune tune --shape e512k10:64x256x4096"
    assert column(found, "what_changed")[0] == "triton.dequant -> humming"


def test_a_slower_driver_is_seen_and_told_from_the_choice(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.04, default=1.04)
    view = show(h200_copy, "history")
    found = table(view, "changes")
    assert set(column(found, "verdict")) == {"regressed"}
    assert "0 unchanged" in view.lead
    assert "68 regressed" in view.lead
    assert found.rows[0][1].marks == (Mark.BAD,)
    assert column(found, "what_changed")[0] == "same config; driver 580.159.04 -> 590.12"
    likely = {row[7].text for row in found.rows}
    assert likely == {"the environment", "cannot be told"}
    for cell, why in zip((row[1] for row in found.rows), column(found, "why"), strict=True):
        assert cell.value == "regressed"
        assert "takes 4.0 % longer" in why
    told = [why for why in column(found, "why") if "Likely the environment, and not the choice" in why]
    served_the_default = [why for why in column(found, "why") if "the default is what is served" in why]
    assert len(told) + len(served_the_default) == 68
    assert len(told) > 30


def test_a_slower_choice_is_told_from_the_machine(h200_copy, show):
    tune_again(h200_copy, H200, served=1.04, default=1.0)
    why = [one for one in column(table(show(h200_copy, "history"), "changes"), "why") if "default" in one]
    assert any("Likely this config, and not the whole machine" in one for one in why)


def test_regressions_come_first_then_what_is_unclear(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.04, default=1.0, only=lambda i: i % 3 == 0)
    tune_again(h200_copy, UPDATED, served=0.9, default=1.0, only=lambda i: i % 3 == 1)
    verdicts = [v for v in column(table(show(h200_copy, "history"), "changes"), "verdict") if v]
    order = ["regressed", "not enough evidence", "improved", "unchanged"]
    assert verdicts == sorted(verdicts, key=order.index)
    assert {"regressed", "improved"} <= set(verdicts)


def test_where_all_was_measured_once_it_says_how_to_measure_again(tmp_path: Path, show):
    with Store.open(tmp_path / "once.db") as store:
        run = store.create_run(new_run(environment=ON_CPU))
        store.add_winner(new_winner(run, environment=ON_CPU, policy="cpu.warm"))
        view = show(store, "history")
        (step,) = view.next_steps
        assert step.command == "fp4tune tune --shape 16x2048x4096 --device cpu"
        assert "nothing to compare" in step.text
        one = show(store, "history", problem=value(table(view, "once").rows[0][0]))
        assert [section.anchor for section in view.sections] == ["once"]
        assert "not enough evidence" in one.next_steps[0].text
        assert one.next_steps[0].command == step.command


def test_a_list_comes_in_pages_that_do_not_change_while_one_reads(monkeypatch, h200_copy, show):
    monkeypatch.setattr(history, "ROWS", 30)
    first = show(h200_copy, "history")
    tune_again(h200_copy, UPDATED, served=2.0, default=2.0)
    second = show(h200_copy, "history", **given(table(first, "once").more))
    third = show(h200_copy, "history", **given(table(second, "once").more))
    tables = [section.table for one in (first, second, third) for section in one.sections]
    assert [(one.name, len(one.rows)) for one in tables] == [("changes", 10), ("once", 20), ("once", 30), ("once", 8)]
    assert len({key for one in tables for key in column(one, "problem")}) == 68
    assert tables[0].more == tables[-1].more == ""


def test_two_devices_are_chosen_from_and_never_mixed(h200_copy, show):
    run = h200_copy.create_run(new_run())
    h200_copy.add_winner(new_winner(run, problem=Problem(16, 256, 4096), policy="cuda.graph"))
    view = show(h200_copy, "history")
    assert [option.value for option in view.filters[0].options] == [CARD.fingerprint, H200.device.fingerprint]
    assert len(table(view, "once").rows) == 1
    other = show(h200_copy, "history", device=H200.device.fingerprint)
    assert len(table(other, "changes").rows) + len(table(other, "once").rows) == 68
    assert other.filters[0].value == H200.device.fingerprint
    assert show(h200_copy, "history", problem=KEY).filters[0].value == H200.device.fingerprint


# One problem


def test_one_line_over_environments(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.04, default=1.04)
    tune_again(h200_copy, UPDATED, served=1.0, default=1.0)
    view = show(h200_copy, "history", problem=KEY)
    assert view.lead.startswith("Improved: ")
    winners, times = table(view, "winners"), table(view, "times")
    assert column(winners, "verdict") == ["improved", "regressed", "unchanged", None]
    assert column(times, "environment_change") == [None, "driver 580.159.04 -> 590.12", None, None]
    assert column(winners, "time_us") == column(times, "time_us")
    assert column(winners, "against")[:2] == ["same config", "same config"]
    served = [Mark.SERVED in row[7].marks for row in winners.rows]
    assert served == [True, False, True, False]  # in each of two environments
    assert winners.rows[0][5].link.startswith("/dashboard/problem?")
    assert [row[2] for row in table(view, "configs").rows] == [4]
    assert winners.rows[0][1].link.startswith("/dashboard/run?run=")


def test_the_picture_is_that_of_its_table(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=1.04, default=1.04)
    section = show(h200_copy, "history", problem=KEY).sections[0]
    figure, times = json.loads(figure_json(section.figure)), section.table
    served, default = figure["traces"]
    assert served["y"] == list(reversed(column(times, "time_us")))
    assert default["y"] == list(reversed(column(times, "default_time_us")))
    for trace, name in ((served, "time_us"), (default, "default_time_us")):
        highs = [y + up for y, up in zip(trace["y"], trace["error_y"]["array"], strict=True)]
        lows = [y - down for y, down in zip(trace["y"], trace["error_y"]["arrayminus"], strict=True)]
        assert highs == pytest.approx(list(reversed(column(times, f"{name}_high"))))
        assert lows == pytest.approx(list(reversed(column(times, f"{name}_low"))))
    (line,), (said,) = figure["layout"]["shapes"], figure["layout"]["annotations"]
    assert line["x0"] == line["x1"] == served["x"][2]
    assert served["customdata"][0].startswith("/dashboard/run?run=")
    changed = table(show(h200_copy, "history", problem=KEY), "times").rows[0][-1]
    assert changed.link == f"/dashboard/compare?a={H200.fingerprint}&b={UPDATED.fingerprint}&policy=cuda.graph"
    assert said["text"] == "driver 580.159.04 -> 590.12"
    assert "µs" in figure["layout"]["yaxis"]["title"]["text"]


def test_a_span_of_decades_has_a_log_axis(h200_copy, show):
    tune_again(h200_copy, UPDATED, served=30.0, default=30.0)
    figure = show(h200_copy, "history", problem=KEY).sections[0].figure
    assert figure.layout["yaxis"]["type"] == "log"


def test_a_history_comes_in_pages(monkeypatch, h200_copy, show):
    monkeypatch.setattr(history, "ROWS", 2)
    for factor in (1.1, 1.2, 1.3):
        tune_again(h200_copy, UPDATED, served=factor, default=1.0, only=lambda i: i < 40)
    view = show(h200_copy, "history", problem=KEY)
    seen = []
    for _ in range(3):
        winners = table(view, "winners")
        seen += column(winners, "verdict")
        if not winners.more:
            break
        view = show(h200_copy, "history", **given(winners.more))
    assert seen == ["regressed", "regressed", "regressed", "unchanged", None]


def test_many_changes_of_the_environment_stay_readable(h200_copy, show):
    for i in range(history_figure.MAX_LINES + 5):
        run = tune_again(h200_copy, [H200, UPDATED][i % 2], served=1.0, default=1.0, only=lambda i: i < 1)
    (item,) = h200_copy.run_problems(run)
    key = item.item.problem.key
    figure = show(h200_copy, "history", problem=key).sections[0].figure
    assert len(figure.layout["shapes"]) == history_figure.MAX_LINES
    assert len(figure.layout["annotations"]) == history_figure.MAX_SAID


# Words


def test_words_for_configs_and_environments():
    assert changes.config_text('{"a":1,"b":true,"c":null}') == "a=1 b=True c=none"
    assert changes.config_text("[1]") == "[1]"
    assert changes.environment_change(None, None) == ""
    assert changes.environment_change(H200, None) == "another environment"
    assert changes.environment_change(H200, H200) == ""
    gone = Environment(H200.device, {k: v for k, v in H200.versions.items() if k != "triton"})
    assert changes.environment_change(H200, gone) == "triton 3.6.0 gone"
    assert changes.environment_change(gone, H200) == "triton 3.6.0 added"
    many = Environment(H200.device, {f"v{i}": "1" for i in range(9)})
    assert changes.environment_change(Environment(H200.device, {}), many).endswith("v5 1 added and 3 more")
    weaker = Environment(replace(H200.device, power_limit_w=500.0), H200.versions)
    assert changes.environment_change(H200, weaker) == "power limit 700 W -> 500 W"


def test_commands_that_measure_again():
    keys = [KEY, "dense:16x256x4096:uniform:bf16:bf16", "grouped:e512k10:1x256x4096:uniform:nvfp4:bf16", "nonsense"]
    assert changes.measure_again(keys, "cuda.eager").splitlines() == [
        "fp4tune tune --shape e512k10:16x256x4096 --shape e512k10:1x256x4096 --policy eager",
        "fp4tune tune --shape 16x256x4096 --format bf16 --policy eager",
    ]
    assert changes.measure_again(["nonsense"], "cuda.graph") == ""
