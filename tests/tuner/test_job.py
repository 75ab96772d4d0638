from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_backends import FAULTS, GATE_CALLS, DiesAfterTheGate, FaultyBackend, Unparametrised
from fp4tune.db.records import (
    Origin,
    RunProblem,
    RunStatus,
    TrialStatus,
    WinnerFilter,
)
from fp4tune.db.store import Store
from fp4tune.kernels.backend import Space
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, Environment, current_environment, detect
from fp4tune.kernels.errors import InvalidInputError, OtherKindError
from fp4tune.kernels.problem import Problem, parse_shape
from fp4tune.tuner import events
from fp4tune.tuner.context import JobContext, StopFlag
from fp4tune.tuner.executor import Candidate, LocalExecutor
from fp4tune.tuner.gate import GATE_RUNS
from fp4tune.tuner.job import TuningJob
from job_factory import DENSE, GROUPED, QUICK, job, trials_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def cpu() -> Device:
    return detect("cpu")


def test_a_run_on_the_cpu_ends_with_winners_that_are_proven(store: Store, cpu: Device):
    seen: list[events.Event] = []
    result = job(store, cpu, CpuDequant(), tell=seen.append).start([RunProblem(DENSE, "mlp.down"), RunProblem(GROUPED)])
    run = store.run(result.run_id)
    assert run.status is RunStatus.FINISHED
    assert (run.n_done, run.n_problems) == (2, 2)
    assert result.n_winners == 2
    winners = store.winners(WinnerFilter(run_id=result.run_id)).items
    assert {w.problem for w in winners} == {DENSE, GROUPED}
    trials = trials_of(store, result.run_id)
    for winner in winners:
        mine = [t for t in trials if t.problem == winner.problem]
        assert mine[0].origin is Origin.DEFAULT
        assert any(t.origin is Origin.FINAL and t.config == winner.default.config for t in mine)
        assert winner.choice.config in [t.config for t in mine if t.origin is Origin.FINAL]
        assert winner.choice.config in [choice.config for choice in winner.tie_set]
        assert winner.choice.time_us <= winner.default.time_us
        assert winner.n_trials == len(mine)
        assert set(winner.depends_on) <= set(winner.environment.versions)
    for trial in trials:
        assert trial.policy == "cpu.warm"
        assert trial.status is not TrialStatus.OK or (trial.rel_error is not None and trial.rel_error < 5e-3)
    assert isinstance(seen[0], events.RunStarted)
    assert isinstance(seen[-1], events.RunDone)
    assert sum(isinstance(e, events.TrialDone) for e in seen) == sum(t.origin is not Origin.FINAL for t in trials)


def test_every_fault_is_a_trial_of_its_class_and_none_is_timed(store: Store, cpu: Device):
    result = job(store, cpu, FaultyBackend()).start([RunProblem(DENSE)])
    by_fault = {t.config["fault"]: t for t in trials_of(store, result.run_id) if t.origin is not Origin.FINAL}
    assert set(by_fault) == set(FAULTS)
    status = {fault: trial.status for fault, trial in by_fault.items()}
    assert status == {
        "none": TrialStatus.OK,
        "slow": TrialStatus.OK,
        "zero_tile": TrialStatus.WRONG,
        "unwritten": TrialStatus.WRONG,
        "raises": TrialStatus.CRASHED,
        "refuses": TrialStatus.UNSUPPORTED,
        "compiler_raises": TrialStatus.COMPILE_FAILED,
    }
    for trial in by_fault.values():
        assert (trial.time_us is None) == (trial.status is not TrialStatus.OK)
        assert bool(trial.error) == (trial.status is not TrialStatus.OK)
    (winner,) = store.winners(WinnerFilter(run_id=result.run_id)).items
    assert winner.choice.config == {"fault": "none"}


