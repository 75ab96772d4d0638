"""What do I get? The page against the results page of the H200, and against databases that hold anything."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dashboard_stores
import pytest
import reference_rows
from dashboard_views import rows_of, section_of, sound, table_of, value, words_of
from fp4tune.api.cli.app import run as cli
from fp4tune.api.dashboard.model import Mark, View
from fp4tune.api.dashboard.page import Asked
from fp4tune.api.dashboard.pages import BY_SLUG
from fp4tune.api.dashboard.shown import Budget
from fp4tune.api.dashboard.shown import show as render
from fp4tune.api.dashboard.views.gains import grid as gains_grid
from fp4tune.api.dashboard.views.gains.cells import place_of
from fp4tune.api.dashboard.views.gains.cells import rows_of as gemm_rows
from fp4tune.api.dashboard.views.gains.models import BY_HAND, MODEL, TP
from fp4tune.api.dashboard.views.gains.totals import totals_of
from fp4tune.api.dashboard.workloads import Model, ModelWorkload, Use, workload_of
from fp4tune.api.http.cursors import Cursors
from fp4tune.db import Store
from fp4tune.db.dashboard.gains import Served
from fp4tune.db.records import RunProblem, Timing, TrialStatus
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, StoreError
from fp4tune.kernels.problem import Format, Problem, Routing, parse_shape
from fp4tune.tuner.executor import Candidate, Evaluation
from fp4tune.tuner.select import Searched, select
from http_server import running
from store_factory import CARD, GROUPED, LARGE, ON_CARD, SMALL, START, Clock, choice, new_run, new_winner

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
FIRST_RUNS = ("01M8NQFZ0DN3FYNYHMSAG96B2A", "01M8NQNGH5VTC2FFWJT6222WQW")
PRESET = "nvidia/Qwen3.5-397B-A17B-NVFP4"


# Bad input


@pytest.mark.parametrize("text", dashboard_stores.HOSTILE.values(), ids=dashboard_stores.HOSTILE)
def test_any_string_may_be_stored(tmp_path: Path, show: Callable[..., View], text: str):
    dashboard_stores.hostile(tmp_path / "h.db", text)
    with Store.open(tmp_path / "h.db", mode="read") as store:
        view = sound(show(store, ""))
        for filter_ in view.filters:  # whatever is offered can be asked for
            for option in filter_.options[:3]:
                if filter_.name == "model":
                    assert re.fullmatch(MODEL.pattern, option.value)
                    sound(show(store, "", model=option.value))


@pytest.mark.parametrize(
    "number",
    [*dashboard_stores.ODD_NUMBERS.values(), *dashboard_stores.ODD_WHOLE_NUMBERS.values()],
    ids=[*dashboard_stores.ODD_NUMBERS, *dashboard_stores.ODD_WHOLE_NUMBERS],
)
def test_any_number_may_be_stored(tmp_path: Path, show: Callable[..., View], number: float):
    dashboard_stores.odd(tmp_path / "o.db", number)
    with Store.open(tmp_path / "o.db", mode="read") as store:
        sound(show(store, ""))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("environments", "Nothing is served yet."),
        ("problems", "6 problems of its runs cannot be read"),
        ("runs", "Something is served here for 2 problems, and no run is stored that says of which model."),
    ],
)
def test_rows_that_others_refer_to_may_be_gone(tmp_path: Path, show: Callable[..., View], missing: str, said: str):
    dashboard_stores.orphans(tmp_path / "o.db", missing)
    with Store.open(tmp_path / "o.db", mode="read") as store:
        view = sound(show(store, ""))
        assert said in words_of(view)
        sound(show(store, "", model=PRESET))


def test_environments_without_their_device_are_a_damaged_database(tmp_path: Path, show: Callable[..., View]):
    dashboard_stores.orphans(tmp_path / "o.db", "devices")
    with Store.open(tmp_path / "o.db", mode="read") as store, pytest.raises(StoreError, match="restore a backup"):
        show(store, "")


@pytest.mark.parametrize("page", ["", "roof", "backends"])
@pytest.mark.parametrize("make", [dashboard_stores.empty, dashboard_stores.single_failure, dashboard_stores.killed])
def test_a_database_in_which_nothing_is_served_says_what_to_do(
    tmp_path: Path, show: Callable[..., View], make: Callable, page: str
):
    make(tmp_path / "e.db")
    with Store.open(tmp_path / "e.db", mode="read") as store:
        view = sound(show(store, page))
    assert view.next_steps[-1].command.startswith("fp4tune tune ")
    assert any(step.link for step in view.next_steps) == (make is not dashboard_stores.empty)


def test_a_model_that_nobody_knows_is_refused_with_names_that_are_close(h200: Store, show: Callable[..., View]):
    with pytest.raises(NotFoundError, match="did you mean nvidia/Qwen3.5-397B-A17B-NVFP4"):
        show(h200, "", model="Qwen3.5-397B-A17B-NVFP5")
    with pytest.raises(NotFoundError) as caught:
        show(h200, "", model="x" * 1000)
    assert len(str(caught.value)) < 300


def test_a_path_in_an_address_is_never_opened(h200: Store, show: Callable[..., View], tmp_path: Path):
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
    with pytest.raises(NotFoundError):
        show(h200, "", model=str(tmp_path))


def test_a_directory_that_is_called_like_a_preset_is_not_opened(
    h200: Store, show: Callable[..., View], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / PRESET).mkdir(parents=True)
    (tmp_path / PRESET / "config.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert not show(h200, "", model=PRESET).warnings


def test_a_token_of_another_page_is_refused(h200: Store, show: Callable[..., View]):
    with pytest.raises(InvalidInputError, match="cursor"):
        show(h200, "", cursor=Cursors("test").make("runs", {}, 1))


def test_a_tp_that_does_not_fit_is_a_warning_and_a_model_without_a_run_there_is_too(
    h200: Store, show: Callable[..., View], tmp_path: Path
):
    view = sound(show(h200, "", model=PRESET, tp="7"))
    assert "Nothing is derived" in view.warnings[0]
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run(checkpoint="/models/mine", settings={"tp": 4}))
        store.add_winners([new_winner(run)])
        view = sound(show(store, "", model="/models/mine", tp="2"))
        assert "No run has tuned this model at TP 2" in view.warnings[0]
        assert {one.name: one.value for one in view.filters}["tp"] == "4"


@pytest.mark.parametrize("settings", ["[]", "{", '{"tp": "8", "ep": true}', '{"tp": -1, "ep": 1e9}', "null"])
def test_settings_that_say_nothing_are_those_of_one_rank(tmp_path: Path, show: Callable[..., View], settings: str):
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run(checkpoint="/models/mine"))
        store.add_winners([new_winner(run)])
        with store._writing() as connection:
            connection.exec_driver_sql("UPDATE runs SET settings = ?", (settings,))
        assert show(store, "").title == "Gains: mine, TP 1, EP 1"


def test_checkpoints_that_cannot_stand_in_an_address_can_be_chosen(tmp_path: Path, show: Callable[..., View]):
    names = ["/a\nb", "x" * 4000, BY_HAND, " /m", "~/models/m"]
    with Store.open(tmp_path / "p.db") as store:
        for name in names:
            run = store.create_run(new_run(checkpoint=name))
            store.add_winners([new_winner(run)])
        offered = next(one for one in show(store, "").filters if one.name == "model").options
        tuned = {option.label: option.value for option in offered if option.label in names}
        assert set(tuned) == set(names)
        for name, sent in tuned.items():
            view = sound(show(store, "", model=sent))
            assert next(one for one in view.filters if one.name == "model").value == sent
            assert show(store, "", model=sent).sections[0].table.rows[0][0].value.startswith("attn.qkv"), name


# Against the results page


@pytest.fixture
def first_runs(h200_copy: Store) -> Store:
    """The H200's database before the run that tuned everything again, as its page has it."""
    with h200_copy._writing() as connection:
        again = "run_id NOT IN (SELECT id FROM runs WHERE ulid IN (?, ?))"
        connection.exec_driver_sql(f"DELETE FROM winners WHERE {again}", FIRST_RUNS)
        connection.exec_driver_sql("UPDATE winners SET superseded_at = NULL")
    return h200_copy


