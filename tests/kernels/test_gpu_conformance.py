"""The conformance suite on every CUDA device's backend, and what only a GPU can show.

Run it alone with `pytest tests/kernels -m gpu --junitxml=gpu.xml`; the file then also holds the device, the versions
and how many configs ran. Backends that compile get as many configs as their time allows, and their default always.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch
from conformance import (
    available,
    check_identity,
    check_refuses_nonsense,
    check_results,
    check_space,
    compile_ahead,
    configs_of,
    problems,
    same_bytes,
    tensors,
)
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.backend import Compiling, load_backends
from fp4tune.kernels.device import current_environment, detect, driver_version
from fp4tune.kernels.errors import NotFoundError, OutOfMemoryError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, parse_shape

pytestmark = pytest.mark.gpu

BACKENDS = [name for name in load_backends() if name != "cpu.dequant"]
REAL = (
    "16x2560x4096", "1x4096x1024", "256x2560x4096", "e64of512k10:16x2048x4096", "e512k10:4x4096x128",
    "moe:e512k10:16x128x4096", "moe:e64of512k10:64x1024x4096",
)  # fmt: skip
"""Shapes of Qwen3.5-397B at TP8 and EP8."""

COMPILE_S = 40.0
"""Seconds that all cores may compile ahead for one backend."""

RESULTS_S, REAL_S = 20.0, 3.0
"""Seconds for one backend's configs, the defaults apart: of all small problems together, and of one real shape."""


@pytest.fixture(scope="module")
def gpu():
    return detect("cuda:0")


@pytest.fixture(scope="module")
def offered(gpu):
    return {backend.name: backend for backend in available(gpu)}


@pytest.fixture(params=BACKENDS)
def backend(request, gpu, offered):
    if request.param not in offered:
        pytest.skip(load_backends()[request.param].probe(gpu).reason)
    return offered[request.param]


def test_this_gpu_has_a_backend(offered):
    assert {"torch.bf16", "torch.dequant", "torch.moe"} <= set(offered)


def test_identity(backend, gpu):
    check_identity(backend.name, backend, gpu)


def test_space(backend, gpu):
    for problem in problems():
        check_space(backend, problem, gpu)


def test_refuses_nonsense(backend, gpu):
    for problem in problems()[::11]:
        check_refuses_nonsense(backend, problem, gpu)


def test_results(backend, gpu, record_property):
    """All problems in one test, so that a failure lists every problem that is wrong and not the first alone.

    Launched, and replayed from a CUDA graph: served GEMMs run in graphs, and what races, races there.
    """
    cases = problems()
    n_configs = 1 if isinstance(backend, Compiling) else 4
    ahead = [(problem, c) for problem in cases for c in configs_of(backend, problem, gpu, n_configs=n_configs)]
    compiled = compile_ahead(backend, ahead, gpu, within_s=COMPILE_S)
    start = time.monotonic()
    wrong, ran = [], 0
    for i, problem in enumerate(cases):
        deadline = start + RESULTS_S * (i + 1) / len(cases)
        try:
            ran += check_results(backend, problem, gpu, n_configs=n_configs, deadline=deadline, replay=True)
            torch.cuda.synchronize()
        except Exception as error:  # whatever a library raises: the other problems are still of interest
            kind = "" if isinstance(error, AssertionError) else f"{problem.key}: {type(error).__name__}: "
            wrong.append(kind + (str(error) or repr(error)).splitlines()[0])
            if "CUDA error" in str(error):
                break  # sticky: nothing that follows would mean anything
    record_property(
        "summary", f"{backend.name} on {gpu.name}: {ran} configs of {len(ahead)}, {compiled} of them compiled ahead, "
        f"{len(wrong)} problems wrong, {time.monotonic() - start:.0f} s",
    )  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert ran


