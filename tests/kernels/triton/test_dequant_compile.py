"""`triton.dequant` compiled for cards that are not there: wide loads, no detour through shared memory, no spills."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fp4tune.kernels.backend import Compiling, config_key
from fp4tune.kernels.cards import card_for
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, parse_shape
from fp4tune.kernels.triton_gemm import pruning
from fp4tune.kernels.triton_gemm.dequant import TritonDequant
from tritons import TRITONS, compile_with

pytest.importorskip("triton")

PROGRAM = Path(__file__).with_name("dequant_compiled.py")
BACKEND = TritonDequant()

W4A4, W4A16 = Format.NVFP4, Format.NVFP4_W4A16
FRAGMENT: dict[str, Any] = {
    "block_m": 8,
    "warp_rows": 16,
    "n_warps": 2,
    "k_warps": 1,
    "vector_bytes": 16,
    "chunks": 1,
    "split_k": 1,
    "shared_steps": 0,
    "unroll": False,
}
TILE: dict[str, Any] = {
    "block_m": 64,
    "block_n": 64,
    "block_k": 64,
    "num_warps": 4,
    "num_stages": 3,
    "split_k": 1,
}


@dataclass(frozen=True)
class Sample:
    """A config for a card, by what differs from FRAGMENT or TILE."""

    arch: str
    shape: str
    changes: dict[str, Any] = field(default_factory=dict)
    format: Format = W4A4
    out: OutDtype = OutDtype.BF16

    @property
    def problem(self) -> Problem:
        return parse_shape(self.shape, format=self.format, out_dtype=self.out)

    @property
    def is_fragment(self) -> bool:
        return "warp_rows" in BACKEND.default(self.problem, card_for(self.arch))

    @property
    def config(self) -> dict[str, Any]:
        return {**(FRAGMENT if self.is_fragment else TILE), **self.changes}


SPILLS = Sample("sm_90", "32x256x512", {"block_m": 32, "warp_rows": 32, "n_warps": 8, "k_warps": 2})
"""512 threads, so 128 registers, and 32 accumulators, 64 of decoded weights and 64 of decoded activations."""

SAMPLES = {
    "loop": Sample("sm_80", "1x64x2048"),
    "W4A16, experts, unrolled": Sample("sm_80", "e8k2:3x64x512", {"unroll": True}, W4A16, OutDtype.FP16),
    "tiles": Sample("sm_80", "64x64x256"),
    "split, shared": Sample(
        "sm_90", "16x128x1024", {"block_m": 16, "n_warps": 4, "split_k": 2, "shared_steps": 2}, out=OutDtype.FP32
    ),
    "experts, split, warps along K, unrolled": Sample(
        "sm_90", "e8k2:3x64x2048", {"split_k": 2, "k_warps": 2, "unroll": True}
    ),
    "W4A16, loop": Sample("sm_90", "2x64x2048", {"k_warps": 2, "n_warps": 1}, W4A16, OutDtype.FP32),
    "ragged": Sample("sm_90", "17x40x208", {"block_m": 16, "vector_bytes": 8, "n_warps": 4}, out=OutDtype.FP16),
    "W4A16, experts, tiles": Sample("sm_90", "e2k2:64x64x256", format=W4A16, out=OutDtype.FP16),
    "tiles, split": Sample("sm_90", "64x64x512", {"split_k": 2, "block_m": 32}, out=OutDtype.FP32),
    "W4A16, shared": Sample("sm_100", "16x128x512", {"block_m": 16, "n_warps": 4, "shared_steps": 1}, W4A16),
    "experts, tiles": Sample("sm_100", "e2k2:64x64x256", {"block_m": 128}),
    "experts, shared": Sample("sm_120", "e8k2:3x64x1024", {"n_warps": 4, "k_warps": 2, "shared_steps": 2}),
    "W4A16, half vectors, unrolled": Sample(
        "sm_120", "1x64x512", {"vector_bytes": 8, "chunks": 2, "unroll": True}, W4A16
    ),
    "W4A16, tiles, split": Sample("sm_120", "64x64x512", {"split_k": 2}, W4A16),
}
FRAGMENTS = [name for name, sample in SAMPLES.items() if sample.is_fragment]
TILES = [name for name in SAMPLES if name not in FRAGMENTS]


@pytest.fixture(scope="module", params=TRITONS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Everything about each sample's kernel, from a process of the Triton that is asked for, without a GPU."""
    jobs = [{"arch": s.arch, "key": s.problem.key, "config": s.config} for s in (*SAMPLES.values(), SPILLS)]
    found = compile_with(request.param, PROGRAM, jobs, tmp_path_factory.mktemp("triton"))
    return dict(zip([*SAMPLES, "spills"], found, strict=True))


