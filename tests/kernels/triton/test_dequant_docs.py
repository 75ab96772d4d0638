"""docs/triton-dequant.md names every parameter of both kernels with its values, and its ratios are those of a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.triton_gemm import dequant_plan
from fp4tune.kernels.triton_gemm.dequant import TritonDequant
from fp4tune.kernels.triton_gemm.pruning import SMALL_STACK_BYTES

PAGES = Path(__file__).resolve().parents[3] / "docs"
PAGE = (PAGES / "triton-dequant.md").read_text(encoding="utf-8")


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


def test_the_dense_ratios_are_those_of_the_page():
    """The range over BF16 and over Humming's fastest, and which problem is furthest behind Humming."""
    page = (PAGES / "results/h200-dense.md").read_text(encoding="utf-8")
    over_bf16: dict[str, float] = {}
    of_humming: dict[str, float] = {}
    for section in page.split("### Backends side by side\n\n")[1:]:
        heads, _, *rows = (line.strip("| ").split(" | ") for line in section.split("\n\n")[0].splitlines())
        for row in rows:
            named = dict(zip(heads, row, strict=True))
            if re.match(r"\d", named["shape"]):
                bf16, humming, ours = (
                    float(re.match(r"[\d.]+", named[head])[0])
                    for head in ("bf16", "humming best", "triton.dequant best")
                )
                over_bf16[named["shape"]], of_humming[named["shape"]] = bf16 / ours, ours / humming
    assert f"most of {len(over_bf16)} dense ones" in PAGE
    assert f"({min(over_bf16.values()):.2f}x to {max(over_bf16.values()):.2f}x)" in PAGE
    assert f"at {min(of_humming.values()):.2f} to {max(of_humming.values()):.2f} of the time" in PAGE
    assert f"Furthest behind is\n{max(of_humming, key=of_humming.__getitem__)}." in PAGE