def page_of(tp: int) -> tuple[list[dict[str, str]], str]:
    """(rows of "What is served" of the page, its sentence about means), of a TP."""
    text = (RESULTS / "h200.md").read_text(encoding="utf-8")
    part = text.split(f"## qwen3.5-397b-a17b-nvfp4, TP {tp}, EP 1")[1]
    lines = part.split("### What is served")[1].split("###")[0].strip().splitlines()
    heads = [head.strip() for head in lines[0].strip("|").split("|")]
    rows = [dict(zip(heads, map(str.strip, line.strip("|").split("|")), strict=True)) for line in lines[2:]]
    return rows, next(line for line in part.splitlines() if line.startswith("In the geometric mean"))


@pytest.mark.parametrize("tp", [1, 8])
def test_every_figure_is_that_of_the_results_page(first_runs: Store, show: Callable[..., View], tp: int):
    expected, means = page_of(tp)
    assert len(expected) == 10
    view = sound(show(first_runs, "", tp=str(tp)))
    shown = {value(row["shape"]): row for row in rows_of(view, "problems")}
    assert set(shown) == {row["shape"] for row in expected}
    for row in expected:
        mine = shown[row["shape"]]
        interval = re.fullmatch(r"([0-9.]+) \[([0-9.]+), ([0-9.]+)\]", row["µs"])
        assert interval
        assert f"{value(mine['time_us']):.2f}" == interval[1]
        assert mine["time_us"].note == f"{interval[2]} to {interval[3]}"
        assert f"{mine['default_us']:.2f}" == row["default µs"]
        assert f"{value(mine['speedup']):.2f}x" == row["speed-up"]
        assert f"`{mine['backend']}`" == row["served"]
        assert str(mine["tied"]) == row["tied"]
        assert (mine["role"], str(mine["layers"])) == (row["role"], row["layers"])
        is_default = row["config"].endswith("(default)")
        assert (value(mine["state"]) == "tie") == is_default, "the default is served in a tie, and only then"
    mean = re.search(r"it is ([0-9.]+x) as fast as the fastest default", means)
    assert mean
    n_ties = sum(row["config"].endswith("(default)") for row in expected)
    assert view.lead == (f"{mean[1]} over the defaults in the geometric mean of 10 problems; {n_ties} of 10 are ties.")


