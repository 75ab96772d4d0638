"""The executor over workers, with faults on purpose. Stand-in workbench: what is computed is test_workers_for_real's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import worker_faults
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.backend import Backend, ConfigValue
from fp4tune.kernels.errors import Fp4tuneError, OutOfMemoryError
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import Candidate, Evaluation
from fp4tune.tuner.measure import Effort
from fp4tune.tuner.workers.executor import WorkerExecutor
from fp4tune.tuner.workers.family import Deadlines
from fp4tune.tuner.workers.inside import Bench
from worker_faults import DEVICE, Big, Broken, Dead, Faulty, FaultyCompiler, Good, HeavyCompiler

DENSE = parse_shape("3x48x64")
OTHER = parse_shape("5x48x64")
QUICK = Effort(warmup_s=0.0, budget_s=0.02)
FINE = Candidate("bad.kernel", {"fault": "none"})
GOOD = Candidate("good.kernel", {"fault": "none"})
SHORT = Deadlines(prepare=2.0, check=2.0, time_margin=2.0, sample=2.0)

Make = Callable[..., WorkerExecutor]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes executors with a stand-in workbench; afterwards nothing that they started is there."""
    before = set(worker_faults.processes())
    made: list[WorkerExecutor] = []

    def build(*backends: Backend, **arguments) -> WorkerExecutor:
        by_name: dict[str, Backend] = {backend.name: backend for backend in backends}
        arguments = {"workbench": "worker_faults:StandInWorkbench", "preload": (), "deadlines": SHORT, **arguments}
        made.append(WorkerExecutor(DEVICE, by_name, policy="test", **arguments))
        return made[-1]

    yield build
    for executor in made:
        executor.shutdown()
        executor.shutdown()
    left = {pid: command for pid, command in worker_faults.processes().items() if pid not in before}
    assert not left, left


def run(executor: WorkerExecutor, *candidates: Candidate) -> list[Evaluation]:
    """Submits and collects one after the other."""
    results: list[Evaluation] = []
    for candidate in candidates:
        executor.submit(candidate)
        collected, evaluation = executor.collect(QUICK)
        assert collected == candidate
        assert (evaluation.timing is not None) == (evaluation.status is TrialStatus.OK)
        assert bool(evaluation.error) == (evaluation.status is not TrialStatus.OK)
        results.append(evaluation)
    return results


def bad(fault: str, **more: ConfigValue) -> Candidate:
    return Candidate("bad.kernel", {"fault": fault, **more})


