"""docs/triton-dequant.md names every parameter of both kernels with its values, and its ratios are those of its times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.triton_gemm import dequant_plan
from fp4tune.kernels.triton_gemm.dequant import TritonDequant
from fp4tune.kernels.triton_gemm.pruning import SMALL_STACK_BYTES

PAGE = (Path(__file__).resolve().parents[3] / "docs/triton-dequant.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("shape", "heading"), [("32x4096x7168", "Few rows"), ("33x4096x7168", "Many rows")])
def test_every_parameter_is_named_with_its_values(shape: str, heading: str):
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))
    space = TritonDequant().space(parse_shape(shape), CARDS["h200"])
    assert {p.name: ", ".join(f"`{v}`" if isinstance(v, bool) else str(v) for v in p.values) for p in space.parameters} == {
        name: "1, 2, 4, 8" if values == "as above" else values for name, values in rows.items()
    }  # fmt: skip


def test_limits_are_those_of_the_code():
    assert f"Up to {dequant_plan.FRAGMENT_ROWS} it is the *fragment* kernel" in PAGE
    assert f"more than {SMALL_STACK_BYTES} bytes of stack" in PAGE
    assert f"more than {dequant_plan._MAX_PARTIAL_BYTES >> 20} MiB of partial sums" in PAGE.replace("\n", " ")
    assert f"more than {dequant_plan._MAX_SHARED_A >> 10} KiB of shared" in PAGE
    assert f"more than {dequant_plan._MAX_UNROLLED} unrolled steps" in PAGE


def test_ratios_follow_from_the_times():
    rows = re.findall(r"^\| \S+x\S+.*?((?:\| [\d.]+ )+)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for row in rows:
        ours, bf16, humming, to_bf16, to_humming = (float(x) for x in row.strip("| ").split(" | "))
        assert (f"{ours / bf16:.2f}", f"{ours / humming:.2f}") == (f"{to_bf16:.2f}", f"{to_humming:.2f}")