@pytest.mark.parametrize("tp", [1, 8])
def test_totals_are_the_page_s_times_by_layers(first_runs: Store, show: Callable[..., View], tp: int):
    expected, _ = page_of(tp)
    view = show(first_runs, "", tp=str(tp))
    for phase, tokens in (("decode", [1, 4, 16, 64, 256]), ("verify", [4, 16, 64, 256])):
        rows = rows_of(view, f"total_{phase}")
        assert [row["m"] for row in rows] == tokens
        for row in rows:
            mine = [one for one in expected if f":{row['m']}x" in one["shape"]]
            assert len(mine) == 2
            served = sum(60 * float(one["µs"].split()[0]) for one in mine)
            default = sum(60 * float(one["default µs"]) for one in mine)
            assert row["served_us"] == pytest.approx(served, abs=60 * 0.01)
            assert row["default_us"] == pytest.approx(default, abs=60 * 0.01)
            assert row["saved_us"] == pytest.approx(row["default_us"] - row["served_us"])
            assert row["speedup"] == pytest.approx(row["default_us"] / row["served_us"])
            assert (row["covers"], row["launches"]) == ("2 of 2 GEMMs", 120)
    assert "total_prefill" not in [section.table.name for section in view.sections if section.table]


# The heatmap


def test_the_newest_model_of_the_environment_is_shown_and_bare_shapes_can_be_chosen(
    h200: Store, show: Callable[..., View]
):
    view = sound(show(h200, ""))
    assert view.title == "Gains: Qwen3.5-397B-A17B-NVFP4, TP 8, EP 1"
    assert [column.title for column in table_of(view, "gains").columns] == [
        "GEMM",
        "M 1",
        "M 4",
        "M 16",
        "M 64",
        "M 256",
    ]
    assert [row[0].value for row in table_of(view, "gains").rows] == [
        "moe.w13, 60 layers: e512k10:256x4096", "moe.w2, 60 layers: e512k10:4096x128",
    ]  # fmt: skip
    by_hand = sound(show(h200, "", model=BY_HAND))
    assert len(table_of(by_hand, "gains").rows) == 16
    assert "no total" in words_of(by_hand)
    assert [one.name for one in by_hand.filters] == ["environment", "policy", "model"]


def test_the_list_below_the_heatmap_is_folded_away(h200: Store, show: Callable[..., View]):
    shown = render(show(h200, ""), Asked("", {}), Budget(900_000))
    (section,) = [one for one in shown.sections if one.anchor == "problems"]
    assert section.figure is None
    assert section.folded


