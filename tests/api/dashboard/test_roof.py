"""The roofline: measured roofs alone, the project's own bytes and operations, and what is said where they are missing."""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dashboard_stores
import pytest
from fp4tune.api.dashboard.model import MAX_ROWS, View
from fp4tune.api.dashboard.table_values import number_of, records, value_of
from fp4tune.api.dashboard.views.roof import view as roof
from fp4tune.api.dashboard.views.roof.roofline import Limit, can_be, place, ridge
from fp4tune.api.results.figures import shape_text
from fp4tune.db import Store
from fp4tune.db.dashboard.roof import Served, ServedIn
from fp4tune.db.records import Origin, Roofs
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.errors import NotFoundError, StoreError
from fp4tune.kernels.problem import Format, Op, Problem
from fp4tune.tuner.latency_model import load_of
from fp4tune.tuner.roofs import floor_us
from store_factory import ON_CARD, START, measured_on_a_card, new_run, new_winner, timing

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 141 << 30, 60 << 20, 700.0)
ON_H200 = Environment(H200, {"driver": "580.159"})
BLACKWELL = replace(H200, name="NVIDIA RTX PRO 6000", compute_capability="12.0")
ROOFS = Roofs(4e12, 6e14, START)
POLICY = "cuda.eager"


def served(problem: Problem, time_us: float, share: float | None = None, **more) -> Served:
    made = Served(problem, "triton.dequant", time_us, time_us, time_us, share, "01RUN", START, "role", 1)
    return replace(made, **more)


def tuned(store: Store, at: Environment, problems: list[Problem], *, share: float | None = 0.5) -> str:
    """A run with a winner of 10 us for each problem, measured by a trial with a share of the roof."""
    run = store.create_run(new_run(environment=at))
    store.add_trials(
        [
            measured_on_a_card(
                run, 7, problem=one, environment=at, origin=Origin.FINAL, roof_share=share, timing=timing(10.0),
                policy=POLICY,
            )
            for one in problems
        ]
    )  # fmt: skip
    store.add_winners([new_winner(run, problem=one, environment=at) for one in problems])
    return run


def table_of(view: View, name: str) -> list[dict]:
    (found,) = [section.table for section in view.sections if section.table and section.table.name == name]
    return records(found)


# Nothing to show, and what to do


def test_an_empty_database_says_what_to_do(show, empty: Store):
    view = show(empty, "roof")
    assert view.sections == ()
    assert "fp4tune tune" in view.next_steps[0].command


def test_roofs_that_were_not_measured_are_not_drawn(show, empty: Store):
    tuned(empty, ON_CARD, [Problem(16, 2048, 4096)])
    view = show(empty, "roof")
    assert view.sections == ()
    (step,) = view.next_steps
    assert "were not measured" in step.text
    assert step.command == "fp4tune tune --shape 16x2048x4096 --policy eager"
    assert [one.name for one in view.filters] == ["environment", "policy", "run"]


def test_a_cpu_has_no_roofs(show, empty: Store):
    cpu = Environment(Device("cpu", "Some CPU", "", 8, 1 << 30, 0, 0.0), {"torch": "2"})
    tuned(empty, cpu, [Problem(16, 2048, 4096)])
    (step,) = show(empty, "roof").next_steps
    assert "on GPUs only" in step.text
    assert not step.command


@pytest.mark.parametrize("rate", [0.0, -1.0, 5e-324, float("inf"), float("nan"), 1e308])
def test_roofs_that_cannot_be_are_as_good_as_none(rate: float):
    assert not can_be(Roofs(rate, 6e14, START))
    assert not can_be(Roofs(4e12, rate, START))
    assert can_be(ROOFS)


def test_what_is_not_served_is_an_error_of_one_sentence(show, h200: Store):
    for given in ({"environment": "0" * 16}, {"policy": "cuda.eager"}, {"run": "01ZZZZ"}):
        with pytest.raises(NotFoundError):
            show(h200, "roof", **given)


def test_a_run_of_which_nothing_is_served(show, h200_copy: Store):
    at = h200_copy.environments()[0].environment
    run = h200_copy.create_run(new_run(environment=at))
    view = show(h200_copy, "roof", run=run)
    assert "Nothing of the problems" in view.next_steps[0].text
    assert view.next_steps[0].link.startswith("/dashboard/roof?environment=")
    assert [section.figure for section in view.sections] == [None, None, None]
    assert run in {option.value for option in view.filters[2].options}


