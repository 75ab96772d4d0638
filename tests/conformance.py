"""What every backend must do, as the docstring of fp4tune.kernels.backend promises it.

Each check takes a backend and a device, and is run on every backend that the machine offers, on every device that the
backend says it can use. A new backend needs no test of its own to be covered by these. To refuse a problem in `space`
is right; to compute it wrongly never is.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import fields

import pytest
import torch
from fp4tune.kernels import oracle
from fp4tune.kernels.backend import Backend, Compiling, Config, Space, can_serve, config_key, load_backends
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import Operands, Quantized, make_operands
from fp4tune.kernels.problem import Format, OutDtype, Problem, Routing, parse_shape

REPEATS = 3
"""A kernel with a race or a stale workspace is often right the first time."""

_DENSE = (
    # Every M around the tile sizes of real kernels, N and K that no tile divides; K = 80 leaves half a pair of groups.
    "1x72x80", "3x200x208", "16x72x208", "17x200x80", "64x72x80", "127x200x208", "128x72x208", "200x200x80",
    "1024x200x208",
    # A column, a single group, a tile and one more, several blocks.
    "5x1x16", "1x129x512", "33x600x64", "2x1x1040",
)  # fmt: skip
_GROUPED = (
    ("e8k2:1x72x80", Routing.UNIFORM),
    ("e8k2:16x72x80", Routing.UNIFORM),
    ("e8k2:17x200x208", Routing.UNIFORM),
    ("e8k2:127x40x80", Routing.POWER_LAW),
    ("e8k2:128x40x80", Routing.UNIFORM),
    ("e16k4:200x72x64", Routing.POWER_LAW),
    # All 300 tokens on the same two of six experts; kernels that size their grid by the average lose rows here.
    ("e6k2:300x72x80", Routing.ONE_HOT),
    # Nearly all experts empty.
    ("e64k1:3x40x32", Routing.UNIFORM),
    # Many rows for each, unevenly.
    ("e8k2:1024x72x80", Routing.POWER_LAW),
    # A rank of several: the number of rows is whatever the routing gives, and can be none at all.
    ("e4of16k2:64x72x80", Routing.UNIFORM),
    ("e4of16k2:64x200x64", Routing.POWER_LAW),
    ("e1of64k1:1x72x80", Routing.UNIFORM),
)  # fmt: skip
_MOE = (
    # A token, a tile of tokens, an expert or a rank that gets nothing, more rows an expert than any tile has.
    ("moe:e8k2:1x16x64", Routing.UNIFORM),
    ("moe:e8k2:17x48x80", Routing.UNIFORM),
    ("moe:e6k2:300x32x48", Routing.ONE_HOT),
    ("moe:e16k4:200x64x96", Routing.POWER_LAW),
    ("moe:e64k1:3x32x32", Routing.UNIFORM),
    ("moe:e4of16k2:64x48x64", Routing.UNIFORM),
    ("moe:e1of64k1:1x16x48", Routing.UNIFORM),
)
_OTHER_FORMATS = ("1x72x80", "17x200x208", "128x72x80", "e8k2:17x72x80", "e4of16k2:64x72x208", "moe:e8k2:17x48x80")


def problems() -> list[Problem]:
    """Small problems that between them hold every trap of shape, routing, format and output dtype."""
    found = [parse_shape(shape) for shape in _DENSE]
    found += [parse_shape(shape, routing=routing) for shape, routing in (*_GROUPED, *_MOE)]
    for shape, format_, out_dtype in itertools.product(_OTHER_FORMATS, Format, OutDtype):
        if (format_, out_dtype) != (Format.NVFP4, OutDtype.BF16):
            found.append(parse_shape(shape, format=format_, out_dtype=out_dtype))
    return found


def available(device: Device) -> list[Backend]:
    """The registered backends that say they can use `device`."""
    return [backend for backend in load_backends().values() if backend.probe(device).available]


def check_identity(name: str, backend: Backend, device: Device) -> None:
    """Names are stable, constructing is free of state, versions are text."""
    assert isinstance(backend, Backend)
    assert backend.name == name
    assert type(backend)().name == name
    versions = backend.versions(device)
    assert versions, "a backend without versions can never become stale"
    assert all(isinstance(k, str) and isinstance(v, str) and k and v for k, v in versions.items())
    assert type(backend)().versions(device) == versions
    assert all(can_serve(backend, problem) in (True, False) for problem in problems())


def check_probe(backend: Backend, device: Device) -> None:
    """Never raises; a reason if and only if it is not available."""
    availability = backend.probe(device)
    assert availability.available == (availability.reason == "")
    assert backend.probe(device) == availability
    if not availability.available:
        assert availability.reason[0].isupper()
        assert availability.reason.endswith(".")


def check_space(backend: Backend, problem: Problem, device: Device) -> None:
    """The default and the seeds are in the space, which is the same each time; or all say why not."""
    try:
        space = backend.space(problem, device)
    except UnsupportedError:
        for refuses in (backend.space, backend.default):
            with pytest.raises(UnsupportedError, match=r"\.$"):
                refuses(problem, device)
        return
    names = [p.name for p in space.parameters]
    assert len(set(names)) == len(names)
    for p in space.parameters:
        assert p.values, p.name
        assert len({(type(v), v) for v in p.values}) == len(p.values), p.name
    again = type(backend)().space(problem, device)
    assert [(p.name, p.values) for p in again.parameters] == [(p.name, p.values) for p in space.parameters]
    default, seeds = backend.default(problem, device), backend.seeds(problem, device)
    assert default in space
    assert all(seed in space for seed in seeds)
    keys = [config_key(c) for c in (default, *seeds)]
    assert len(set(keys)) == len(keys), "a seed repeats the default or another seed"
    assert backend.default(problem, device) == default
    assert [config_key(c) for c in backend.seeds(problem, device)] == keys[1:]


def configs_of(backend: Backend, problem: Problem, device: Device, *, n_configs: int) -> list[Config]:
    """The default, every seed and some configs from all over the space; nothing if the problem is refused."""
    try:
        space = backend.space(problem, device)
    except UnsupportedError:
        return []
    chosen = [backend.default(problem, device), *backend.seeds(problem, device)]
    return [*chosen, *sample(space, n_configs, seed_of(problem))]


def check_results(
    backend: Backend,
    problem: Problem,
    device: Device,
    *,
    n_configs: int,
    deadline: float = math.inf,
    replay: bool = False,
) -> int:
    """The default, every seed and some configs of the space are right, each time, and touch nothing but `out`.

    Args:
        backend: what is checked.
        problem: what is computed, on operands that no other case has.
        device: where.
        n_configs: how many configs of the space.
        deadline: by time.monotonic; after it no further config is begun. The default always is.
        replay: check each config in a CUDA graph, too.

    Returns:
        How many configs ran.
    """
    configs = configs_of(backend, problem, device, n_configs=n_configs)
    if not configs:
        return 0
    operands = make_operands(problem, device, seed_of(problem))
    before = [(name, tensor.clone()) for name, tensor in tensors(operands) if name != "out"]
    expected = oracle.reference(operands)
    ran = 0
    for i, config in enumerate(configs):
        if i and time.monotonic() > deadline:
            break
        try:
            run = backend.prepare(problem, operands, config)
        except UnsupportedError:
            assert i, "the default must be prepared"
            continue
        ways = {"run": run} | ({"replay": captured(run)} if replay else {})
        for (way, call), repeat in itertools.product(ways.items(), range(REPEATS)):
            oracle.poison(operands.out)
            call()
            verdict = oracle.compare(operands.out, operands, expected)
            assert verdict.ok, f"{problem.key} {config_key(config)}, {way} {repeat}: {verdict.sentence}"
        ran += 1
    after = dict(tensors(operands))
    for name, tensor in before:
        assert same_bytes(after[name], tensor), f"{problem.key}: {name} was changed"
    return ran


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as servers run it: captured into a CUDA graph, after one call on a side stream as capturing demands."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_alive: Callable[[], None] = run) -> None:  # the graph holds addresses of what `run` keeps alive
        graph.replay()

    return replay


def compile_ahead(backend: Backend, cases: Sequence[tuple[Problem, Config]], device: Device, *, within_s: float) -> int:
    """Compile configs on all cores into the backend's cache, if it compiles, so that a check waits less for compilers.

    A config that does not compile says so when it is prepared.

    Returns:
        How many were compiled in time.
    """
    if not isinstance(backend, Compiling) or not cases:
        return 0
    context = multiprocessing.get_context("spawn")
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(16, cores, len(cases)), context, _without_gpu) as pool:
        futures = [pool.submit(backend.compile, problem, device, config) for problem, config in cases]
        done, _ = wait(futures, timeout=within_s)
        pool.shutdown(wait=False, cancel_futures=True)
    return sum(future.exception() is None for future in done)


def _without_gpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def seed_of(problem: Problem) -> int:
    """A seed of its own for every problem, the same in every process."""
    return zlib.crc32(problem.key.encode())


def check_refuses_nonsense(backend: Backend, problem: Problem, device: Device) -> None:
    """A config outside the space is refused in one sentence, never run."""
    try:
        default = backend.default(problem, device)
    except UnsupportedError:
        return
    operands = make_operands(problem, device, 0)
    name = next(iter(default))
    for config in ({}, {**default, "no_such_parameter": 1}, {**default, name: "no such value"}):
        with pytest.raises(UnsupportedError, match=r"\.$"):
            backend.prepare(problem, operands, config)


def sample(space: Space, n: int, seed: int) -> list[Config]:
    """Different configs of the space at random; all of them if there are at most `n`."""
    rng = random.Random(seed)
    if space.size <= 4096:
        configs = list(space)
        return rng.sample(configs, min(n, len(configs)))
    drawn = ({p.name: rng.choice(p.values) for p in space.parameters} for _ in range(100 * n))
    return list({config_key(c): c for c in drawn if c in space}.values())[:n]


def tensors(operands: Operands) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the operands with its name."""
    for field in fields(operands):
        value = getattr(operands, field.name)
        if isinstance(value, Quantized):
            yield from ((f"{field.name}.{f.name}", getattr(value, f.name)) for f in fields(value))
        elif isinstance(value, torch.Tensor):
            yield field.name, value


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def ids(found: Sequence[Problem]) -> list[str]:
    """Test ids."""
    return [problem.key for problem in found]
