"""The conformance suite on the CPU, and the parts of it that need no device."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from conformance import (
    available,
    check_identity,
    check_probe,
    check_refuses_nonsense,
    check_results,
    check_space,
    ids,
    problems,
)
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.problem import Op, parse_shape

CPU = detect("cpu")
ONE_CORE = replace(CPU, sms=1)
"""Most results are checked on one thread: threads that wait for each other are slow where tests run in parallel."""

H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0)
RTX_PRO_6000 = Device("cuda", "NVIDIA RTX PRO 6000", "12.0", 188, 96 << 30, 128 << 20, 600.0)
OLD_GPU = Device("cuda", "Tesla V100", "7.0", 80, 32 << 30, 6 << 20, 300.0)
ALL = load_backends()
ON_CPU = {backend.name: backend for backend in available(CPU)}


def takers(problem):
    """Backends on the CPU that compute a problem: of moe problems one, of all others the other."""
    return {"torch.moe"} if problem.op is Op.MOE else {"cpu.dequant"}


def test_there_is_something_to_check():
    assert set(ALL) >= {"cpu.dequant", "torch.dequant"}
    assert "cpu.dequant" in ON_CPU
    assert {m for p in problems() for m in [p.m]} >= {1, 3, 16, 17, 64, 127, 128, 200}


@pytest.mark.parametrize("name", ALL)
def test_probe(name):
    for device in (CPU, H200, RTX_PRO_6000, OLD_GPU):
        check_probe(ALL[name], device)


@pytest.mark.parametrize("name", ON_CPU)
def test_identity(name):
    check_identity(name, ON_CPU[name], CPU)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("device", [CPU, H200, RTX_PRO_6000, OLD_GPU], ids=lambda d: d.name)
def test_space(name, device):
    for problem in problems():
        check_space(ALL[name], problem, device)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("problem", problems(), ids=ids(problems()))
def test_results(name, problem):
    found = check_results(ON_CPU[name], problem, ONE_CORE, n_configs=4)
    assert (found > 1) == (name in takers(problem))


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("shape", ["128x600x208", "e8k2:64x200x80", "moe:e8k2:64x96x80"])
def test_results_on_all_cores(name, shape):
    problem = parse_shape(shape)
    assert (check_results(ON_CPU[name], problem, CPU, n_configs=3) > 1) == (name in takers(problem))


@pytest.mark.parametrize("name", ON_CPU)
def test_refuses_nonsense(name):
    for problem in problems()[::7]:
        check_refuses_nonsense(ON_CPU[name], problem, CPU)


def test_no_backend_needs_a_heavy_import_to_be_constructed():
    code = (
        "import sys; from fp4tune.kernels.backend import load_backends; backends = load_backends()\n"
        "assert len(backends) >= 2, backends\n"
        "heavy = {'torch', 'numpy', 'triton', 'flashinfer', 'optuna', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
