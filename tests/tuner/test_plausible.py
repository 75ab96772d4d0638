"""What is doubted: times that bytes do not allow, and times far from the model; nothing is dropped for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fp4tune.db.records import LatencyModel, Roofs, RunProblem, TrialFilter, WinnerFilter
from fp4tune.db.store import Store
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, Environment, detect
from fp4tune.kernels.problem import Problem, parse_shape
from fp4tune.tuner import events
from fp4tune.tuner.context import JobContext
from fp4tune.tuner.executor import LocalExecutor
from fp4tune.tuner.plausible import FAR, doubt_in, far, plausibility, with_doubt
from fp4tune.tuner.problem_run import ProblemRun
from fp4tune.tuner.search import Search
from fp4tune.tuner.writer import TrialWriter
from job_factory import DENSE, QUICK, job
from store_factory import new_run, new_trial, timing

H200 = Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 60 << 20, 700.0)
ROOFS = Roofs(4e12, 8e14, datetime(2026, 1, 1, tzinfo=UTC))
MODEL = LatencyModel(
    "f" * 16, "dense", "nvfp4", "cuda.graph", 4.0, 3e12, None, None, 1, 64, 45, 0.04, 0.17, datetime(2026, 1, 1, tzinfo=UTC)
)  # fmt: skip
WIDE = Problem(16, 32768, 8192)
"""151 MB of weights: 38 µs at the bandwidth of the copy."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


def floor_of(problem: Problem, device: Device = H200, roofs: Roofs | None = ROOFS) -> float:
    return plausibility(problem, 0, device, roofs=roofs, model=None).floor_us


def test_what_is_faster_than_its_bytes_allow_is_doubted():
    copy_us = WIDE.operand_bytes / 4e12 * 1e6
    held = plausibility(WIDE, 0, H200, roofs=ROOFS, model=None)
    assert held.floor_us == pytest.approx(0.8 * copy_us)
    assert held.is_too_fast(0.79 * copy_us)
    assert "reading its bytes" in held.doubt(0.79 * copy_us)
    assert held.doubt(0.81 * copy_us) == ""


def test_operations_are_no_floor_since_kernels_may_use_narrower_units_than_bf16():
    many = Problem(8192, 8192, 8192)
    assert floor_of(many) < 2 * many.m * many.n * many.k / ROOFS.bf16_flops_per_s * 1e6 / 4


def test_bytes_that_stay_in_l2_give_no_floor():
    """256 sets of it are 19 MB, and the L2 has 60."""
    assert floor_of(Problem(1, 256, 512)) == 0
    assert floor_of(Problem(1, 2048, 512)) > 0
    assert floor_of(WIDE, replace(H200, l2_bytes=0)) == 0


def test_without_roofs_and_on_a_cpu_there_is_no_floor():
    assert floor_of(WIDE, roofs=None) == 0
    assert floor_of(WIDE, detect("cpu")) == 0


def test_only_experts_that_are_hit_are_in_the_floor():
    one_token = parse_shape("e512k10:1x2048x4096")
    assert floor_of(one_token) < one_token.operand_bytes / 4e12 * 1e6 / 10


def test_what_is_far_from_the_model_is_doubted_both_ways():
    held = plausibility(WIDE, 0, H200, roofs=None, model=MODEL)
    expected = 4.0 + WIDE.operand_bytes / 3e6
    assert held.far == FAR == 2.0
    assert held.doubt(1.9 * expected) == held.doubt(expected / 1.9) == ""
    assert "2.5 times what the device's latency model expects" in held.doubt(2.5 * expected)
    assert "expects 4.0 times" in held.doubt(expected / 4)


def test_a_poor_model_doubts_less():
    assert far(replace(MODEL, p90_error=0.6)) == pytest.approx(2.8)


def test_a_model_has_no_say_where_nothing_like_it_was_measured():
    held = plausibility(replace(WIDE, m=4096), 0, H200, roofs=None, model=MODEL)
    assert held.doubt(1e6) == held.doubt(1e-3) == ""


def test_a_doubt_is_found_again_in_the_sentence_of_a_run():
    sentence = "1.31x as fast as the default"
    assert with_doubt(sentence, "") == sentence
    assert doubt_in(sentence) == ""
    doubt = "12.0 µs is 2.5 times what was expected; and more"
    assert doubt_in(with_doubt(sentence, doubt)) == doubt
    assert doubt_in("interrupted; " + with_doubt(sentence, doubt)) == doubt


def test_a_run_says_what_it_doubts_and_serves_it_all_the_same(store: Store):
    """A model that expects a second for what takes microseconds."""
    cpu = detect("cpu")
    store.save_latency_model(
        replace(MODEL, device_fingerprint=cpu.fingerprint, policy="cpu.warm", launch_us=1e6)
    )  # fmt: skip
    seen: list[events.Event] = []
    result = job(store, cpu, CpuDequant(), tell=seen.append).start([RunProblem(DENSE)])
    (state,) = store.run_problems(result.run_id)
    assert "the device's latency model expects" in doubt_in(state.outcome)
    (done,) = [event for event in seen if isinstance(event, events.ProblemDone)]
    assert done.outcome == state.outcome
    assert result.n_winners == 1
    assert store.winners(WinnerFilter(run_id=result.run_id)).items


def test_a_model_of_another_policy_or_format_has_no_say(store: Store):
    cpu = detect("cpu")
    wrong = replace(MODEL, device_fingerprint=cpu.fingerprint, launch_us=1e6)
    for other in (
        {"policy": "cuda.graph"},
        {"format": "bf16", "policy": "cpu.warm"},
        {"op": "grouped", "policy": "cpu.warm"},
    ):
        store.save_latency_model(replace(wrong, **other))
    result = job(store, cpu, CpuDequant()).start([RunProblem(DENSE)])
    assert doubt_in(store.run_problems(result.run_id)[0].outcome) == ""


def test_trials_that_are_too_fast_are_counted_also_those_before_a_resume(store: Store):
    environment = Environment(H200, {"driver": "1"})
    run_id = store.create_run(new_run(environment=environment, problems=[RunProblem(WIDE)]))
    times = (10.0, 50.0, 12.0)
    store.add_trials(
        [
            new_trial(run_id, i, problem=WIDE, environment=environment, timing=timing(time_us))
            for i, time_us in enumerate(times)
        ]
    )
    earlier = store.trials(TrialFilter(run_id=run_id)).items
    context = JobContext(environment, {}, LocalExecutor(detect("cpu"), {}), QUICK, roofs=ROOFS)
    with TrialWriter(store, run_id) as writer:
        run = ProblemRun(context, run_id, 0, WIDE, Search([], seed=0), writer, earlier)
        assert run.doubt(None).startswith("2 trials took less than the 30.")
        without = ProblemRun(replace(context, roofs=None), run_id, 0, WIDE, Search([], seed=0), writer, earlier)
        assert without.doubt(None) == ""
