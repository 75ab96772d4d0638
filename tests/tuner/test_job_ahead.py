"""Jobs with several candidates in flight, with baselines, under several policies, with known roofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from faulty_backends import FAULTS, FaultyBackend, Reference
from fp4tune.db.records import (
    Origin,
    Roofs,
    RunProblem,
    RunStatus,
    WinnerFilter,
)
from fp4tune.db.store import Store
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.tuner import events
from fp4tune.tuner.context import StopFlag
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.search import candidate_key
from job_factory import DENSE, GROUPED, QUICK, AheadExecutor, OtherPolicy, ahead, job, trials_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def cpu() -> Device:
    return detect("cpu")


# --- several in flight -------------------------------------------------------------------------------------------


def test_with_several_in_flight_nothing_is_tried_twice_and_the_trials_are_kept_to(store: Store, cpu: Device):
    executor = ahead(cpu, 5, CpuDequant())
    result = job(store, cpu, CpuDequant(), executor=executor).start([RunProblem(DENSE), RunProblem(GROUPED)])
    assert result.n_winners == 2
    assert executor.most_in_flight == 5
    trials = [t for t in trials_of(store, result.run_id) if t.origin is not Origin.FINAL]
    for problem in (DENSE, GROUPED):
        mine = [str(t.config) for t in trials if t.problem == problem]
        assert len(mine) == len(set(mine)) == QUICK.trials
        assert [t.number for t in trials if t.problem == problem] == list(range(QUICK.trials))


def test_what_is_in_flight_at_a_stop_is_not_stored_and_is_tried_by_the_resume(store: Store, cpu: Device):
    stop = StopFlag()

    def stop_after_one(event: events.Event) -> None:
        stop.requested = stop.requested or isinstance(event, events.TrialDone)

    settings = replace(QUICK, trials=7)
    backend = FaultyBackend()
    first = job(store, cpu, backend, settings=settings, stop=stop, tell=stop_after_one, executor=ahead(cpu, 4, backend))
    result = first.start([RunProblem(DENSE)])
    before = [t for t in trials_of(store, result.run_id) if t.origin is not Origin.FINAL]
    assert len(before) == 1
    job(store, cpu, backend, settings=settings, executor=ahead(cpu, 4, backend)).resume(result.run_id)
    tried = [t.config["fault"] for t in trials_of(store, result.run_id) if t.origin is not Origin.FINAL]
    assert sorted(tried) == sorted(FAULTS)


def test_what_must_be_tried_is_waited_for_when_the_budget_is_out(store: Store, cpu: Device):
    backends = (FaultyBackend("test.a"), FaultyBackend("test.b"), FaultyBackend("test.c"))
    settings = replace(QUICK, budget_s=1e-6)
    result = job(store, cpu, *backends, settings=settings, executor=ahead(cpu, 8, *backends)).start([RunProblem(DENSE)])
    tried = [t for t in trials_of(store, result.run_id) if t.origin is not Origin.FINAL]
    assert {(t.backend, t.origin) for t in tried} == {(b.name, Origin.DEFAULT) for b in backends}
    assert len(tried) == 3


def test_an_executor_that_is_of_no_more_use_fails_the_run_and_what_was_found_stays(store: Store, cpu: Device):
    class Lost(AheadExecutor):
        collected = 0

        def collect(self, effort, *, best_us=None):
            self.collected += 1
            if self.collected == 3:
                raise RuntimeError("the device is gone")
            return super().collect(effort, best_us=best_us)

    executor = Lost(cpu, {"cpu.dequant": CpuDequant()}, 4)
    with pytest.raises(RuntimeError, match="the device is gone"):
        job(store, cpu, CpuDequant(), executor=executor).start([RunProblem(DENSE)])
    (run,) = store.runs()
    assert run.status is RunStatus.FAILED
    assert run.n_trials == 2


def test_before_the_finals_of_a_problem_the_next_ones_first_candidates_are_announced(store: Store, cpu: Device):
    backends = (CpuDequant(), Reference())
    executor = ahead(cpu, 2, *backends)
    order: list[str] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.FinalsStarted):
            order.append(f"finals {event.position}, {len(executor.prefetched)} announced")

    result = job(store, cpu, *backends, tell=note, executor=executor).start([RunProblem(DENSE), RunProblem(GROUPED)])
    assert order == ["finals 0, 1 announced", "finals 1, 1 announced"], "after the last problem there is no next one"
    ((problem, candidates),) = executor.prefetched
    assert problem == GROUPED
    announced = {candidate_key(candidate) for candidate in candidates}
    tried = [t for t in trials_of(store, result.run_id) if t.problem == GROUPED and t.origin is not Origin.FINAL]
    assert announced <= {candidate_key(Candidate(t.backend, t.config)) for t in tried}
    assert candidate_key(Candidate("cpu.dequant", CpuDequant().default(GROUPED, cpu))) in announced
    assert candidate_key(Candidate("test.reference", {"fault": "none"})) in announced


def test_they_are_announced_as_soon_as_compilers_run_out_of_work(store: Store, cpu: Device):
    executor = ahead(cpu, 4, CpuDequant())
    job(store, cpu, CpuDequant(), executor=executor).start([RunProblem(DENSE), RunProblem(GROUPED)])
    assert executor.in_flight_then == [3], "the last ones are still to be measured"


def test_a_resumed_problem_has_the_seconds_that_are_left_of_its_budget(store: Store, cpu: Device):
    stop = StopFlag()

    def stop_after_one(event: events.Event) -> None:
        stop.requested = stop.requested or isinstance(event, events.TrialDone)

    backend = FaultyBackend(default_fault="slow")  # 20 ms a call: its trial takes a tenth of a second at least
    settings = replace(QUICK, budget_s=0.06)
    result = job(store, cpu, backend, settings=settings, stop=stop, tell=stop_after_one).start([RunProblem(DENSE)])
    job(store, cpu, backend, settings=settings).resume(result.run_id)
    tried = [t.config["fault"] for t in trials_of(store, result.run_id) if t.origin is not Origin.FINAL]
    assert tried == ["slow"], "the default took all of them"


def test_nothing_is_announced_after_a_stop(store: Store, cpu: Device):
    stop = StopFlag()
    stop.requested = True
    executor = ahead(cpu, 4, CpuDequant())
    job(store, cpu, CpuDequant(), executor=executor, stop=stop).start([RunProblem(DENSE), RunProblem(GROUPED)])
    assert executor.prefetched == []


# --- baselines ---------------------------------------------------------------------------------------------------


def test_a_baseline_is_measured_in_the_finals_and_never_served(store: Store, cpu: Device):
    """The reference is a copy, far faster than anything that computes."""
    seen: list[events.Event] = []
    result = job(store, cpu, CpuDequant(), Reference(), tell=seen.append).start([RunProblem(DENSE)])
    (winner,) = store.winners(WinnerFilter(run_id=result.run_id)).items
    assert {c.backend for c in (winner.choice, winner.default, *winner.tie_set)} == {"cpu.dequant"}
    trials = trials_of(store, result.run_id)
    of_reference = [t for t in trials if t.backend == "test.reference"]
    finals = [t for t in of_reference if t.origin is Origin.FINAL and t.time_us is not None]
    assert finals
    others = [t for t in trials if t.origin is Origin.FINAL and t.backend == "cpu.dequant"]
    assert {t.n_samples for t in finals} == {t.n_samples for t in others}, "the same rounds"
    assert min(t.time_us for t in finals) < winner.choice.time_us
    (done,) = [event for event in seen if isinstance(event, events.ProblemDone)]
    assert done.baseline is not None
    assert done.baseline.backend == "test.reference"
    assert done.baseline.time_us == min(t.time_us for t in finals)
    for event in seen:
        if isinstance(event, events.TrialDone) and event.best_us is not None:
            assert event.best_us not in {t.time_us for t in of_reference}


def test_baselines_alone_are_nothing_to_tune(store: Store, cpu: Device):
    result = job(store, cpu, FaultyBackend(dense_only=True), Reference()).start([RunProblem(GROUPED)])
    assert store.run_problems(result.run_id)[0].outcome == "no backend can run it, baselines apart"
    assert result.n_winners == 0


def test_a_baseline_of_a_resumed_run_stays_one(store: Store, cpu: Device):
    stop = StopFlag()

    def stop_after_two(event: events.Event) -> None:
        stop.requested = stop.requested or (isinstance(event, events.TrialDone) and event.number == 1)

    backends = (CpuDequant(), Reference())
    result = job(store, cpu, *backends, stop=stop, tell=stop_after_two).start([RunProblem(DENSE)])
    assert {t.backend for t in trials_of(store, result.run_id)} == {"cpu.dequant", "test.reference"}
    job(store, cpu, *backends).resume(result.run_id)
    winners = store.winners(WinnerFilter(run_id=result.run_id, current=None)).items
    assert {w.choice.backend for w in winners} | {w.default.backend for w in winners} == {"cpu.dequant"}


# --- policies, roofs ---------------------------------------------------------------------------------------------


def test_winners_of_two_policies_stand_side_by_side(store: Store, cpu: Device):
    backend = FaultyBackend(only=("none", "slow"))
    job(store, cpu, backend).start([RunProblem(DENSE)])
    slow = FaultyBackend(only=("slow",), default_fault="slow")
    executor = OtherPolicy(cpu, {slow.name: slow})
    second = job(store, cpu, slow, executor=executor).start([RunProblem(DENSE)])
    assert second.n_winners == 1, "what another policy serves is no bar"
    served = {w.policy: w.choice.config["fault"] for w in store.winners(WinnerFilter(problem_key=DENSE.key)).items}
    assert served == {"cpu.warm": "none", "cpu.other": "slow"}


def test_a_run_is_resumed_by_the_policy_that_it_began_with(store: Store, cpu: Device):
    stop = StopFlag()
    stop.requested = True
    result = job(store, cpu, CpuDequant(), stop=stop).start([RunProblem(DENSE)])
    assert store.run(result.run_id).settings["policy"] == "cpu.warm"
    other = OtherPolicy(cpu, {"cpu.dequant": CpuDequant()})
    with pytest.raises(InvalidInputError, match="measured by policy cpu.warm and this would be cpu.other"):
        job(store, cpu, CpuDequant(), executor=other).resume(result.run_id)


def test_trials_get_their_share_of_the_roof_if_it_is_known(store: Store, cpu: Device):
    roofs = Roofs(copy_bytes_per_s=20e9, bf16_flops_per_s=1e11, measured_at=datetime.now(UTC))
    result = job(store, cpu, CpuDequant(), roofs=roofs).start([RunProblem(DENSE)])
    trials = [t for t in trials_of(store, result.run_id) if t.time_us is not None]
    floors = {round(t.roof_share * t.time_us, 6) for t in trials}
    assert len(floors) == 1, "one floor for all trials of a problem"
    assert 0 < floors.pop() < 10
    again = job(store, cpu, CpuDequant()).start([RunProblem(DENSE)])
    assert all(t.roof_share is None for t in trials_of(store, again.run_id))