def test_a_cell_leads_to_its_problem(h200: Store, show: Callable[..., View]):
    cell = table_of(show(h200, ""), "gains").rows[0][2]
    assert cell.link == (
        "/dashboard/problem?problem=grouped%3Ae512k10%3A4x256x4096%3Auniform%3Anvfp4%3Abf16"
        "&environment=0d4323886a8821a4&policy=cuda.graph"
    )


def test_colours_are_the_edges_of_the_legend(h200: Store, show: Callable[..., View]):
    table = table_of(show(h200, ""), "gains")
    said = {marks[0]: text for marks, text in table.legend if marks}
    for row in table.rows:
        for cell in row[1:]:
            text = said[cell.marks[0]]
            low, high = re.findall(r"[0-9.]+(?=x)", text)[0], re.findall(r"[0-9.]+(?=x)", text)[-1]
            if text.startswith("below"):
                assert cell.value < float(low)
            else:
                assert float(low) <= cell.value < float(high)
    assert len([mark for mark in said if mark.value.startswith("heat")]) == 9


def test_what_the_preset_runs_and_nobody_tuned_is_grey_and_one_command_fills_it(h200: Store, show: Callable[..., View]):
    view = sound(show(h200, "", tp="8", tokens="all"))
    table = table_of(view, "gains")
    assert len(table.columns) == 32
    grey = [cell for row in table.rows for cell in row[1:] if cell and Mark.UNTUNED in cell.marks]
    assert len(grey) == 2 * 26
    assert all(cell.link for cell in grey)
    assert view.lead.endswith("; 52 more at these M are not tuned here.")
    (words,) = [shlex.split(step.command) for step in view.next_steps if "52 problems" in step.text]
    assert words[:5] == ["fp4tune", "tune", "qwen3.5-397b-a17b-nvfp4", "--tp", "8"]
    tokens = {int(m) for m in words[words.index("--tokens") + 1].split(",")}
    assert tokens == {int(column.title[2:]) for column in table.columns[1:]} - {1, 4, 16, 64, 256}
    assert [words[i + 1] for i, word in enumerate(words) if word == "--role"] == ["moe.w13", "moe.w2"]


def test_shapes_that_were_tuned_by_hand_count_for_every_model_that_has_them(h200: Store, show: Callable[..., View]):
    view = sound(show(h200, "", model="nvidia/DeepSeek-V3.1-NVFP4", tp="8"))
    rows = {row[0].value.split(":")[0]: row for row in table_of(view, "gains").rows}
    assert rows["mlp.gate_up, 3 layers"][1].value == pytest.approx(1.1966, abs=1e-4)
    assert Mark.UNTUNED in rows["moe.w13, 58 layers"][1].marks
    assert view.lead.startswith("1.13x over the defaults in the geometric mean of 6 problems")
    (step,) = [one for one in view.next_steps if "15 problems" in one.text]
    assert "--tokens 1,4,16 --role moe.w13 --role moe.w2 --role shared.gate_up" in step.command
    incomplete = rows_of(view, "incomplete")
    assert {row["covers"] for row in incomplete} == {"2 of 7 GEMMs"}
    assert "moe.w13 e256k8:512x7168" in incomplete[0]["missing"]
    assert not [section for section in view.sections if section.anchor.startswith("total-")]


def test_commands_for_grey_cells_tune_exactly_them(h200: Store, show: Callable[..., View], capsys):
    """The same options, given to the workload that `fp4tune tune` derives, name the grey problems."""
    from fp4tune.tuner.checkpoint import open_checkpoint
    from fp4tune.tuner.inspector import inspect_checkpoint
    from fp4tune.tuner.workload import derive

    view = show(h200, "", model="nvidia/DeepSeek-V3.1-NVFP4", tp="8")
    grey = {
        re.search(r"problem=([^&]+)", cell.link)[1].replace("%3A", ":")
        for row in table_of(view, "gains").rows for cell in row[1:] if cell and Mark.UNTUNED in cell.marks
    }  # fmt: skip
    made = set()
    for step in view.next_steps:
        words = shlex.split(step.command)
        if "--tokens" not in words:
            continue
        tokens = [int(m) for m in words[words.index("--tokens") + 1].split(",")]
        roles = {words[i + 1] for i, word in enumerate(words) if word == "--role"}
        workload = derive(inspect_checkpoint(open_checkpoint(words[2])), tp=8, tokens=tokens)
        made |= {item.problem.key for item in workload.items if roles & set(item.role.split("+"))}
    assert made == grey


