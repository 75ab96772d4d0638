"""Backends side by side, as the results pages have them."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dashboard_stores
import pytest
from fp4tune.api.dashboard.model import Mark, Section, View
from fp4tune.api.dashboard.table_values import link_of, number_of, records, value_of
from fp4tune.api.dashboard.views.backends import view as view_module
from fp4tune.api.dashboard.views.backends.tables import baseline_of, best_of, times_served
from fp4tune.api.results.gather import gather
from fp4tune.db import Store
from fp4tune.db.dashboard import backends as questions
from fp4tune.db.dashboard.backends import Candidates, CandidatesOf
from fp4tune.db.records import Origin
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, StoreError
from fp4tune.kernels.problem import Format, Problem, parse_shape
from store_factory import SMALL, choice, failed_trial, new_run, new_trial, new_winner, timing

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
TP1 = "01M8NQNGH5VTC2FFWJT6222WQW"
DENSE_RUNS = ("01M8NRJG32RFBT2JM29RWBYG08", "01M8NRJG1TNP2QWAH0QQG7NR56")
PROBLEM = "dense:16x36864x7168:uniform:nvfp4:bf16"


def section(view: View, anchor: str) -> Section:
    (found,) = [one for one in view.sections if one.anchor == anchor]
    return found


def rows_of(view: View, anchor: str) -> list[dict[str, Any]]:
    table = section(view, anchor).table
    assert table is not None
    return records(table)


def every_page(show, store: Store) -> Iterator[View]:
    """The list of problems, page by page."""
    view = show(store, "backends")
    while True:
        yield view
        more = section(view, "problems").table.more
        if not more:
            return
        given = dict(part.split("=", 1) for part in more.split("#")[0].partition("?")[2].split("&"))
        view = show(store, "backends", **given)


# Bad input


def test_an_empty_database_says_what_to_do(show, empty: Store):
    view = show(empty, "backends")
    assert view.sections == ()
    assert "fp4tune tune" in view.next_steps[0].command


def test_what_is_not_served_is_an_error_of_one_sentence(show, h200: Store):
    for given in (
        {"environment": "0" * 16},
        {"policy": "cuda.eager"},
        {"problem": "dense:1x16x16:uniform:nvfp4:bf16"},
        {"problem": "no_key"},
    ):
        with pytest.raises(NotFoundError, match="Nothing is served"):
            show(h200, "backends", **given)


def test_a_cursor_that_was_tampered_with_is_refused(show, h200: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(view_module, "PAGE_OF_PROBLEMS", 20)
    more = section(show(h200, "backends"), "problems").table.more
    given = dict(part.split("=", 1) for part in more.split("#")[0].partition("?")[2].split("&"))
    cursor = given["cursor"]
    assert show(h200, "backends", **given).sections
    for wrong in (cursor[:-1], cursor + "A", "x", cursor[::-1], cursor[:8].swapcase() + cursor[8:]):
        with pytest.raises(InvalidInputError):
            show(h200, "backends", **(given | {"cursor": wrong}))
    with pytest.raises(InvalidInputError):  # of other filters
        show(h200, "backends", environment=given["environment"], cursor=cursor)


def test_a_winner_without_its_trials(show, empty: Store):
    run = empty.create_run(new_run())
    empty.add_winner(new_winner(run))
    view = show(empty, "backends")
    (row,) = rows_of(view, "problems")
    assert (value_of(row["served"]), number_of(row["bf16_us"])) == ("triton.native", None)
    one = show(empty, "backends", problem=SMALL.key)
    (row,) = rows_of(one, "measured")
    assert value_of(row["what"]) == "served"


def test_backends_that_only_failed_say_how(show, empty: Store):
    run = empty.create_run(new_run())
    empty.add_trials(
        [
            new_trial(run, 0, origin=Origin.DEFAULT, timing=timing(15.0)),
            failed_trial(run, 1, backend="humming", config={}, origin=Origin.DEFAULT, error="line one\nline two"),
            failed_trial(run, 2, backend="cutlass", config={"x": 1}),
        ]
    )
    empty.add_winner(new_winner(run))
    by_name = {value_of(row["backend"]): row for row in rows_of(show(empty, "backends", problem=SMALL.key), "measured")}
    assert by_name["humming"]["time_us"].text == "crashed"
    assert by_name["humming"]["time_us"].note == "line one"
    assert value_of(by_name["cutlass"]["what"]) == "nothing ran"
    figure = section(show(empty, "backends", problem=SMALL.key), "measured").figure
    assert figure is not None
    assert "humming" not in {y for trace in figure.traces for y in trace["y"]}
    means = {value_of(row["backend"]): row for row in rows_of(show(empty, "backends"), "means")}
    assert (value_of(means["humming"]["best"]), value_of(means["humming"]["n_tried"])) == (None, 1)


@pytest.mark.parametrize("name", dashboard_stores.HOSTILE)
def test_strings_may_hold_anything(show, tmp_path: Path, name: str):
    dashboard_stores.hostile(tmp_path / "hostile.db", dashboard_stores.HOSTILE[name])
    _show_all(show, tmp_path / "hostile.db")


@pytest.mark.parametrize(
    "number", [*dashboard_stores.ODD_NUMBERS.values(), *dashboard_stores.ODD_WHOLE_NUMBERS.values()]
)
def test_numbers_may_be_anything(show, tmp_path: Path, number: float):
    dashboard_stores.odd(tmp_path / "odd.db", number)
    _show_all(show, tmp_path / "odd.db")


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_rows_may_be_missing(show, tmp_path: Path, table: str):
    dashboard_stores.orphans(tmp_path / "orphans.db", table)
    _show_all(show, tmp_path / "orphans.db")


def _show_all(show, path: Path) -> None:
    with Store.open(path, mode="read") as store:
        for problem in ("", "dense:4x4096x7168:uniform:nvfp4:bf16", "grouped:e64k8:16x256x4096:uniform:nvfp4:bf16"):
            try:
                assert isinstance(show(store, "backends", problem=problem), View)
            except (NotFoundError, StoreError):
                continue


# Figures agree with the results pages


def side_by_side(run: str) -> dict[str, dict[str, str]]:
    """The table "Backends side by side" of a run, as docs/results has it: shape -> column -> text."""
    page = "".join((RESULTS / name).read_text(encoding="utf-8") for name in ("h200.md", "h200-dense.md"))
    own = page.split(f"| run | `{run}`")[1].split("### Backends side by side")[1].split("###")[0]
    lines = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in own.splitlines() if line.startswith("|")
    ]
    names, rows = lines[0], [line for line in lines[2:] if "mean" not in line[0]]
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in rows}


def figure_in(text: str) -> tuple[str, bool]:
    """(`12.24`, whether it has a star) of `12.24\\* (1.57x)`."""
    found = re.match(r"([\d.]+)(\\\*)?", text)
    assert found is not None, text
    return found[1], found[2] is not None


@pytest.mark.parametrize("run", [TP1, *DENSE_RUNS])
def test_the_list_has_the_figures_of_the_results_pages(show, h200: Store, run: str):
    """Best of every backend and BF16, to the last digit and star."""
    shown = {value_of(row["problem"]): row for view in every_page(show, h200) for row in rows_of(view, "problems")}
    said = side_by_side(run)
    assert len(said) >= 10
    for shape, columns in said.items():
        row = shown[shape]
        assert f"{number_of(row['bf16_us']):.2f}" == columns["bf16"]
        for name in [column.removesuffix(" best") for column in columns if column.endswith(" best")]:
            cell = row[f"{name}_us"]
            text, starred = figure_in(columns[f"{name} best"])
            assert f"{number_of(cell):.2f}" == text, (shape, name)
            assert cell.text.endswith("*") is starred, (shape, name)
            assert (name in str(value_of(row["of_search"])).split(", ")) is starred


@pytest.mark.parametrize("run", [TP1, *DENSE_RUNS])
def test_a_problem_has_the_figures_of_the_results_pages(show, h200: Store, run: str):
    """Default and best of every backend."""
    for shape, columns in side_by_side(run).items():
        rows = rows_of(show(h200, "backends", problem=parse_shape(shape).key), "measured")
        for column, text in columns.items():
            name, _, what = column.rpartition(" ")
            if column == "bf16":
                name, what = "torch.bf16", "best"
            (row,) = [
                r for r in rows if value_of(r["backend"]) == name and what in str(value_of(r["what"])).split(", ")
            ]
            expected, starred = figure_in(text)
            assert f"{number_of(row['time_us']):.2f}" == expected, (shape, column)
            assert value_of(row["rounds"]) == ("search *" if starred else "finals")
            assert row["time_us"].text.endswith("*") is starred


def test_every_problem_is_what_the_results_gather(h200: Store):
    """The same as is gathered from all trials, for every winner: times, configs, finals, status."""
    known, compared = load_backends(), 0
    at = h200.environments()[0].environment.fingerprint
    for run in h200.runs():
        for result in gather(h200, run.id, known).problems:
            if result.winner is None or result.winner.superseded_at is not None:
                continue
            one = h200.ask(CandidatesOf(at, "cuda.graph", result.problem.key))
            assert one.run_id == run.id
            for there in result.bests:
                assert _same(best_of(one, there.backend), there)
            for there in result.defaults:
                assert _same(one.defaults[there.backend], there)
            base = baseline_of(one)
            assert (base is None) == (result.baseline is None)
            assert base is None or _same(base, result.baseline)
            compared += 1
    assert compared == 68


def _same(mine: Any, theirs: Any) -> bool:
    return (
        (mine.backend, mine.config, mine.time_us, mine.time_us_low, mine.time_us_high, mine.status, mine.is_final)
        == (theirs.backend, theirs.config, theirs.time_us, theirs.time_us_low, theirs.time_us_high, theirs.status, theirs.final)
    )  # fmt: skip


# Wins and means


def test_wins_are_counted_and_drawn(show, h200: Store):
    view = show(h200, "backends")
    rows = rows_of(view, "wins")
    assert [(value_of(row["backend"]), value_of(row["n_problems"])) for row in rows] == [
        ("triton.dequant", 52),
        ("humming", 16),
    ]
    assert sum(number_of(row["share"]) for row in rows) == pytest.approx(1)
    figure = section(view, "wins").figure
    assert figure is not None
    assert (figure.traces[0]["y"], figure.traces[0]["x"]) == (["triton.dequant", "humming"], [52, 16])
    assert view.lead == "68 problems are served: triton.dequant for 52, humming for 16."


def test_means_are_over_the_problems_that_a_backend_ran(show, h200: Store):
    view = show(h200, "backends")
    at = h200.environments()[0].environment.fingerprint
    keys = [
        link_of(row["problem"]).split("problem=")[1].split("&")[0].replace("%3A", ":")
        for row in rows_of(view, "problems")
    ]
    items = [h200.ask(CandidatesOf(at, "cuda.graph", key)) for key in keys]
    for row in rows_of(view, "means"):
        name = str(value_of(row["backend"]))
        ran = [one for one in items if best_of(one, name) is not None]
        logs = [math.log(one.time_us / best_of(one, name).time_us) for one in ran]
        assert value_of(row["n_best"]) == len(ran)
        assert number_of(row["best"]) == pytest.approx(math.exp(sum(logs) / len(logs)))
    by_name = {value_of(row["backend"]): row for row in rows_of(view, "means")}
    assert by_name["torch.bf16"]["backend"].note == "baseline, never served"
    assert 20 <= value_of(by_name["torch.dequant"]["n_best"]) < len(items)
    assert number_of(by_name["triton.dequant"]["default"]) < number_of(by_name["triton.dequant"]["best"])


def test_problems_come_once_page_by_page(show, h200: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(view_module, "PAGE_OF_PROBLEMS", 20)
    pages = list(every_page(show, h200))
    shown = [str(value_of(row["problem"])) for view in pages for row in rows_of(view, "problems")]
    assert len(pages) == 4
    assert len(shown) == len(set(shown)) == 68


def test_what_is_served_is_marked(show, h200: Store):
    for row in rows_of(show(h200, "backends"), "problems"):
        marked = [name for name, cell in row.items() if getattr(cell, "marks", ()) == (Mark.SERVED,)]
        assert marked == [f"{value_of(row['served'])}_us"]


def test_bf16_is_a_baseline_only_where_it_cannot_be_served(show, empty: Store):
    problem = Problem(16, 2048, 4096, format=Format.BF16)
    run = empty.create_run(new_run())
    empty.add_trials([new_trial(run, 0, problem=problem, backend="torch.bf16", config={}, origin=Origin.FINAL)])
    empty.add_winner(new_winner(run, problem=problem, choice=choice(10.0, "torch.bf16")))
    (row,) = rows_of(show(empty, "backends"), "problems")
    assert number_of(row["torch.bf16_us"]) == 10.0
    assert number_of(row["bf16_us"]) is None


# One problem


def test_the_figure_has_the_tables_rows_and_stars(show, h200: Store):
    part = section(show(h200, "backends", problem=PROBLEM), "measured")
    assert part.figure is not None
    assert part.table is not None
    rows = records(part.table)
    drawn = sorted((x, y) for trace in part.figure.traces for x, y in zip(trace["x"], trace["y"], strict=True))
    assert drawn == sorted((number_of(row["time_us"]), value_of(row["backend"])) for row in rows)
    for trace in part.figure.traces:
        assert (trace["marker"]["symbol"] == "star") is trace["name"].endswith("search *")
    starred = [trace for trace in part.figure.traces if trace["marker"]["symbol"] == "star"]
    assert [trace["y"] for trace in starred] == [["triton.dequant"]]


def test_what_takes_many_times_as_long_is_named_and_not_drawn(show, h200: Store):
    key = "grouped:e512k10:1x256x4096:uniform:nvfp4:bf16"
    part = section(show(h200, "backends", problem=key), "measured")
    assert part.figure is not None
    assert part.table is not None
    drawn = {y for trace in part.figure.traces for y in trace["y"]}
    assert drawn == {"triton.dequant", "humming"}
    assert {value_of(row["backend"]) for row in records(part.table)} - drawn == {"torch.bf16", "torch.dequant"}
    assert part.figure.alt.endswith(
        " Not drawn, as more than 4 times what is served: torch.bf16 (4.34x), torch.dequant (15.69x)."
    )


def test_few_wins_have_a_tick_each(show, empty: Store):
    run = empty.create_run(new_run())
    empty.add_winner(new_winner(run))
    figure = section(show(empty, "backends"), "wins").figure
    assert figure is not None
    assert figure.layout["xaxis"]["dtick"] == 1
    assert section(show(empty, "backends"), "means").table.title.endswith("over the 1 problem below")


def test_intervals_are_drawn_from_the_tables_ends(show, h200: Store):
    part = section(show(h200, "backends", problem=PROBLEM), "measured")
    ends = {
        number_of(row["time_us"]): (number_of(row["time_us_low"]), number_of(row["time_us_high"]))
        for row in records(part.table)
    }
    for trace in part.figure.traces:
        bars = trace["error_x"]
        for x, above, below in zip(trace["x"], bars["array"], bars["arrayminus"], strict=True):
            low, high = ends[x]
            assert (x - below, x + above) == (pytest.approx(low), pytest.approx(high))


def test_the_served_config_is_there_even_if_it_is_not_the_fastest(show, empty: Store):
    run = empty.create_run(new_run())
    empty.add_trials(
        [
            new_trial(run, 0, config={"block_m": 64, "stages": 3}, origin=Origin.FINAL, timing=timing(10.0)),
            new_trial(run, 1, config={"block_m": 64, "stages": 4}, origin=Origin.FINAL, timing=timing(9.95)),
        ]
    )
    empty.add_winner(new_winner(run))
    rows = rows_of(show(empty, "backends", problem=SMALL.key), "measured")
    assert [(value_of(row["what"]), number_of(row["time_us"])) for row in rows] == [("best", 9.95), ("served", 10.0)]
    assert [row["time_us"].marks for row in rows] == [(), (Mark.SERVED,)]


def test_times_served_of_nothing_is_nothing(h200: Store):
    at = h200.environments()[0].environment.fingerprint
    one = h200.ask(CandidatesOf(at, "cuda.graph", PROBLEM))
    assert times_served(one, None) is None
    best = one.bests["humming"]
    for time_us in (None, 0.0, -1.0, float("nan")):
        assert times_served(one, replace(best, time_us=time_us)) is None
    assert times_served(one, best) == pytest.approx(one.time_us / best.time_us)


# Bounds


def test_a_page_of_problems_reads_a_bounded_number_of_trials(show, h200_database: Path, tmp_path: Path, monkeypatch):
    asked: list[Candidates] = []
    real = questions._candidates
    monkeypatch.setattr(questions, "_candidates", lambda *args: asked.append(real(*args)) or asked[-1])
    monkeypatch.setattr(questions, "MAX_TRIALS", 500)
    with Store.open(Path(shutil.copy(h200_database, tmp_path / "copy.db")), mode="read") as store:
        view = show(store, "backends")
    assert sum(sum(one.n_trials.values()) for one in asked) <= 500
    assert 0 < len(rows_of(view, "problems")) < 68
    assert section(view, "problems").table.more
