"""What can be chosen in `triton.dequant`, and that its kernels pass over every byte of K once. Needs no Triton."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conformance import check_identity, check_space, problems
from fp4tune.kernels import backend as contract
from fp4tune.kernels.backend import Config, config_key
from fp4tune.kernels.cards import CARDS, card_for
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, Routing, parse_shape
from fp4tune.kernels.routing import max_rows
from fp4tune.kernels.triton_gemm import dequant, dequant_plan
from fp4tune.kernels.triton_gemm.dequant import TritonDequant
from fp4tune.kernels.triton_gemm.dequant_plan import plan_of, row_tiles, uses_fragments
from fp4tune.kernels.triton_gemm.pruning import shared_limit_bytes
from fp4tune.tuner import presets
from fp4tune.tuner.checkpoint import open_checkpoint
from fp4tune.tuner.gemms import derive_gemms
from fp4tune.tuner.inspector import inspect_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

BACKEND = TritonDequant()
H200 = CARDS["h200"]
CARD_NAMES = ("a100", "rtx-4090", "h200", "b200", "rtx-pro-6000", "gb10")
TOKENS = (1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 100, 256, 1024)
GRID_Y = 65535  # of CUDA
MIB_OF_SUMS = 256
FOLDER = Path(dequant_plan.__file__).parent


def of_presets(tp: int) -> set[tuple[int, int, int, int, int]]:
    """(N, K, experts, experts_total, top_k) of every GEMM of every preset that NVFP4 could hold."""
    found = set()
    for name in presets.names():
        for gemm in derive_gemms(inspect_checkpoint(open_checkpoint(name)), tp=tp).gemms:
            if not gemm.error and gemm.k and gemm.k % 16 == 0:
                found.add((gemm.n, gemm.k, gemm.experts, gemm.experts_total, gemm.top_k))
    return found


@cache
def layers() -> tuple[tuple[int, int, int, int, int], ...]:
    """Those of the presets, and small and ragged ones."""
    dense = {(n, k, 0, 0, 0) for n in (1, 16, 40, 1000) for k in (16, 32, 48, 64, 80, 208, 1040, 1 << 20)}
    grouped = {(n, k, e, t, top) for n, k, *_ in dense for e, t, top in ((8, 8, 2), (4, 16, 2), (300, 300, 1))}
    return tuple(sorted(of_presets(1) | of_presets(8) | dense | grouped))


def problem_of(layer: tuple[int, int, int, int, int], m: int, format_: Format = Format.NVFP4) -> Problem:
    n, k, experts, total, top_k = layer
    if not experts:
        return Problem(m, n, k, format=format_)
    return Problem(m, n, k, Op.GROUPED, experts, total, top_k, format=format_)


@pytest.mark.parametrize("m", TOKENS)
def test_every_layer_has_a_default_and_seeds_that_are_legal(m: int):
    """On one card a token count, of three; both formats. Weights of 2 GiB are refused."""
    card = CARDS[CARD_NAMES[m % 3 * 2]]
    refused = 0
    for i, layer in enumerate(layers()):
        problem = problem_of(layer, m, Format.NVFP4_W4A16 if i % 3 == 0 else Format.NVFP4)
        if problem.n * problem.k >= 1 << 32:
            refused += 1
            with pytest.raises(UnsupportedError):
                BACKEND.default(problem, card)
            continue
        space, default, seeds = (f(problem, card) for f in (BACKEND.space, BACKEND.default, BACKEND.seeds))
        assert default in space, problem.key
        assert all(seed in space for seed in seeds), problem.key
        assert len({config_key(c) for c in (default, *seeds)}) == 1 + len(seeds) > 2, problem.key
    assert refused < len(layers()) / 10


def test_the_layers_are_those_of_the_presets():
    assert {(256, 4096, 512, 512, 10), (4096, 128, 512, 512, 10)} <= of_presets(8)  # 397B's experts
    assert any(n >= 100_000 for n, *_ in of_presets(1))  # a head
    assert len(layers()) > 150


@pytest.mark.parametrize("name", CARD_NAMES)
def test_keeps_the_contract_on_cards_that_are_not_here(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dequant, "triton_versions", lambda: {"triton": "3.9.0"})
    monkeypatch.setattr(dequant, "why_no_triton", lambda: "")
    card = CARDS[name]
    check_identity(BACKEND.name, BACKEND, card)
    assert isinstance(BACKEND, contract.Compiling)
    assert BACKEND.probe(card).available
    for problem in problems()[:: len(CARD_NAMES) if name != "h200" else 1]:
        check_space(BACKEND, problem, card)


# --- every byte once ----------------------------------------------------------------------------------------------


@cache
def constants(kernel: str) -> tuple[ast.AnnAssign, ...]:
    """The kernel's own constants up to `steps`, `name: constexpr = ...`, out of its source."""
    tree = ast.parse((FOLDER / f"dequant_{kernel}.py").read_text(encoding="utf-8"))
    body = next(f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == f"{kernel}_gemm")
    found = [node for node in body.body if isinstance(node, ast.AnnAssign)]
    return tuple(found[: [node.target.id for node in found].index("steps") + 1])