def test_a_problem_with_experts_and_no_share_is_left_out_and_said(show, empty: Store):
    grouped = Problem(16, 256, 4096, Op.GROUPED, 64, 512, 10)
    tuned(empty, ON_H200, [grouped, Problem(16, 2048, 4096)], share=None)
    empty.set_roofs(ON_H200, ROOFS)
    view = show(empty, "roof")
    (row,) = table_of(view, "roofline")
    assert value_of(row["problem"]) == "16x2048x4096"
    expected = floor_us(Problem(16, 2048, 4096), ROOFS, 0, H200) / 10.0
    assert number_of(row["roof_share"]) == pytest.approx(expected)
    assert any("1 problem is left out" in warning for warning in view.warnings)


@pytest.mark.parametrize("time_us", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_cannot_be_have_no_place(time_us: float):
    assert place(served(Problem(16, 2048, 4096), time_us, 0.5), ROOFS, H200) is None


@pytest.mark.parametrize("share", [float("nan"), float("inf"), 0.0, -0.5])
def test_shares_that_cannot_be_are_worked_out_anew_or_have_no_place(share: float):
    dense, grouped = Problem(16, 2048, 4096), Problem(16, 256, 4096, Op.GROUPED, 64, 64, 8)
    found = place(served(dense, 10.0, share), ROOFS, H200)
    assert found is not None
    assert found.least_us == pytest.approx(floor_us(dense, ROOFS, 0, H200))
    assert place(served(grouped, 10.0, share), ROOFS, H200) is None


@pytest.mark.parametrize("name", dashboard_stores.HOSTILE)
def test_strings_may_hold_anything(show, tmp_path: Path, name: str):
    dashboard_stores.hostile(tmp_path / "hostile.db", dashboard_stores.HOSTILE[name])
    with Store.open(tmp_path / "hostile.db", mode="read") as store:
        assert isinstance(show(store, "roof"), View)


@pytest.mark.parametrize(
    "number", [*dashboard_stores.ODD_NUMBERS.values(), *dashboard_stores.ODD_WHOLE_NUMBERS.values()]
)
def test_numbers_may_be_anything(show, tmp_path: Path, number: float):
    dashboard_stores.odd(tmp_path / "odd.db", number)
    with Store.open(tmp_path / "odd.db", mode="read") as store:
        assert isinstance(show(store, "roof"), View)


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_rows_may_be_missing(show, tmp_path: Path, table: str):
    dashboard_stores.orphans(tmp_path / "orphans.db", table)
    # Where it cannot be read, a page of one sentence.
    with Store.open(tmp_path / "orphans.db", mode="read") as store, contextlib.suppress(NotFoundError, StoreError):
        assert isinstance(show(store, "roof"), View)


# Arithmetic


def test_bytes_operations_and_limit_of_a_dense_problem_are_the_projects_own():
    for problem in (Problem(16, 2048, 4096), Problem(8192, 8192, 8192), Problem(64, 4096, 4096, format=Format.BF16)):
        n_bytes, n_flops = load_of(problem, 0)
        least = floor_us(problem, ROOFS, 0, H200)
        found = place(served(problem, least * 2, 0.5), ROOFS, H200)
        assert found is not None
        assert (found.n_bytes, found.n_flops, found.share) == (n_bytes, n_flops, 0.5)
        assert found.intensity == pytest.approx(n_flops / n_bytes)
        assert found.limit is (Limit.MATRIX if found.intensity > ridge(ROOFS) else Limit.MEMORY)
        # The mark stands at its share of the roof above it.
        above = min(ROOFS.bf16_flops_per_s, found.intensity * ROOFS.copy_bytes_per_s)
        assert found.flops_per_s / above == pytest.approx(0.5)


def test_a_card_with_fp4_units_is_bound_by_memory_for_two_nvfp4_operands():
    large = Problem(8192, 8192, 8192)
    limits = {}
    for device in (H200, BLACKWELL):
        for problem in (large, replace(large, format=Format.NVFP4_W4A16)):
            found = place(served(problem, 1000.0, None), ROOFS, device)
            assert found is not None
            assert found.least_us == pytest.approx(floor_us(problem, ROOFS, 0, device))
            limits[device.name, problem.format] = found.limit
    assert limits == {
        (H200.name, Format.NVFP4): Limit.MATRIX,
        (H200.name, Format.NVFP4_W4A16): Limit.MATRIX,
        (BLACKWELL.name, Format.NVFP4): Limit.MEMORY,
        (BLACKWELL.name, Format.NVFP4_W4A16): Limit.MATRIX,
    }


def test_bytes_of_problems_with_experts_follow_from_their_share():
    """Without drawing tokens, which needs torch: as `load_of` says, which does draw them."""
    pytest.importorskip("torch")
    for m in (1, 16, 256, 8192):
        for problem in (
            Problem(m, 256, 4096, Op.GROUPED, 512, 512, 10),
            Problem(m, 256, 4096, Op.GROUPED, 64, 512, 10),
            Problem(m, 128, 2048, Op.MOE, 64, 64, 8),
        ):
            n_bytes, n_flops = load_of(problem, 0)
            if not n_bytes:
                continue
            least = floor_us(problem, ROOFS, 0, H200)
            found = place(served(problem, least / 0.5, 0.5), ROOFS, H200)
            assert found is not None
            assert found.least_us == pytest.approx(least)
            bound = (
                Limit.MATRIX if n_flops / ROOFS.bf16_flops_per_s > n_bytes / ROOFS.copy_bytes_per_s else Limit.MEMORY
            )
            assert found.limit is bound, problem.shape
            assert found.n_bytes == pytest.approx(n_bytes, rel=0.02), problem.shape
            if problem.experts == problem.experts_total:
                assert found.n_flops == n_flops


# The page


def test_the_h200_is_placed_below_its_own_roofs(show, h200: Store):
    view = show(h200, "roof")
    at = h200.environments()[0].environment
    roofs = h200.roofs(at)
    assert roofs is not None
    section = view.sections[0]
    assert section.table is not None
    assert section.figure is not None
    rows = records(section.table)
    assert len(rows) == 68
    bandwidth, rate, *marks = section.figure.traces
    assert f"{roofs.copy_bytes_per_s / 1e12:.3g} TB/s" in bandwidth["name"]
    assert f"{roofs.bf16_flops_per_s / 1e12:.3g} TFLOP/s" in rate["name"]
    assert bandwidth["x"][1] == rate["x"][0] == pytest.approx(ridge(roofs))
    assert bandwidth["y"][1] == pytest.approx(rate["y"][0]) == pytest.approx(roofs.bf16_flops_per_s / 1e12)
    assert {trace["name"] for trace in marks} == {
        "dense, humming",
        "dense, triton",
        "grouped, humming",
        "grouped, triton",
    }
    assert not any("published" in trace["name"] for trace in marks)


def test_the_figure_has_the_tables_rows(show, h200: Store):
    for section in show(h200, "roof").sections:
        if section.figure is None:
            continue
        marks = [trace for trace in section.figure.traces if trace["mode"] == "markers"]
        drawn = sorted((x, y) for trace in marks for x, y in zip(trace["x"], trace["y"], strict=True))
        x, y = ("flop_per_byte", "tflop_per_s") if section.anchor == "roofline" else ("m", "median")
        assert section.table is not None
        assert drawn == sorted((number_of(row[x]), number_of(row[y])) for row in records(section.table))
        assert section.figure.layout["xaxis"]["title"]["text"]
        assert section.figure.layout["yaxis"]["title"]["text"]


def test_marks_lead_to_their_problems(show, h200: Store):
    section = show(h200, "roof").sections[0]
    links = [link for trace in section.figure.traces for link in trace.get("customdata", ())]
    assert len(links) == 68
    assert all(link.startswith("/dashboard/problem?problem=") and "&environment=" in link for link in links)


@pytest.mark.parametrize("run", ["01M8NQNGH5VTC2FFWJT6222WQW", "01M8NRJG32RFBT2JM29RWBYG08"])
def test_shares_are_those_of_the_results_pages(show, h200: Store, run: str):
    """In docs/results/h200.md and h200-dense.md, column `roof`; layers and roles, too."""
    page = "".join((RESULTS / name).read_text(encoding="utf-8") for name in ("h200.md", "h200-dense.md"))
    own = page.split(f"| run | `{run}`")[1].split("### Backends side by side")[0]
    said: dict[str, int] = {}
    for line in own.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        shapes = [cell for cell in cells if re.fullmatch(r"(e\d+k\d+:)?\d+x\d+x\d+", cell)]
        shares = [cell for cell in cells if re.fullmatch(r"\d+ %", cell)]
        if shapes and shares:
            said[shapes[0]] = int(shares[0].split()[0])
    assert len(said) >= 10
    view = show(h200, "roof", run=run)
    found = {
        str(value_of(row["problem"])): round(100 * number_of(row["roof_share"])) for row in table_of(view, "roofline")
    }
    assert found == said


def test_what_is_left_is_sorted_and_counts_layers(show, h200: Store):
    view = show(h200, "roof", run="01M8NQFZ0DN3FYNYHMSAG96B2A")
    rows = table_of(view, "to_gain")
    gains = [number_of(row["gain_layers_us"]) for row in rows]
    assert gains == sorted(gains, reverse=True)
    first = rows[0]
    assert (value_of(first["role"]), value_of(first["layers"])) == ("moe.w13", 60)
    time_us, least_us = number_of(first["time_us"]), number_of(first["least_us"])
    assert gains[0] == pytest.approx(60 * (time_us - least_us))
    assert least_us / time_us == pytest.approx(number_of(first["roof_share"]))
    assert f"{gains[0]:,.1f} µs over 60 layers" in view.lead
    assert str(value_of(first["problem"])) in view.lead


def test_the_workloads_are_offered_and_the_chosen_run_is_among_them(show, h200: Store):
    plain = show(h200, "roof")
    (offered,) = [one for one in plain.filters if one.name == "run"]
    assert [option.label for option in offered.options] == [
        "all, newest first",
        "qwen3.5-397b-a17b-nvfp4 · TP 8 · EP 1 · 10 problems",
        "qwen3.5-397b-a17b-nvfp4 · TP 1 · EP 1 · 10 problems",
    ]
    by_hand = "01M8NRJG32RFBT2JM29RWBYG08"
    (chosen,) = [one for one in show(h200, "roof", run=by_hand[:10].lower()).filters if one.name == "run"]
    assert chosen.value == by_hand
    assert by_hand in {option.value for option in chosen.options}


def test_no_more_problems_than_the_page_holds_and_how_many_there_are(show, empty: Store):
    n = roof.MAX_MARKS + 30
    tuned(empty, ON_H200, [Problem(m, 2048, 4096) for m in range(1, n + 1)])
    empty.set_roofs(ON_H200, ROOFS)
    view = show(empty, "roof")
    rows = table_of(view, "roofline")
    assert len(rows) == roof.MAX_MARKS <= MAX_ROWS
    assert value_of(rows[0]["problem"]) == f"{n}x2048x4096"
    assert view.warnings[0].startswith(f"Of {n:,} problems the newest {roof.MAX_MARKS:,} are shown")


def test_what_is_above_the_roof_is_said(show, empty: Store):
    tuned(empty, ON_H200, [Problem(16, 2048, 4096)], share=1.2)
    empty.set_roofs(ON_H200, ROOFS)
    view = show(empty, "roof")
    assert any("1 problem is above the roof" in warning for warning in view.warnings)
    assert number_of(table_of(view, "to_gain")[0]["gain_us"]) == 0


def test_roofs_that_are_newer_than_the_measurements_are_said(show, empty: Store):
    tuned(empty, ON_H200, [Problem(16, 2048, 4096)])
    empty.set_roofs(ON_H200, replace(ROOFS, measured_at=START))
    assert show(empty, "roof").warnings == ()
    later = empty.winners().items[0].created_at.replace(year=2099)
    empty.set_roofs(ON_H200, replace(ROOFS, measured_at=later))
    assert "after 1 of these problems" in show(empty, "roof").warnings[0]


def test_roofs_that_are_newer_and_give_the_same_shares_are_nothing_to_warn_of(show, h200: Store):
    view = show(h200, "roof")
    (roofs,) = {h200.roofs(one.environment) for one in h200.winners(limit=1).items}
    assert roofs is not None
    assert any(one.created_at < roofs.measured_at for one in h200.winners(limit=1000).items)
    assert view.warnings == ()


def test_a_card_with_fp4_units_says_that_their_rate_is_no_line(show, empty: Store):
    at = replace(ON_H200, device=BLACKWELL)
    tuned(empty, at, [Problem(16, 2048, 4096)])
    empty.set_roofs(at, ROOFS)
    assert any("FP4 matrix units" in text for text in show(empty, "roof").sections[0].text)


def test_shapes_say_what_is_not_usual():
    assert shape_text(Problem(16, 2048, 4096)) == "16x2048x4096"
    assert shape_text(Problem(16, 2048, 4096, format=Format.BF16)) == "16x2048x4096 bf16"


def test_the_page_needs_no_torch(h200_database: Path):
    """A service draws no tokens."""
    code = (
        "import sys, json, datetime\n"
        "from fp4tune.api.dashboard.page import Asked, Context\n"
        "from fp4tune.api.dashboard.views import backends, roof\n"
        "from fp4tune.api.http.cursors import Cursors\n"
        "from fp4tune.db import Store\n"
        f"with Store.open({str(h200_database)!r}, mode='read') as store:\n"
        "    context = Context(store, Cursors('x'), datetime.datetime.now(datetime.UTC), 'http://127.0.0.1')\n"
        "    views = [page.PAGE.view(context, Asked(page.PAGE.slug, {})) for page in (roof, backends)]\n"
        "json.dump([len(view.sections) for view in views] + ['torch' in sys.modules], sys.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [3, 4, False]


def test_layers_weigh_what_is_left():
    one = place(served(Problem(16, 2048, 4096), 10.0, 0.25, layers=40), ROOFS, H200)
    assert one is not None
    assert one.gain_us == pytest.approx(40 * 7.5)
    assert math.isfinite(one.intensity)


def test_the_question_takes_no_more_than_it_is_asked_for(h200: Store):
    at = h200.environments()[0].environment.fingerprint
    assert len(h200.ask(ServedIn(at, "cuda.graph", limit=5))) == 6
