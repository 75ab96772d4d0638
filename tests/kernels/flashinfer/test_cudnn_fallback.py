"""FlashInfer's own code that runs cuDNN's default when the plan asked for fails: here that is always noticed.

The plans are made up, because cuDNN lists none without a card; who resolves a tactic, who falls back and who warns is
the installed FlashInfer.
"""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import arguments
from fp4tune.kernels.flashinfer_gemm.backends import Cudnn
from fp4tune.kernels.flashinfer_gemm.stand_ins import replaced
from fp4tune.kernels.problem import Problem

PROBLEM = Problem(16, 512, 1024)
KNOWN, GONE, BROKEN = (4, ((2, 1),)), (9, ((2, 1),)), (5, ())


class Graph:
    """Two plans, of which the second cannot be executed."""

    def get_execution_plan_count(self):
        return 2

    def get_engine_and_knobs_at_index(self, index):
        return [(4, {2: 1}), (5, {})][index]


@pytest.fixture
def cudnn(flashinfer, with_cudnn, monkeypatch):
    """mm_fp4 on cuDNN as on a card, up to where a graph is built and executed; what was executed, by plan index."""
    base = importlib.import_module("flashinfer.gemm.gemm_base")
    executed = []

    def execute(graph, *_, tactic=-1, **__):
        index = base._get_cudnn_plan_index_for_tactic(graph, tactic)
        if index == 1:
            raise RuntimeError("no plan for this shape")
        executed.append(index)

    for name in ("build_cudnn_gemm_fp4_graph", "build_cudnn_gemm_fp4_graph_override_shape"):
        monkeypatch.setattr(base, name, lambda *_, **__: Graph())
    for name in ("execute_cudnn_gemm_fp4_graph", "execute_cudnn_gemm_fp4_graph_override_shape"):
        monkeypatch.setattr(base, name, execute)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with flashinfer.on((12, 0), 188), replaced(flashinfer, "_standing_in", False):
        yield executed


def call(flashinfer, tactic):
    return arguments.stand_ins(PROBLEM, 16).call(flashinfer, "cudnn", tactic)


@pytest.mark.parametrize(("tactic", "plan"), [(KNOWN, 0), (-1, -1)])
def test_a_plan_that_ran_is_the_one_asked_for(flashinfer, cudnn, tactic, plan):
    assert flashinfer.ran(call(flashinfer, tactic)) == tactic
    assert cudnn == [plan]


@pytest.mark.parametrize("tactic", [GONE, BROKEN])
def test_flashinfer_falls_back_and_the_seam_says_so(flashinfer, cudnn, tactic):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        captured = call(flashinfer, tactic)
    assert any("falling back to default" in str(one.message) for one in said)
    assert cudnn == [-1]
    assert flashinfer.ran(captured) == -1


@pytest.mark.parametrize("tactic", [GONE, BROKEN])
def test_a_trial_of_a_plan_that_does_not_run_is_refused(flashinfer, cudnn, tactic):
    with pytest.raises(UnsupportedError, match="refuses the tactic") as caught:
        Cudnn()._first_call(flashinfer, arguments.stand_ins(PROBLEM, 16), tactic)
    assert "falling back to default" in str(caught.value)
    assert cudnn == []


def test_a_launch_later_on_never_falls_back(flashinfer, cudnn, monkeypatch):
    launch = flashinfer.launcher(call(flashinfer, KNOWN))
    launch()
    assert cudnn == [0, 0]
    monkeypatch.setattr(Graph, "get_engine_and_knobs_at_index", lambda self, index: (7, {}))
    with pytest.raises(UserWarning, match="falling back to default"):
        launch()
    assert cudnn == [0, 0]


def test_plans_are_listed_as_engines_and_knobs(flashinfer, cudnn):
    codec = Cudnn().codec(flashinfer)
    found = flashinfer.tactics(call(flashinfer, -1))
    assert found == [KNOWN, BROKEN]
    assert [codec.decode(tactic) for tactic in found] == [{"engine": 4, "knobs": "2=1"}, {"engine": 5, "knobs": ""}]