def figures(problem: Problem, config: Config) -> dict[str, Any]:
    """Those constants for a problem and a config."""
    plan = plan_of(config)
    names = {**plan.constexprs, "N": problem.n, "K": problem.k}
    for node in constants(plan.kernel):
        names[node.target.id] = eval(compile(ast.Expression(node.value), plan.kernel, "eval"), {}, names)
    return names


def slices(problem: Problem, config: Config) -> Iterator[tuple[int, int]]:
    """(first byte, bytes) of a row that every (split, step, warp) of the kernel multiplies."""
    f = figures(problem, config)
    for split in range(f["split_k"]):
        for step in range(f["steps"]):
            if "k_warps" in f:
                first = (split * f["steps"] + step) * f["slice_bytes"]
                yield from ((first + warp * f["k_bytes"], f["k_bytes"]) for warp in range(f["k_warps"]))
            else:
                yield (step * f["split_k"] + split) * f["k_bytes"], f["k_bytes"]


def drawn(problem: Problem, seed: int) -> dict[str, Any]:
    """A config of the space at random."""
    space, rng = BACKEND.space(problem, H200), random.Random(seed)
    while True:
        config = {p.name: rng.choice(p.values) for p in space.parameters}
        if config in space:
            return config


DIMENSIONS = st.one_of(st.integers(1, 80), st.integers(1, 16384))
PROBLEMS = st.builds(
    lambda m, n, groups, layer, format_: problem_of((n, 16 * groups, *layer), m, format_),
    m=st.one_of(st.integers(1, 40), st.integers(1, 4096)),
    n=DIMENSIONS,
    groups=st.one_of(st.integers(1, 80), st.integers(1, 2048)),
    layer=st.sampled_from([(0, 0, 0), (8, 8, 2), (4, 16, 2), (512, 512, 10), (64, 512, 10)]),
    format_=st.sampled_from([Format.NVFP4, Format.NVFP4_W4A16]),
)


