"""Is more tuning worth it? The picture is that of the trials, and the advice follows from them."""

from __future__ import annotations

import contextlib
import math
import random
import shlex
from datetime import timedelta
from pathlib import Path

import optuna
import pytest
from dashboard_stores import (
    HOSTILE,
    ODD_NUMBERS,
    ODD_WHOLE_NUMBERS,
    hostile,
    killed,
    odd,
    orphans,
    running,
    single_failure,
    twins,
    usual,
)  # fmt: skip
from fp4tune.api.cli.app import app
from fp4tune.api.dashboard.model import MAX_ROWS, View
from fp4tune.api.dashboard.page import Asked
from fp4tune.api.dashboard.shown import Budget
from fp4tune.api.dashboard.shown import show as shown
from fp4tune.api.dashboard.table_values import records, value_of
from fp4tune.api.dashboard.views.progress.importance import importance_section
from fp4tune.api.dashboard.views.progress.steps import advise, best_after, quarters_table, steps_figure, steps_table
from fp4tune.db import Store
from fp4tune.db.dashboard.progress import BackendsOf, Drawn, Progress, TriedOf
from fp4tune.db.records import Origin, RunStatus, TrialStatus
from fp4tune.kernels.errors import NotFoundError, StoreError
from fp4tune.tuner.importance import Importances, importances
from fp4tune.tuner.importance import _evaluator as importance_evaluator
from fp4tune.tuner.random_baseline import expected_best
from store_factory import LARGE, SMALL, START, failed_trial, new_run, new_trial, new_winner, timing

H200_RUN, H200_AGAIN = "01M8NQFZ0DN3FYNYHMSAG96B2A", "01M8NQZWK7Y5XADD17PTDAM07E"
H200_PROBLEM = "grouped:e512k10:16x256x4096:uniform:nvfp4:bf16"
ENDED = {"trials": 64, "budget_s": 30.0, "policy": "cuda.graph"}


def table_of(view: View, name: str) -> list[dict[str, object]]:
    (found,) = [one.table for one in view.sections if one.table is not None and one.table.name == name]
    return [{key: value_of(cell) for key, cell in row.items()} for row in records(found)]


def figure_of(view: View, name: str):
    (found,) = [one.figure for one in view.sections if one.figure is not None and one.figure.name == name]
    return found


def progress_of(times: list[float | None], *, took_s: float = 40.0, **fields) -> Progress:
    """A search of trials that took so long each; None failed."""
    drawn, best = [], None
    for draw, time_us in enumerate(times, 1):
        improved = time_us is not None and (best is None or time_us < best)
        best = time_us if improved else best
        drawn.append(Drawn(draw, draw - 1, "triton.native", "sampler", time_us, best, improved))
    ran = [time_us for time_us in times if time_us is not None]
    made = {
        "n_draws": len(times), "are_all": True, "n_ran": len(ran), "n_baselines": 0, "n_sampled": len(times),
        "n_enumerated": 0, "drawn": tuple(drawn), "times_us": ran, "finals": (), "backends": {},
        "first_at": START, "last_at": START + timedelta(seconds=took_s),
    }  # fmt: skip
    return Progress(**(made | fields))


# Bad input


def test_an_empty_store_says_what_to_do(show, empty: Store):
    view = show(empty, "progress")
    assert not view.sections
    assert view.next_steps[0].command.startswith("fp4tune tune")


