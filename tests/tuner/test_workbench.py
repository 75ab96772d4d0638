"""The workbench with real kernels on the CPU. Rotation is shown with a clock that rotates here; CUDA's is in tests/gpu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from faulty_backends import FAULTS, DiesAfterTheGate, FaultyBackend, Unparametrised
from fp4tune.db.records import Conditions, TrialStatus
from fp4tune.kernels import operands as operands_module
from fp4tune.kernels import oracle
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.errors import InvalidInputError, OutOfMemoryError, UnsupportedError
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.tolerance import Tolerance
from fp4tune.tuner.clocks import CpuClock
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.gate import GATE_RUNS, MAX_COMPARED
from fp4tune.tuner.measure import Effort, Sample
from fp4tune.tuner.workbench import Workbench

CPU = detect("cpu")
DENSE = parse_shape("3x48x64")
GROUPED = parse_shape("e4k2:5x32x48")
QUICK = Effort(warmup_s=0.0, budget_s=0.02)


class Rotating(CpuClock):
    """A clock that rotates through sets, and so has the gate look again."""

    policy = "test.rotating"
    rotates = True


class RefusesToLoad(Rotating):
    def load(self, runs, *, call_s):
        raise UnsupportedError("It cannot be captured.")


class Scriptable(Unparametrised):
    """Computes the right result and then does what it is told with the number of the set and of the call."""

    name = "test.script"

    def __init__(self, script: Callable[[int, int, torch.Tensor], None]):
        self.script, self.prepared, self.calls = script, [], 0

    def prepare(self, problem, operands, config):
        right = super().prepare(problem, operands, config)
        number = len(self.prepared)
        self.prepared.append(operands)

        def run():
            right()
            self.calls += 1
            self.script(number, self.calls, operands.out)

        return run


def bench(*backends, **kwargs) -> Workbench:
    return Workbench(CPU, {b.name: b for b in backends}, **kwargs)


@pytest.fixture
def three_sets(monkeypatch):
    """Operand sets as on a GPU: three copies of a dense problem, or three deals of a grouped one."""
    big_l2 = Device("cuda", "GPU with tiny L2", "9.0", 1, 1 << 34, 1, 0.0)

    def make(operands, device, *, sharing):
        monkeypatch.setattr(operands_module, "_free_bytes", lambda device: 1 << 30)
        touched = operands_module.touched_bytes(operands.problem, operands.seed)
        return real(operands, replace(big_l2, l2_bytes=2 * touched // 3))

    real = operands_module.operand_sets
    monkeypatch.setattr(operands_module, "operand_sets", make)


def check(workbench: Workbench, backend: str, config=None):
    evaluation = workbench.prepare(Candidate(backend, config or {}))
    return evaluation if evaluation.status is not TrialStatus.OK else workbench.check()


@pytest.mark.parametrize("problem", [DENSE, GROUPED])
def test_a_config_goes_through_its_steps(problem):
    workbench = bench(CpuDequant())
    assert workbench.policy == "cpu.warm"
    workbench.open(problem, 0)
    candidate = Candidate("cpu.dequant", CpuDequant().default(problem, CPU))
    prepared = workbench.prepare(candidate)
    assert (prepared.status, prepared.timing, prepared.error) == (TrialStatus.OK, None, "")
    checked = workbench.check()
    assert (checked.status, checked.timing) == (TrialStatus.OK, None)
    assert 0 < checked.rel_error < 5e-3
    timed = workbench.time(QUICK)
    assert timed.status is TrialStatus.OK
    assert timed.timing.time_us > 0
    assert timed.rel_error == checked.rel_error
    assert timed.conditions is None
    assert all(e.wall_s > 0 for e in (prepared, checked, timed))
    again = workbench.time(QUICK)
    assert again.timing.n_samples >= 3
    workbench.close()


@pytest.mark.parametrize(
    ("fault", "status", "error"),
    [
        ("none", TrialStatus.OK, ""),
        ("slow", TrialStatus.OK, ""),
        ("zero_tile", TrialStatus.WRONG, "tiles are wrong"),
        ("unwritten", TrialStatus.WRONG, "were not written"),
        ("raises", TrialStatus.CRASHED, "RuntimeError: an illegal memory access was encountered"),
        ("refuses", TrialStatus.UNSUPPORTED, "This config cannot run here."),
        ("compiler_raises", TrialStatus.COMPILE_FAILED, "RuntimeError: ptxas fatal: something\nwith a second line"),
    ],
)
def test_every_fault_has_its_status(fault, status, error):
    assert set(FAULTS) >= {fault}
    workbench = bench(FaultyBackend())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.faulty", {"fault": fault})
    assert evaluation.status is status
    assert error in evaluation.error
    if status is not TrialStatus.OK:
        with pytest.raises(RuntimeError, match="no config"):
            workbench.time(QUICK)
    assert check(workbench, "test.faulty", {"fault": "none"}).status is TrialStatus.OK, "the next one is not harmed"


def test_out_of_memory_is_said_so_and_the_bench_goes_on():
    class Greedy(Unparametrised):
        name = "test.greedy"

        def prepare(self, problem, operands, config):
            torch.empty(1 << 50)

    workbench = bench(Greedy(), Unparametrised())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.greedy")
    assert evaluation.status is TrialStatus.UNSUPPORTED
    assert evaluation.error.startswith(f"Out of memory on {CPU.name}: ")
    assert check(workbench, "test.fixed").status is TrialStatus.OK

    class Full(Unparametrised):
        name = "test.full"

        def prepare(self, problem, operands, config):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has ...")

    workbench = bench(Full())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.full")
    assert evaluation.status is TrialStatus.UNSUPPORTED
    assert evaluation.error == f"Out of memory on {CPU.name}: CUDA out of memory. Tried to allocate 2 GiB."

    class Starved(Unparametrised):
        name = "test.starved"

        def prepare(self, problem, operands, config):
            raise MemoryError

    workbench = bench(Starved())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.starved")
    assert (evaluation.status, evaluation.error) == (
        TrialStatus.UNSUPPORTED,
        f"Out of memory on {CPU.name}: out of memory",
    )


def test_a_call_that_takes_too_long_is_a_timeout():
    workbench = bench(FaultyBackend(), timeout_s=0.005)
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.faulty", {"fault": "slow"})
    assert evaluation.status is TrialStatus.TIMEOUT
    assert evaluation.error == "One call took 0.0 s, and 0.0 s are allowed."


def test_a_config_that_dies_after_the_gate_crashed():
    workbench = bench(DiesAfterTheGate())
    workbench.open(DENSE, 0)
    assert check(workbench, "test.dies").status is TrialStatus.OK
    evaluation = workbench.time(QUICK)
    assert evaluation.status is TrialStatus.CRASHED
    assert evaluation.timing is None
    assert evaluation.rel_error is not None
    entered = workbench.enter(Candidate("test.dies", {}))
    assert entered.status is TrialStatus.CRASHED, "it dies while it is warmed up"
    assert workbench.leave() == {}


def test_steps_out_of_order_and_problems_that_do_not_fit():
    workbench = bench(Unparametrised())
    with pytest.raises(RuntimeError, match="open"):
        workbench.prepare(Candidate("test.fixed", {}))
    with pytest.raises(OutOfMemoryError, match="GiB"):
        workbench.open(parse_shape("16384x262144x1048576"), 0)
    workbench.open(DENSE, 0)
    with pytest.raises(RuntimeError, match="no config is prepared"):
        workbench.check()
    workbench.close()
    workbench.close()
    with pytest.raises(RuntimeError, match="open"):
        workbench.prepare(Candidate("test.fixed", {}))
    with pytest.raises(InvalidInputError, match=r"cpu\.warm"):
        Workbench(CPU, {}, "cuda.graph")


def test_entrants_are_sampled_in_turns():
    workbench = bench(FaultyBackend(), CpuDequant(), monitor=Marking())
    workbench.open(DENSE, 0)
    slow, wrong = (Candidate("test.faulty", {"fault": fault}) for fault in ("slow", "zero_tile"))
    default = Candidate("cpu.dequant", CpuDequant().default(DENSE, CPU))
    statuses = [workbench.enter(candidate).status for candidate in (slow, wrong, default)]
    assert statuses == [TrialStatus.OK, TrialStatus.WRONG, TrialStatus.OK]
    samples = [(workbench.sample(0), workbench.sample(1)) for _ in range(3)]
    assert all(isinstance(s, Sample) for pair in samples for s in pair)
    assert all(slow.us > 20_000 and fast.us > 0 for slow, fast in samples)  # it sleeps for 20 ms
    assert [s.throttled for s, _ in samples] == [False, True, False]
    assert workbench.leave() == {i: Conditions(throttled_samples=(1,)) for i in (0, 1)}
    with pytest.raises(IndexError):
        workbench.sample(0)


class Releasing(CpuClock):
    """Makes what takes memory on a GPU until it is released, and is of no use after that."""

    def __init__(self):
        self.held = []

    def load(self, runs, *, call_s):
        loaded, clock = super().load(runs, call_s=call_s), self
        clock.held.append(loaded)

        def release():
            if loaded in clock.held:
                clock.held.remove(loaded)
            loaded._runs = ()

        loaded.release = release
        return loaded


def test_what_a_config_holds_is_released_when_it_leaves_the_bench_and_not_before():
    clock = Releasing()
    workbench = bench(FaultyBackend(), clock=clock)
    workbench.open(DENSE, 0)
    fine, slow = (Candidate("test.faulty", {"fault": fault}) for fault in ("none", "slow"))
    check(workbench, "test.faulty", {"fault": "none"})
    assert len(clock.held) == 1
    check(workbench, "test.faulty", {"fault": "slow"})
    assert len(clock.held) == 1, "another config took its place"
    for candidate in (slow, fine):
        assert workbench.enter(candidate).status is TrialStatus.OK
    assert len(clock.held) == 2, "entrants stay"
    check(workbench, "test.faulty", {"fault": "none"})
    assert len(clock.held) == 3
    assert workbench.sample(0).us > 20_000, "what came after it took nothing from it"
    workbench.leave()
    assert len(clock.held) == 1
    workbench.enter(fine)
    workbench.close()
    assert clock.held == [], "the end of the problem is the end of the rounds"
    workbench.open(DENSE, 0)
    workbench.enter(slow)
    assert workbench.sample(0).us > 20_000, "numbers begin anew"


class Marking:
    """A monitor that says of every config that its second sample was throttled."""

    def watch(self):
        return Mark()

    def close(self):
        pass


class Mark:
    def __init__(self):
        self.n = 0

    def before(self):
        pass

    def during(self):
        raise AssertionError("a CPU does not work beside the host")

    def after(self):
        self.n += 1
        return self.n == 2

    def conditions(self):
        return Conditions(throttled_samples=(1,) if self.n >= 2 else ())


# --- rotation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [DENSE, parse_shape("e16k2:2x32x48")])
def test_every_set_is_prepared_checked_and_timed(three_sets, problem):
    ran = []
    backend = Scriptable(lambda number, call, out: ran.append(number))
    workbench = bench(backend, clock=Rotating())
    workbench.open(problem, 0)
    assert check(workbench, "test.script").status is TrialStatus.OK
    assert len({id(o) for o in backend.prepared}) >= 3
    n = len(backend.prepared)
    assert ran == [0] * GATE_RUNS + list(range(n)) * GATE_RUNS
    assert workbench.time(QUICK).status is TrialStatus.OK
    assert set(ran[(1 + n) * GATE_RUNS :]) == set(range(n))


@pytest.mark.parametrize("problem", [DENSE, parse_shape("e16k2:2x32x48")])
def test_a_config_that_is_right_alone_and_wrong_on_another_set_is_wrong(three_sets, problem):
    backend = Scriptable(lambda number, call, out: out[:, :8].zero_() if number == 2 else None)
    workbench = bench(backend, clock=Rotating())
    workbench.open(problem, 0)
    evaluation = check(workbench, "test.script")
    assert evaluation.status is TrialStatus.WRONG
    assert evaluation.error.startswith("As it is timed, in pass 1 over operand set 3 of ")
    assert evaluation.rel_error > 5e-3


def test_a_config_that_races_in_the_last_pass_alone_is_wrong(three_sets):
    last = GATE_RUNS + 3 * GATE_RUNS

    def race(number, call, out):
        if call == last:
            out[0, 0] = float("nan")

    workbench = bench(Scriptable(race), clock=Rotating())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.script")
    assert evaluation.status is TrialStatus.WRONG
    assert evaluation.error.startswith(f"As it is timed, in pass {GATE_RUNS} over operand set 3 of 3: 1 of ")


def test_a_set_that_is_not_written_when_all_run_together_is_wrong(three_sets):
    def skip(number, call, out):
        if number == 1:
            oracle.poison(out)

    workbench = bench(Scriptable(skip), clock=Rotating())
    workbench.open(DENSE, 0)
    assert "were not written" in check(workbench, "test.script").error


@pytest.fixture
def compared(monkeypatch):
    """Where the results lay that were compared with the expected ones, in order."""
    seen = []
    real = Tolerance.accepts
    monkeypatch.setattr(Tolerance, "accepts", lambda self, out: seen.append(out.data_ptr()) or real(self, out))
    return seen


class SkipsTheSecondSet(Rotating):
    """Runs every set once when it loads, as a warm-up before a capture does, and captures nothing of the second."""

    def load(self, runs, *, call_s):
        loaded = super().load(runs, call_s=call_s)
        loaded.run()
        loaded._runs = (runs[0], *runs[2:])
        return loaded


def test_a_right_result_from_before_the_replay_proves_nothing_of_it(three_sets):
    workbench = bench(Scriptable(lambda *_: None), clock=SkipsTheSecondSet())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.script")
    assert evaluation.status is TrialStatus.WRONG
    assert "over operand set 2 of 3: " in evaluation.error
    assert "were not written" in evaluation.error


def test_results_that_differ_from_run_to_run_are_compared_and_may_be_right(three_sets, compared):
    """As sums by atomic additions: half a unit in the last place, another one each time."""

    def jitter(number, call, out):
        out[call % out.shape[0], call % out.shape[1]] *= 1 + 2**-8

    workbench = bench(Scriptable(jitter), clock=Rotating())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.script")
    assert evaluation.status is TrialStatus.OK
    assert len(compared) == GATE_RUNS + 3 * GATE_RUNS


def test_a_result_with_the_bytes_of_a_right_one_is_not_compared_again(three_sets, compared):
    workbench = bench(Scriptable(lambda *_: None), clock=Rotating())
    workbench.open(DENSE, 0)
    assert check(workbench, "test.script").status is TrialStatus.OK
    assert len(compared) == 1
    assert check(workbench, "test.script").status is TrialStatus.OK
    assert len(compared) == 2, "another config's results prove nothing of this one's"


def test_the_oracle_looks_at_what_is_not_accepted_at_once_and_decides(three_sets, monkeypatch):
    """A result within a hair of its bound is the oracle's to judge, and so is whatever is wrong."""
    asked = []
    real = oracle.compare
    monkeypatch.setattr(oracle, "compare", lambda *a: asked.append(1) or real(*a))
    workbench = bench(Scriptable(lambda *_: None), clock=Rotating())
    workbench.open(DENSE, 0)
    assert check(workbench, "test.script").status is TrialStatus.OK
    assert not asked
    monkeypatch.setattr(Tolerance, "accepts", lambda self, out: None)
    evaluation = check(workbench, "test.script")
    assert (evaluation.status, len(asked)) == (TrialStatus.OK, 1)
    assert 0 < evaluation.rel_error < 5e-3


