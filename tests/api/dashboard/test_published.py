"""What others published beside yours: in tables of their own, as hollow marks, of the very card, with their caveats."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from fp4tune.api.dashboard.model import Mark, Section, View
from fp4tune.api.dashboard.table_values import number_of, records, value_of
from fp4tune.api.dashboard.views.backends.published import MAX_LAYERS, publisher
from fp4tune.db import Store
from fp4tune.db.dashboard.backends import CandidatesOf
from fp4tune.db.records import ReferenceRow, ReferenceSource
from fp4tune.kernels.problem import Problem, parse_shape
from fp4tune.tuner.reference.beside import beside
from reference_rows import dense, moe, source
from store_factory import ON_CARD, new_run, new_winner

PROBLEM = "dense:16x36864x7168:uniform:nvfp4:bf16"
OWNER = "NVIDIA CORPORATION & AFFILIATES"
ATTRIBUTION = f"Copyright (c) 2025-2026 {OWNER}; some-package 0.12.0, Apache-2.0"
H200_SXM = {"system": "h200_sxm", "device": "NVIDIA H200", "attribution": ATTRIBUTION}


def section(view: View, anchor: str) -> Section:
    (found,) = [one for one in view.sections if one.anchor == anchor]
    return found


def publish(store: Store, *rows: ReferenceRow, **fields: str) -> ReferenceSource:
    made = source(**(H200_SXM | fields))
    store.import_reference(made, rows)
    return made


def published(m: int, time_us: float, **fields: Any) -> ReferenceRow:
    return dense(m, n=36864, k=7168, time_us=time_us, suspect="", **fields)


def test_where_nothing_is_imported_the_command_is_said(show, h200: Store):
    for view, anchor in (
        (show(h200, "backends"), "over-published"),
        (show(h200, "backends", problem=PROBLEM), "published"),
    ):
        part = section(view, anchor)
        assert part.table is None
        assert part.figure is None
        assert part.commands[-1].text == "fp4tune import aiconfigurator --system h200_sxm"


def test_a_card_that_nobody_publishes_has_no_command(show, empty: Store):
    run = empty.create_run(new_run())
    empty.add_winner(new_winner(run))
    part = section(show(empty, "backends"), "over-published")
    assert part.commands == ()
    assert "Nothing is imported that others published for Test Card" in part.text[0]


def test_times_of_another_card_are_never_shown(show, h200_copy: Store):
    publish(h200_copy, published(16, 50.0), system="h100_sxm", device="NVIDIA H100 80GB HBM3")
    for view, anchor in (
        (show(h200_copy, "backends"), "over-published"),
        (show(h200_copy, "backends", problem=PROBLEM), "published"),
    ):
        assert section(view, anchor).table is None


def test_times_of_another_variant_of_the_card_are_named_and_not_shown(show, empty: Store):
    at = replace(ON_CARD, device=replace(ON_CARD.device, name="NVIDIA H200 NVL"))
    run = empty.create_run(new_run(environment=at))
    empty.add_winner(new_winner(run, environment=at, policy="cuda.graph"))
    publish(empty, dense(16))
    part = section(show(empty, "backends"), "over-published")
    assert part.table is None
    assert "NVIDIA H200, another variant of this card" in part.text[0]


def test_published_times_stand_in_a_table_of_their_own_with_their_caveats(show, h200_copy: Store):
    publish(
        h200_copy,
        published(16, 70.0, includes_act_quant=True, l2_hot_risk=True),
        published(16, 90.0, precision="bfloat16", kernel_source="gemm_bf16", includes_act_quant=False, l2_hot_risk=False),
        published(16, 95.0, precision="bfloat16", kernel_source="slower", includes_act_quant=False, l2_hot_risk=False),
    )  # fmt: skip
    view = show(h200_copy, "backends", problem=PROBLEM)
    part = section(view, "published")
    assert part.table is not None
    assert part.table.title == f"Published by {OWNER} for NVIDIA H200: 16x36864x7168"
    assert part.table.note == ATTRIBUTION
    rows = records(part.table)
    assert [(value_of(row["kernel"]), number_of(row["published_us"])) for row in rows] == [
        ("kernel", 70.0),
        ("gemm_bf16", 90.0),
    ]
    first, second = rows
    assert (value_of(first["framework"]), value_of(first["precision"])) == ("SGLang 0.5.14", "NVFP4")
    assert (value_of(first["includes_act_quant"]), value_of(first["l2_hot_risk"])) == (True, True)
    assert (value_of(first["same"]), value_of(second["same"])) == (True, False)
    assert number_of(first["published_us_low"]) < 70.0 < number_of(first["published_us_high"])
    assert first["published_us"].marks == (Mark.REFERENCE,)
    assert value_of(first["differs"]) == "published"
    assert "may be L2-hot" in " ".join(part.text)


def test_published_times_are_hollow_marks_of_their_own_series(show, h200_copy: Store):
    before = section(show(h200_copy, "backends", problem=PROBLEM), "measured")
    publish(h200_copy, published(16, 70.0))
    after = section(show(h200_copy, "backends", problem=PROBLEM), "measured")
    assert after.table == before.table  # never among ours
    *ours, theirs = after.figure.traces
    assert ours == list(before.figure.traces)
    assert theirs["name"] == f"published by {OWNER}"
    assert theirs["marker"]["symbol"].endswith("-open")
    assert theirs["marker"]["color"] == "@reference"
    assert (theirs["x"], theirs["y"]) == ([70.0], ["published: NVFP4, SGLang 0.5.14"])
    assert 70.0 not in [x for trace in ours for x in trace["x"]]
    assert "hollow" in after.figure.alt


def test_an_interpolated_time_says_so(show, h200_copy: Store):
    publish(h200_copy, published(8, 60.0), published(24, 80.0), dense(16, n=36864, k=7168, time_us=1.0, suspect="slow"))
    part = section(show(h200_copy, "backends", problem=PROBLEM), "published")
    (row,) = records(part.table)
    assert 60.0 < number_of(row["published_us"]) < 80.0
    assert value_of(row["differs"]) == "interpolated between M 8 and 24; not used, because suspect: M 16 (slow)"


def test_what_is_published_of_other_m_alone_is_said(show, h200_copy: Store):
    publish(h200_copy, published(4096, 700.0))
    part = section(show(h200_copy, "backends", problem=PROBLEM), "published")
    assert part.table is None
    assert part.text == ("Published times of this layer are of M 4096 to 4096, and none near enough to 16.",)


def test_a_grouped_problem_has_no_published_time_and_says_why(show, h200_copy: Store):
    publish(h200_copy, moe(16, n=128, k=4096, experts=512, experts_total=512, top_k=10, precision="nvfp4"))
    grouped = "grouped:e512k10:16x256x4096:uniform:nvfp4:bf16"
    part = section(show(h200_copy, "backends", problem=grouped), "published")
    assert part.table is None
    assert part.text[0] == "Nobody publishes a grouped GEMM alone."
    assert "fused MoE layer are published" in part.text[1]


def test_yours_over_published_for_the_whole_environment(show, h200_copy: Store):
    at = h200_copy.environments()[0].environment.fingerprint
    served = {
        m: h200_copy.ask(CandidatesOf(at, "cuda.graph", f"dense:{m}x36864x7168:uniform:nvfp4:bf16")) for m in (1, 4, 16)
    }
    times = {1: 50.0, 4: 60.0, 16: 60.0}
    publish(h200_copy, *(published(m, time_us, l2_hot_risk=False) for m, time_us in times.items()))
    part = section(show(h200_copy, "backends"), "over-published")
    rows = records(part.table)
    ratios = [served[m].time_us / times[m] for m in (1, 4, 16)]
    assert [number_of(row["over_published"]) for row in rows] == pytest.approx(ratios)
    assert [number_of(row["time_us"]) for row in rows] == [served[m].time_us for m in (1, 4, 16)]
    assert [number_of(row["published_us"]) for row in rows] == [50.0, 60.0, 60.0]
    mean = math.exp(sum(map(math.log, ratios)) / 3)
    said = " ".join(part.text)
    assert f"Over 3 problems that both have, yours takes {mean:.2f}x the published time" in said
    assert f"the least {min(ratios):.2f}x, the most {max(ratios):.2f}x" in said
    assert "in another way" in said
    (trace,) = part.figure.traces
    assert (trace["x"], trace["y"]) == ([1, 4, 16], pytest.approx(ratios))
    assert trace["marker"]["symbol"].endswith("-open")
    assert all(link.startswith("/dashboard/backends?problem=") for link in trace["customdata"])
    assert value_of(rows[0]["differs"]) == "quantises activations"


def test_pairs_are_those_that_doctor_shows(show, h200_copy: Store):
    publish(h200_copy, *(published(m, 60.0) for m in (1, 4, 16)))
    device = h200_copy.environments()[0].environment.device
    theirs = [(pair.problem.shape, pair.time_us, pair.published.time_us) for pair in beside(h200_copy, device).pairs]
    rows = records(section(show(h200_copy, "backends"), "over-published").table)
    mine = [(value_of(row["problem"]), number_of(row["time_us"]), number_of(row["published_us"])) for row in rows]
    assert mine == theirs


def test_another_policy_is_not_set_beside_published_times(show, h200_copy: Store):
    at = h200_copy.environments()[0].environment
    run = h200_copy.create_run(new_run(environment=at))
    problem = parse_shape("16x36864x7168")
    h200_copy.add_winner(new_winner(run, problem=problem, environment=at, policy="cuda.eager"))
    publish(h200_copy, published(16, 60.0))
    place = {"environment": at.fingerprint, "policy": "cuda.eager"}
    part = section(show(h200_copy, "backends", **place), "over-published")
    assert part.table is None
    assert part.text == (
        "Published times are of CUDA graph replays, and yours here are of cuda.eager: do not compare the two.",
    )
    one = show(h200_copy, "backends", problem=problem.key, **place)
    assert "do not compare the two" in " ".join(section(one, "published").text)
    names = [trace["name"] for trace in section(one, "measured").figure.traces]
    assert not [name for name in names if name.startswith("published")]


def test_layers_are_read_for_a_bounded_number(show, empty: Store):
    at = replace(ON_CARD, device=replace(ON_CARD.device, name="NVIDIA H200"))
    run = empty.create_run(new_run(environment=at))
    widths = [256 * i for i in range(1, MAX_LAYERS + 4)]
    for m in (1, 2):
        problems = [Problem(m, n, 4096) for n in widths[: None if m == 1 else -1]]
        empty.add_winners([new_winner(run, problem=one, environment=at, policy="cuda.graph") for one in problems])
    publish(empty, *(dense(m, n=n, time_us=10.0, suspect="") for n in widths for m in (1, 2)))
    part = section(show(empty, "backends"), "over-published")
    assert len(records(part.table)) == 2 * MAX_LAYERS
    assert "3 published layers of fewer problems are left out" in part.text[-1]


@pytest.mark.parametrize(
    ("attribution", "expected"),
    [
        (ATTRIBUTION, OWNER),
        ("Copyright (c) Somebody", "Somebody"),
        ("Somebody Else; under a licence", "Somebody Else"),
        ("Copyright (c) 2026", "measurements"),
        ("; nothing", "measurements"),
        ("x" * 4096, "x" * 80),
    ],
)
def test_the_publisher_is_named_by_its_copyright(attribution: str, expected: str):
    assert publisher(source(attribution=attribution)) == expected