def test_gemms_without_a_preset_are_those_of_all_runs(tmp_path: Path, show: Callable[..., View]):
    with Store.open(tmp_path / "p.db") as store:
        first = store.create_run(new_run(checkpoint="/models/my model", settings={"tp": 2}))
        store.create_run(
            new_run(
                checkpoint="/models/my model",
                settings={"tp": 2},
                problems=[RunProblem(LARGE, "attn.qkv", ("prefill",), 60)],
            )
        )
        store.create_run(
            new_run(checkpoint="/models/my model", settings={"tp": 4}, problems=[RunProblem(replace(SMALL, n=64))])
        )
        store.add_winners([new_winner(first)])
        view = sound(show(store, "", tp="2"))
        rows = table_of(view, "gains").rows
        assert [row[0].value for row in rows] == [
            "attn.qkv, 60 layers: 2048x4096",
            "moe.w13, 3 layers: e64of512k10:256x4096",
        ]
        assert [column.title for column in table_of(view, "gains").columns] == ["GEMM", "M 16", "M 512"]
        assert rows[0][1].value == 1.5
        assert Mark.UNTUNED in rows[0][2].marks
        assert rows[1][2] is None
        commands = [shlex.split(step.command) for step in view.next_steps]
        assert commands == [
            ["fp4tune", "tune", "/models/my model", "--tp", "2", "--tokens", "512", "--role", "attn.qkv", "--policy", "eager"],
            ["fp4tune", "tune", "/models/my model", "--tp", "2", "--tokens", "16", "--role", "moe.w13", "--policy", "eager"],
        ]  # fmt: skip
        assert "those that runs of this checkpoint set out to tune" in words_of(view)


def test_routings_formats_and_dtypes_of_a_layer_have_rows_of_their_own_and_count_once(tmp_path: Path, show: Callable):
    skewed = replace(GROUPED, routing=Routing.POWER_LAW)
    fused = parse_shape("moe:e64of512k10:16x128x4096")
    halves = replace(SMALL, out_dtype=type(SMALL.out_dtype).FP16)
    items = [RunProblem(one, "layer", ("decode",), 3) for one in (skewed, GROUPED, fused, halves, SMALL)]
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run(checkpoint="/m", problems=items))
        store.add_winners([new_winner(run, problem=item.problem) for item in items])
        view = sound(show(store, ""))
    headings = [row[0].value for row in table_of(view, "gains").rows]
    assert len(set(headings)) == 5
    assert headings[0].endswith("e64of512k10:256x4096 power_law")
    assert headings[2].endswith("moe:e64of512k10:128x4096")
    assert headings[3].endswith("2048x4096 fp16")
    (total,) = rows_of(view, "total_decode")
    assert (total["covers"], total["launches"]) == ("2 of 2 GEMMs", 6)
    assert (total["served_us"], total["default_us"]) == (60.0, 90.0)
    assert "Not added up, because another row stands for the same work" in words_of(view)


def test_the_default_that_is_served_because_none_runs_is_no_tie(tmp_path: Path, show: Callable[..., View]):
    """The sentence is the tuner's own: of a selection in which no default ran."""
    searched = [Searched(Candidate("b", {"x": 1}), 10.0, is_default=False)]
    timing = Timing(10.0, 9.9, 10.1, [10.0] * 8, 8)
    chosen = select(searched, [Evaluation(TrialStatus.OK, timing, "", 0.0, 0.0)], {})
    assert chosen
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run(checkpoint="/m"))
        both = choice(10.0)
        store.add_winners([new_winner(run, choice=both, default=both, tie_set=[both])])
        store.finish_problem(run, 0, chosen.sentence)
        view = sound(show(store, ""))
        cell = table_of(view, "gains").rows[0][1]
        assert (cell.value, cell.text, cell.marks) == (None, "10.00 µs", (Mark.UNSURE,))
        assert "geometric mean" not in view.lead
        store.finish_problem(run, 0, "the default is the fastest; doubtful: somebody else computed, too")
        view = sound(show(store, ""))
        cell = table_of(view, "gains").rows[0][1]
        assert (cell.value, cell.marks) == (1.0, (Mark.HEAT_0, Mark.TIE, Mark.UNSURE))
        assert cell.note == "doubtful"
        assert view.lead.startswith("1.00x over the defaults in the geometric mean of 1 problem; 1 of 1 is a tie")