def test_a_call_that_takes_too_long_is_a_timeout(store: Store, cpu: Device):
    backend = FaultyBackend(default_fault="slow")
    environment = current_environment(cpu, [backend])
    executor = LocalExecutor(cpu, {backend.name: backend}, timeout_s=0.01)
    context = JobContext(environment, {backend.name: backend}, executor, replace(QUICK, trials=1))
    result = TuningJob(store, context).start([RunProblem(DENSE)])
    assert trials_of(store, result.run_id)[0].status is TrialStatus.TIMEOUT
    assert result.n_winners == 0


def test_a_default_that_is_wrong_does_not_win_and_does_not_end_the_run(store: Store, cpu: Device):
    backend = FaultyBackend(default_fault="zero_tile")
    result = job(store, cpu, backend).start([RunProblem(DENSE)])
    (winner,) = store.winners(WinnerFilter(run_id=result.run_id)).items
    assert winner.choice.config["fault"] in ("none", "slow")


class _OfAnotherKind(CpuDequant):
    """For problems of another kind, whatever is asked."""

    name = "test.other_kind"

    def space(self, problem: Problem, device: Device) -> Space:
        raise OtherKindError(f"test.other_kind is not for {problem.op.value} problems.")


def test_a_backend_for_problems_of_another_kind_is_not_spoken_of(store: Store, cpu: Device):
    result = job(store, cpu, _OfAnotherKind(), CpuDequant()).start([RunProblem(DENSE)])
    assert {trial.backend for trial in trials_of(store, result.run_id)} == {"cpu.dequant"}
    assert result.n_winners == 1


def test_where_all_backends_are_for_another_kind_each_says_so(store: Store, cpu: Device):
    result = job(store, cpu, _OfAnotherKind()).start([RunProblem(DENSE)])
    (refused,) = trials_of(store, result.run_id)
    assert (refused.status, refused.error) == (
        TrialStatus.UNSUPPORTED, "test.other_kind is not for dense problems."
    )  # fmt: skip
    assert result.n_winners == 0


def test_a_backend_that_refuses_a_problem_is_remembered_with_its_reason(store: Store, cpu: Device):
    result = job(store, cpu, FaultyBackend(dense_only=True), CpuDequant()).start([RunProblem(GROUPED)])
    refused = [t for t in trials_of(store, result.run_id) if t.backend == "test.faulty"]
    assert [t.status for t in refused] == [TrialStatus.UNSUPPORTED]
    assert refused[0].error == "Only dense problems can be run."
    (winner,) = store.winners(WinnerFilter(run_id=result.run_id)).items
    assert winner.choice.backend == "cpu.dequant"


def test_when_no_backend_can_run_it_the_outcome_says_so(store: Store, cpu: Device):
    result = job(store, cpu, FaultyBackend(dense_only=True)).start([RunProblem(GROUPED), RunProblem(DENSE)])
    states = store.run_problems(result.run_id)
    assert [s.done for s in states] == [True, True]
    assert states[0].outcome == "no backend can run it"
    assert result.n_winners == 1


def test_a_problem_larger_than_the_device_is_skipped_with_the_figures(store: Store, cpu: Device):
    small = replace(cpu, memory_bytes=1 << 30)
    result = job(store, small, CpuDequant()).start([RunProblem(parse_shape("4096x65536x65536")), RunProblem(DENSE)])
    states = store.run_problems(result.run_id)
    assert "MiB" in states[0].outcome or "GiB" in states[0].outcome
    assert [s.done for s in states] == [True, True]
    assert result.n_winners == 1


def test_the_default_is_tried_however_small_the_budget(store: Store, cpu: Device):
    result = job(store, cpu, CpuDequant(), settings=replace(QUICK, budget_s=1e-6)).start([RunProblem(DENSE)])
    trials = trials_of(store, result.run_id)
    assert [t.origin for t in trials] == [Origin.DEFAULT, Origin.FINAL]
    assert result.n_winners == 1


