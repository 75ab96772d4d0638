"""`triton.native` compiled for cards that are not there: FP4 instructions, the right scales, no spills, enough memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fp4tune.kernels.backend import Compiling, config_key
from fp4tune.kernels.cards import card_for
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.triton_gemm import pruning
from fp4tune.kernels.triton_gemm.native import TritonNative
from fp4tune.kernels.triton_gemm.native_space import shared_bytes
from tritons import TRITONS, compile_with

pytest.importorskip("triton")

PROGRAM = Path(__file__).with_name("compiled.py")
BACKEND = TritonNative()

SM120, SM120A_OPCODE = "sm_120a", "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"


@dataclass(frozen=True)
class Sample:
    """A config that differs from the default of a problem on a card."""

    arch: str
    shape: str
    changes: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return {**BACKEND.default(parse_shape(self.shape), card_for(self.arch)), **self.changes}


SAMPLES = {
    "decode": Sample(SM120, "16x4096x7168", {}),
    "decode, swapped, 2 warps": Sample(SM120, "1x4096x7168", {"block_m": 8, "swap_ab": True, "num_warps": 2}),
    "decode, TMA, stream-K": Sample(SM120, "16x4096x7168", {"loads": "tma", "schedule": "stream_k", "parts": 2}),
    "decode, swizzled": Sample(SM120, "1x7168x2048", {"scales": "swizzled", "block_n": 32}),
    "long steps": Sample(SM120, "16x4096x7168", {"block_k": 512, "num_stages": 3, "parts": 2}),
    "prefill": Sample(SM120, "4096x4096x4096", {}),
    "prefill, TMA, swizzled": Sample(SM120, "4096x4096x4096", {"loads": "tma", "scales": "swizzled", "num_warps": 8}),
    "experts": Sample(SM120, "e512k10:16x256x4096", {}),
    "experts, TMA, swizzled, stream-K": Sample(
        SM120, "e512k10:256x2048x4096", {"loads": "tma", "scales": "swizzled", "schedule": "stream_k", "parts": 1}
    ),
    "ragged": Sample(SM120, "17x80x208", {"block_k": 64, "schedule": "split_k", "parts": 2}),
    "GB10": Sample("gb10", "16x4096x7168", {}),
    "SM100 decode": Sample("sm_100a", "16x4096x7168", {}),
    "SM100 prefill, TMA, stream-K": Sample(
        "sm_100a", "4096x4096x4096", {"loads": "tma", "schedule": "stream_k", "parts": 1}
    ),
}


@pytest.fixture(scope="module", params=TRITONS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Everything about each sample's kernel, from a process of the Triton that is asked for, without a GPU."""
    jobs = [{"arch": s.arch, "shape": s.shape, "config": s.config} for s in SAMPLES.values()]
    found = compile_with(request.param, PROGRAM, jobs, tmp_path_factory.mktemp("triton"))
    return dict(zip(SAMPLES, found, strict=True))


@pytest.fixture(params=SAMPLES)
def found(request: pytest.FixtureRequest, compiled: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What was found of one sample."""
    one = {**compiled[request.param], "sample": SAMPLES[request.param]}
    if one["error"] and one["triton"] < [3, 9] and SAMPLES[request.param].arch == "gb10":
        pytest.skip(one["error"])
    return one


def test_compiles_to_fp4_instructions_with_e4m3_scales(found: dict[str, Any]):
    assert found["error"] == ""
    ptx, opcodes = found["ptx"], found["facts"]["instructions"]
    assert "kind::mxf4nvf4" in ptx
    if found["sample"].arch == "sm_100a":
        assert all(opcode.startswith("UTCOMMA") for opcode in opcodes)
        # The scales' type is bit 23 of the instruction descriptor, 0 for UE4M3 (CUTLASS, mma_sm100_desc.hpp).
        assert [int(d) >> 23 & 1 for d in found["descriptors"]] == [0] * len(found["descriptors"])
        assert found["descriptors"]
    else:
        products = [line for line in ptx.splitlines() if "mma.sync" in line]
        assert all("kind::mxf4nvf4" in line for line in products)
        assert all("scale_vec::4X" in line for line in products)
        assert all("ue4m3" in line for line in products)
        assert set(opcodes) == {SM120A_OPCODE}
    assert sum(opcodes.values()) > 0


def test_does_not_spill_and_fits(found: dict[str, Any]):
    facts, card = found["facts"], card_for(found["sample"].arch)
    old_tma = found["triton"] < [3, 9] and found["sample"].config["loads"] == "tma"
    assert facts["stack_bytes"] <= (8 if old_tma else 0)  # Triton 3.6 keeps one word of TMA's state on the stack
    assert 16 < facts["registers"] <= 255
    major, minor = card.compute_capability.split(".")
    assert facts["target"] == f"sm_{major}{minor}a"
    assert facts["shared_bytes"] <= pruning.shared_limit_bytes((int(major), int(minor)))


def test_shared_memory_is_what_the_rule_says(found: dict[str, Any]):
    """Up to barriers and the scratch that turns scales; an epilogue may take more than a short pipeline."""
    config, shared = found["sample"].config, found["facts"]["shared_bytes"]
    scales = (config["block_m"] + config["block_n"]) * config["block_k"] // 16
    epilogue = config["block_m"] * config["block_n"] * 4
    assert 0.9 * shared_bytes(config) <= shared <= max(shared_bytes(config) + scales + 256, epilogue)


def test_the_switches_show_in_the_ptx(found: dict[str, Any]):
    config, ptx = found["sample"].config, found["ptx"]
    assert ("cp.async.bulk.tensor" in ptx) == (config["loads"] == "tma")
    assert bool(re.search(r"cp\.async\.c[ag]\.shared", ptx))  # scales, and codes without TMA, arrive in the background
    assert bool(re.search(r"atom\.global\.gpu\.acq_rel\.add", ptx)) == (config["schedule"] != "data_parallel")
    if parse_shape(found["sample"].shape).k % 64 == 0:
        assert not re.search(r"ld\.global\S*\.b(8|16)\b", ptx), "a load too narrow to be asynchronous"


def test_samples_are_in_the_space_and_take_every_switch():
    for sample in SAMPLES.values():
        assert sample.config in BACKEND.space(parse_shape(sample.shape), card_for(sample.arch)), sample
    for name, values in {
        "loads": {"pointer", "tma"},
        "scales": {"linear", "swizzled"},
        "swap_ab": {False, True},
        "schedule": {"data_parallel", "split_k", "stream_k"},
        "num_warps": {2, 4, 8},
    }.items():
        assert {s.config[name] for s in SAMPLES.values()} == values
    assert len({config_key(s.config) + s.shape + s.arch for s in SAMPLES.values()}) == len(SAMPLES)


def test_the_backend_is_one_that_compiles_ahead(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    problem, card = parse_shape("16x256x256"), card_for(SM120)
    assert isinstance(BACKEND, Compiling)
    facts = BACKEND.compile(problem, card, BACKEND.default(problem, card))
    assert facts == BACKEND.compile(problem, card, BACKEND.default(problem, card))  # now from the cache
    assert set(facts.instructions) == {SM120A_OPCODE}
    with pytest.raises(UnsupportedError, match="block_m"):
        BACKEND.compile(problem, card, {**BACKEND.default(problem, card), "block_m": 48})