@pytest.mark.parametrize("shape", REAL)
def test_real_shapes(backend, gpu, shape):
    problem = parse_shape(shape)
    if not configs_of(backend, problem, gpu, n_configs=0):
        pytest.skip(f"{backend.name} does not run {shape}")
    assert check_results(backend, problem, gpu, n_configs=3, deadline=time.monotonic() + REAL_S, replay=True) > 0
    torch.cuda.empty_cache()


# --- the ground floor on a GPU -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["e4of16k2:64x72x80", "moe:e4of16k2:64x48x80"])
@pytest.mark.parametrize("format_", Format)
def test_a_seed_means_the_same_bytes_on_every_device(gpu, format_, shape):
    problem = parse_shape(shape, format=format_)
    here, there = (dict(tensors(make_operands(problem, device, 5))) for device in (detect("cpu"), gpu))
    for name, tensor in here.items():
        if name != "out":
            assert same_bytes(tensor, there[name].cpu()), name


def test_quantising_on_the_gpu_agrees_with_the_cpu():
    x = torch.randn(300, 1040, generator=torch.Generator().manual_seed(0)) * 5
    here, there = nvfp4.quantize(x), nvfp4.quantize(x.cuda())
    for name in ("packed", "scale", "scale_128x4", "global_scale"):
        assert same_bytes(getattr(here, name), getattr(there, name).cpu()), name
    assert torch.equal(nvfp4.dequantize(here), nvfp4.dequantize(there).cpu())


@pytest.mark.parametrize("shape", ["200x328x4096", "e8k2:100x200x80"])  # a moe's is not exact: it requantises
def test_the_oracle_on_the_gpu_agrees_with_the_cpu(gpu, shape):
    problem = parse_shape(shape, out_dtype=OutDtype.FP32)
    operands = make_operands(problem, gpu, 0)
    exact = oracle.reference(make_operands(problem, detect("cpu"), 0), dtype=torch.float64)
    found = oracle.reference(operands).cpu().double()
    assert float((found - exact).norm() / exact.norm()) < 1e-6, "is TF32 on?"
    assert oracle.compare(oracle.reference(operands), operands).ok
    wrong = oracle.reference(operands)
    wrong[:, :64] = 0
    assert "columns 0:" in oracle.compare(wrong, operands).sentence
    oracle.poison(operands.out)
    assert oracle.compare(operands.out, operands).n_unwritten == operands.out.numel()


def test_a_problem_that_is_too_large_is_refused_before_anything_is_allocated(gpu):
    before = torch.cuda.memory_allocated()
    with pytest.raises(OutOfMemoryError, match=r"needs \d+\.\d GiB, the device has \d+\.\d GiB"):
        make_operands(parse_shape("16384x262144x262144"), gpu, 0)
    assert torch.cuda.memory_allocated() == before


def test_detection(gpu, record_property):
    assert gpu.kind == "cuda"
    assert gpu.sms > 10
    assert gpu.l2_bytes > 1 << 20
    assert gpu.memory_bytes > 1 << 30
    assert gpu.torch_device == "cuda:0"
    assert detect("auto") == gpu
    with pytest.raises(NotFoundError):
        detect("cuda:4095")
    environment = current_environment(gpu, load_backends().values())
    record_property("environment", f"{gpu} {dict(environment.versions)}")
    assert {"torch", "cuda", "cublas"} <= set(environment.versions)
    assert ("driver" in environment.versions) == bool(driver_version())
    assert current_environment(gpu, load_backends().values()).fingerprint == environment.fingerprint


NO_CONTEXT = """
import ctypes
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import current_environment, detect, driver_version
device = detect("cuda:0")
current_environment(device, load_backends().values())
driver = ctypes.CDLL("libcuda.so.1")
handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int(-1)
assert driver.cuInit(0) == 0
assert driver.cuDeviceGet(ctypes.byref(handle), 0) == 0
assert driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 0, "detection made a CUDA context in this process"
"""


def test_detection_makes_no_cuda_context():
    """The tuner's parent detects; only its workers may hold a context, or a sticky error would be everybody's."""
    subprocess.run([sys.executable, "-c", NO_CONTEXT], check=True, timeout=120)