def test_a_run_that_is_not_stored_is_not_found(show, h200: Store):
    with pytest.raises(NotFoundError):
        show(h200, "progress", run="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_a_problem_that_no_run_tried_is_not_found(show, h200: Store):
    with pytest.raises(NotFoundError, match="No run has tried dense:1x48x64"):
        show(h200, "progress", problem="dense:1x48x64:uniform:nvfp4:bf16")


def test_a_problem_of_another_run_gives_way_to_the_first(show, h200: Store):
    """Choosing another run keeps the problem in the address."""
    view = show(h200, "progress", run=H200_RUN, problem="dense:1x129280x7168:uniform:nvfp4:bf16")
    assert "did not tune dense:1x129280x7168" in view.warnings[0]
    assert view.filters[1].value == H200_PROBLEM.replace("16x256", "1x256")


def test_a_run_without_problems(show, empty: Store):
    run_id = empty.create_run(new_run(problems=()))
    view = show(empty, "progress", run=run_id)
    assert view.next_steps[0].text == f"Run {run_id} has no problems."


def test_a_single_failure(show, tmp_path: Path):
    single_failure(tmp_path / "x.db")
    with Store.open(tmp_path / "x.db") as store:
        view = show(store, "progress")
    assert view.lead == "None of 1 trial ran that could be served, so nothing can be said of more."
    assert not [one for one in view.sections if one.figure]
    assert [row["time_us"] for row in table_of(view, "steps")] == [None]


def test_a_killed_run_can_be_gone_on_with(show, tmp_path: Path):
    run_id = killed(tmp_path / "x.db")
    with Store.open(tmp_path / "x.db") as store:
        view = show(store, "progress")
    assert view.refresh_s is None
    assert view.lead.startswith("The search has not come to its end")
    assert [one.text for one in view.sections[0].commands] == [f"fp4tune tune --resume {run_id}"]


def test_a_run_that_is_alive_updates_itself(show, tmp_path: Path):
    running(tmp_path / "x.db")
    with Store.open(tmp_path / "x.db") as store:
        view = show(store, "progress")
        assert view.refresh_s == 5
        assert view.sections[0].commands == ()
        second = show(store, "progress", problem="", run=store.runs()[0].id)
        assert second.refresh_s == 5


def every_page(show, store: Store) -> list[View]:
    asked = [{}]
    for run in store.runs():
        asked.append({"run": run.id})
        keys = [state.item.problem.key for state in store.run_problems(run.id)]
        asked += [{"run": run.id, "problem": key, "backend": backend} for key in keys for backend in ("", "nobody")]
    views = [show(store, "progress", **one) for one in asked]
    for one, view in zip(asked, views, strict=True):
        shown(view, Asked("progress", one), Budget(900_000))
    return views


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_strings_break_nothing(show, tmp_path: Path, text: str):
    hostile(tmp_path / "x.db", text)
    with Store.open(tmp_path / "x.db") as store:
        assert len(every_page(show, store)) > 5


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, tmp_path: Path, number: float):
    odd(tmp_path / "x.db", number)
    with Store.open(tmp_path / "x.db") as store:
        assert len(every_page(show, store)) > 5


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_missing_rows_are_a_clear_sentence_or_left_out(show, tmp_path: Path, table: str):
    orphans(tmp_path / "x.db", table)
    # The sentence says to restore a backup.
    with Store.open(tmp_path / "x.db") as store, contextlib.suppress(StoreError):
        every_page(show, store)


@pytest.mark.parametrize("make", [usual, twins])
def test_other_stores(show, tmp_path: Path, make):
    make(tmp_path / "x.db")
    with Store.open(tmp_path / "x.db") as store:
        assert every_page(show, store)


@pytest.mark.parametrize(
    "settings", [{}, {"trials": "many", "budget_s": None}, {"trials": -1, "budget_s": math.nan}, {"trials": True}]
)
def test_settings_of_another_program(show, empty: Store, settings: dict[str, object]):
    with_nan = any(isinstance(one, float) and math.isnan(one) for one in settings.values())
    run_id = empty.create_run(new_run(settings={} if with_nan else settings))
    empty.add_trials([new_trial(run_id, n, timing=timing(20.0 - n)) for n in range(8)])
    empty.finish_problem(run_id, 0, "1.2x")
    empty.finish_run(run_id, RunStatus.FINISHED)
    view = show(empty, "progress")
    assert view.lead.startswith("Perhaps: the last 2 of 8 trials brought")
    advise(progress_of([3.0, 2.0]), None, settings, ended=True)


# What is shown


def test_without_parameters_the_newest_run_and_its_first_problem(show, h200: Store):
    newest = h200.runs(limit=1)[0]
    view = show(h200, "progress")
    assert view.filters[0].value == newest.id
    assert view.filters[1].value == h200.run_problems(newest.id)[0].item.problem.key
    assert len(view.filters[0].options) == 6