def test_with_many_sets_each_pass_compares_others(monkeypatch, compared):
    n = 2 * MAX_COMPARED + 5
    first = make_operands(DENSE, CPU, 0)
    sets = [replace(first, out=torch.empty_like(first.out)) for _ in range(n)]
    monkeypatch.setattr(operands_module, "operand_sets", lambda operands, device, *, sharing: sets)

    def jitter(number, call, out):
        out[call % out.shape[0], call % out.shape[1]] *= 1 + 2**-8

    workbench = bench(Scriptable(jitter), clock=Rotating())
    workbench.open(DENSE, 0)
    assert check(workbench, "test.script").status is TrialStatus.OK
    together = compared[GATE_RUNS:]
    assert len(together) == GATE_RUNS * MAX_COMPARED
    assert len(set(together)) == n


def test_memory_is_shared_with_other_workbenches_and_nvml_is_open_before_anything_is_prepared(monkeypatch):
    asked = []
    monkeypatch.setattr(
        operands_module, "operand_sets", lambda operands, device, *, sharing: asked.append(sharing) or [operands]
    )

    class Asks(Unparametrised):
        name = "test.asks"

        def prepare(self, problem, operands, config):
            asked.append(workbench._monitor is not None)
            return super().prepare(problem, operands, config)

    workbench = bench(Asks(), clock=Rotating(), sharing=3)
    workbench.open(DENSE, 0)
    assert check(workbench, "test.asks").status is TrialStatus.OK
    assert asked == [3, True]


def test_a_config_that_cannot_be_loaded_is_unsupported(three_sets):
    workbench = bench(Unparametrised(), clock=RefusesToLoad())
    workbench.open(DENSE, 0)
    evaluation = check(workbench, "test.fixed")
    assert (evaluation.status, evaluation.error) == (TrialStatus.UNSUPPORTED, "It cannot be captured.")
