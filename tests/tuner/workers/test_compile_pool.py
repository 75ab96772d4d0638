from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest
import worker_faults
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.workers import compile_pool
from fp4tune.tuner.workers.compile_pool import ASSUMED_BYTES, CompilePool
from fp4tune.tuner.workers.inside import NICENESS, Compiled
from worker_faults import DEVICE

PROBLEM = parse_shape("3x48x64")
SPEC = {"compiled.kernel": "worker_faults:FaultyCompiler"}

Make = Callable[..., CompilePool]


@pytest.fixture
def make() -> Iterator[Make]:
    before = set(worker_faults.processes())
    made: list[CompilePool] = []

    def build(**arguments) -> CompilePool:
        made.append(CompilePool(SPEC, DEVICE, **{"max_workers": 1, "preload": (), **arguments}))
        return made[-1]

    yield build
    for pool in made:
        pool.close()
        pool.close()
    left = {pid: command for pid, command in worker_faults.processes().items() if pid not in before}
    assert not left, left


def config(compiler: str, n: int = 0) -> Candidate:
    return Candidate("compiled.kernel", {"compiler": compiler, "n": n})


def compile_one(pool: CompilePool, compiler: str) -> Compiled:
    return pool.submit(config(compiler), PROBLEM).result(timeout=60)


def still_works(pool: CompilePool) -> bool:
    return compile_one(pool, "fine").status is TrialStatus.OK


def test_compiles_and_says_what_the_compiler_said(make: Make):
    compiled = compile_one(make(), "slow")
    assert compiled.status is TrialStatus.OK
    assert compiled.facts.registers == 128
    assert 0.3 <= compiled.compile_s < 30


@pytest.mark.parametrize(
    ("compiler", "status", "text"),
    [
        ("raises", TrialStatus.COMPILE_FAILED, "RuntimeError: ptxas fatal: too many resources"),
        ("refuses", TrialStatus.UNSUPPORTED, "It spills 128 bytes a thread."),
        ("exits", TrialStatus.COMPILE_FAILED, "SystemExit: 1"),
        ("unpicklable", TrialStatus.COMPILE_FAILED, "cannot be sent"),
        (
            "dies",
            TrialStatus.COMPILE_FAILED,
            "killed by SIGABRT during compile. Its last line: LLVM ERROR: out of registers",
        ),
        ("hangs", TrialStatus.TIMEOUT, "Compiling took longer than 1 s and was ended."),
    ],
)
def test_a_compiler_that_goes_wrong_costs_its_config_alone(make: Make, compiler: str, status: TrialStatus, text: str):
    pool = make(deadline_s=1)
    compiled = compile_one(pool, compiler)
    assert compiled.status is status
    assert text in compiled.error
    assert compiled.facts is None
    assert still_works(pool)


@pytest.mark.parametrize("compiler", ["eats", "child_eats"])
def test_a_compiler_that_eats_memory_is_ended_and_says_how_much(make: Make, compiler: str):
    pool = make(memory_bytes=192 << 20)
    compiled = compile_one(pool, compiler)
    assert compiled.status is TrialStatus.COMPILE_FAILED
    assert "0.19 GiB are its share with 1 at a time" in compiled.error
    taken = float(compiled.error.removeprefix("The compiler took ").partition(" ")[0])
    assert 0.19 <= taken < 2
    assert still_works(pool)


def test_no_device_and_one_core_for_each(make: Make):
    caps = compile_one(make(), "environment").error
    assert caps == "CUDA_VISIBLE_DEVICES= MAX_JOBS=1 HUMMING_MAX_PARALLEL_BUILD_WORKERS=1 OMP_NUM_THREADS=1"


