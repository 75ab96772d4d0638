"""What can be chosen, what is refused, and that the two sides of a config (compiled in, passed at run time) add up."""

from __future__ import annotations

import pytest
from fp4tune.kernels.backend import Parameter, Space, compile_need
from fp4tune.kernels.cards import CARDS, card_for
from fp4tune.kernels.cutlass_gemm import backend as backend_module
from fp4tune.kernels.cutlass_gemm import space as space_module
from fp4tune.kernels.cutlass_gemm.backend import Cutlass, build_of
from fp4tune.kernels.cutlass_gemm.build_config import SCHEDULERS, SCHEDULES
from fp4tune.kernels.cutlass_gemm.space import (
    VARIANTS,
    build_space,
    check_problem,
    default_config,
    seed_configs,
    tile_sides,
    token_tile,
)
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import Format, OutDtype, parse_shape

NEW, OLD = (4, 5, 0), (4, 2, 0)
CARD = card_for("sm_120a")
SHAPES = ("1x4096x4096", "16x2048x4096", "32x8x32", "33x4096x512", "128x17408x5120", "129x4096x4096", "256x256x256",
          "257x4096x4096", "4096x4096x14336")  # fmt: skip


def space_of(shape: str, cutlass=NEW) -> Space:
    return build_space(parse_shape(shape), cutlass)


@pytest.mark.parametrize("cutlass", [NEW, OLD])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_default_and_the_seeds_are_in_the_space(shape, cutlass):
    space, problem = space_of(shape, cutlass), parse_shape(shape)
    assert default_config() in space
    seeds = seed_configs(problem, space)
    assert all(seed in space and seed != default_config() for seed in seeds)
    assert 1 <= len(seeds) <= 3


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draw_finds_a_legal_config_soon(shape):
    space = space_of(shape)
    assert sum(1 for _ in space) >= space.size / 50


@pytest.mark.parametrize("shape", SHAPES)
def test_every_config_is_one_that_compiles(shape):
    for config in space_of(shape):
        assert f"{config['schedule']} {config['scheduler']}" in VARIANTS[config["tile"]]
        assert config["splits"] == 1 or config["scheduler"] == "stream_k"
        m, n, k = tile_sides(config["tile"])
        assert m in {128, 256}
        assert n in {32, 64, 128, 256}
        assert (m + n) * (k // 2 + k // 16) * 2 <= 99 << 10, "two stages fit in shared memory"


def test_every_variant_is_reached():
    reached = {
        (c["tile"], f"{c['schedule']} {c['scheduler']}") for shape in SHAPES for c in space_of(shape)
    }  # fmt: skip
    assert reached == {(tile, variant) for tile, variants in VARIANTS.items() for variant in variants}


def test_narrow_tiles_need_headers_that_know_them():
    assert {tile for tile in VARIANTS if tile_sides(tile)[1] < 128} == {"128x32x256", "128x64x128"}
    tiles = {config["tile"] for config in space_of("16x4096x4096", OLD)}
    assert tiles == {tile for tile in VARIANTS if tile_sides(tile)[1] >= 128} - {"256x128x128"}


def test_few_tokens_lie_on_the_narrow_side_and_many_are_not_swapped():
    for config in space_of("16x4096x4096"):
        assert token_tile(config) == (32 if config["swap_ab"] else 128)
    assert {c["swap_ab"] for c in space_of("256x4096x4096")} == {False, True}
    assert {c["swap_ab"] for c in space_of("257x4096x4096")} == {False}


def test_k_is_split_into_parts_of_two_tiles_at_least():
    assert {c["splits"] for c in space_of("16x4096x2048")} == {1, 2, 4, 8}
    assert {c["splits"] for c in space_of("16x4096x1024")} == {1, 2, 4}
    assert {c["splits"] for c in space_of("16x4096x384")} == {1}


def test_one_row_of_tiles_is_walked_one_way_and_more_in_several():
    assert {(c["max_swizzle"], c["raster"]) for c in space_of("128x4096x4096")} == {(1, "auto")}
    assert len({(c["max_swizzle"], c["raster"]) for c in space_of("129x4096x4096")}) == 12


def test_rows_are_padded_to_whole_tiles():
    seen = {(c["swap_ab"], token_tile(c), c["pad_m"]) for c in space_of("40x4096x4096")}
    assert {pad for swapped, tile, pad in seen if not swapped} == {0, 128}
    assert {pad for swapped, tile, pad in seen if tile == 32} == {0, 64, 128}
    assert {c["pad_m"] for c in space_of("300x4096x4096")} == {0, 384}
    assert {c["pad_m"] for c in space_of("128x4096x4096")} == {0}


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (parse_shape("16x4096x4112"), "cutlass needs K to be a multiple of 32, and it is 4112."),
        (parse_shape("16x4100x4096"), "cutlass needs N to be a multiple of 8 for D in bf16, and it is 4100."),
        (parse_shape("16x4098x4096", out_dtype=OutDtype.FP32), "multiple of 4 for D in fp32, and it is 4098."),
        (parse_shape("16x4096x4096", format=Format.BF16), "dense NVFP4 products, and dense:.*:bf16:bf16 is not one."),
        (parse_shape("16x4096x4096", format=Format.NVFP4_W4A16), "dense NVFP4 products"),
        (parse_shape("e8k2:16x4096x4096"), "dense NVFP4 products, and grouped:"),
    ],
)
def test_what_it_does_not_compute_is_refused_in_one_sentence(problem, why):
    with pytest.raises(UnsupportedError, match=why):
        check_problem(problem)


