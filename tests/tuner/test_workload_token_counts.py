"""Token counts against the sizes that SGLang and vLLM capture (tests/data/token_counts.json, read from their code)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fp4tune.tuner.token_counts import (
    NEXTN,
    SUGGESTED,
    Phase,
    phase_tokens,
    phases_at,
    sglang_decode_batches,
    sglang_prefill_tokens,
    vllm_captured_tokens,
)

CAPTURED = json.loads((Path(__file__).parents[1] / "data" / "token_counts.json").read_text())


@pytest.mark.parametrize(
    ("key", "max_batch", "speculative"),
    [
        ("sglang_decode_bs_tp<4_max256", 256, False),
        ("sglang_decode_bs_tp>=4_max512", 512, False),
        ("sglang_decode_bs_spec_max256", 256, True),
        ("sglang_decode_bs_spec_max512", 512, True),
    ],
)
def test_sglang_decode(key, max_batch, speculative):
    assert sglang_decode_batches(max_batch, speculative=speculative) == CAPTURED[key]


def test_sglang_prefill():
    assert sglang_prefill_tokens(8192) == CAPTURED["sglang_prefill_tokens_8192"]
    assert sglang_prefill_tokens(100) == [4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 80, 96]


def test_vllm():
    assert vllm_captured_tokens() == CAPTURED["vllm_cudagraph_tokens_sm120"]
    # sizes that are multiples of the query length add nothing below the cap
    for width in ("mtp3(query_len 4)", "mtp1(query_len 2)"):
        assert vllm_captured_tokens() == CAPTURED[f"vllm_cudagraph_tokens_sm120_{width}"]


def test_every_suggested_verify_count_up_to_a_batch_of_64_is_one_that_sglang_captures():
    captured = CAPTURED["sglang_verify_M_(3,1,4)_max64"]
    mine = [m for m in phase_tokens(Phase.VERIFY, NEXTN) if m <= 256]
    assert set(mine) <= set(captured)


def test_widths_of_nextn():
    assert (NEXTN.steps, NEXTN.topk, NEXTN.draft_tokens) == (3, 1, 4)
    assert NEXTN.draft_tokens == NEXTN.steps + 1


def test_default_counts_are_a_subset_of_the_suggested():
    for phase in Phase:
        tokens = phase_tokens(phase, NEXTN)
        assert tokens
        assert set(tokens) <= set(SUGGESTED)
        assert list(tokens) == sorted(tokens)


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (1, {Phase.DECODE, Phase.DRAFT_DECODE}),
        (4, {Phase.DECODE, Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.DRAFT_DECODE}),
        (512, {Phase.DECODE, Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.DRAFT_DECODE, Phase.PREFILL}),
        (2048, {Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.PREFILL}),
        (8192, {Phase.PREFILL}),
        (1_000_000, {Phase.PREFILL}),
    ],
)
def test_phases_of_a_count(m, expected):
    assert set(phases_at(m, list(Phase), NEXTN)) == expected


def test_count_that_no_wanted_phase_runs():
    assert phases_at(3, [Phase.VERIFY], NEXTN) == ()
    assert phases_at(3, [Phase.PREFILL], NEXTN) == (Phase.PREFILL,)