def test_with_a_problem_alone_the_newest_run_that_tried_it(show, h200: Store):
    assert show(h200, "progress", problem=H200_PROBLEM).filters[0].value == H200_AGAIN


def test_the_picture_is_that_of_its_table_and_exact(show, h200: Store):
    view = show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM)
    rows = table_of(view, "steps")
    trials = sorted(
        (t for t in h200.trials(_of(H200_RUN, H200_PROBLEM), limit=1000).items if t.origin is not Origin.FINAL),
        key=lambda t: t.number,
    )
    best, bests, ran = None, [], []
    for trial in trials:
        if trial.time_us is not None and trial.backend != "torch.bf16":
            ran.append(trial.time_us)
            best = trial.time_us if best is None else min(best, trial.time_us)
        bests.append(best)
    assert [row["time_us"] for row in rows] == [trial.time_us for trial in trials]
    assert [row["best_us"] for row in rows] == bests
    n = len(trials)
    assert [row["random_us"] for row in rows] == expected_best(ran, n - len(ran), range(1, n + 1))
    traces = {trace["name"]: trace for trace in figure_of(view, "steps").traces}
    assert traces["best so far"]["y"] == [one for one in bests if one is not None]
    assert traces["best so far"]["line"]["shape"] == "hv"
    assert {name for name, trace in traces.items() if trace["mode"] == "markers"} == {
        t.backend for t in trials if t.time_us
    }
    for name, trace in traces.items():
        if trace["mode"] == "markers":
            assert trace["y"] == [t.time_us for t in trials if t.backend == name and t.time_us is not None]


def _of(run_id: str, problem: str):
    from fp4tune.db.records import TrialFilter

    return TrialFilter(run_id=run_id, problem_key=problem)


def test_measured_and_calculated_times_share_no_column(show, h200: Store):
    view = show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM)
    (table,) = [one.table for one in view.sections if one.table and one.table.name == "steps"]
    assert [column.name for column in table.columns][-3:] == ["time_us", "best_us", "random_us"]
    (section,) = [one for one in view.sections if one.anchor == "steps"]
    assert "calculated, not measured" in section.text[0]
    assert "flatters" in section.text[0], "the search chose most of them"


def test_an_enumerated_space_is_a_fair_one(show, empty: Store):
    run_id = empty.create_run(new_run())
    empty.add_trials([new_trial(run_id, n, origin=Origin.ENUMERATED, timing=timing(20.0 - n)) for n in range(8)])
    (section,) = [one for one in show(empty, "progress").sections if one.anchor == "steps"]
    assert "enumerated in random order" in section.text[0]


def test_finals_stand_apart_and_the_served_one_is_marked(show, h200: Store):
    view = show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM)
    finals = table_of(view, "finals")
    assert len(finals) == 12
    assert [row["time_us"] for row in finals] == sorted(row["time_us"] for row in finals)
    (table,) = [one.table for one in view.sections if one.table and one.table.name == "finals"]
    assert sum(bool(row[0].marks) for row in table.rows) == 1


def test_many_improvements_are_thinned_to_what_a_table_holds():
    falling = progress_of([10_000.0 - i for i in range(5000)])
    table = steps_table(falling)
    assert len(table.rows) == MAX_ROWS
    assert (table.rows[0][0], table.rows[-1][0]) == (1, 5000)
    figure = steps_figure(table)
    assert figure is not None
    assert "2,000 of 5,000" in table.note


# Advice


def test_of_nothing_nothing_is_advised():
    assert "Nothing was tried yet" in advise(progress_of([]), None, ENDED, ended=False).lead
    assert quarters_table(progress_of([])).rows == []
    assert best_after(progress_of([None, None]), 2) is None


def test_a_search_that_still_improves_is_worth_more():
    found = advise(progress_of([20.0, 18.0, 16.0, 15.0, 14.0, 13.0, 12.0, 11.0]), 1, ENDED, ended=True)
    assert found.lead == (
        "Perhaps: the last 2 of 8 trials brought 18 %; the tie set has 1. It still got faster when it ended, so more "
        "trials may pay."
    )
    assert found.goes_on


