"""Can I trust it? What is doubted is said, what is not is not, and nothing that is stored breaks the page."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from dashboard_stores import (
    HOSTILE,
    ODD_NUMBERS,
    ODD_WHOLE_NUMBERS,
    hostile,
    killed,
    odd,
    orphans,
    single_failure,
    usual,
)
from fp4tune.api.dashboard import numerics, policy_words
from fp4tune.api.dashboard.model import Cell, Column, Mark, Table, View
from fp4tune.api.dashboard.page import Asked
from fp4tune.api.dashboard.shown import Budget
from fp4tune.api.dashboard.shown import show as shown
from fp4tune.api.dashboard.table_values import records, value_of
from fp4tune.api.dashboard.views.trust import samples as trust_samples
from fp4tune.api.dashboard.views.trust.spread import spread
from fp4tune.db import Store
from fp4tune.db.dashboard.scopes import ScopesOf
from fp4tune.db.dashboard.trust import EvidenceOf
from fp4tune.db.records import Choice, Conditions, Origin, Policy, RunStatus
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import NotFoundError, StoreError
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, parse_shape
from fp4tune.tuner.plausible import with_doubt
from store_factory import CARD, CPU, ON_CARD, SMALL, measured_on_a_card, new_run, new_winner, timing

POLICY = "cuda.graph"
CALM = Conditions((1980, 1980), (3201, 3201), 45, 500.0)
FAST, SLOW, NEXT = {"block_m": 1}, {"block_m": 2}, {"block_m": 3}
OTHER = Environment(CARD, {"driver": "590.1", "torch": "2.11.0", "triton": "3.6.0"})
DOCS = Path(__file__).resolve().parents[3] / "docs"


def steady(time_us: float, n: int = 40, *, seed: int = 0):
    """Samples without a drift, known to 0.1 %."""
    generator = random.Random(seed)
    samples = [time_us * (1 + generator.uniform(-0.002, 0.002)) for _ in range(n)]
    return replace(timing(time_us, n), samples_us=tuple(samples), time_us=statistics.median(samples))


def as_choice(config: dict[str, int], time_us: float) -> Choice:
    return Choice("triton.native", config, time_us, 0.999 * time_us, 1.001 * time_us)


def tuned(
    store: Store, served=FAST, *, time_us=10.0, samples=None, default_seen=CALM, outcome="1.20x as fast as the default",
    settings=None, winner=None, environment=ON_CARD, done=True, status=RunStatus.FINISHED, **fields,
) -> str:  # fmt: skip
    """A run in whose finals FAST beats SLOW, the default, and is tied with NEXT. Whatever matters can be replaced."""
    run_id = store.create_run(new_run(settings=settings or {"policy": POLICY}, environment=environment))
    served_fields = {"conditions": CALM, "rel_error": 1.5e-3, "environment": environment} | fields
    store.add_trials(
        [
            measured_on_a_card(
                run_id, 0, config=served, origin=Origin.FINAL, timing=samples or steady(time_us), **served_fields
            ),
            measured_on_a_card(
                run_id, 1, config=SLOW, origin=Origin.FINAL, timing=steady(12.0, seed=1), environment=environment,
                conditions=default_seen,
            ),
            measured_on_a_card(
                run_id, 2, config=NEXT, origin=Origin.FINAL, timing=steady(10.05, seed=2), environment=environment,
                conditions=CALM,
            ),
        ]
    )  # fmt: skip
    store.add_winners(
        [
            new_winner(
                run_id, policy=POLICY, trial_number=0, environment=environment,
                **{
                    "choice": as_choice(served, time_us), "default": as_choice(SLOW, 12.0),
                    "tie_set": (as_choice(served, time_us), as_choice(NEXT, 10.05)),
                } | (winner or {}),
            )
        ]
    )  # fmt: skip
    if done:
        store.finish_problem(run_id, 0, outcome)
    if status is not RunStatus.RUNNING:
        store.finish_run(run_id, status, "the disk was full" if status is RunStatus.FAILED else "")
    return run_id


def twice(store: Store, **fields) -> None:
    """Two runs that agree; the second, which is served, as `tuned` makes it."""
    tuned(store)
    tuned(store, **fields)


def doubts_of(show, store: Store) -> tuple[str, ...]:
    return show(store, "trust", problem=SMALL.key).warnings


def table_of(view: View, name: str) -> list[dict[str, object]]:
    (found,) = [one.table for one in view.sections if one.table is not None and one.table.name == name]
    return [{key: value_of(cell) for key, cell in row.items()} for row in records(found)]


# Bad input


def test_an_empty_store_says_what_to_do(show, empty: Store):
    view = show(empty, "trust")
    assert not view.sections
    assert view.next_steps[0].command.startswith("fp4tune tune")


def test_a_problem_that_is_not_served_leads_on(show, h200: Store):
    view = show(h200, "trust", problem="dense:1x48x64:uniform:nvfp4:bf16")
    assert not view.sections
    assert "Nothing is served for dense:1x48x64" in view.next_steps[0].text
    assert view.next_steps[0].link.startswith("/dashboard/problem?")
    assert {one.name for one in view.filters} == {"environment", "policy", "problem"}


@pytest.mark.parametrize("asked", [{"environment": "0" * 16}, {"policy": "cpu.warm"}])
def test_a_place_where_nothing_is_served_is_not_found(show, h200: Store, asked: dict[str, str]):
    with pytest.raises(NotFoundError):
        show(h200, "trust", **asked)


def every_page(show, store: Store) -> list[tuple[Asked, View]]:
    """All that the page can show of a store; each also as the templates would get it."""
    asked = [{}]
    for scope in store.ask(ScopesOf()):
        place = {"environment": scope.environment.fingerprint, "policy": scope.policy}
        listed = show(store, "trust", **place)
        keys = [str(value_of(row["problem"])) for section in listed.sections for row in records(section.table)]
        asked += [place, *({**place, "problem": key} for key in keys if len(scope.policy) < 256)]
    made = [(Asked("trust", one), show(store, "trust", **one)) for one in asked]
    for one, view in made:
        shown(view, one, Budget(900_000))
    return made


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_strings_break_nothing(show, tmp_path: Path, text: str):
    hostile(tmp_path / "x.db", text)
    with Store.open(tmp_path / "x.db") as store:
        assert len(every_page(show, store)) >= 3


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, tmp_path: Path, number: float):
    odd(tmp_path / "x.db", number)
    with Store.open(tmp_path / "x.db") as store:
        assert len(every_page(show, store)) >= 3


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_missing_rows_are_a_clear_sentence_or_left_out(show, tmp_path: Path, table: str):
    orphans(tmp_path / "x.db", table)
    # The sentence says to restore a backup.
    with Store.open(tmp_path / "x.db") as store, contextlib.suppress(StoreError):
        every_page(show, store)


@pytest.mark.parametrize("make", [single_failure, killed, usual])
def test_young_and_dead_stores(show, tmp_path: Path, make):
    make(tmp_path / "x.db")
    with Store.open(tmp_path / "x.db") as store:
        assert every_page(show, store)


# Doubts


def test_without_doubts_the_page_says_so(show, empty: Store):
    twice(empty)
    view = show(empty, "trust", problem=SMALL.key)
    assert view.warnings == ()
    assert view.next_steps == ()
    assert view.lead.startswith("No doubts: triton.native takes 10.00 µs, ±0.1 %")
    assert "2 runs" in view.lead


DOUBTS = {
    "throttled": ({"conditions": replace(CALM, throttle_reasons=("sw_power_cap",), throttled_samples=(3, 7))},
                  "2 of 40 samples were throttled (sw_power_cap)"),
    "too hot": ({"conditions": replace(CALM, throttle_reasons=("hw_thermal_slowdown",))}, "too hot"),
    "clock moved": ({"conditions": replace(CALM, sm_clock_mhz=(1700, 1980))}, "between 1,700 and 1,980 MHz"),
    "default throttled": ({"default_seen": replace(CALM, throttled_samples=tuple(range(20)))}, "0 % of its samples"),
    "nobody looked": ({"conditions": None}, "Nobody looked at clocks"),
    "wide": ({"winner": {"choice": Choice("triton.native", FAST, 10.0, 9.7, 10.3)}}, "known to ±3 % only"),
    "few samples": ({"samples": steady(10.0, 12)}, "sampled 12 times only"),
    "no samples": ({"samples": replace(steady(10.0), samples_us=())}, "None of its samples were kept"),
    "drift": ({"samples": replace(steady(10.0), samples_us=tuple(10.0 + i / 100 for i in range(40)))}, "It drifted"),
    "hangs together": (
        {"samples": replace(steady(10.0), samples_us=tuple(10.0 + 0.2 * math.sin(i / 2) for i in range(40))),
         "winner": {"choice": as_choice(FAST, 10.0)}},
        "resemble their neighbours",
    ),
    "near the limit": ({"rel_error": 4.9e-3}, "near the 5.2e-03"),
    "doubted by the run": ({"outcome": with_doubt("1.2x", "were they read from L2?")}, "were they read from L2?"),
    "shared": ({"settings": {"shared_with": ["in use by python3 (pid 7)"]}}, "in use by python3 (pid 7)"),
    "failed": ({"status": RunStatus.FAILED}, "failed: the disk was full"),
    "cut short": ({"done": False, "status": RunStatus.INTERRUPTED}, "cut short"),
    "another config": ({"served": {"block_m": 9}, "winner": {"tie_set": (as_choice({"block_m": 9}, 10.0),)}},
                       "1 other run in this environment served another config"),
    "no time": ({"winner": {"choice": as_choice({"block_m": 77}, 10.0)}}, "not in this database"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "said"), DOUBTS.values(), ids=DOUBTS.keys())
def test_each_doubt_is_told(show, empty: Store, fields: dict[str, object], said: str):
    twice(empty, **fields)
    found = doubts_of(show, empty)
    assert any(said in one for one in found), found
    view = show(empty, "trust", problem=SMALL.key)
    assert view.lead.startswith(f"{len(found)} doubt")
    assert view.next_steps[0].command.startswith(f"fp4tune tune --shape {SMALL.shape}")


def test_a_run_alone_is_a_doubt(show, empty: Store):
    tuned(empty)
    tuned(empty, environment=OTHER)
    view = show(empty, "trust", problem=SMALL.key, environment=ON_CARD.fingerprint)
    (only,) = view.warnings
    assert only.startswith("Only one run has tuned it in this environment")


def test_on_a_cpu_nobody_has_to_look(show, empty: Store):
    at = Environment(CPU, {"torch": "2.13.0"})
    for _ in range(2):
        tuned(empty, environment=at, conditions=None)
    assert show(empty, "trust", problem=SMALL.key).warnings == ()


def test_the_h200_is_as_its_page_says(show, h200: Store):
    """docs/results/h200.md: one of ten problems is served another config by the second run, four are power-capped."""
    (scope,) = h200.ask(ScopesOf())
    listed = table_of(show(h200, "trust"), "served")
    assert len(listed) == scope.n_winners == 68
    found = {str(row["problem"]): show(h200, "trust", problem=str(row["problem"])).warnings for row in listed}
    different = [key for key, said in found.items() if any("served another config" in one for one in said)]
    assert different == ["grouped:e512k10:64x256x4096:uniform:nvfp4:bf16"]
    assert sum(any("throttled (sw_power_cap)" in one for one in said) for said in found.values()) == 10
    assert sum(not said for said in found.values()) >= 5


# Tables and figures


def test_samples_are_in_order_with_what_was_throttled(show, empty: Store):
    seen = replace(CALM, throttle_reasons=("sw_power_cap",), throttled_samples=(3, 7))
    twice(empty, conditions=seen)
    view = show(empty, "trust", problem=SMALL.key)
    rows = table_of(view, "samples")
    mine = [row for row in rows if row["config"] == "served"]
    assert [row["round"] for row in mine] == list(range(1, 41))
    assert [row["round"] for row in mine if row["throttled"]] == [4, 8]
    assert {row["config"] for row in rows} == {"served", "default", "tied 1"}
    (figure,) = [one.figure for one in view.sections if one.figure and one.figure.name == "samples"]
    points = {trace["name"]: list(zip(trace["x"], trace["y"], strict=True)) for trace in figure.traces}
    assert points["throttled"] == [(row["round"], row["time_us"]) for row in rows if row["throttled"]]
    for label in ("served", "default", "tied 1"):
        assert points[label] == [(row["round"], row["time_us"]) for row in rows if row["config"] == label]


def test_what_takes_many_times_as_long_is_not_drawn_with_what_is_served():
    """A backend that dequantises first takes 40 times as long: beside it, every other line is flat."""
    names = ("config", "round", "time_us", "throttled")
    rows = [
        (label, i, time_us + i / 100, label == "other 1")
        for label, time_us in (("served", 10.0), ("tied 1", 10.1), ("other 1", 400.0))
        for i in range(1, 6)
    ]
    figure = trust_samples.samples_figure(Table("samples", "", tuple(Column(name, "") for name in names), rows))
    assert [trace["name"] for trace in figure.traces] == ["served", "tied 1"]
    assert figure.layout["yaxis"]["type"] == "linear"
    assert "other 1 (39.88x)" in figure.alt
    without = trust_samples.samples_figure(Table("samples", "", tuple(Column(name, "") for name in names), rows[5:]))
    assert "other 1" in [trace["name"] for trace in without.traces], "nothing is served that it could be held against"


def test_many_samples_are_thinned_evenly(show, empty: Store):
    many = replace(steady(10.0, 256), n_samples=512)
    twice(empty, samples=many)
    evidence = empty.ask(EvidenceOf(SMALL.key, ON_CARD.fingerprint, POLICY))
    found = trust_samples.entrants(evidence)
    crowd = [replace(found[0], label=f"tied {i}") for i in range(8)]
    table = trust_samples.samples_table(crowd)
    assert len(table.rows) == trust_samples.MOST
    assert "1,200 of 2,048 samples are shown" in table.note
    rounds = [row[1] for row in table.rows if row[0] == "tied 0"]
    assert rounds[0] == 1
    assert rounds[-1] > 500, "of 512 samples 256 are kept"


def test_the_tie_set_round_by_round(show, empty: Store):
    twice(empty)
    view = show(empty, "trust", problem=SMALL.key)
    served, default, tied = table_of(view, "finals")
    assert (served["config"], served["overlaps"], served["over_served"]) == ("served", None, None)
    assert (default["config"], default["tied"], default["overlaps"]) == ("default", False, False)
    assert default["over_served"] == pytest.approx(0.2, abs=0.01)
    assert (tied["config"], tied["tied"]) == ("tied 1", True)
    assert tied["over_served"] == pytest.approx(0.005, abs=0.002)
    (figure,) = [one.figure for one in view.sections if one.figure and one.figure.name == "finals"]
    assert sorted(x for trace in figure.traces for x in trace["x"]) == sorted(
        [served["time_us"], default["time_us"], tied["time_us"]]
    )


def test_other_environments_are_told_apart_and_not_compared(show, empty: Store):
    tuned(empty, served={"block_m": 9}, environment=OTHER, time_us=7.0)
    twice(empty)
    view = show(empty, "trust", problem=SMALL.key, environment=ON_CARD.fingerprint)
    assert [row["verdict"] for row in table_of(view, "agreement")] == ["same config"]
    (row,) = table_of(view, "elsewhere")
    assert (row["verdict"], row["time_us"]) == ("different", 7.0)
    assert "driver 590.1" in str(row["environment"])
    assert "over_served" not in row
    assert view.warnings == (), "another environment is no contradiction"
    (table,) = [one.table for one in view.sections if one.table and one.table.name == "elsewhere"]
    assert table.rows[0][2] == Cell("different", marks=(Mark.UNSURE,))


def test_the_policy_is_told_in_a_sentence(show, h200: Store):
    view = show(h200, "trust", problem="grouped:e512k10:1x256x4096:uniform:nvfp4:bf16")
    told = {str(row["what"]): str(row["value"]) for row in table_of(view, "facts")}
    assert told["measured by"].startswith("cuda.graph: calls are captured in one CUDA graph")
    assert told["samples"] == "40"


def test_every_policy_has_its_sentence_and_stands_in_the_docs():
    text = (DOCS / "measuring.md").read_text(encoding="utf-8")
    assert set(policy_words.POLICIES) == {policy.value for policy in Policy}
    assert all(f"`{policy}`" in text for policy in policy_words.POLICIES)
    assert "not know" in policy_words.policy_sentence("quantum")


# Numbers


def test_limits_are_those_of_the_oracle():
    torch = pytest.importorskip("torch")
    from fp4tune.kernels import moe_tolerance, oracle

    dtypes = {OutDtype.BF16: torch.bfloat16, OutDtype.FP16: torch.float16, OutDtype.FP32: torch.float32}
    assert {dtype: oracle.BOUNDS[dtypes[dtype]] for dtype in OutDtype} == numerics.BOUNDS
    assert numerics.SMALL == oracle._SMALL_TILE
    assert (numerics.MOE, numerics.MOE_SCATTER, numerics.MOE_MOST) == (
        moe_tolerance.BOUND, moe_tolerance.SCATTER, moe_tolerance.MOST
    )  # fmt: skip
    assert numerics.MOE_16_BIT == moe_tolerance.BOUND_16_BIT


@pytest.mark.parametrize(
    "problem",
    [
        Problem(3, 48, 64), Problem(3, 48, 64, out_dtype=OutDtype.FP16), parse_shape("e4k2:3x48x64"),
        parse_shape("moe:e4k2:3x48x64"), parse_shape("moe:e4k2:3x48x64", format=Format.NVFP4_W4A16),
    ],
    ids=lambda problem: problem.key,
)  # fmt: skip
def test_what_is_allowed_is_what_the_gate_allows(problem: Problem):
    torch = pytest.importorskip("torch")
    from fp4tune.kernels import oracle
    from fp4tune.kernels.device import detect
    from fp4tune.kernels.moe_tolerance import MoeTolerance
    from fp4tune.kernels.operands import make_operands

    operands = make_operands(problem, detect("cpu"), 0)
    if problem.op is Op.MOE:
        expected = MoeTolerance(operands, oracle.reference(operands))._overall()
    else:
        n = torch.tensor(float(operands.out.numel()))
        expected = float(oracle.allowed_error(oracle.BOUNDS[operands.out.dtype], n))
    assert numerics.allowed(problem) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("samples", [[], [math.nan], [math.inf, -1.0, 0.0]])
def test_no_samples_have_no_spread(samples: list[float]):
    assert spread(samples) is None


def test_few_and_equal_samples():
    one, equal = spread([5.0]), spread([5.0] * 20)
    assert one is not None
    assert equal is not None
    assert (one.n, one.least, one.median, one.most, one.variation, one.autocorrelation) == (
        1,
        5.0,
        5.0,
        5.0,
        None,
        None,
    )
    assert (equal.variation, equal.autocorrelation, equal.drift, equal.drifts) == (0.0, None, 0.0, False)


def test_quartiles_and_variation():
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert found is not None
    assert (found.least, found.quarter, found.median, found.three_quarters, found.most) == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert found.variation == pytest.approx(statistics.stdev([1, 2, 3, 4, 5]) / 3)
    assert found.drift is None


def test_a_drift_is_told_from_noise():
    """5 % of the trend test at 1 %: of 200 measurements without a drift at most 8 have one."""
    generator = random.Random(1)
    alarms = 0
    for _ in range(200):
        found = spread([generator.lognormvariate(2, 0.1) for _ in range(40)])
        assert found is not None
        alarms += found.drifts
    assert alarms <= 8
    drifting = spread([10 + i / 20 + generator.gauss(0, 0.2) for i in range(40)])
    assert drifting is not None
    assert drifting.drifts
    assert drifting.drift == pytest.approx(0.095, abs=0.03)
    outlier = spread([*(10 + generator.gauss(0, 0.01) for _ in range(39)), 1000.0])
    assert outlier is not None
    assert not outlier.drifts


def test_neighbours_that_resemble_each_other_make_the_interval_wider():
    generator = random.Random(2)
    value, walk = 0.0, []
    for _ in range(200):
        value = 0.8 * value + generator.gauss(0, 1)
        walk.append(100 + value)
    found = spread(walk)
    assert found is not None
    assert found.autocorrelation == pytest.approx(0.8, abs=0.15)
    assert found.hangs_together
    assert found.honest_half_width == pytest.approx(3 * found.half_width, rel=0.4)
    alone = spread([generator.gauss(100, 1) for _ in range(200)])
    assert alone is not None
    assert alone.honest_half_width >= alone.half_width


def test_the_page_needs_no_torch():
    code = (
        "import sys, fp4tune.api.dashboard.views.trust, fp4tune.api.dashboard.views.progress\n"
        "print({'torch', 'optuna', 'triton'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
