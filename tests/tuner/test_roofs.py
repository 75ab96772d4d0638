from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from fp4tune.db.records import Roofs
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.operands import touched_bytes
from fp4tune.kernels.problem import Format, parse_shape
from fp4tune.kernels.routing import draw_offsets
from fp4tune.tuner.roofs import floor_us, measure_roofs

H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 60 << 20, 700.0)
RTX_PRO_6000 = replace(H200, name="NVIDIA RTX PRO 6000", compute_capability="12.0")
ROOFS = Roofs(4e12, 8e14, datetime(2026, 1, 1, tzinfo=UTC))


def test_roofs_of_this_cpu():
    roofs = measure_roofs(detect("cpu"))
    assert 1e8 < roofs.copy_bytes_per_s < 1e13
    assert 1e8 < roofs.bf16_flops_per_s < 1e15
    assert abs((datetime.now(UTC) - roofs.measured_at).total_seconds()) < 60


def test_few_rows_are_bound_by_bytes():
    problem = parse_shape("1x7168x4096")
    b = 7168 * 4096 * 9 // 16
    a, d = 4096 * 9 // 16, 7168 * 2
    assert floor_us(problem, ROOFS, 0, H200) == pytest.approx((a + b + d) / 4e12 * 1e6)


def test_many_rows_are_bound_by_the_matrix_rate():
    problem = parse_shape("4096x7168x4096")
    assert floor_us(problem, ROOFS, 0, H200) == pytest.approx(2 * 4096 * 7168 * 4096 / 8e14 * 1e6)


def test_with_fp4_units_the_bf16_rate_binds_only_what_runs_on_bf16_units():
    problem = parse_shape("4096x7168x4096")
    assert floor_us(problem, ROOFS, 0, RTX_PRO_6000) == pytest.approx(touched_bytes(problem, 0) / 4e12 * 1e6)
    for format_ in (Format.NVFP4_W4A16, Format.BF16):
        other = parse_shape("4096x7168x4096", format=format_)
        assert floor_us(other, ROOFS, 0, RTX_PRO_6000) == floor_us(other, ROOFS, 0, H200)


def test_grouped_problems_count_the_rows_and_experts_that_are_drawn():
    problem = parse_shape("e512k10:1x2048x4096")
    ten_experts = 10 * (2048 * 4096 * 9 // 16 + 4096 * 9 // 16 + 2048 * 2)
    assert floor_us(problem, ROOFS, 3, H200) == pytest.approx(ten_experts / 4e12 * 1e6)
    large = parse_shape("e4of16k2:65536x512x512")
    rows = int(draw_offsets(large, 5)[-1])
    assert floor_us(large, replace(ROOFS, copy_bytes_per_s=1e18), 5, H200) == pytest.approx(
        2 * rows * 512 * 512 / 8e14 * 1e6
    )