@pytest.mark.parametrize(
    "problem", [parse_shape("16x4100x4096", out_dtype=OutDtype.FP32), parse_shape("1x8x32"), parse_shape("3x72x4128")]
)
def test_edges_that_it_computes(problem):
    check_problem(problem)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ("h200", "It is for compute capability 12.0 and 12.1, and NVIDIA H200 has 9.0."),
        ("b200", "12.0 and 12.1, and NVIDIA B200 has 10.0."),
        ("rtx-4090", "has 8.9."),
    ],
)
def test_other_cards_are_refused(card, why):
    availability = Cutlass().probe(CARDS[card])
    assert not availability.available
    assert why in availability.reason
    assert Cutlass().versions(CARDS[card]) == {}
    with pytest.raises(UnsupportedError, match=r"^cutlass cannot be used\. "):
        Cutlass().space(parse_shape("16x4096x4096"), CARDS[card])


def test_a_card_of_either_generation_is_compiled_for(monkeypatch):
    monkeypatch.setattr(backend_module, "why_not", lambda target: f"asked for {target}")
    assert Cutlass().probe(CARDS["rtx-5090"]).reason == "asked for sm_120a"
    assert Cutlass().probe(CARDS["gb10"]).reason == "asked for sm_121a"
    problem = parse_shape("16x4096x4096", out_dtype=OutDtype.FP16)
    build = build_of(problem, CARDS["gb10"], default_config())
    assert (build.target, build.out_dtype) == ("sm_121a", OutDtype.FP16)


def test_probe_does_not_raise_when_the_search_for_a_compiler_does(monkeypatch):
    def broken(_target: str) -> str:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(backend_module, "why_not", broken)
    assert Cutlass().probe(CARD).reason == "Its compiler cannot be looked for (RuntimeError: no such thing)."


def test_a_compilation_says_what_it_takes():
    assert compile_need(Cutlass) == compile_need(Cutlass()) == (7 << 30, 1800.0)


def test_problems_of_any_size_share_a_build():
    config = default_config()
    assert build_of(parse_shape("16x4096x4096"), CARD, config) == build_of(parse_shape("999x8x32"), CARD, config)
    changed = {**config, "splits": 2, "max_swizzle": 8, "raster": "along_n", "pad_m": 128}
    assert build_of(parse_shape("16x4096x4096"), CARD, changed) == build_of(parse_shape("16x4096x4096"), CARD, config)


def test_every_value_of_the_space_is_named_once():
    for shape in SHAPES:
        names = [p.name for p in space_of(shape).parameters]
        assert len(set(names)) == len(names)
        by_name: dict[str, Parameter] = {p.name: p for p in space_of(shape).parameters}
        assert by_name["schedule"].values == SCHEDULES
        assert by_name["scheduler"].values == SCHEDULERS
        assert set(by_name["splits"].values) == set(space_module.SPLITS)