def test_a_default_in_the_tie_set_is_a_tie(tmp_path: Path, show: Callable[..., View]):
    served, default = choice(10.0), choice(10.05, block_m=128)
    with Store.open(tmp_path / "p.db") as store:
        run = store.create_run(new_run(checkpoint="/m"))
        store.add_winners([new_winner(run, choice=served, default=default, tie_set=[default, served])])
        view = sound(show(store, ""))
    assert Mark.TIE in table_of(view, "gains").rows[0][1].marks


# Published times


def publish(store: Store, *problems: Problem, device: str) -> None:
    rows = [reference_rows.dense(one.m, n=one.n, k=one.k, suspect="") for one in problems]
    store.import_reference(reference_rows.source(device=device), rows)


def test_published_times_stand_where_nothing_is_measured_and_in_no_series(tmp_path: Path, show: Callable[..., View]):
    card = replace(CARD, name=reference_rows.SERVER)
    at = Environment(card, ON_CARD.versions)
    problems = [RunProblem(replace(SMALL, m=m), "attn.qkv", ("decode",), 60) for m in (16, 32, 64)]
    with Store.open(tmp_path / "p.db") as store:
        publish(store, problems[0].problem, problems[1].problem, device=reference_rows.SERVER)
        run = store.create_run(new_run(environment=at, checkpoint="/m", problems=problems))
        store.add_winners([new_winner(run, problem=problems[0].problem, environment=at, policy="cuda.graph")])
        view = sound(show(store, ""))
        measured, published, grey = table_of(view, "gains").rows[0][1:]
        assert (measured.value, Mark.REFERENCE in measured.marks) == (1.5, False)
        assert (published.value, published.text, published.marks) == (None, "42.0 µs", (Mark.REFERENCE,))
        assert published.note == "published, NVFP4"
        assert grey.marks == (Mark.UNTUNED,)
        (row,) = rows_of(view, "published")
        assert (value(row["shape"]), value(row["published_us"])) == ("32x2048x4096", 42.0)
        assert (row["attribution"], row["card"]) == ("Copyright (c) Somebody", reference_rows.SERVER)
        assert [row["m"] for row in rows_of(view, "total_decode")] == [16]
        assert "geometric mean of 1 problem;" in view.lead
        # Of another policy nothing is published.
        store.add_winners([new_winner(run, problem=problems[0].problem, environment=at, policy="cuda.eager")])
        eager = show(store, "", policy="cuda.eager")
        assert [cell.marks for cell in table_of(eager, "gains").rows[0][2:]] == [(Mark.UNTUNED,)] * 2


# Totals


def use(problem: Problem, role: str = "r", **layers: int) -> Use:
    return Use(problem, role, layers, max(layers.values(), default=1), is_tuned=True)


def served(time_us: float, default_us: float, *, is_tied: bool = False) -> Served:
    return Served("b", time_us, time_us, time_us, default_us, is_tied, is_tied, 1, "", "", START)


def test_incomplete_totals_stand_apart_and_say_so():
    other = replace(SMALL, n=64)
    workload = ModelWorkload(
        (
            use(SMALL, decode=2),
            use(LARGE, decode=2),
            use(other, "s", decode=3),
            use(replace(other, m=512), "s", decode=3),
        )
    )
    rows = gemm_rows(workload, {SMALL.key: served(10, 20), other.key: served(1, 2), LARGE.key: served(5, 5)}, {})
    totals = totals_of(rows).totals
    assert [(one.m, one.is_complete, one.covers) for one in totals] == [
        (16, True, "2 of 2 GEMMs"), (512, False, "1 of 2 GEMMs"),
    ]  # fmt: skip
    assert (totals[0].served_us, totals[0].default_us, totals[0].n_launches) == (23.0, 46.0, 5)
    assert totals[1].missing == ("s 64x4096",)


