"""The conformance suite itself: what it must catch is planted, one fault at a time."""

from __future__ import annotations

import time
from pathlib import Path

import conformance
import pytest
from conformance import check_results, compile_ahead, configs_of, problems, seed_of
from faulty_backends import CompilingBackend, FaultyBackend, Meddler
from fp4tune.kernels.device import detect
from fp4tune.kernels.problem import Op, parse_shape

CPU = detect("cpu")
DENSE = parse_shape("17x72x80")


def test_a_backend_that_is_right_passes_and_says_how_many_configs_ran():
    assert check_results(FaultyBackend(only=("none", "slow")), DENSE, CPU, n_configs=2) == 3


@pytest.mark.parametrize("fault", ["zero_tile", "unwritten"])
def test_a_wrong_result_is_caught(fault):
    with pytest.raises(AssertionError, match=fault):
        check_results(FaultyBackend(default_fault=fault), DENSE, CPU, n_configs=0)


def test_a_wrong_config_of_the_space_is_caught():
    with pytest.raises(AssertionError, match="zero_tile"):
        check_results(FaultyBackend(only=("none", "zero_tile")), DENSE, CPU, n_configs=2)


def test_a_backend_that_writes_into_its_operands_is_caught():
    with pytest.raises(AssertionError, match="alpha was changed"):
        check_results(Meddler(), DENSE, CPU, n_configs=0)


def test_a_problem_that_is_refused_is_no_failure():
    grouped = parse_shape("e8k2:17x72x80")
    assert check_results(FaultyBackend(dense_only=True), grouped, CPU, n_configs=2) == 0
    assert configs_of(FaultyBackend(dense_only=True), grouped, CPU, n_configs=2) == []


def test_after_the_deadline_the_default_is_still_checked():
    backend = FaultyBackend(only=("none", "slow"))
    assert check_results(backend, DENSE, CPU, n_configs=2, deadline=time.monotonic() - 1) == 1


def test_every_case_has_operands_of_its_own_and_every_trap_is_there():
    found = problems()
    assert len({seed_of(p) for p in found}) == len(found)
    assert {1, 3, 16, 17, 64, 127, 128, 200, 1024} <= {p.m for p in found if p.op is Op.DENSE}
    assert len({p.routing for p in found}) == 3
    assert any(p.n % 8 for p in found)
    assert any(p.k % 32 for p in found)


def test_configs_are_compiled_ahead_in_other_processes_that_see_no_gpu(tmp_path: Path):
    backend = CompilingBackend(str(tmp_path))
    cases = [(DENSE, config) for config in backend.space(DENSE, CPU)]
    assert compile_ahead(backend, cases, CPU, within_s=120) == len(cases) - 1, "one of them does not compile"
    said = [(tmp_path / name).read_text().split() for name in ("none", "slow")]
    assert all(len(line) == 1 and int(line[0]) != conformance.os.getpid() for line in said), "pid, and no GPU"
    assert compile_ahead(FaultyBackend(), cases, CPU, within_s=1) == 0