def test_a_search_that_has_settled_is_not():
    found = advise(progress_of([20.0, 10.0] + [15.0] * 37 + [9.97]), 4, ENDED, ended=True)
    assert found.lead == (
        "Hardly: the last 10 of 40 trials brought 0.3 %; the tie set has 4. A gain of 1 % counts, so more trials are "
        "unlikely to pay."
    )
    assert not found.goes_on
    assert found.facts[0] == "The best was found by trial 40 of 40; the second half of the trials brought 0.3 %."
    assert (
        "The first within 1 % of it came at trial 2; in random order it would have come at trial 14" in found.facts[1]
    )


def test_few_trials_without_a_gain_are_no_sign_of_an_end():
    """In random order the best of 8 is among the first 6 three times in four, whatever is left to find."""
    found = advise(progress_of([20.0, 10.0] + [15.0] * 6), 1, ENDED, ended=True)
    assert found.lead.startswith("Too early to say: the last 2 of 8 trials brought nothing")
    assert found.goes_on


def test_what_was_found_once_may_be_missed():
    alone = advise(progress_of([20.0, 10.0] + [15.0] * 38), 1, ENDED, ended=True)
    assert any("No other trial came within 1 % of it" in fact for fact in alone.facts)
    twice = advise(progress_of([20.0, 10.0] + [10.05] * 38), 1, ENDED, ended=True)
    assert not any("No other trial" in fact for fact in twice.facts)


def test_what_counts_is_what_the_policy_can_tell_apart():
    """Two trials of one config on a shared CPU differ by up to 16 %."""
    times = [20.0, 10.0] + [15.0] * 37 + [9.5]
    assert advise(progress_of(times), 1, ENDED | {"policy": "cuda.graph"}, ended=True).goes_on
    on_cpu = advise(progress_of(times), 1, ENDED | {"policy": "cpu.warm"}, ended=True)
    assert not on_cpu.goes_on
    assert "A gain of 20 % counts" in on_cpu.lead


def test_a_search_that_ran_out_of_configs_says_so():
    found = advise(progress_of([20.0, 10.0, 15.0, 14.0], took_s=5.0), 1, ENDED, ended=True)
    assert found.lead.startswith("No: after 4 trials there was nothing left to try")
    assert found.is_exhausted
    assert not advise(progress_of([20.0] * 4, took_s=29.0), 1, ENDED, ended=True).is_exhausted, "its seconds were out"
    assert not advise(progress_of([20.0] * 64, took_s=5.0), 1, ENDED, ended=True).is_exhausted, "its trials were out"
    assert not advise(progress_of([20.0] * 4, took_s=5.0), 1, ENDED, ended=False).is_exhausted


def test_quarters():
    rows = [[value_of(cell) for cell in row] for row in quarters_table(progress_of([20.0, None, 10.0, 9.0])).rows]
    assert [row[:3] for row in rows] == [
        [1, 20.0, None],
        [2, 20.0, 0.0],
        [3, 10.0, 1.0],
        [4, 9.0, pytest.approx(1 / 9)],
    ]


def test_the_command_goes_on_with_twice_as_much(show, h200: Store):
    view = show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM)
    (command,) = view.sections[0].commands
    words = shlex.split(command.text)
    assert words[:4] == ["fp4tune", "tune", "--shape", "e512k10:16x256x4096"]
    assert words[words.index("--trials") + 1] == "128"
    assert words[words.index("--budget-s") + 1] == "60"


def test_the_command_is_one_that_tune_takes(show, h200: Store, monkeypatch: pytest.MonkeyPatch):
    """The command line itself parses it; nothing is run."""
    from typer.main import get_command

    monkeypatch.delenv("FP4TUNE_DATABASE", raising=False)
    words = shlex.split(show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM).sections[0].commands[0].text)
    tune = get_command(app).commands["tune"]
    context = tune.make_context("tune", words[2:])
    assert (context.params["trials"], context.params["budget_s"]) == (128, 60.0)


# Importances


def test_importances_are_of_the_backend_that_is_chosen(show, h200: Store):
    view = show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM, backend="triton.dequant")
    rows = table_of(view, "importance")
    assert sum(float(str(row["importance"])) for row in rows) == pytest.approx(1)
    bars = [pair for trace in figure_of(view, "importance").traces for pair in zip(trace["y"], trace["x"], strict=True)]
    assert sorted(bars) == sorted((row["parameter"], 100 * row["importance"]) for row in rows)
    (chosen,) = [one.value for one in view.filters if one.name == "backend"]
    assert chosen == "triton.dequant"


