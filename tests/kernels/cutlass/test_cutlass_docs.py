"""docs/cutlass.md names every parameter and value, and the limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp4tune.kernels.cutlass_gemm import builder, space, toolchain
from fp4tune.kernels.cutlass_gemm.backend import Cutlass
from fp4tune.kernels.cutlass_gemm.facts import FP4_OPCODE
from fp4tune.kernels.cutlass_gemm.space import VARIANTS, build_space
from fp4tune.kernels.problem import parse_shape

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cutlass.md").read_text(encoding="utf-8")
PARAMETERS = PAGE.split("## Parameters")[1].split("\n## ")[0]
COMPILED = PAGE.split("## What was compiled")[1]


@pytest.mark.parametrize("shape", ["16x4096x4096", "200x4096x4096"])
def test_every_parameter_and_value_is_named(shape):
    for parameter in build_space(parse_shape(shape), (4, 5, 0)).parameters:
        row = re.search(rf"^\| `{parameter.name}` \|(.*)\|$", PARAMETERS, re.MULTILINE)
        assert row, parameter.name
        if parameter.name != "pad_m":
            for value in parameter.values:
                assert (f"`{value}`" if isinstance(value, str | bool) else str(value)) in row[1], value


def test_every_tile_with_its_schedules_is_in_the_table_and_no_other_is_said_to_be_searched():
    rows = re.findall(r"^\| `(\d+x\d+x\d+)` \| (\w+) \| (\w+) \|.*\| (yes|no) \|$", COMPILED, re.MULTILINE)
    searched = {(tile, f"{schedule} {scheduler}") for tile, schedule, scheduler, kept in rows if kept == "yes"}
    assert searched == {(tile, variant) for tile, variants in VARIANTS.items() for variant in variants}


def test_the_limits_are_those_of_the_code():
    assert f"{Cutlass.compile_memory_bytes >> 30} GiB of memory" in PAGE
    assert f"more than {space.MAX_STACK_BYTES} bytes of stack" in PAGE
    assert f"One run may take {builder.BUILD_S / 60:g} minutes" in PAGE
    assert f"multiple of {space.K_MULTIPLE}, and a row of D one of\n{space.ROW_BYTES} bytes" in PAGE
    assert f"M up to {space.MOST_SWAPPED_M}" in PARAMETERS
    assert builder.DEFAULT_CACHE in PAGE
    assert FP4_OPCODE in PAGE
    for name in (builder.CACHE_VARIABLE, toolchain.HEADERS_VARIABLE):
        assert f"`{name}`" in PAGE
    assert "nvcc of CUDA 12.8 or newer (12.9 for compute capability 12.1)" in PAGE
    assert toolchain.MIN_CUDA == {"sm_120a": (12, 8), "sm_121a": (12, 9)}
    assert ".".join(map(str, toolchain.MIN_CUTLASS)) in PAGE
    assert f"Tiles of N below 128 need {'.'.join(map(str, toolchain.NARROW_CUTLASS))}" in PAGE