def one_of(compiled: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """What was found of one sample."""
    found = {**compiled[name], "sample": SAMPLES[name]}
    assert found["error"] == ""
    return found


@pytest.fixture(params=SAMPLES)
def found(request: pytest.FixtureRequest, compiled: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return one_of(compiled, request.param)


@pytest.fixture(params=FRAGMENTS)
def fragment(request: pytest.FixtureRequest, compiled: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return one_of(compiled, request.param)


@pytest.fixture(params=TILES)
def tiles(request: pytest.FixtureRequest, compiled: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return one_of(compiled, request.param)


def test_multiplies_in_the_matrix_unit(found: dict[str, Any]):
    """In FP16 what was FP4, in BF16 beside BF16; from registers in one kernel, as the card likes it in the other."""
    sample, opcodes = found["sample"], found["facts"]["instructions"]
    suffix = ".BF16" if sample.format is W4A16 else ""
    expected = {"HMMA.16816.F32" + suffix}
    if not sample.is_fragment and sample.config["block_m"] >= 64:
        expected = {
            "sm_90": {"HGMMA.64x64x16.F32" + suffix},
            "sm_100": {"UTCHMMA"},
        }.get(sample.arch, expected)
    assert set(opcodes) == expected
    assert sum(opcodes.values()) > 0


def test_fits(found: dict[str, Any]):
    """ptxas spills a few registers of small fragment kernels, far below its limit, where nothing tells it the limit."""
    facts, card = found["facts"], card_for(found["sample"].arch)
    major, minor = card.compute_capability.split(".")
    assert facts["stack_bytes"] <= pruning.SMALL_STACK_BYTES
    assert 16 < facts["registers"] <= 255
    assert facts["target"] == f"sm_{major}{minor}" + ("a" if int(major) >= 9 else "")
    assert facts["shared_bytes"] <= pruning.shared_limit_bytes((int(major), int(minor)))


def loads_of_a_step(sample: Sample) -> Counter[str]:
    """Loads of a thread's weights and activations in one step, by kind, if every one is as wide as it can be."""
    config = sample.config
    warps, k_bytes = config["n_warps"] * config["k_warps"], 8 * config["vector_bytes"] * config["chunks"]
    bytes_of_two = 1 if sample.format is W4A4 else 4  # elements of A
    width_w = config["vector_bytes"]
    loads = Counter({f"v{width_w // 4}.b32": config["warp_rows"] * k_bytes // (32 * width_w)})
    if config["shared_steps"]:
        width_a = min(16, 8 * bytes_of_two)
        bytes_a = config["block_m"] * k_bytes * config["k_warps"] * bytes_of_two // (32 * warps)
    else:
        width_a = min(16, config["vector_bytes"] * bytes_of_two)
        bytes_a = config["block_m"] * k_bytes * bytes_of_two // 32
    loads[f"v{width_a // 4}.b32"] += max(1, bytes_a // width_a)
    return loads


def test_weights_come_in_the_widest_loads_that_a_vector_allows(fragment: dict[str, Any]):
    """As many of them as there are bytes for, so that none is left for narrower ones."""
    sample, config = fragment["sample"], fragment["sample"].config
    loads = Counter(re.findall(r"\bld\.global\.((?:v\d\.)?b\d+)", fragment["ptx"]))
    a_step = loads_of_a_step(sample)
    a_round = 8 * config["vector_bytes"] * config["chunks"] * config["k_warps"] * config["split_k"]
    a_round *= max(1, config["shared_steps"])
    rounds = -(-(sample.problem.k // 2) // a_round)
    # LLVM may unroll a loop by itself, and may set a round apart.
    bodies = {rounds} if config["unroll"] else range(1, rounds + 1)
    assert any(
        all(loads[kind] == body * max(1, config["shared_steps"]) * n for kind, n in a_step.items()) for body in bodies
    ), (loads, a_step)
    assert set(loads) - set(a_step) <= {"b8", "b16", "b32", "v2.b32"}  # scales; alpha and tables


def test_nothing_goes_through_shared_memory_that_is_not_shared(fragment: dict[str, Any]):
    """Without shared_steps only what blocks and warps have summed, after the last product."""
    config, ptx = fragment["sample"].config, fragment["ptx"]
    touches = [m.start() for m in re.finditer(r"\b(?:ld|st)\.shared|ldmatrix|cp\.async", ptx)]
    products = [m.start() for m in re.finditer(r"mma\.sync\.aligned\.m16n8k16", ptx)]
    decoded = 4 * config["block_m"] * 8 * config["vector_bytes"] * config["chunks"]
    decoded *= config["k_warps"] * config["shared_steps"]
    summed = 4 * config["block_m"] * config["warp_rows"] * config["n_warps"] * config["k_warps"]
    if config["shared_steps"]:
        assert any(at < products[-1] for at in touches)
        assert decoded <= fragment["facts"]["shared_bytes"] <= decoded + summed
        return
    assert all(at > products[-1] for at in touches)
    assert bool(touches) == (config["k_warps"] > 1 or config["split_k"] > 1)
    assert fragment["facts"]["shared_bytes"] <= (summed if config["k_warps"] > 1 else 16)


def test_packed_tiles_arrive_in_the_background(tiles: dict[str, Any]):
    assert re.search(r"cp\.async\.c[ag]\.shared", tiles["ptx"])


def test_partial_sums_are_counted_and_read_past_l1(found: dict[str, Any]):
    split = found["sample"].config["split_k"] > 1
    assert bool(re.search(r"atom\.global\.gpu\.acq_rel\.add", found["ptx"])) == split
    assert bool(re.search(r"ld\.global\.cg", found["ptx"])) == split


def test_a_config_that_spills_is_refused(compiled: dict[str, dict[str, Any]]):
    said = compiled["spills"]["error"]
    assert re.search(r"^UnsupportedError: .* compiled for sm_90a spills: \d+ bytes of stack a thread, 100 are", said), (
        said
    )


def test_samples_are_in_the_space_and_take_every_switch():
    samples = SAMPLES.values()
    for sample in (*samples, SPILLS):
        assert sample.config in BACKEND.space(sample.problem, card_for(sample.arch)), sample
    for way in (True, False):
        chosen = [s for s in samples if s.is_fragment is way]
        assert {s.format for s in chosen} == {W4A4, W4A16}
        assert {s.out for s in chosen} == set(OutDtype)
        assert {s.problem.op for s in chosen} == {Op.DENSE, Op.GROUPED}
        assert {s.config["split_k"] > 1 for s in chosen} == {True, False}
        assert {s.arch for s in chosen} == {"sm_80", "sm_90", "sm_100", "sm_120"}
    fragments = [s.config for s in samples if s.is_fragment]
    for name in ("shared_steps", "unroll", "vector_bytes", "chunks", "k_warps"):
        assert len({c[name] for c in fragments}) > 1, name
    assert len({config_key(s.config) + s.problem.key + s.arch for s in samples}) == len(SAMPLES)


def test_the_backend_is_one_that_compiles_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    problem, card = parse_shape("1x16x16"), card_for("sm_90")
    config = BACKEND.default(problem, card)
    assert isinstance(BACKEND, Compiling)
    facts = BACKEND.compile(problem, card, config)
    assert facts == BACKEND.compile(problem, card, config)  # now from the cache
    with pytest.raises(UnsupportedError, match="block_m"):
        BACKEND.compile(problem, card, {**config, "block_m": 48})