def test_a_stop_keeps_what_was_found_and_a_resume_goes_on(store: Store, cpu: Device):
    stop = StopFlag()

    def stop_after_four(event: events.Event) -> None:
        stop.requested = stop.requested or (isinstance(event, events.TrialDone) and event.number == 3)

    items = [RunProblem(DENSE), RunProblem(GROUPED)]
    result = job(store, cpu, CpuDequant(), stop=stop, tell=stop_after_four).start(items)
    assert result.status is RunStatus.INTERRUPTED
    before = trials_of(store, result.run_id)
    assert len([t for t in before if t.origin is not Origin.FINAL]) == 4
    assert result.n_winners == 1, "a winner among what was found is served"
    assert [s.done for s in store.run_problems(result.run_id)] == [False, False]

    again = job(store, cpu, CpuDequant()).resume(result.run_id)
    assert again.status is RunStatus.FINISHED
    after = trials_of(store, result.run_id)
    assert after[: len(before)] == before
    searched = [(t.problem, t.backend, str(t.config)) for t in after if t.origin is not Origin.FINAL]
    assert len(searched) == len(set(searched)), "nothing is tried twice across a resume"
    numbers = [(t.problem, t.number) for t in after]
    assert len(numbers) == len(set(numbers))
    assert len(store.winners(WinnerFilter(run_id=result.run_id, current=None)).items) == 3
    assert len(store.winners(WinnerFilter(run_id=result.run_id)).items) == 2
    with pytest.raises(InvalidInputError, match="finished"):
        job(store, cpu, CpuDequant()).resume(result.run_id)


def test_a_run_of_another_environment_cannot_be_resumed(store: Store, cpu: Device):
    stop = StopFlag()
    stop.requested = True
    result = job(store, cpu, CpuDequant(), stop=stop).start([RunProblem(DENSE)])
    other = Environment(cpu, {"torch": "0.0"})
    context = JobContext(other, {"cpu.dequant": CpuDequant()}, LocalExecutor(cpu, {}), QUICK)
    with pytest.raises(InvalidInputError, match="two environments"):
        TuningJob(store, context).resume(result.run_id)


def test_an_error_of_ours_marks_the_run_failed_and_keeps_the_trials(store: Store, cpu: Device):
    def fail(event: events.Event) -> None:
        if isinstance(event, events.FinalsStarted):
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        job(store, cpu, CpuDequant(), tell=fail).start([RunProblem(DENSE)])
    (run,) = store.runs()
    assert run.status is RunStatus.FAILED
    assert "planted" in run.error
    assert run.n_trials > 0


def test_nothing_to_tune_is_refused(store: Store, cpu: Device):
    with pytest.raises(InvalidInputError, match="nothing to tune"):
        job(store, cpu, CpuDequant()).start([])
    assert store.runs() == []


def test_winners_of_neighbouring_problems_are_tried_right_after_the_defaults(store: Store, cpu: Device):
    first = job(store, cpu, CpuDequant()).start([RunProblem(DENSE)])
    (winner,) = store.winners(WinnerFilter(run_id=first.run_id)).items
    second = job(store, cpu, CpuDequant()).start([RunProblem(replace(DENSE, m=4))])
    trials = trials_of(store, second.run_id)
    tried = [t.config for t in trials if t.origin in (Origin.DEFAULT, Origin.SEED)]
    assert winner.choice.config in tried


def test_a_stop_before_anything_was_tried_says_so(store: Store, cpu: Device):
    """Ctrl-C while the operands are made."""
    stop = StopFlag()

    def stop_at_once(event: events.Event) -> None:
        stop.requested = stop.requested or isinstance(event, events.ProblemStarted)

    seen: list[events.Event] = []
    result = job(store, cpu, CpuDequant(), stop=stop, tell=lambda e: (stop_at_once(e), seen.append(e))).start(
        [RunProblem(DENSE)]
    )
    assert (result.status, result.n_winners) == (RunStatus.INTERRUPTED, 0)
    (done,) = [event for event in seen if isinstance(event, events.ProblemDone)]
    assert done.outcome == "interrupted; nothing was tried"
    assert job(store, cpu, CpuDequant()).resume(result.run_id).n_winners == 1