def test_the_number_of_processes_is_bounded_by_memory_and_by_what_was_asked_for(make: Make):
    assert make(max_workers=8, memory_bytes=3 * ASSUMED_BYTES).size == 3
    assert make(max_workers=2, memory_bytes=100 * ASSUMED_BYTES).size == 2
    small = make(max_workers=8, memory_bytes=ASSUMED_BYTES // 2)
    assert (small.size, small.share_bytes) == (1, ASSUMED_BYTES // 2)
    assert 1 <= make(max_workers=None).size <= max(1, os.cpu_count() - 2)


HEAVY = {"heavy.kernel": "worker_faults:HeavyCompiler", **SPEC}
GIB = 1 << 30


def heavy(pool: CompilePool, compiler: str, n: int):
    return pool.submit(Candidate("heavy.kernel", {"compiler": compiler, "n": n}), PROBLEM)


def at_once(spans: list[tuple[float, float]]) -> int:
    """Most of the spans that share a moment."""
    return max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)


@pytest.mark.parametrize(("memory", "most"), [(6 * GIB, 1), (11 * GIB, 2), (3 * GIB, 1)])
def test_a_backend_that_needs_much_memory_compiles_fewer_at_a_time(
    make: Make, monkeypatch, tmp_path, memory: int, most: int
):
    """Three processes there are in each case: what bounds them is what a compiler says that it takes."""
    monkeypatch.setenv("FP4TUNE_TEST_COMPILED", str(tmp_path / "spans"))
    monkeypatch.setattr(compile_pool, "ASSUMED_BYTES", GIB)
    pool = CompilePool(HEAVY, DEVICE, max_workers=3, memory_bytes=memory, preload=())
    try:
        pool.warm()
        assert pool.size == 3
        futures = [heavy(pool, "slow", n) for n in range(4)]
        assert {future.result(timeout=60).status for future in futures} == {TrialStatus.OK}
    finally:
        pool.close()
    spans = [tuple(map(float, line.split())) for line in (tmp_path / "spans").read_text().splitlines()]
    assert len(spans) == 4
    assert at_once(spans) <= most
    assert most == 1 or at_once(spans) == most


def test_a_backend_that_needs_much_may_take_it_and_others_may_not(make: Make):
    pool = CompilePool({**HEAVY, "gone.kernel": "no_such_module:X"}, DEVICE, max_workers=1, memory_bytes=1 << 30)
    try:
        assert pool._wanted(_job("compiled.kernel")) == pool.share_bytes == 1 << 30
        assert pool._wanted(_job("heavy.kernel")) == 5 * GIB
        assert pool._wanted(_job("gone.kernel")) == pool.share_bytes
        compiled = heavy(pool, "eats", 0).result(timeout=60)
        assert "1.00 GiB are its share" in compiled.error, "all that there is, and it runs alone"
    finally:
        pool.close()


def _job(backend: str) -> compile_pool._Job:
    return compile_pool._Job(PROBLEM, Candidate(backend, {}), Future())


def test_a_backend_that_needs_long_has_it(make: Make):
    pool = CompilePool(HEAVY, DEVICE, max_workers=1, memory_bytes=6 * GIB, deadline_s=0.1, preload=())
    try:
        assert heavy(pool, "slow", 0).result(timeout=60).status is TrialStatus.OK
        light = pool.submit(config("slow"), PROBLEM).result(timeout=60)
        assert light.status is TrialStatus.TIMEOUT
    finally:
        pool.close()


def test_what_waits_for_memory_is_dropped_when_the_pool_is_closed(make: Make):
    pool = CompilePool(HEAVY, DEVICE, max_workers=2, memory_bytes=6 * GIB, preload=())
    pool.warm()
    running, waiting = heavy(pool, "hangs", 0), heavy(pool, "hangs", 1)
    time.sleep(1)
    assert pool.n_large == 2
    pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)
    assert running.result(timeout=5).status is TrialStatus.COMPILE_FAILED
    assert waiting.cancelled()


@pytest.mark.parametrize("memory", [9 * GIB, 60 * GIB])
def test_compilers_of_minutes_are_not_in_the_way_of_others(make: Make, monkeypatch, memory: int):
    """Six of them for three processes: with memory for one, and with memory for all."""
    monkeypatch.setattr(compile_pool, "ASSUMED_BYTES", GIB)
    pool = CompilePool(HEAVY, DEVICE, max_workers=3, memory_bytes=memory, preload=())
    try:
        slow = [heavy(pool, "hangs", n) for n in range(6)]
        for n in range(3):
            assert pool.submit(config("fine", n), PROBLEM).result(timeout=30).status is TrialStatus.OK
        assert not any(future.done() for future in slow)
        assert pool.n_large == 6
        assert slow[5].cancel()
        assert pool.n_large == 5
    finally:
        pool.close()