def test_the_bars_are_those_of_optunas_own_plot(show, h200: Store):
    """Of a study made here, of configs as they are and times in microseconds; Optuna draws it with plotly."""
    n_bars = 0
    for problem in {item.problem.key: None for item in (one.item for one in h200.run_problems(H200_RUN))}:
        for backend in h200.ask(BackendsOf(H200_RUN, problem)):
            tried = h200.ask(TriedOf(H200_RUN, problem, backend))
            view = show(h200, "progress", run=H200_RUN, problem=problem, backend=backend)
            (section,) = [one for one in view.sections if one.anchor == "importance"]
            if section.figure is None:
                continue
            choices = {name: list(dict.fromkeys(config[name] for config, _ in tried)) for name in tried[0][0]}
            spaces = {
                n: optuna.distributions.CategoricalDistribution(some) for n, some in choices.items() if len(some) > 1
            }
            study = optuna.create_study(direction="minimize")
            study.add_trials([
                optuna.trial.create_trial(params={n: config[n] for n in spaces}, distributions=spaces, value=time_us)
                for config, time_us in tried
            ])  # fmt: skip
            evaluator = importance_evaluator(max(0.1, 5 / len(tried)))
            (theirs,) = optuna.visualization.plot_param_importances(study, evaluator=evaluator).data
            ours = {y: x / 100 for trace in section.figure.traces for y, x in zip(trace["y"], trace["x"], strict=True)}
            assert ours == pytest.approx(dict(zip(theirs.y, theirs.x, strict=True)), abs=1e-12), (problem, backend)
            longest_first = section.figure.layout["yaxis"]["categoryarray"]
            assert [ours[name] for name in longest_first] == pytest.approx(sorted(theirs.x, reverse=True), abs=1e-12)
            n_bars += len(ours)
    assert n_bars > 20, "bars of several problems and backends"


def test_a_backend_with_too_few_trials_says_so(show, h200: Store):
    view = show(h200, "progress", run=H200_RUN, problem=H200_PROBLEM, backend="torch.bf16")
    (section,) = [one for one in view.sections if one.anchor == "importance"]
    assert section.table is None
    assert section.text[0].startswith("torch.bf16: 9 trials ran, and fewer than 20 say nothing")


def test_by_default_it_is_a_backend_of_which_something_can_be_said(show, empty: Store):
    """What is served has three trials; another backend has thirty."""
    run_id = empty.create_run(new_run())
    generator = random.Random(0)
    empty.add_trials(
        [new_trial(run_id, n, backend="humming", config={"warps": n}, timing=timing(9.0 + n)) for n in range(3)]
        + [
            new_trial(run_id, 3 + n, config={"tile": 2 ** (n % 4), "stages": n % 3}, timing=timing(20 + n % 4 + generator.random()))
            for n in range(30)
        ]
    )  # fmt: skip
    empty.add_winners([new_winner(run_id)])
    view = show(empty, "progress")
    assert table_of(view, "importance")[0]["parameter"] == "tile"
    assert show(empty, "progress", backend="humming").sections[-1].table is None


def test_a_section_without_importances_has_its_reason():
    assert importance_section(Importances(why_not="Because."), "humming").text == ("humming: Because.",)
    found = importances([({"a": i % 2, "b": 1}, 10.0 + i % 2 + i / 100) for i in range(40)])
    section = importance_section(found, "humming")
    assert section.table is not None
    assert "Never varied: b = 1." in section.table.note


def test_failures_are_counted(show, empty: Store):
    run_id = empty.create_run(new_run())
    empty.add_trials(
        [new_trial(run_id, n, timing=timing(20.0 - n)) for n in range(5)]
        + [failed_trial(run_id, 5 + n, TrialStatus.TIMEOUT) for n in range(3)]
        + [new_trial(run_id, 0, problem=LARGE)]
    )
    view = show(empty, "progress", problem=SMALL.key)
    assert "3 trials did not run; what failed is told on the page of failures." in view.sections[0].text