def test_a_phase_counts_the_layers_that_run_in_it():
    """DeepSeek-V4-Flash shares GEMMs between 43 layers and one MTP layer."""
    workload = workload_of(
        Model("RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8", 8, 1), (), preset="RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8"
    )
    shared = next(one for one in workload.uses if one.role == "moe.w13" and one.problem.m == 4)
    assert dict(shared.layers) == {"decode": 43, "verify": 43, "draft_extend": 1, "draft_decode": 1}
    chunk = next(one for one in workload.uses if one.role == "moe.w13" and one.problem.m == 8192)
    assert dict(chunk.layers) == {"prefill": 44}


def test_a_prefill_chunk_is_added_up_by_its_layers(tmp_path: Path, show: Callable[..., View]):
    """of a chunk of 512 tokens: 44 layers of one GEMM, and 3 of another."""
    other = replace(LARGE, n=64)
    with Store.open(tmp_path / "p.db") as store:
        problems = [RunProblem(LARGE, "attn.qkv", ("prefill",), 44), RunProblem(other, "attn.o", ("prefill",), 3)]
        run = store.create_run(new_run(checkpoint="/models/my model", settings={"tp": 2}, problems=problems))
        store.add_winners([
            new_winner(run, problem=LARGE, choice=choice(10.0), default=choice(15.0, block_m=128)),
            new_winner(run, problem=other, choice=choice(2.0), default=choice(3.0, block_m=128)),
        ])  # fmt: skip
        (row,) = rows_of(sound(show(store, "", tp="2")), "total_prefill")
    assert (row["m"], row["served_us"], row["default_us"], row["launches"]) == (512, 446.0, 669.0, 47)
    assert (row["saved_us"], row["speedup"], row["covers"]) == (223.0, 1.5, "2 of 2 GEMMs")


def test_a_small_m_of_what_runs_in_prefill_alone_is_no_chunk():
    """`--tokens 16` makes a problem of MLA's kv_b, whose only phase is prefill."""
    kv_b = replace(SMALL, n=64)
    workload = ModelWorkload((use(SMALL, decode=2), use(kv_b, "mla.kv_b", prefill=2)))
    totals = totals_of(gemm_rows(workload, {SMALL.key: served(10, 20), kv_b.key: served(1, 2)}, {})).totals
    assert [(one.phase, one.m) for one in totals] == [("decode", 16)]
    alone = ModelWorkload((use(kv_b, "mla.kv_b", prefill=2),))
    assert [one.phase for one in totals_of(gemm_rows(alone, {kv_b.key: served(1, 2)}, {})).totals] == ["prefill"]


@pytest.mark.parametrize("time_us", [0.0, -1.0, math.nan, math.inf, 5e-324])
def test_times_that_are_none_are_not_added_up(time_us: float):
    for one in (served(time_us, 1e300), served(1e-300, time_us), served(time_us, time_us)):
        place = place_of(use(SMALL, decode=1), one)
        assert place.speedup is None or place.speedup > 0
        rows = gemm_rows(ModelWorkload((use(SMALL, decode=1),)), {SMALL.key: one}, {})
        assert all(math.isfinite(total.served_us) for total in totals_of(rows).totals)
        gains_grid.grid(rows, [16], "e" * 16, "p")


def test_the_figure_is_made_of_the_table(h200: Store, show: Callable[..., View]):
    section = section_of(show(h200, ""), "total-decode")
    assert section.table
    assert section.figure
    names = [column.name for column in section.table.columns]
    for trace, column in zip(section.figure.traces, ("default_us", "served_us"), strict=True):
        assert trace["y"] == [row[names.index(column)] for row in section.table.rows]
        assert trace["x"] == [str(row[0]) for row in section.table.rows]
    assert section.figure.layout["yaxis"]["title"]["text"] == "µs a decode step, GEMMs of one rank"


# Bounds


def test_many_gemms_are_shown_in_pages(tmp_path: Path, show: Callable[..., View]):
    problems = [RunProblem(Problem(m, 16 * n, 64)) for n in range(1, 301) for m in (1, 2, 4, 8, 16)]
    with Store.open(tmp_path / "p.db", clock=Clock()) as store:
        run = store.create_run(new_run(checkpoint="", problems=problems))
        store.add_winners([new_winner(run, problem=item.problem) for item in problems])
        seen: list[str] = []
        values: dict[str, str] = {}
        for _ in range(10):
            view = sound(show(store, "", **values))
            table = table_of(view, "gains")
            seen += [row[0].value for row in table.rows]
            assert len(table.rows) * (len(table.columns) - 1) <= gains_grid.MAX_CELLS
            assert "geometric mean of 1,500 problems" in view.lead
            if not table.more:
                break
            values = {"cursor": table.more.partition("cursor=")[2].replace("%3D", "=")}
        assert len(seen) == len(set(seen)) == 300
        with running(store) as server:
            assert len(server.client.get("/dashboard/").raise_for_status().content) < 1_000_000


