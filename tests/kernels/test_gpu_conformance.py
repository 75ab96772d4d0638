"""The conformance suite on every CUDA device's backend, and what only a GPU can show.

Run it alone with `pytest tests/kernels -m gpu --junitxml=gpu.xml`; the file then also holds the device, the versions
and how many configs ran.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from conformance import (
    available,
    check_identity,
    check_refuses_nonsense,
    check_results,
    check_space,
    problems,
    same_bytes,
    sample,
    tensors,
)
from fp4tune.kernels import nvfp4, oracle
from fp4tune.kernels.backend import config_key, load_backends
from fp4tune.kernels.device import current_environment, detect, driver_version
from fp4tune.kernels.errors import NotFoundError, OutOfMemoryError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import Format, OutDtype, parse_shape

pytestmark = pytest.mark.gpu

BACKENDS = [name for name in load_backends() if name != "cpu.dequant"]
REAL = ("16x2560x4096", "1x4096x1024", "256x2560x4096", "e64of512k10:16x2048x4096", "e512k10:4x4096x128")
"""Shapes of Qwen3.5-397B at TP8 and EP8."""


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
    assert "torch.dequant" in offered


def test_identity(backend, gpu):
    check_identity(backend.name, backend, gpu)


def test_space(backend, gpu):
    for problem in problems():
        check_space(backend, problem, gpu)


def test_refuses_nonsense(backend, gpu):
    for problem in problems()[::11]:
        check_refuses_nonsense(backend, problem, gpu)


def test_results(backend, gpu, record_property):
    """All problems in one test, so that a failure lists every problem that is wrong and not the first alone."""
    wrong, ran = [], 0
    for problem in problems():
        try:
            ran += check_results(backend, problem, gpu, n_configs=4)
            torch.cuda.synchronize()
        except (AssertionError, RuntimeError) as error:
            wrong.append(f"{problem.key}: {type(error).__name__}: {str(error).splitlines()[0]}")
            if "CUDA error" in str(error):
                break  # sticky: nothing that follows would mean anything
    record_property("summary", f"{backend.name} on {gpu.name}: {ran} configs, {len(wrong)} problems wrong")
    assert not wrong, "\n".join(wrong)
    assert ran


@pytest.mark.parametrize("shape", REAL)
def test_real_shapes(backend, gpu, shape):
    assert check_results(backend, parse_shape(shape), gpu, n_configs=3) > 0
    torch.cuda.empty_cache()


@pytest.mark.parametrize("shape", ["16x520x1040", "e8k2:40x200x208"])
@pytest.mark.parametrize("out_dtype", OutDtype)
def test_results_under_graph_replay(backend, gpu, shape, out_dtype):
    """Served GEMMs run in CUDA graphs; a config that is right when launched can be wrong when replayed."""
    problem = parse_shape(shape, out_dtype=out_dtype)
    operands = make_operands(problem, gpu, 0)
    expected = oracle.reference(operands)
    space = backend.space(problem, gpu)
    for config in [backend.default(problem, gpu), *sample(space, 3, 1)]:
        run = backend.prepare(problem, operands, config)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for _ in range(3):
            oracle.poison(operands.out)
            graph.replay()
            verdict = oracle.compare(operands.out, operands, expected)
            assert verdict.ok, f"{config_key(config)}: {verdict.sentence}"


# --- the ground floor on a GPU -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", Format)
def test_a_seed_means_the_same_bytes_on_every_device(gpu, format_):
    problem = parse_shape("e4of16k2:64x72x80", format=format_)
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


@pytest.mark.parametrize("shape", ["200x328x4096", "e8k2:100x200x80"])
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