def test_what_is_compiled_already_does_not_wait_for_memory(make: Make):
    spec = {"kept.kernel": "worker_faults:Kept", **HEAVY}
    pool = CompilePool(spec, DEVICE, max_workers=2, memory_bytes=10 * GIB, preload=())

    def kept(what: bool | str, compiler: str = "fine"):
        return Candidate("kept.kernel", {"compiler": compiler, "kept": what})

    try:
        heavy(pool, "hangs", 0)
        later = [pool.submit(kept(what), PROBLEM) for what in (False, "unknown")]
        assert pool.submit(kept(True), PROBLEM).result(timeout=30).status is TrialStatus.OK
        assert not any(future.done() for future in later)
    finally:
        pool.close()


def test_processes_start_when_they_are_needed_and_work_side_by_side(make: Make):
    before = set(worker_faults.processes())
    pool = make(max_workers=3, memory_bytes=6 << 30)
    assert set(worker_faults.processes()) == before
    futures = [pool.submit(config("slow", n), PROBLEM) for n in range(6)]
    assert {future.result(timeout=60).status for future in futures} == {TrialStatus.OK}
    assert len(set(worker_faults.processes()) - before) == 3


def test_a_warm_pool_has_its_processes_before_its_first_config(make: Make):
    before = set(worker_faults.processes())
    pool = make(max_workers=2, memory_bytes=4 << 30)
    pool.warm()
    pool.warm()
    started = worker_faults.appear_within(before, 2, 30)
    futures = [pool.submit(config("slow", n), PROBLEM) for n in range(4)]
    assert {future.result(timeout=60).status for future in futures} == {TrialStatus.OK}
    assert set(worker_faults.processes()) - before == started, "these, and no others"


def test_a_warm_pool_that_is_closed_at_once_leaves_nothing_behind(make: Make):
    pool = make(max_workers=3, memory_bytes=6 << 30)
    pool.warm()
    pool.close()
    pool.warm()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_compilers_give_way_to_who_measures(make: Make):
    before = set(worker_faults.processes())
    pool = make()
    assert still_works(pool)
    (pid,) = set(worker_faults.processes()) - before
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


def test_results_can_be_looked_at_without_waiting_and_with_a_limit(make: Make):
    future = make().submit(config("hangs"), PROBLEM)
    assert not future.done()
    with pytest.raises(FutureTimeoutError):
        future.result(timeout=0.2)


def test_what_has_not_begun_can_be_dropped(make: Make):
    pool = make()
    running = pool.submit(config("slow"), PROBLEM)
    queued = pool.submit(config("slow", 1), PROBLEM)
    assert queued.cancel()
    assert running.result(timeout=60).status is TrialStatus.OK
    with pytest.raises(CancelledError):
        queued.result()
    assert still_works(pool)


def test_what_is_urgent_goes_first(make: Make):
    pool = make()
    order: list[str] = []
    for name, urgent in (("running", True), ("later", False), ("urgent", True)):
        pool.submit(config("slow"), PROBLEM, urgent=urgent).add_done_callback(lambda _, name=name: order.append(name))
        time.sleep(0.05)
    pool.submit(config("fine"), PROBLEM, urgent=False).result(timeout=60)
    assert order == ["running", "urgent", "later"]


def test_a_process_that_died_while_idle_costs_nothing(make: Make):
    before = set(worker_faults.processes())
    pool = make()
    assert still_works(pool)
    (pid,) = set(worker_faults.processes()) - before
    os.kill(pid, signal.SIGKILL)
    assert worker_faults.gone_within([pid], 5)
    assert still_works(pool)


def test_memory_that_earlier_configs_left_behind_is_not_held_against_the_next(make: Make):
    before = set(worker_faults.processes())
    pool = make()
    assert still_works(pool)
    first = set(worker_faults.processes()) - before
    pool.share_bytes = 1 << 20  # less than what any process has when it begins
    pool._watch = lambda _pid, _given: None
    assert still_works(pool)
    assert set(worker_faults.processes()) - before != first, "a new process"


def test_closing_ends_what_runs_and_drops_what_waits(make: Make):
    pool = make()
    running, queued = pool.submit(config("hangs"), PROBLEM), pool.submit(config("fine"), PROBLEM)
    time.sleep(1)
    pool.close()
    assert running.result(timeout=5).status is TrialStatus.COMPILE_FAILED
    assert queued.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(config("fine"), PROBLEM)


def test_a_family_whose_cache_cannot_be_written_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    pool = CompilePool({"triton.x": "worker_faults:FaultyCompiler", **SPEC}, DEVICE, max_workers=1)
    with pytest.raises(UnsupportedError, match="set TRITON_CACHE_DIR"):
        pool.submit(Candidate("triton.x", {}), PROBLEM)
    pool.close()
