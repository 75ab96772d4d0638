"""What can be chosen in `triton.native`, on cards that need not be there."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from conformance import check_identity, check_space, problems
from fp4tune.kernels.backend import Config
from fp4tune.kernels.cards import CARDS, card_for
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import Format, parse_shape
from fp4tune.kernels.triton_gemm import native
from fp4tune.kernels.triton_gemm.native import TritonNative
from fp4tune.kernels.triton_gemm.native_space import MAX_SPLIT_WAVES, shared_bytes
from fp4tune.kernels.triton_gemm.pruning import native_spills, shared_limit_bytes

pytest.importorskip("triton")

BACKEND = TritonNative()
REAL = (
    "1x4096x7168",
    "16x7168x2048",
    "64x2048x4096",
    "4096x4096x4096",
    "e512k10:16x256x4096",
    "e64of512k10:256x2048x4096",
)
FP4_CARDS = ("rtx-pro-6000", "rtx-5090", "gb10", "b200", "b300")


def draw(shape: str, card: str, n: int) -> list[Config]:
    """Configs of a space at random, and how many draws they took."""
    space, rng = BACKEND.space(parse_shape(shape), CARDS[card]), random.Random(0)
    drawn = ({p.name: rng.choice(p.values) for p in space.parameters} for _ in range(n))
    return [config for config in drawn if config in space]


@pytest.mark.parametrize("card", FP4_CARDS)
def test_keeps_the_contract_on_cards_that_are_not_here(card):
    device = CARDS[card]
    check_identity(BACKEND.name, BACKEND, device)
    for problem in problems():
        check_space(BACKEND, problem, device)


@pytest.mark.parametrize("card", FP4_CARDS)
@pytest.mark.parametrize("shape", REAL)
def test_a_fair_part_of_what_a_sampler_draws_is_legal(card, shape):
    assert len(draw(shape, card, 1000)) > 100


@pytest.mark.parametrize("shape", REAL)
def test_nothing_in_the_space_is_bound_to_fail(shape):
    for card in FP4_CARDS:
        device = CARDS[card]
        capability = device.capability
        for config in draw(shape, card, 500):
            assert shared_bytes(config) <= shared_limit_bytes(capability)
            left = config["block_n"] if config["swap_ab"] else config["block_m"]
            if capability[0] == 10:
                assert left >= 128
            else:
                assert left >= 16
                assert not native_spills(*(config[n] for n in ("block_m", "block_n", "block_k", "num_warps")))
            assert (config["parts"] == 1) == (config["schedule"] == "data_parallel") or config["schedule"] == "stream_k"


def test_k_is_split_where_tiles_alone_leave_the_card_idle_and_not_elsewhere():
    card = CARDS["rtx-pro-6000"]
    few, many = (BACKEND.default(parse_shape(shape), card) for shape in ("16x4096x7168", "4096x4096x4096"))
    assert few["schedule"] == "split_k"
    tiles = 4096 // int(few["block_n"])
    assert card.sms / 2 < tiles * int(few["parts"]) <= MAX_SPLIT_WAVES * card.sms
    assert many["schedule"] == "data_parallel"


def test_a_tile_is_not_taller_than_the_rows_need():
    def heights(shape: str) -> tuple:
        space = BACKEND.space(parse_shape(shape), CARDS["rtx-pro-6000"])
        return next(p.values for p in space.parameters if p.name == "block_m")

    assert heights("1x4096x4096") == (8, 16)
    assert heights("64x4096x4096") == (8, 16, 32, 64, 128)
    assert heights("e512k10:256x2048x4096") == (8, 16, 32, 64)  # five rows an expert, four times as many for the busy


@pytest.mark.parametrize("format_", [Format.BF16, Format.NVFP4_W4A16])
def test_other_formats_are_refused(format_):
    with pytest.raises(UnsupportedError, match=format_.value):
        BACKEND.space(parse_shape("16x256x256", format=format_), CARDS["rtx-pro-6000"])


def test_k_beyond_the_offsets_is_refused():
    with pytest.raises(UnsupportedError, match="K up to"):
        BACKEND.space(parse_shape("16x256x2097152"), CARDS["rtx-pro-6000"])


def test_a_triton_that_cannot_compile_for_the_card_is_told(monkeypatch):
    monkeypatch.setattr(native, "triton_version", lambda: (3, 6))
    assert BACKEND.probe(CARDS["rtx-pro-6000"]).available
    assert (
        "3.6 does not compile FP4 products for compute capability 12.1; 3.9 does" in BACKEND.probe(CARDS["gb10"]).reason
    )


@pytest.mark.parametrize("arch", ["h200", "a100", "rtx-4090"])
def test_cards_without_fp4_are_told_why_not(arch):
    state = BACKEND.probe(card_for(arch))
    assert not state.available
    assert "no FP4 matrix units" in state.reason
    with pytest.raises(UnsupportedError, match="no FP4 matrix units"):
        BACKEND.default(parse_shape("16x256x256"), card_for(arch))


def test_every_parameter_and_value_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "triton-native.md").read_text(encoding="utf-8")
    listed = {
        name: {value.strip().strip("`") for value in values.split(",")}
        for name, values in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    }
    offered: dict[str, set[str]] = {}
    for shape in REAL:
        for parameter in BACKEND.space(parse_shape(shape), CARDS["rtx-pro-6000"]).parameters:
            offered.setdefault(parameter.name, set()).update(map(str, parameter.values))
    assert listed == offered
