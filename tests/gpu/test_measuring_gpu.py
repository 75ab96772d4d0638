"""Measuring on a real card: graphs over operand sets, both policies, NVML, roofs.

Nothing here asserts how long anything takes; figures go into the report (`--junitxml=gpu.xml`).
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import pytest
import torch
from conformance import same_bytes, tensors
from faulty_backends import Unparametrised
from fp4tune.db.records import TrialStatus
from fp4tune.kernels import oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import COLD_L2, MAX_SETS, make_operands, operand_sets, touched_bytes
from fp4tune.kernels.problem import Format, parse_shape
from fp4tune.kernels.tolerance import Tolerance
from fp4tune.kernels.torch_dequant import TorchDequant
from fp4tune.tuner.clocks import CudaEagerClock, CudaGraphClock, clock_for
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.gate import GATE_RUNS
from fp4tune.tuner.measure import Effort
from fp4tune.tuner.monitor import NvmlMonitor, monitor_for
from fp4tune.tuner.roofs import floor_us, measure_roofs
from fp4tune.tuner.workbench import IDLE_PART, Workbench

pytestmark = pytest.mark.gpu

QUICK = Effort(warmup_s=0.0, budget_s=0.05)
BOTH = ("cuda.graph", "cuda.eager")
HAS_NVML = importlib.util.find_spec("pynvml") is not None


@pytest.fixture(scope="module")
def gpu():
    return detect("cuda:0")


@pytest.fixture(autouse=True)
def _gives_memory_back():
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class Counters:
    """Calls that add one to a counter each, on the device."""

    def __init__(self, n: int):
        self.counts = torch.zeros(n, dtype=torch.int64, device="cuda:0")
        self.runs = [self._run(i) for i in range(n)]

    def _run(self, i: int) -> Callable[[], None]:
        counter = self.counts[i : i + 1]

        def run() -> None:
            counter.add_(1)

        return run

    def read(self) -> list[int]:
        torch.cuda.synchronize()
        return self.counts.tolist()


class OnDevice(Unparametrised):
    """Copies the right result, then does `fault` with the number of the operand set and its output."""

    name = "test.gpu"

    def __init__(self, fault: Callable[[int, torch.Tensor], None] = lambda number, out: None):
        self.fault, self.n = fault, 0

    def prepare(self, problem, operands, config):
        expected = oracle.reference(operands).to(operands.out.dtype)
        number, self.n = self.n, self.n + 1

        def run():
            operands.out.copy_(expected)
            self.fault(number, operands.out)

        return run


# --- clocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", BOTH)
def test_a_sample_runs_every_set_equally_often(gpu, policy):
    counters = Counters(5)
    loaded = clock_for(gpu, policy).load(counters.runs, call_s=20e-6)
    before = counters.read()
    loaded.run()
    per_rotation = [b - a for a, b in zip(before, counters.read(), strict=True)]
    assert len(set(per_rotation)) == 1
    assert per_rotation[0] >= 1
    assert loaded.sample_us() > 0
    assert len(set(counters.read())) == 1
    loaded.warm_up(0.0)
    assert loaded.call_us > 0
    loaded.release()
    loaded.release()


@pytest.mark.parametrize("policy", BOTH)
def test_short_calls_are_repeated_and_long_rotations_are_cut(gpu, policy):
    counters = Counters(3)
    loaded = clock_for(gpu, policy).load(counters.runs, call_s=20e-6)
    before = counters.read()[0]
    loaded.run()
    assert counters.read()[0] - before > 10, "a call of some microseconds fills no millisecond"
    cut = clock_for(gpu, policy).load(counters.runs, call_s=0.2)
    assert cut.n_sets == 1


@pytest.mark.parametrize("policy", BOTH)
def test_the_callers_device_and_stream_stay_what_they_were(gpu, policy):
    stream, device = torch.cuda.current_stream(), torch.cuda.current_device()
    loaded = clock_for(gpu, policy).load(Counters(2).runs, call_s=20e-6)
    loaded.warm_up(0.0)
    loaded.sample_us(after_others=True)
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_device() == device


@pytest.mark.parametrize("policy", BOTH)
def test_the_monitor_looks_while_the_device_works(gpu, policy):
    seen = []
    loaded = clock_for(gpu, policy).load(Counters(2).runs, call_s=20e-6)
    loaded.sample_us(meanwhile=lambda: seen.append(torch.cuda.current_stream()))
    assert len(seen) == 1


def test_what_synchronises_cannot_be_captured_and_harms_nobody_after_it(gpu):
    x = torch.ones(16, device="cuda:0")
    clock = CudaGraphClock(gpu)
    for _ in range(3):
        with pytest.raises(UnsupportedError, match=r"^It cannot be captured into a CUDA graph \(.+\); it can only"):
            clock.load([lambda: x.sum().item()], call_s=20e-6)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # fails while torch's allocator thinks that a capture is under way
    counters = Counters(2)
    loaded = clock.load(counters.runs, call_s=20e-6)
    loaded.run()
    assert len(set(counters.read())) == 1
    assert CudaEagerClock(gpu).load([lambda: x.sum().item()], call_s=20e-6).sample_us() > 0


def test_what_raises_while_it_is_captured_is_refused_in_a_sentence(gpu):
    def raises():
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("not like this\nsecond line")

    with pytest.raises(UnsupportedError) as caught:
        CudaGraphClock(gpu).load([raises], call_s=20e-6)
    assert "(ValueError: not like this)" in str(caught.value)
    torch.cuda.empty_cache()


def test_memory_that_a_graph_took_is_given_back(gpu):
    x = torch.ones(1 << 22, device="cuda:0")
    clock = CudaGraphClock(gpu)
    reserved = []
    for _ in range(6):
        loaded = clock.load([lambda: (x * 2).add_(1) is None], call_s=50e-6)  # allocates 16 MiB each time
        loaded.sample_us()
        loaded.release()
        del loaded
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[1], reserved


# --- operands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", Format)
@pytest.mark.parametrize("shape", ["64x4096x4112", "e40k4:50x320x512"])
def test_quantising_where_they_are_gives_the_same_bytes(gpu, shape, format_):
    problem = parse_shape(shape, format=format_)
    here, there = (dict(tensors(make_operands(problem, device, 5))) for device in (detect("cpu"), gpu))
    for name, tensor in here.items():
        if name != "out":
            assert same_bytes(tensor, there[name].cpu()), name


@pytest.mark.parametrize("shape", ["1x7168x2048", "16x7168x16384", "e512k10:1x256x4096", "e512k10:256x256x4096"])
def test_sets_are_equal_and_cover_three_l2s(gpu, shape):
    problem = parse_shape(shape)
    operands = make_operands(problem, gpu, 0)
    sets = operand_sets(operands, gpu)
    touched = touched_bytes(problem, 0)
    assert len(sets) == MAX_SETS or (len(sets) - 1) * touched >= COLD_L2 * gpu.l2_bytes
    for s in sets[1:]:
        assert same_bytes(s.a.packed, operands.a.packed)
        assert same_bytes(s.b.scale, operands.b.scale)
        assert s.a.packed.data_ptr() != operands.a.packed.data_ptr()
        assert s.out.data_ptr() != operands.out.data_ptr()


@pytest.mark.parametrize("shape", ["e512k10:16x2048x4096", "e512k10:1x4096x1024"])
def test_a_large_problem_is_opened(gpu, shape, record_property):
    start = time.monotonic()
    workbench = Workbench(gpu, {"test.gpu": OnDevice()})
    workbench.open(parse_shape(shape), 0)
    torch.cuda.synchronize()
    record_property("open_s", f"{shape}: {time.monotonic() - start:.2f}")
    workbench.close()


@pytest.mark.parametrize("shape", ["e512k10:256x256x4096", "200x2000x4096"])
def test_a_result_is_judged_in_one_pass(gpu, shape, record_property):
    operands = make_operands(parse_shape(shape), gpu, 0)
    expected = oracle.reference(operands)
    tolerance = Tolerance(operands, expected)
    out = expected.to(operands.out.dtype)
    verdict = oracle.compare(out, operands, expected)
    assert tolerance.accepts(out) == pytest.approx(verdict.rel_error, rel=1e-4)
    for judge in (tolerance.accepts, lambda out: oracle.compare(out, operands, expected)):
        start = time.monotonic()
        judge(out)
        record_property("judge_ms", f"{shape}: {(time.monotonic() - start) * 1e3:.2f}")
    right = out.clone()
    for fault in (lambda: out[-1].mul_(1.02), lambda: out[3, 5:6].fill_(float("nan")), lambda: oracle.poison(out)):
        fault()
        assert tolerance.accepts(out) is None
        out.copy_(right)
    assert tolerance.accepts(out) is not None


# --- the workbench -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("shape", ["16x2560x4096", "e16k2:5x512x512", "e512k10:4x256x4096"])
def test_a_config_goes_through_its_steps(gpu, policy, shape, record_property):
    problem = parse_shape(shape)
    backend = TorchDequant()
    workbench = Workbench(gpu, {backend.name: backend}, policy)
    workbench.open(problem, 0)
    prepared = workbench.prepare(Candidate(backend.name, backend.default(problem, gpu)))
    assert prepared.status is TrialStatus.OK, prepared.error
    checked = workbench.check()
    assert checked.status is TrialStatus.OK, checked.error
    assert 0 < checked.rel_error < 5e-3
    first, second = workbench.time(Effort()), workbench.time(Effort())
    assert first.status is TrialStatus.OK, first.error
    assert first.timing.time_us > 0
    assert (first.conditions is not None) == HAS_NVML
    record_property(
        "a_a", f"{policy} {shape}: {first.timing.time_us:.2f} us, again {second.timing.time_us:.2f} us, "
        f"{first.timing.n_samples} samples, prepare {prepared.wall_s:.3f} s, check {checked.wall_s:.3f} s, "
        f"time {first.wall_s:.3f} s, {first.conditions}",
    )  # fmt: skip
    workbench.close()


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize("shape", ["16x512x512", "e16k2:2x512x512"])
def test_a_config_that_is_wrong_on_another_set_alone_is_wrong(gpu, policy, shape):
    backend = OnDevice(lambda number, out: out[:, :64].zero_() if number == 1 else None)
    workbench = Workbench(gpu, {backend.name: backend}, policy)
    workbench.open(parse_shape(shape), 0)
    assert workbench.prepare(Candidate(backend.name, {})).status is TrialStatus.OK
    evaluation = workbench.check()
    assert evaluation.status is TrialStatus.WRONG
    assert evaluation.error.startswith("As it is timed, in pass 1 over operand set 2 of ")
    workbench.close()


def test_a_config_that_leaves_the_stream_it_was_given_is_caught_under_replay(gpu):
    """Its kernels are not in the graph: alone it is right, replayed it does nothing."""

    class Elsewhere(OnDevice):
        def prepare(self, problem, operands, config):
            inner = super().prepare(problem, operands, config)

            def run():
                with torch.cuda.stream(torch.cuda.default_stream()):
                    inner()

            return run

    backend = Elsewhere()
    workbench = Workbench(gpu, {backend.name: backend}, "cuda.graph")
    workbench.open(parse_shape("16x2048x2048"), 0)
    assert workbench.prepare(Candidate(backend.name, {})).status is TrialStatus.OK
    evaluation = workbench.check()
    assert evaluation.status in {TrialStatus.WRONG, TrialStatus.UNSUPPORTED}
    assert "were not written" in evaluation.error or "captured" in evaluation.error
    workbench.close()


def test_a_config_that_cannot_be_captured_is_unsupported_by_graph_and_runs_eager(gpu):
    synchronises = OnDevice(lambda number, out: out.sum().item() and None)
    for policy, status in (("cuda.graph", TrialStatus.UNSUPPORTED), ("cuda.eager", TrialStatus.OK)):
        right = OnDevice()
        right.name = "test.right"
        workbench = Workbench(gpu, {b.name: b for b in (synchronises, right)}, policy)
        workbench.open(parse_shape("16x2048x2048"), 0)
        assert workbench.prepare(Candidate(synchronises.name, {})).status is TrialStatus.OK
        assert workbench.check().status is status
        assert workbench.prepare(Candidate(right.name, {})).status is TrialStatus.OK
        assert workbench.check().status is TrialStatus.OK, "the next config is not harmed"
        assert workbench.time(QUICK).status is TrialStatus.OK
        workbench.close()


def test_a_config_that_takes_all_memory_is_unsupported_and_the_next_one_runs(gpu):
    class Greedy(OnDevice):
        name = "test.greedy"

        def prepare(self, problem, operands, config):
            held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")]
            while True:
                held.append(torch.empty_like(held[0]))

    greedy, right = Greedy(), OnDevice()
    workbench = Workbench(gpu, {b.name: b for b in (greedy, right)})
    workbench.open(parse_shape("16x2048x2048"), 0)
    evaluation = workbench.prepare(Candidate(greedy.name, {}))
    assert evaluation.status is TrialStatus.UNSUPPORTED
    assert evaluation.error.startswith(f"Out of memory on {gpu.name}: ")
    assert workbench.prepare(Candidate(right.name, {})).status is TrialStatus.OK
    assert workbench.check().status is TrialStatus.OK
    workbench.close()


def test_what_configs_leave_behind_is_given_back_to_others(gpu):
    """Each takes a 64th of the memory inside its graph; none of them is there any more when the next is prepared."""

    class Wasteful(OnDevice):
        def prepare(self, problem, operands, config):
            inner, n_bytes = super().prepare(problem, operands, config), gpu.memory_bytes // 64

            def run():
                torch.empty(n_bytes, dtype=torch.uint8, device="cuda:0")
                inner()

            return run

    backend = Wasteful()
    workbench = Workbench(gpu, {backend.name: backend})
    workbench.open(parse_shape("16x2048x2048"), 0)
    idle = []
    for _ in range(8):
        assert workbench.prepare(Candidate(backend.name, {})).status is TrialStatus.OK
        idle.append(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
        evaluation = workbench.check()
        assert evaluation.status is TrialStatus.OK, evaluation.error
    assert max(idle) <= gpu.memory_bytes * IDLE_PART + (64 << 20)
    workbench.close()


@pytest.mark.parametrize("policy", BOTH)
def test_entrants_are_sampled_in_turns(gpu, policy):
    problem = parse_shape("16x2048x2048")
    backend = TorchDequant()
    configs = [backend.default(problem, gpu), *backend.seeds(problem, gpu)]
    workbench = Workbench(gpu, {backend.name: backend}, policy)
    workbench.open(problem, 0)
    for config in configs:
        evaluation = workbench.enter(Candidate(backend.name, config))
        assert evaluation.status is TrialStatus.OK, evaluation.error
    for _ in range(GATE_RUNS):
        assert all(workbench.sample(i).us > 0 for i in range(len(configs)))
    assert set(workbench.leave()) == (set(range(len(configs))) if HAS_NVML else set())
    workbench.close()
    assert workbench.policy == policy


# --- NVML and roofs ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_NVML, reason="nvidia-ml-py is not installed")
def test_nvml_says_what_the_card_is_like(gpu, record_property):
    monitor = monitor_for(gpu)
    assert isinstance(monitor, NvmlMonitor)
    watch = monitor.watch()
    start = time.monotonic()
    for _ in range(20):
        watch.before()
        watch.during()
        watch.after()
    record_property("nvml", f"{(time.monotonic() - start) / 20 * 1e6:.0f} us a sample, {watch.conditions()}")
    seen = watch.conditions()
    assert seen.temperature_c is None or 0 < seen.temperature_c < 120
    assert seen.sm_clock_mhz is None or 0 < seen.sm_clock_mhz[0] <= seen.sm_clock_mhz[1] < 5000
    monitor.close()


def test_roofs_of_this_card(gpu, record_property):
    roofs = measure_roofs(gpu)
    record_property("roofs", f"{roofs.copy_bytes_per_s / 1e12:.2f} TB/s, {roofs.bf16_flops_per_s / 1e12:.0f} TFLOP/s")
    assert 1e10 < roofs.copy_bytes_per_s < 1e14
    assert 1e12 < roofs.bf16_flops_per_s < 1e16
    assert floor_us(parse_shape("1x7168x4096"), roofs, 0, gpu) > 0