def test_patterns_of_the_parameters():
    page = BY_SLUG[""]
    patterns = {one.name: one.pattern for one in page.parameters}
    assert re.fullmatch(patterns["model"], "/models/My Model (v2)/ä" + "x" * 900)
    assert re.fullmatch(patterns["model"], BY_HAND)
    assert not re.fullmatch(patterns["model"], "x" * 1001)
    assert not re.fullmatch(patterns["model"], "a\nb")
    assert not re.fullmatch(patterns["tp"], "0")
    assert TP in page.parameters


def test_gemms_in_bf16_are_counted_as_fp4tune_inspect_does(h200: Store, show: Callable[..., View], capsys):
    assert cli(["inspect", PRESET, "--tp", "8", "--json"]) == 0
    gemms = json.loads(capsys.readouterr().out)["gemms"]
    n = sum(gemm["format"] == "bf16" and gemm["tunable"] for gemm in gemms)
    assert f"{n} GEMMs of this model are in BF16" in words_of(show(h200, "", tp="8"))


def test_bf16_gemms_that_a_run_tuned_are_in_the_workload():
    """15 layers of attn.qkv, 45 of gdn.in_proj_qkvz and one of MTP are one GEMM: two of these run in decode."""
    item = RunProblem(parse_shape("16x2560x4096", format=Format.BF16), "attn.qkv", ("decode", "verify"), 61)
    workload = workload_of(Model(PRESET, 8, 1), [item], preset=PRESET)
    assert (workload.n_bf16, workload.warnings) == (0, ())
    found = next(one for one in workload.uses if one.problem == item.problem)
    assert dict(found.layers) == {"decode": 60, "verify": 60, "draft_extend": 1, "draft_decode": 1}
    assert found.is_tuned
    assert found.role == "attn.qkv+gdn.in_proj_qkvz"


def test_roles_that_cannot_run_are_said(h200: Store, show: Callable[..., View]):
    view = sound(show(h200, "", model="nvidia/Qwen3-30B-A3B-NVFP4", tp="8"))
    assert view.warnings[0].startswith("moe.w13 cannot run with TP 8 and EP 1: ")


def test_a_model_that_is_only_called_like_a_preset_is_known_by_its_runs():
    odd = RunProblem(parse_shape("16x999x4096"), "attn.qkv", ("decode",), 3)
    workload = workload_of(Model(PRESET, 8, 1), [odd], preset=PRESET)
    assert [use.problem for use in workload.uses] == [odd.problem]
    assert "its preset does not have (16x999x4096)" in workload.warnings[0]


def test_no_page_needs_torch(h200_database: Path):
    """The service has no torch in its image."""
    code = f"""
import sys
sys.modules["torch"] = None
from datetime import UTC, datetime
from fp4tune.api.dashboard.page import Asked, Context
from fp4tune.api.dashboard.views.problem import view as problem
from fp4tune.api.dashboard.views.gains import view as gains
from fp4tune.api.http.cursors import Cursors
from fp4tune.db import Store
with Store.open({str(h200_database)!r}, mode="read") as store:
    context = Context(store, Cursors(), datetime.now(UTC), "http://x")
    print(gains.view(context, Asked("", {{}})).lead)
    print(problem.view(context, Asked("problem", {{"problem": "grouped:e512k10:4x256x4096:uniform:nvfp4:bf16"}})).lead)
    finals = next(one.table for one in problem.view(context, Asked("problem", {{"problem":
        "grouped:e512k10:4x256x4096:uniform:nvfp4:bf16"}})).sections if one.anchor == "evidence")
    print([row[2] for row in finals.rows if row[1].value == "baseline"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1.04x over the defaults in the geometric mean of 10 problems; 3 of 10 are ties.",
        "triton.dequant in 11.79 µs (11.78 to 11.80) on NVIDIA H200, 1.06x as fast as the fastest default.",
        "['torch.bf16']",
    ]