FAULTS: Mapping[str, tuple[TrialStatus, str]] = {
    "hangs": (TrialStatus.TIMEOUT, r"did not answer to check within 2 s"),
    "spins": (TrialStatus.TIMEOUT, r"did not answer to check within 2 s"),
    "prepare_hangs": (TrialStatus.TIMEOUT, r"did not answer to prepare within 2 s"),
    "sigkill": (TrialStatus.CRASHED, r"ended its worker 2 times and is not run again.* killed by SIGKILL"),
    "sigsegv": (TrialStatus.CRASHED, r"killed by SIGSEGV during check"),
    "exit": (TrialStatus.CRASHED, r"exit code 3 during check.*bad_alloc"),
    "sticky": (TrialStatus.CRASHED, r"Illegal memory access: RuntimeError: CUDA error: an illegal memory"),
    "dies_in_prepare": (TrialStatus.CRASHED, r"exit code 7 during prepare"),
    "raises": (TrialStatus.CRASHED, r"^RuntimeError: no kernel image is available$"),
    "unsupported": (TrialStatus.UNSUPPORTED, r"^This config cannot run here\.$"),
    "compiler_raises": (TrialStatus.COMPILE_FAILED, r"^RuntimeError: ptxas fatal$"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_own_config_alone(make: Make, fault: str):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    before, faulty, after = run(executor, FINE, bad(fault), bad("none", n=2))
    assert before.status is after.status is TrialStatus.OK
    status, sentence = FAULTS[fault]
    assert faulty.status is status
    import re

    assert re.search(sentence, faulty.error, re.DOTALL), faulty.error
    assert before.rel_error == 0.001


def test_a_death_that_shows_only_at_the_next_config_is_blamed_on_the_one_before(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    late, victim, again, in_finals = Candidate("bad.kernel", {"fault": "late"}), bad("none", n=1), None, None
    first, second = run(executor, late, victim)
    assert first.status is TrialStatus.OK, "nothing showed yet"
    assert second.status is TrialStatus.OK, "the victim is run again, alone, and is fine"
    (again,) = run(executor, late)
    assert again.status is TrialStatus.CRASHED
    assert "Seen by the next config" in again.error
    in_finals, fine = executor.rounds([late, victim], n_rounds=6, budget_s=0, seed=0)
    assert in_finals.status is TrialStatus.CRASHED, "it cannot win"
    assert fine.status is TrialStatus.OK


def test_a_death_before_the_first_launch_is_the_configs_own_if_the_one_before_survives_alone(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    fine, dies, fine_again = run(executor, FINE, bad("dies_in_prepare"), FINE)
    assert (fine.status, dies.status, fine_again.status) == (TrialStatus.OK, TrialStatus.CRASHED, TrialStatus.OK)


def test_a_config_that_killed_once_runs_once_more(make: Make, tmp_path: Path):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    once = bad("once", path=str(tmp_path / "it happened"))
    first, second = run(executor, once, once)
    assert (first.status, second.status) == (TrialStatus.OK, TrialStatus.OK)
    assert (tmp_path / "it happened").exists()


def test_a_config_in_quarantine_reaches_no_worker_and_another_problem_is_not_touched(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    run(executor, bad("sigkill"), FINE)
    pids = set(worker_faults.processes())
    (again,) = run(executor, bad("sigkill"))
    assert again.status is TrialStatus.CRASHED
    assert "not run again" in again.error
    assert set(worker_faults.processes()) == pids, "the worker lives"
    executor.open(OTHER, 0)
    (elsewhere,) = run(executor, bad("sigkill"))
    assert "2 times" in elsewhere.error
    assert set(worker_faults.processes()) != pids, "there it was tried"


def test_families_have_processes_of_their_own(make: Make):
    executor = make(Faulty(), Good())
    executor.open(DENSE, 0)
    run(executor, GOOD, FINE)
    workers = worker_faults.processes()
    assert {"The worker bad", "The worker good"} <= {w.label for w in _processes(executor)}
    pid = executor._families["good"]._process.pid
    run(executor, bad("sigkill"), GOOD)
    assert executor._families["good"]._process.pid == pid, "what kills one family's worker costs the other nothing"
    assert len(workers) >= 2


def test_one_family_without_memory_is_refused_and_the_others_go_on(make: Make):
    executor = make(Big(), Good())
    executor.open(DENSE, 0)
    refused, fine, again = run(executor, Candidate("big.kernel", {}), GOOD, Candidate("big.kernel", {"n": 1}))
    assert (refused.status, fine.status, again.status) == (
        TrialStatus.UNSUPPORTED,
        TrialStatus.OK,
        TrialStatus.UNSUPPORTED,
    )
    assert refused.error == again.error == "3x48x64 needs 300.0 GiB, the device has 140.0 GiB."
    rounds = executor.rounds([GOOD, Candidate("big.kernel", {})], n_rounds=6, budget_s=0, seed=0)
    assert [r.status for r in rounds] == [TrialStatus.OK, TrialStatus.UNSUPPORTED]


def test_a_problem_that_no_device_holds_is_refused_at_once(make: Make):
    executor = make(Good())
    with pytest.raises(OutOfMemoryError, match="the device has"):
        executor.open(parse_shape("64x1000000x1000000"), 0)


def test_a_family_whose_worker_dies_at_every_opening_is_refused(make: Make):
    executor = make(Dead(), Good())
    executor.open(DENSE, 0)
    dead, fine = run(executor, Candidate("dead.kernel", {}), GOOD)
    assert dead.status is TrialStatus.CRASHED
    assert "could not open the problem" in dead.error
    assert "exit code 9" in dead.error
    assert fine.status is TrialStatus.OK


def test_a_family_that_cannot_be_loaded_in_a_worker_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FP4TUNE_TEST_PARENT", str(os.getpid()))
    executor = make(Broken(), Good())
    executor.open(DENSE, 0)
    broken, fine = run(executor, Candidate("broken.kernel", {}), GOOD)
    assert broken.status is TrialStatus.UNSUPPORTED
    assert "ImportError: libcudart.so.13" in broken.error
    assert fine.status is TrialStatus.OK


def test_a_device_that_disappears_ends_the_run_with_one_sentence(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FP4TUNE_TEST_GONE", str(tmp_path / "gone"))
    executor = make(Faulty(), Good())
    executor.open(DENSE, 0)
    run(executor, FINE)
    executor.submit(bad("unplugs", path=str(tmp_path / "gone")))
    with pytest.raises(Fp4tuneError, match=r"The device A processor \(cpu\) is gone.*No CUDA GPUs.*--resume last"):
        executor.collect(QUICK)


def test_a_device_that_another_worker_still_reaches_is_not_gone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FP4TUNE_TEST_GONE", str(tmp_path / "gone"))
    executor = make(Faulty(), Good())
    executor.open(DENSE, 0)
    run(executor, GOOD)
    lost, fine = run(executor, bad("unplugs", path=str(tmp_path / "gone")), GOOD)
    assert lost.status is TrialStatus.CRASHED
    assert fine.status is TrialStatus.OK


def test_a_worker_killed_from_outside_between_two_configs_costs_nothing(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    run(executor, FINE)
    os.kill(executor._families["bad"]._process.pid, signal.SIGKILL)
    assert [r.status for r in run(executor, bad("none", n=1), FINE)] == [TrialStatus.OK, TrialStatus.OK]


def test_a_worker_found_dead_when_the_next_problem_opens_costs_nothing(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    run(executor, FINE)
    os.kill(executor._families["bad"]._process.pid, signal.SIGKILL)
    executor.open(OTHER, 0)
    assert run(executor, FINE)[0].status is TrialStatus.OK


def test_output_without_end_does_no_harm(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    assert run(executor, bad("floods"))[0].status is TrialStatus.OK


def test_families_that_share_a_device_know_how_many_they_are(make: Make):
    executor = make(Faulty(), Good())
    executor.open(DENSE, 0)
    run(executor, FINE)
    assert executor._families["bad"]._arguments[-1] == 2
    assert Bench(DEVICE, {}, "test", "worker_faults:StandInWorkbench", 2)._bench.sharing == 2


def test_spares_that_died_are_not_given_out(make: Make):
    before = set(worker_faults.processes())
    executor = make(Faulty(), Good(), spare=True)
    spares = worker_faults.appear_within(before, 2, 10)
    assert len(executor._spares._spares) == len(spares) == 2, "one for each family"
    for pid in spares:
        os.kill(pid, signal.SIGKILL)
    assert worker_faults.gone_within(list(spares), 5)
    executor.open(DENSE, 0)
    assert [r.status for r in run(executor, FINE, GOOD)] == [TrialStatus.OK, TrialStatus.OK]
    assert len(executor._spares._spares) == 1, "one for whoever dies"


# The rounds


def test_rounds_are_paired_across_families(make: Make):
    executor = make(Faulty(), Good())
    executor.open(DENSE, 0)
    candidates = [FINE, GOOD, bad("none", n=1), bad("unsupported")]
    *ran, refused = executor.rounds(candidates, n_rounds=9, budget_s=30, seed=5)
    assert [len(r.timing.samples_us) for r in ran] == [9, 9, 9]
    assert refused.status is TrialStatus.UNSUPPORTED
    first, other_family, second = ran
    assert first.conditions.temperature_c == other_family.conditions.temperature_c == 50
    assert second.conditions.temperature_c == 51
    assert first.conditions.throttled_samples == tuple(range(9))
    assert second.conditions.throttled_samples == ()
    assert first.rel_error == 0.001


def test_rounds_stop_when_the_budget_is_out_but_not_before_six(make: Make):
    executor = make(Good())
    executor.open(DENSE, 0)
    (result,) = executor.rounds([GOOD], n_rounds=1000, budget_s=0, seed=0)
    assert len(result.timing.samples_us) == 6


@pytest.mark.parametrize(
    ("fault", "status"), [("dies_later", TrialStatus.CRASHED), ("hangs_later", TrialStatus.TIMEOUT)]
)
def test_a_worker_lost_in_the_rounds_costs_the_culprit_alone(make: Make, fault: str, status: TrialStatus):
    executor = make(Faulty(), Good())
    executor.open(DENSE, 0)
    culprit, other, elsewhere = executor.rounds([bad(fault), FINE, GOOD], n_rounds=60, budget_s=60, seed=1)
    assert culprit.status is status
    assert len(other.timing.samples_us) == len(elsewhere.timing.samples_us) == 60, "sample i is of round i"


def test_deaths_in_the_rounds_lead_to_quarantine_too(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    killer = bad("sigsegv")
    errors = [executor.rounds([killer, FINE], n_rounds=6, budget_s=0, seed=1)[0].error for _ in range(3)]
    assert ["not run again" in error for error in errors] == [False, False, True]
    (searched,) = run(executor, killer)
    assert "ended its worker 2 times" in searched.error


def test_a_config_that_dies_at_entering_is_dropped(make: Make):
    executor = make(Faulty())
    executor.open(DENSE, 0)
    results = executor.rounds([FINE, bad("sigsegv"), bad("none", n=1)], n_rounds=6, budget_s=0, seed=1)
    assert [r.status for r in results] == [TrialStatus.OK, TrialStatus.CRASHED, TrialStatus.OK]
    assert len({len(r.timing.samples_us) for r in results if r.timing}) == 1


# Compiling ahead


def compiled(compiler: str, **more: ConfigValue) -> Candidate:
    return Candidate("compiled.kernel", {"compiler": compiler, **more})


def test_facts_and_seconds_of_the_compiler_come_with_the_evaluation(make: Make):
    executor = make(FaultyCompiler(), compile_workers=1)
    assert executor.lookahead == 3
    executor.open(DENSE, 0)
    fine, refused, failed = run(executor, compiled("slow"), compiled("refuses"), compiled("raises"))
    assert fine.status is TrialStatus.OK
    assert fine.facts.target == "sm_90a"
    assert fine.compile_s >= 0.3
    assert (refused.status, refused.error) == (TrialStatus.UNSUPPORTED, "It spills 128 bytes a thread.")
    assert (failed.status, failed.error) == (
        TrialStatus.COMPILE_FAILED,
        "RuntimeError: ptxas fatal: too many resources",
    )
    (final,) = executor.rounds([compiled("slow")], n_rounds=6, budget_s=0, seed=0)
    assert final.facts == fine.facts


def test_compilers_are_waited_for_as_long_as_somebody_wants(make: Make):
    executor = make(FaultyCompiler(), Good(), compile_workers=1)
    executor.open(DENSE, 0)
    assert executor.await_compilers(60) == (), "nothing was submitted"
    hangs = compiled("hangs")
    executor.submit(hangs)
    assert list(executor.await_compilers(0.1)) == [hangs]
    executor.submit(Candidate("good.kernel", {"fault": "none"}))
    assert executor.await_compilers(60) == ()
    candidate, _ = executor.collect(QUICK)
    assert candidate.backend == "good.kernel"


def test_more_is_in_flight_while_compilers_of_minutes_run(make: Make):
    executor = make(FaultyCompiler(), HeavyCompiler(), compile_workers=2)
    executor.open(DENSE, 0)
    before = executor.lookahead
    for n in range(3):
        executor.submit(Candidate("heavy.kernel", {"compiler": "hangs", "n": n}))
    began = time.monotonic()
    while executor.lookahead < before + 3 and time.monotonic() - began < 10:
        time.sleep(0.01)
    assert executor.lookahead == before + 3


def test_what_is_ready_does_not_wait_for_a_compiler(make: Make):
    executor = make(FaultyCompiler(), Good(), compile_workers=1)
    executor.open(DENSE, 0)
    executor.submit(compiled("hangs"))
    executor.submit(GOOD)
    executor.submit(Candidate("good.kernel", {"fault": "none", "n": 2}))
    assert [executor.collect(QUICK)[0].backend for _ in range(2)] == ["good.kernel", "good.kernel"]


def test_prefetched_configs_are_compiled_once_and_give_way_to_what_is_submitted(make: Make):
    executor = make(FaultyCompiler(), compile_workers=1)
    later = [compiled("slow", n=n) for n in range(8)]
    executor.prefetch(OTHER, later)
    executor.prefetch(OTHER, later)
    executor.open(DENSE, 0)
    (urgent,) = run(executor, compiled("fine"))
    assert urgent.status is TrialStatus.OK
    assert sum(future.done() for future in executor._prefetched.values()) < len(later), "it was put in front"
    executor.open(OTHER, 0)
    assert all(r.status is TrialStatus.OK and r.facts for r in run(executor, *later))


def test_what_was_prefetched_and_is_wanted_now_goes_in_front(make: Make):
    executor = make(FaultyCompiler(), compile_workers=1)
    later = [compiled("slow", n=n) for n in range(8)]
    executor.prefetch(OTHER, later)
    executor.open(OTHER, 0)
    (wanted,) = run(executor, later[-1])
    assert wanted.status is TrialStatus.OK
    assert sum(future.done() for future in executor._prefetched.values()) < len(later) - 1


def test_what_was_prefetched_for_a_problem_is_dropped_with_it(make: Make):
    executor = make(FaultyCompiler(), compile_workers=1)
    executor.prefetch(DENSE, [compiled("slow", n=n) for n in range(8)])
    executor.prefetch(OTHER, [compiled("slow")])
    waiting = list(executor._prefetched.values())
    executor.open(DENSE, 0)
    executor.open(OTHER, 0)
    assert [problem for problem, *_ in executor._prefetched] == [OTHER.key], "this one is about to be wanted"
    assert sum(future.cancelled() for future in waiting) >= 7


def test_closing_forgets_what_was_submitted(make: Make):
    executor = make(FaultyCompiler(), compile_workers=1)
    executor.open(DENSE, 0)
    for n in range(3):
        executor.submit(compiled("slow", n=n))
    executor.close()
    with pytest.raises(RuntimeError, match=r"open\(\) was not called"):
        executor.submit(FINE)
    executor.open(OTHER, 0)
    with pytest.raises(RuntimeError, match="nothing was submitted"):
        executor.collect(QUICK)


def test_a_cache_that_cannot_be_written_refuses_its_family_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    executor = make(TritonLike(), FaultyCompiler(), compile_workers=1)
    executor.prefetch(DENSE, [Candidate("triton.test", {})])
    executor.open(DENSE, 0)
    refused, fine = run(executor, Candidate("triton.test", {}), compiled("fine"))
    assert refused.status is TrialStatus.UNSUPPORTED
    assert "set TRITON_CACHE_DIR" in refused.error
    assert str(tmp_path) in refused.error
    assert executor.refused == {"triton": refused.error}
    assert fine.status is TrialStatus.OK


class TritonLike(FaultyCompiler):
    name = "triton.test"


# The end


def test_shutdown_ends_everything_whatever_runs(make: Make):
    """What is left behind is looked for by `make`."""
    executor = make(FaultyCompiler(), Good(), compile_workers=2, spare=True)
    executor.open(DENSE, 0)
    run(executor, GOOD)
    for n in range(3):
        executor.submit(compiled("hangs", n=n))
    time.sleep(1)
    assert len(worker_faults.processes()) >= 5, "a worker, a spare, two compilers and what they started"


def test_a_lock_is_given_back_at_shutdown(make: Make):
    class Lock:
        released = 0

        def release(self) -> None:
            self.released += 1

    lock = Lock()
    executor = make(Good(), lock=lock)
    assert lock.released == 0
    executor.shutdown()
    assert lock.released == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_survives_the_tuner(number: signal.Signals):
    tests = Path(worker_faults.__file__).parent
    code = f"import sys; sys.path.append({str(tests)!r}); import worker_faults; worker_faults.serve_for_ever()"
    tuner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        assert tuner.stdout.readline() == "ready\n"
        below = [pid for pid, command in worker_faults.processes().items() if pid != tuner.pid]
        assert len([pid for pid in below if _is_of(pid, tuner.pid)]) >= 4, (
            "a worker, a spare, a compiler, what it started"
        )
    finally:
        tuner.send_signal(number)
        tuner.wait()
        tuner.stdout.close()
    assert worker_faults.gone_within(below, 10)


def _is_of(pid: int, ancestor: int) -> bool:
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
        if pid == ancestor:
            return True
    return False


def _processes(executor: WorkerExecutor):
    return [w._process for w in executor._families._workers.values() if w._process is not None]