@settings(max_examples=200, deadline=None)
@given(PROBLEMS, st.integers(0, 1 << 30))
def test_splits_steps_and_warps_take_every_byte_of_k_once(problem: Problem, seed: int):
    config = drawn(problem, seed)
    taken = sorted(slices(problem, config))
    at = 0
    for first, length in taken:
        assert first == at, (problem.key, config)
        at += length
    assert at >= problem.k // 2
    f = figures(problem, config)
    if "k_warps" in f:
        smallest = f["slice_bytes"] * f["split_k"] == 64 and f["shared_steps"] < 2
        assert at <= 1.3 * (problem.k // 2) or smallest, "what lies past the end costs instructions"
        assert f["steps"] % max(1, f["shared_steps"]) == 0, "a round of shared steps would be cut off"
        assert not f["unroll"] or 1 < f["steps"] <= 8
    else:
        assert at - f["split_k"] * f["k_bytes"] < problem.k // 2


def test_a_split_has_whole_rounds_of_shared_steps():
    """Seven steps a split are no rounds of four. The kernel goes eight, and the next split must begin behind them."""
    problem = parse_shape("3x128x3456")
    config = {
        "block_m": 8, "warp_rows": 16, "n_warps": 4, "k_warps": 1, "vector_bytes": 16, "chunks": 1, "split_k": 2,
        "shared_steps": 4, "unroll": False,
    }  # fmt: skip
    assert config in BACKEND.space(problem, H200)
    f = figures(problem, config)
    assert -(-1728 // (f["slice_bytes"] * 2)) == 7
    assert f["steps"] == 8
    assert [first for first, _ in slices(problem, config)] == [128 * i for i in range(16)]


@settings(max_examples=100, deadline=None)
@given(PROBLEMS, st.integers(0, 1 << 30))
def test_the_grid_covers_d_and_scratch_is_bounded(problem: Problem, seed: int):
    config = drawn(problem, seed)
    plan, rows = plan_of(config), max_rows(problem)
    tiles = row_tiles(problem, rows, plan.block_m)
    columns, y, splits = plan.grid(problem, tiles)
    assert (columns - 1) * plan.block_n < problem.n <= columns * plan.block_n
    assert (y, splits) == (tiles, config["split_k"])
    assert y <= GRID_Y
    assert y * plan.block_m >= rows
    assert 4 * plan.partial_sums(problem, tiles) <= MIB_OF_SUMS << 20
    assert plan.counters(problem, tiles) == (columns * tiles if splits > 1 else 0)
    assert plan.partial_sums(problem, tiles) == plan.counters(problem, tiles) * splits * plan.block_m * plan.block_n
    assert plan.kernel == ("fragment" if uses_fragments(problem) else "tile")
    f = figures(problem, config)
    if plan.kernel == "fragment":
        assert plan.block_n == f["block_n"]
        assert plan.num_warps == f["n_warps"] * f["k_warps"] in (2, 4, 8, 16)
        assert config["block_m"] * config["warp_rows"] <= 1024
        assert not f["shared_steps"] or 4 * f["block_m"] * f["slice_bytes"] * f["shared_steps"] <= 64 << 10
    else:
        assert (plan.num_warps, plan.num_stages) == (config["num_warps"], config["num_stages"])


def test_places_inside_a_matrix_are_numbers_of_32_bits():
    """The largest matrices that are taken: what a kernel adds to a pointer in 32 bits, masked places aside."""
    for shape in ("32x16777215x240", "32x240x16777216", "1024x16777215x240", "1024x240x16777216"):
        problem = parse_shape(shape)
        row_bytes = problem.k // 2
        config = BACKEND.default(problem, H200)
        assert (problem.n - 1) * row_bytes + row_bytes - 1 < 1 << 31
        block_m = max(p.values[-1] for p in BACKEND.space(problem, H200).parameters if p.name == "block_m")
        assert (block_m - 1) * row_bytes + row_bytes - 1 < 1 << 31
        assert (block_m - 1) * problem.n + problem.n - 1 < 1 << 31
        assert config in BACKEND.space(problem, H200)
    assert 128 * (1 << 24) <= 1 << 31  # the tallest tile of the widest D


def test_rows_of_a_tile_are_no_more_than_an_expert_needs():
    def heights(shape: str) -> tuple[Any, ...]:
        return next(p.values for p in BACKEND.space(parse_shape(shape), H200).parameters if p.name == "block_m")

    assert heights("1x4096x4096") == heights("e512k10:16x256x4096") == (8,)
    assert heights("16x4096x4096") == (8, 16, 32)
    assert heights("33x4096x4096") == (16, 32, 64, 128)


def test_a_tile_that_the_shared_memory_of_a_card_cannot_hold_is_left_out():
    problem = parse_shape("256x4096x4096")
    most = {}
    for name in ("h200", "rtx-pro-6000"):
        limit = shared_limit_bytes(CARDS[name].capability)
        sizes = [
            (c["block_m"] + c["block_n"]) * c["block_k"] * 2 + (c["num_stages"] - 1)
            * (c["block_m"] + c["block_n"]) * c["block_k"] * 9 // 16
            for c in BACKEND.space(problem, CARDS[name])
        ]  # fmt: skip
        most[name] = max(sizes)
        assert most[name] <= limit
    assert most["h200"] > most["rtx-pro-6000"] > 64 << 10


@pytest.mark.parametrize("shape", ["1x4096x7168", "16x7168x2048", "e512k10:16x4096x128", "3x40x48", "200x1000x1040"])
def test_a_fair_part_of_what_a_sampler_draws_is_legal(shape: str):
    space, rng = BACKEND.space(parse_shape(shape), H200), random.Random(0)
    assert sum({p.name: rng.choice(p.values) for p in space.parameters} in space for _ in range(1000)) > 100


def test_the_rule_of_thumb_splits_k_where_tiles_leave_the_card_idle():
    def split(shape: str) -> Any:
        return BACKEND.default(parse_shape(shape), H200)["split_k"]

    assert split("1x4096x7168") == 8
    assert split("1x129280x7168") == 1
    assert split("e512k10:1x256x4096") == 8
    assert split("e512k10:256x256x4096") == 2  # K is long: experts of many rows end sooner
    assert split("e512k10:256x4096x1024") == 1
    assert split("33x256x7168") > 1
    assert split("4096x4096x7168") == 1


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (parse_shape("16x64x64", format=Format.BF16), "multiplies NVFP4 weights, and the problem is bf16"),
        (parse_shape("16x65536x65536"), "less than 2 GiB a matrix, and 16x65536x65536 has 2.0 GiB"),
        (parse_shape("16777216x64x64"), "at most 65535 row tiles, and 16777216x64x64 can need 131072 of 128 rows"),
        (parse_shape("e65536k2:65536x64x64"), "can need 67584 of 32 rows"),
    ],
)  # fmt: skip
def test_problems_that_no_config_runs_are_refused(problem: Problem, says: str):
    for ask in (BACKEND.space, BACKEND.default, BACKEND.seeds):
        with pytest.raises(UnsupportedError, match=r"\.$") as raised:
            ask(problem, H200)
        assert says in str(raised.value)