def test_a_stop_after_the_default_does_not_replace_what_is_served(store: Store, cpu: Device):
    backend = FaultyBackend(default_fault="slow")
    first = job(store, cpu, backend).start([RunProblem(DENSE)])
    (winner,) = store.winners(WinnerFilter(run_id=first.run_id)).items
    assert winner.choice.config == {"fault": "none"}

    stop = StopFlag()

    def stop_after_one(event: events.Event) -> None:
        stop.requested = stop.requested or isinstance(event, events.TrialDone)

    result = job(store, cpu, backend, stop=stop, tell=stop_after_one).start([RunProblem(DENSE)])
    assert result.n_winners == 0
    (served,) = store.winners(WinnerFilter()).items
    assert served.id == winner.id


def test_a_budget_for_one_trial_still_measures_what_is_served(store: Store, cpu: Device):
    backend = FaultyBackend(default_fault="slow")
    job(store, cpu, backend).start([RunProblem(DENSE)])
    again = job(store, cpu, backend, settings=replace(QUICK, trials=1)).start([RunProblem(DENSE)])
    (winner,) = store.winners(WinnerFilter(run_id=again.run_id)).items
    assert winner.choice.config == {"fault": "none"}


def test_a_config_without_parameters_is_not_tried_again_after_a_resume(store: Store, cpu: Device):
    stop = StopFlag()

    def stop_after_one(event: events.Event) -> None:
        stop.requested = stop.requested or isinstance(event, events.TrialDone)

    result = job(store, cpu, Unparametrised(), stop=stop, tell=stop_after_one).start([RunProblem(DENSE)])
    job(store, cpu, Unparametrised()).resume(result.run_id)
    origins = [t.origin for t in trials_of(store, result.run_id)]
    assert origins.count(Origin.DEFAULT) == 1


def test_a_config_that_dies_after_the_gate_of_the_finals_does_not_end_them(cpu: Device):
    assert GATE_CALLS == GATE_RUNS
    backends = {backend.name: backend for backend in (DiesAfterTheGate(), Unparametrised())}
    executor = LocalExecutor(cpu, backends)
    executor.open(DENSE, 0)
    dead, alive = executor.rounds([Candidate(name, {}) for name in backends], n_rounds=6, budget_s=0.1, seed=0)
    assert (dead.status, dead.timing) == (TrialStatus.CRASHED, None)
    assert "illegal memory access" in dead.error
    assert alive.timing is not None
    assert len(alive.timing.samples_us) == 6


def test_a_race_without_the_backend_that_is_served_does_not_replace_it_by_something_slower(store: Store, cpu: Device):
    first = job(store, cpu, FaultyBackend("test.fast")).start([RunProblem(DENSE)])
    slow = FaultyBackend("test.slow", default_fault="slow", only=("slow",))
    environment = current_environment(cpu, [FaultyBackend("test.fast")])
    context = JobContext(environment, {"test.slow": slow}, LocalExecutor(cpu, {"test.slow": slow}), QUICK)
    second = TuningJob(store, context).start([RunProblem(DENSE)])
    assert (first.n_winners, second.n_winners, second.n_served) == (1, 0, 1)
    (winner,) = store.winners(WinnerFilter(problem_key=DENSE.key)).items
    assert winner.choice.backend == "test.fast"
    assert "not in this race" in store.run_problems(second.run_id)[0].outcome


def test_a_device_whose_memory_others_hold_is_an_outcome(store: Store, cpu: Device, monkeypatch: pytest.MonkeyPatch):
    import fp4tune.kernels.operands

    def full(*_args):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(fp4tune.kernels.operands, "make_operands", full)
    result = job(store, cpu, CpuDequant()).start([RunProblem(DENSE)])
    assert "does not fit into the memory that is free" in store.run_problems(result.run_id)[0].outcome
    assert result.n_served == 0
