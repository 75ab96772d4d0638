"""What is marked about a published latency."""

from __future__ import annotations

import pytest
from fp4tune.tuner.reference.traps import Card, Weights, dense_weights, falls, l2_hot, moe_suspect, moe_weights, repeats

MB = 1 << 20
CARD = Card("rtx_pro_6000_server", 1.0e12, 128 * MB)


@pytest.mark.parametrize(
    ("framework", "precision", "copies"),
    [("sglang", "nvfp4", 6), ("sglang", "bfloat16", 6), ("trtllm", "nvfp4", 5), ("vllm", "nvfp4", 1),
     ("vllm", "fp8_block", 1), ("vllm", "fp8", 6), ("vllm", "bfloat16", 6), ("another", "fp8", 1)],
)  # fmt: skip
def test_copies_of_dense_weights_by_framework(framework: str, precision: str, copies: int):
    assert dense_weights(framework, precision, 1024, 1024).copies == copies


def test_bytes_of_dense_weights():
    assert dense_weights("vllm", "bfloat16", 1024, 512).least_bytes == MB
    # Half a byte a value, and one for each sixteen.
    assert dense_weights("vllm", "nvfp4", 1024, 512).least_bytes == MB / 4 + MB / 32


def test_copies_that_fit_l2_are_a_risk_whatever_the_time():
    assert l2_hot(CARD, Weights(32 * MB, 32 * MB, 4), 1e9)
    assert not l2_hot(CARD, Weights(32 * MB, 32 * MB, 5), 1e9)


def test_a_time_that_memory_cannot_deliver_is_a_risk():
    large = Weights(1e9, 1e9, 6)  # 1 GB at 1 TB/s: 1,000 us
    assert l2_hot(CARD, large, 999.0)
    assert not l2_hot(CARD, large, 1001.0)


def weights(m: int, *, balanced: bool, ep: int = 1, experts: int = 512, matrices: int = 3) -> tuple[float, float]:
    """Experts that are certainly and that are likely met."""
    found = moe_weights(
        "bfloat16", m, 256, 4096, experts=experts, top_k=10, ep=ep, matrices=matrices, balanced=balanced
    )
    assert found.copies == 1
    expert = matrices * 256 * 4096 * 2
    return found.least_bytes / expert, found.likely_bytes / expert


def test_experts_that_tokens_meet():
    assert weights(1, balanced=True) == (10, 10)
    assert weights(4, balanced=True) == (40, 40)
    assert weights(400, balanced=True) == (512, 512)
    assert weights(4, balanced=False) == (10, 40)
    assert weights(1, balanced=True, ep=8, experts=64) == (2, 2)
    assert weights(4, balanced=False, ep=8, experts=64) == (2, 5)
    assert weights(1, balanced=True, matrices=2) == (10, 10)


def test_a_fall_marks_all_that_is_slower_before_it():
    assert falls([(1, 10.0), (2, 11.0), (4, 8.0), (8, 30.0)]) == {}
    assert falls([(1, 50.0), (2, 500.0), (4, 50.0)]) == {2: "slower than m 4, which takes 50 us"}
    assert set(falls([(1, 3.0), (2, 20.0), (3, 20.0), (4, 4.0)])) == {2, 3}
    # Slowly down to half is how wide layers are: no step of it is more than 30 %.
    assert falls([(1, 20.0), (16, 15.0), (128, 10.7)]) == {}


def test_the_bound_of_a_fall():
    assert falls([(1, 100.0), (2, 70.5)]) == {}
    assert set(falls([(1, 100.0), (2, 69.5)])) == {1}


def test_repeats_that_disagree_are_said():
    assert repeats([100.0, 71.0, 90.0]) == ""
    assert repeats([100.0, 69.0]) == "published 2 times, 69 to 100 us"


DEEPSEEK = (2048, 7168, 256, 8)


@pytest.mark.parametrize(
    ("system", "framework", "kernel", "layer", "ep", "m", "balanced", "marked"),
    [
        ("h200_sxm", "sglang", "sglang_fused_moe_triton", DEEPSEEK, 8, 1, False, True),
        ("h200_sxm", "sglang", "sglang_fused_moe_triton", DEEPSEEK, 1, 1, False, False),
        ("h200_sxm", "sglang", "sglang_flashinfer_cutlass_moe", DEEPSEEK, 8, 1, False, False),
        ("rtx_pro_6000_server", "vllm", "k", DEEPSEEK, 32, 6144, True, True),
        ("rtx_pro_6000_server", "vllm", "k", DEEPSEEK, 64, 16384, True, True),
        ("rtx_pro_6000_server", "vllm", "k", DEEPSEEK, 32, 4096, True, False),
        ("rtx_pro_6000_server", "vllm", "k", DEEPSEEK, 32, 6144, False, False),
        ("rtx_pro_6000_server", "vllm", "k", DEEPSEEK, 16, 6144, True, False),
        ("rtx_pro_6000_server", "trtllm", "k", DEEPSEEK, 32, 6144, True, False),
        ("rtx_pro_6000_server", "vllm", "k", (1024, 4096, 512, 10), 32, 6144, True, False),
        ("b200_sxm", "vllm", "k", DEEPSEEK, 32, 6144, True, False),
    ],
)
def test_moe_times_that_are_known_to_mislead(
    system: str,
    framework: str,
    kernel: str,
    layer: tuple[int, int, int, int],
    ep: int,
    m: int,
    balanced: bool,
    marked: bool,
):
    assert bool(moe_suspect(system, framework, kernel, layer=layer, ep=ep, m=m, balanced=balanced)) == marked
