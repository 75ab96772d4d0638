"""Humming on a CUDA device: right results, launched and replayed, from the cubin that another process compiled."""

from __future__ import annotations

import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from fp4tune.kernels import oracle
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.humming_gemm import seam
from fp4tune.kernels.humming_gemm.backend import Humming
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, Problem, Routing, parse_shape
from humming_cases import draw

pytestmark = pytest.mark.gpu

BACKEND = Humming()
ROWS = (1, 3, 16, 17, 64, 200)
DENSE = [parse_shape(f"{m}x520x1040", format=f) for m in ROWS for f in (Format.NVFP4, Format.NVFP4_W4A16)]
GROUPED = [parse_shape(f"e16k4:{m}x264x400", routing=r) for m in ROWS for r in (Routing.UNIFORM, Routing.POWER_LAW)]
ODD = [
    parse_shape("17x129x80"),
    parse_shape("2x1x1040"),
    parse_shape("64x4096x7168"),
    parse_shape("40x200x208", out_dtype=OutDtype.FP16),
    parse_shape("e6k2:300x72x80", routing=Routing.ONE_HOT),
    parse_shape("e4of16k2:64x72x80"),
    parse_shape("e64k1:3x40x32", format=Format.NVFP4_W4A16),
]
SAMPLED = 3


@pytest.fixture(scope="module")
def gpu():
    device = detect("cuda:0")
    found = BACKEND.probe(device)
    if not found.available:
        pytest.skip(found.reason)
    return device


@pytest.fixture(scope="module")
def ahead(gpu):
    """Everything that these tests run, compiled by processes that see no device."""
    work = [
        (p, c)
        for p in (*DENSE, *GROUPED, *ODD)
        for c in (BACKEND.default(p, gpu), *draw(BACKEND.space(p, gpu), SAMPLED))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with ProcessPoolExecutor(max(1, gpu_cores() - 2), multiprocessing.get_context("spawn")) as pool:
            done = list(pool.map(_compile, [(p, gpu, c) for p, c in work]))
    return {(p, config_key(c)): said for (p, c), said in zip(work, done, strict=True)}


def gpu_cores() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _compile(job):
    problem, device, config = job
    try:
        return Humming().compile(problem, device, config)
    except UnsupportedError as error:
        return str(error)


def _cubins() -> set[Path]:
    from humming.utils.jit import get_humming_cache_dir

    return set(Path(get_humming_cache_dir()).glob("*/kernel.cubin"))


@pytest.mark.parametrize("problem", [*DENSE, *GROUPED, *ODD], ids=lambda p: p.key)
def test_default_and_sampled_configs_are_right(gpu, ahead, problem: Problem):
    operands = make_operands(problem, gpu, 0)
    expected = oracle.reference(operands)
    default = BACKEND.default(problem, gpu)
    for config in (default, *draw(BACKEND.space(problem, gpu), SAMPLED)):
        said = ahead[problem, config_key(config)]
        if isinstance(said, str):
            assert config != default, said
            continue
        before = _cubins()
        run = BACKEND.prepare(problem, operands, config)
        new = [p for p in _cubins() - before if "humming<" in p.with_name("signature.txt").read_text()]
        assert not new, "the worker compiled what was compiled ahead"
        for repeat in range(3):
            oracle.poison(operands.out)
            run()
            verdict = oracle.compare(operands.out, operands, expected)
            assert verdict.ok, f"{config_key(config)}, run {repeat}: {verdict.sentence}"
        if not operands.out.numel():
            continue
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(2):
                run()
        for replay in range(3):
            oracle.poison(operands.out)
            graph.replay()
            verdict = oracle.compare(operands.out, operands, expected)
            assert verdict.ok, f"{config_key(config)}, replay {replay}: {verdict.sentence}"


def test_weights_are_repacked_once(gpu):
    problem = parse_shape("16x520x1040")
    operands = make_operands(problem, gpu, 0)
    BACKEND.prepare(problem, operands, BACKEND.default(problem, gpu))
    before = dict(operands.packed)
    assert len(before) == 1
    for config in draw(BACKEND.space(problem, gpu), 2, seed=5):
        BACKEND.prepare(problem, operands, config)
    assert operands.packed == before


def test_asking_for_spaces_makes_no_cuda_context():
    """The tuner's parent asks; only its workers may hold a context."""
    import subprocess
    import sys

    code = (
        "import ctypes\n"
        "from fp4tune.kernels.device import detect\n"
        "from fp4tune.kernels.humming_gemm.backend import Humming\n"
        "from fp4tune.kernels.problem import parse_shape\n"
        "device, backend = detect('cuda:0'), Humming()\n"
        "assert backend.probe(device).available\n"
        "problem = parse_shape('16x520x1040')\n"
        "assert backend.default(problem, device) in backend.space(problem, device)\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int(-1)\n"
        "assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(handle), 0) == 0\n"
        "driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active))\n"
        "assert active.value == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_we_say_of_the_device_is_what_humming_reads(gpu):
    """Only the figures that a default depends on without a driver: where there is one, it is asked."""
    from fp4tune.kernels.humming_gemm.figures import figures_of

    humming, ours = seam.load(), figures_of(gpu)
    if importlib.util.find_spec("humming.device") is None:  # 0.1.12 asks torch
        theirs = torch.cuda.get_device_properties(gpu.index)
        assert (theirs.name, theirs.multi_processor_count) == (ours.name, ours.sm_count)
        assert theirs.L2_cache_size == ours.l2_cache_size
        return
    with humming.seen_as(gpu):
        from humming.device import DeviceInfo

        theirs = DeviceInfo(gpu.index)
        for name in ("sm_version", "sm_count", "l2_cache_size", "max_smem_size", "max_registers_per_sm",
                     "max_threads_per_sm", "name", "is_ppu"):  # fmt: skip
            assert getattr(theirs, name) == getattr(ours, name), name
