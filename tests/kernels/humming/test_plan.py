"""What a problem becomes in Humming's terms: padding, dtypes, kinds of GEMM, rows of experts. Needs no Humming."""

from __future__ import annotations

import pytest
import torch
from fp4tune.kernels.humming_gemm.launch import indexed_rows
from fp4tune.kernels.humming_gemm.plan import make_plan, target
from fp4tune.kernels.problem import Format, parse_shape
from humming_cases import DEVICES


@pytest.mark.parametrize(
    ("shape", "written", "padded"),
    [
        ("16x4096x7168", (4096, 7168), (4096, 7168)),
        ("16x4097x7168", (4104, 7168), (4352, 7168)),
        ("1x72x80", (72, 80), (256, 128)),
        ("1x129x1040", (136, 1040), (256, 1152)),
        ("e8k2:16x264x400", (264, 400), (512, 512)),
    ],
)
@pytest.mark.parametrize("format_", [Format.NVFP4, Format.NVFP4_W4A16])
def test_shapes_are_padded_as_vllm_pads_them(shape, written, padded, format_):
    plan = make_plan(parse_shape(shape, format=format_), DEVICES["h200"])
    assert (plan.n, plan.k) == written
    assert (plan.padded_n, plan.padded_k) == padded
    fields = plan.layer_fields
    assert (fields["shape_n"] - fields["pad_shape_n"], fields["shape_k"] - fields["pad_shape_k"]) == written


def test_four_bit_rows_are_read_in_units_of_32():
    assert make_plan(parse_shape("1x72x80"), DEVICES["rtx_pro_6000"]).k == 96
    assert make_plan(parse_shape("1x72x80"), DEVICES["h200"]).k == 80


@pytest.mark.parametrize("device", DEVICES)
def test_four_bit_activations_stay_so_on_sm12x_only(device):
    native = DEVICES[device].compute_capability.startswith("12.")
    assert make_plan(parse_shape("1x72x96"), DEVICES[device]).scheme == ("w4a4" if native else "w4a16")
    assert make_plan(parse_shape("1x72x96", format=Format.NVFP4_W4A16), DEVICES[device]).scheme == "w4a16"


def test_targets():
    assert [target(sm) for sm in (80, 89, 90, 120)] == ["sm_80", "sm_89", "sm_90a", "sm_120a"]


@pytest.mark.parametrize("block_m", [8, 16, 48])
@pytest.mark.parametrize("counts", [[3, 0, 17, 16], [0, 0], [1], [0, 49, 0, 8]])
def test_rows_of_an_expert_fill_whole_blocks(counts, block_m):
    offsets = torch.tensor([0, *counts]).cumsum(0)
    ids, experts = indexed_rows(offsets, block_m)
    want_ids, want_experts = [], []
    for expert, count in enumerate(counts):
        rows = list(range(int(offsets[expert]), int(offsets[expert]) + count))
        rows += [sum(counts)] * (-count % block_m)
        want_ids += rows
        want_experts += [expert] * (len(rows) // block_m)
    assert ids.tolist() == want_ids
    assert experts.tolist() == want_experts
    assert ids.dtype == experts.dtype == torch.int32
