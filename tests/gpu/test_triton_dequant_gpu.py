"""`triton.dequant` on a CUDA device: right, the same in every repetition and replay, and nothing written beside D."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from conformance import captured, compile_ahead
from fp4tune.kernels import oracle
from fp4tune.kernels.backend import Config, Space, config_key
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.device import detect
from fp4tune.kernels.operands import Operands, make_operands
from fp4tune.kernels.problem import Format, OutDtype, Problem, Routing, parse_shape
from fp4tune.kernels.triton_gemm.dequant import TritonDequant

pytestmark = pytest.mark.gpu

BACKEND = TritonDequant()
REPEATS = 3
REPLAYS = 100
COMPILE_S = 45.0
"""Seconds that all cores may compile ahead; what is left then is compiled when it is prepared."""

GUARD_ROWS = 130
"""Rows behind D that must stay as they are: more than the tallest tile."""

W4A4, W4A16 = Format.NVFP4, Format.NVFP4_W4A16
ROWS = (1, 3, 16, 17, 33, 64, 127, 200)
WIDTHS, DEPTHS = (40, 1000), (16, 48, 208, 1040)
FP32, FP16 = OutDtype.FP32, OutDtype.FP16


def sweep() -> Iterator[Problem]:
    """Every M with both formats, dense and grouped, over all pairs of N and K between them."""
    for i, m in enumerate(ROWS):
        for j, (format_, experts) in enumerate(itertools.product((W4A4, W4A16), ("", "e6k2:"))):
            n, k = WIDTHS[(i + j) % 2], DEPTHS[(i // 2 + j) % 4]
            routing = Routing.POWER_LAW if experts and i % 2 else Routing.UNIFORM
            out = (OutDtype.BF16, FP32, FP16)[(i + j) % 3]
            yield parse_shape(f"{experts}{m}x{n}x{k}", format=format_, routing=routing, out_dtype=out)


SWEEP = list(sweep())
ROUTED = [
    parse_shape("e64k1:3x40x48"),  # nearly all experts empty
    parse_shape("e6k2:300x72x80", routing=Routing.ONE_HOT),  # all rows with two of six experts, tiles
    parse_shape("e64k2:100x72x208", routing=Routing.ONE_HOT, format=W4A16),  # and fragments, many tiles of an expert
    parse_shape("e16k4:200x1000x208", routing=Routing.POWER_LAW),
    parse_shape("e4of16k2:64x40x1040", out_dtype=FP32),
    parse_shape("e1of64k1:1x72x80"),  # a rank of 64, that may have no rows at all
]
BASES = {
    "fragments": parse_shape("17x1000x4096", out_dtype=FP32),
    "fragments, W4A16": parse_shape("17x1000x4096", format=W4A16, out_dtype=FP32),
    "fragments, experts": parse_shape("e8k2:72x200x4096", routing=Routing.POWER_LAW),
    "tiles": parse_shape("200x264x1040", out_dtype=FP32),
    "tiles, W4A16": parse_shape("200x264x1040", format=W4A16, out_dtype=FP32),
    "tiles, experts": parse_shape("e4k2:200x264x1040", routing=Routing.POWER_LAW),
}
"""Problems of which every value of every parameter runs."""

FRAGMENT = {"block_m": 8, "warp_rows": 16, "n_warps": 4, "k_warps": 1, "vector_bytes": 16, "chunks": 1, "unroll": False}
UNDIVIDED: list[tuple[str, Config]] = [
    # Seven steps a split in rounds of four; five in rounds of two; seven with two warps along K; five of experts.
    ("3x128x3456", {**FRAGMENT, "split_k": 2, "shared_steps": 4}),
    ("17x136x1280", {**FRAGMENT, "vector_bytes": 8, "block_m": 16, "split_k": 2, "shared_steps": 2}),
    ("3x40x12800", {**FRAGMENT, "k_warps": 2, "split_k": 4, "shared_steps": 4}),
    ("e8k2:8x136x1280", {**FRAGMENT, "vector_bytes": 8, "split_k": 2, "shared_steps": 2}),
]
"""Shape and config: rounds of shared steps that do not divide the steps that a split would need."""

SPLIT: list[tuple[str, Config]] = [
    ("3x1000x4096", {**FRAGMENT, "split_k": 8, "shared_steps": 0}),
    ("e8k2:17x1000x2048", {**FRAGMENT, "split_k": 4, "shared_steps": 0, "unroll": True}),
    *(
        (shape, {"block_m": 32, "block_n": 64, "block_k": 64, "num_warps": 4, "num_stages": 3, "split_k": 8})
        for shape in ("200x1000x4096", "e4k2:200x1000x2048")
    ),
]


def drawn(space: Space, n: int, seed: int) -> list[Config]:
    """Different legal configs at random."""
    rng, found = random.Random(seed), {}
    for _ in range(20000):
        config = {p.name: rng.choice(p.values) for p in space.parameters}
        if len(found) < n and config in space:
            found[config_key(config)] = config
    return list(found.values())


def covering(space: Space) -> list[Config]:
    """Legal configs, each with a value that those before it have not, until every value is there."""
    missing = {(p.name, value) for p in space.parameters for value in p.values}
    chosen = []
    pool = drawn(space, 400, 0)
    while missing and pool:
        best = max(pool, key=lambda c: len(missing & set(c.items())))
        if not missing & set(best.items()):
            break
        missing -= set(best.items())
        chosen.append(best)
    assert not missing, missing
    return chosen


@cache
def configs_of(problem: Problem, capability: str) -> list[Config]:
    """The default, a seed and a config from anywhere; for a base one with every value instead."""
    device = replace(CARDS["h200"], compute_capability=capability)
    default, space = BACKEND.default(problem, device), BACKEND.space(problem, device)
    if problem in BASES.values():
        return [default, *covering(space)]
    chosen = [default, *BACKEND.seeds(problem, device)[:1], *drawn(space, 1, 1)]
    return list({config_key(c): c for c in chosen}.values())


@pytest.fixture(scope="module")
def gpu():
    device = detect("cuda:0")
    found = BACKEND.probe(device)
    if not found.available:
        pytest.skip(found.reason)
    return device


@pytest.fixture(scope="module", autouse=True)
def ahead(gpu):
    """Compiles what all of these tests run on all cores, in processes that see no device."""
    cases = [(parse_shape(shape), config) for shape, config in (*UNDIVIDED, *SPLIT)]
    for problem in (*BASES.values(), *ROUTED, *SWEEP):
        cases += [(problem, config) for config in configs_of(problem, gpu.compute_capability)]
    return compile_ahead(BACKEND, cases, gpu, within_s=COMPILE_S)


def guarded(problem: Problem, gpu) -> tuple[Operands, torch.Tensor]:
    """Operands of the problem whose D is followed by rows that nobody may write, and those rows."""
    operands = make_operands(problem, gpu, 0)
    rows = operands.out.shape[0]
    buffer = operands.out.new_full((rows + GUARD_ROWS, problem.n), 7.0)
    return replace(operands, out=buffer[:rows]), buffer[rows:]


def check(operands: Operands, guard: torch.Tensor, config: Config, expected: torch.Tensor) -> Callable[[], None]:
    """Runs a config three times on poisoned output; its callable."""
    problem = operands.problem
    run = BACKEND.prepare(problem, operands, config)
    first = None
    for repeat in range(REPEATS):
        oracle.poison(operands.out)
        run()
        verdict = oracle.compare(operands.out, operands, expected)
        assert verdict.ok, f"{problem.key} {config_key(config)}, run {repeat}: {verdict.sentence}"
        first = operands.out.clone() if first is None else first
        assert torch.equal(operands.out, first), f"{problem.key} {config_key(config)}: run {repeat} differs"
    assert bool((guard == 7).all()), f"{problem.key} {config_key(config)} writes behind D"
    return run


@pytest.mark.parametrize("problem", [*SWEEP, *ROUTED], ids=lambda p: p.key)
def test_right_on_every_shape_format_and_routing(gpu, problem):
    operands, guard = guarded(problem, gpu)
    expected = oracle.reference(operands)
    for config in configs_of(problem, gpu.compute_capability):
        check(operands, guard, config, expected)


@pytest.mark.parametrize("name", BASES)
def test_right_with_every_value_of_every_parameter(gpu, name):
    problem = BASES[name]
    operands, guard = guarded(problem, gpu)
    expected = oracle.reference(operands)
    configs = configs_of(problem, gpu.compute_capability)
    for config in configs:
        check(operands, guard, config, expected)
    for p in BACKEND.space(problem, gpu).parameters:
        assert {config[p.name] for config in configs} == set(p.values)


@pytest.mark.parametrize(("shape", "config"), UNDIVIDED, ids=[shape for shape, _ in UNDIVIDED])
def test_right_where_shared_steps_do_not_divide_a_split(gpu, shape, config):
    problem = parse_shape(shape)
    operands, guard = guarded(problem, gpu)
    check(operands, guard, config, oracle.reference(operands))


@pytest.mark.parametrize(("shape", "config"), SPLIT, ids=[shape for shape, _ in SPLIT])
def test_split_sums_are_the_same_in_a_hundred_replays(gpu, shape, config):
    """Only if every launch leaves its counters at zero, and no block reads a part before it is written."""
    problem = parse_shape(shape)
    operands, guard = guarded(problem, gpu)
    expected = oracle.reference(operands)
    replay = captured(check(operands, guard, config, expected))
    first = operands.out.clone()
    for i in range(REPLAYS):
        oracle.poison(operands.out)
        replay()
        torch.cuda.synchronize()
        assert torch.equal(operands.out, first), f"replay {i} differs"
    verdict = oracle.compare(operands.out, operands, expected)
    assert verdict.ok, verdict.sentence
    assert bool((guard == 7).all())


def test_a_rank_without_rows_launches_nothing(gpu):
    problem = parse_shape("e1of64k1:1x72x80")
    operands = make_operands(problem, gpu, 0)
    none = replace(operands, out=operands.out[:0], offsets=torch.zeros(2, dtype=torch.int64))
    BACKEND.prepare(problem, none, BACKEND.default(problem, gpu))()
    torch.cuda.synchronize()