def test_the_largest_problems_beside_those_are_taken():
    for shape in ("16x65536x65520", "8388480x64x64", "e65535k1:65535x64x64", "e60000k1:120000x64x64"):
        problem = parse_shape(shape)
        assert BACKEND.default(problem, H200) in BACKEND.space(problem, H200)
    (block_m,) = (p.values for p in BACKEND.space(problem, H200).parameters if p.name == "block_m")
    assert block_m == (32,), "smaller tiles would be too many"
    hot = replace(parse_shape("e64of512k10:1000000x64x64"), routing=Routing.UNIFORM)
    assert BACKEND.default(hot, H200) in BACKEND.space(hot, H200)  # an eighth of the rows, not all of them


def test_devices_that_cannot_are_told_why_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dequant, "why_no_triton", lambda: "")
    turing = replace(H200, name="Tesla T4", compute_capability="7.5")
    for device, says in ((detect("cpu"), "It needs a CUDA device"), (turing, "8.0 (BF16 matrix units), and Tesla T4")):
        state = BACKEND.probe(device)
        assert not state.available
        assert says in state.reason
        with pytest.raises(UnsupportedError) as raised:
            BACKEND.space(parse_shape("1x64x64"), device)
        assert str(raised.value).startswith("triton.dequant cannot be used. It needs")


def test_without_triton_it_says_so_and_what_needs_none_still_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dequant, "why_no_triton", lambda: "Triton is not installed.")
    problem = parse_shape("1x64x64")
    assert BACKEND.probe(H200).reason == "Triton is not installed."
    config = BACKEND.default(problem, H200)
    assert config in BACKEND.space(problem, H200)
    with pytest.raises(UnsupportedError, match="Triton is not installed"):
        BACKEND.compile(problem, H200, config)


def test_operands_on_a_cpu_are_refused():
    problem = parse_shape("1x64x64", out_dtype=OutDtype.FP32)
    with pytest.raises(UnsupportedError, match="needs a CUDA device of compute capability 8.0, not cpu"):
        BACKEND.prepare(problem, make_operands(problem, detect("cpu"), 0), BACKEND.default(problem, H200))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_warps": 1, "k_warps": 1}, "a block has 2 to 16 warps"),
        ({"shared_steps": 1, "n_warps": 1, "k_warps": 2}, "only warps along N share"),
        ({"split_k": 8, "k_warps": 4, "chunks": 2}, "reach at most 1.3 times as far as K"),
        ({"vector_bytes": 4}, "vector_bytes 8, 16 here, not 4"),
        ({"split_k": 1, "unroll": True}, "at most 8 steps are unrolled"),
    ],
)
def test_configs_outside_the_space_are_refused_by_the_rule_they_break(changes: dict[str, Any], says: str):
    problem, card = parse_shape("1x4096x7168"), card_for("sm_90")
    base = {
        "block_m": 8, "warp_rows": 16, "n_warps": 2, "k_warps": 1, "vector_bytes": 16, "chunks": 1, "split_k": 1,
        "shared_steps": 0, "unroll": False,
    }  # fmt: skip
    assert base in BACKEND.space(problem, card)
    with pytest.raises(UnsupportedError, match=says):
        BACKEND.compile(problem, card, {**base, **changes})
