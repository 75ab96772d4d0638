"""The selftest's numerics: what is wrong is said, what was not run is said, and the defaults come first."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
import worker_faults
from faulty_backends import FaultyBackend, Unparametrised
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.backend import Parameter, Space, config_key
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.device import Environment, detect
from fp4tune.kernels.errors import BusyError, UnsupportedError
from fp4tune.kernels.flashinfer_gemm.offers import ListedSpace
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import LocalExecutor
from fp4tune.tuner.selftest import job
from fp4tune.tuner.selftest.numerics import GRACE_S, check_numerics
from fp4tune.tuner.selftest.plan import MAX_CONFIGS, Planned, in_order, plan
from fp4tune.tuner.selftest.report import Outcome, Report
from fp4tune.tuner.workers.executor import WorkerExecutor
from fp4tune.tuner.workers.family import Deadlines

CPU = detect("cpu")
PROBLEM = parse_shape("4x32x64")


class Clock:
    """Goes on by itself, `step_s` each time it is asked."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def report():
    return Report("0", datetime(2026, 11, 30, tzinfo=UTC), Environment(CPU, {}), CPU.name, ran_on_card=False)


def numerics(*backends, executor=None, clock=None, deadline=1000.0):
    by_name = {backend.name: backend for backend in backends}
    found = report()
    planned = plan(by_name, PROBLEM, CPU, seed=0)
    check_numerics(
        executor or LocalExecutor(CPU, by_name), PROBLEM, planned, found, deadline=deadline, now=clock or Clock()
    )
    return found


def test_configs_that_are_right_are_ok():
    found = numerics(Unparametrised())
    (one,) = found.findings
    assert (one.step, one.subject, one.outcome) == ("numerics", "test.fixed 4x32x64", Outcome.OK)
    assert one.text.startswith("1 of 1 configs right, relative error up to ")
    assert found.ok
    assert [(c.status, c.is_default, c.is_wrong) for c in found.checked] == [(TrialStatus.OK, True, False)]
    assert not found.left_out


def test_every_way_to_go_wrong_is_wrong_and_costs_the_others_nothing():
    found = numerics(FaultyBackend(), Unparametrised())
    ended = {c.config["fault"]: c for c in found.checked if c.backend == "test.faulty"}
    assert ended["none"].status is TrialStatus.OK
    assert {name for name, c in ended.items() if c.is_wrong} == {"zero_tile", "raises", "compiler_raises", "unwritten"}
    assert ended["refuses"].status is TrialStatus.UNSUPPORTED
    outcomes = {one.subject: one for one in found.findings}
    assert outcomes["test.fixed 4x32x64"].outcome is Outcome.OK
    wrong = outcomes["test.faulty 4x32x64"]
    assert wrong.outcome is Outcome.WRONG
    assert "1 refused by the backend; 4 not as they should be, the first " in wrong.text
    assert not found.ok


def test_a_default_that_is_refused_is_wrong():
    """A backend that offers a problem runs at least its default; any other config it may refuse."""
    found = numerics(FaultyBackend(default_fault="refuses"))
    default = next(c for c in found.checked if c.is_default)
    assert default.status is TrialStatus.UNSUPPORTED
    assert default.is_wrong
    assert not found.ok


def test_a_backend_that_does_not_take_the_problem_is_no_failure():
    class Refuses(Unparametrised):
        name = "test.refuses"

        def space(self, problem, device):
            raise UnsupportedError("It takes nothing.")

    found = numerics(Refuses(), Unparametrised())
    assert {(one.subject, one.outcome, one.text) for one in found.findings} >= {
        ("test.refuses 4x32x64", Outcome.REFUSED, "It takes nothing.")
    }
    assert found.ok


def test_defaults_run_first_and_what_time_leaves_out_is_listed():
    two = FaultyBackend("test.first"), FaultyBackend("test.second")
    order = in_order(plan({b.name: b for b in two}, PROBLEM, CPU, seed=0))
    assert [(c.backend, is_default) for c, is_default in order[:2]] == [("test.first", True), ("test.second", True)]
    assert not any(is_default for _, is_default in order[2:])
    assert [c.backend for c, _ in order[2:6]] == ["test.first", "test.second"] * 2

    found = numerics(*two, clock=Clock(step_s=1.0), deadline=0.5)  # late before the first is begun
    assert [(c.backend, c.is_default) for c in found.checked] == [("test.first", True), ("test.second", True)]
    n_configs = len(order) // 2
    assert [(one.backend, one.n, one.why) for one in found.left_out] == [
        ("test.first", n_configs - 1, "time ran out"), ("test.second", n_configs - 1, "time ran out"),
    ]  # fmt: skip
    first = found.left_out[0]
    ran = {config_key(c.config) for c in found.checked}
    assert {config_key(config) for config in first.configs}.isdisjoint(ran)
    assert len(first.configs) == first.n
    assert all(f"; {n_configs - 1} left out" in one.text for one in found.findings)


class Padding(Unparametrised):
    """As `flashinfer.cutlass` at M = 4: so many tactics, each with five ways to pad M."""

    name = "test.padding"

    def __init__(self, n_tactics=33):
        tactics = range(n_tactics)
        self._listed = tuple({"tactic": t, "pad_m": pad_m} for pad_m in (0, 16, 32, 64, 128) for t in tactics)

    def space(self, problem, device):
        parameters = (
            Parameter("tactic", tuple(range(len(self._listed) // 5))),
            Parameter("pad_m", (0, 16, 32, 64, 128)),
        )
        return ListedSpace(parameters, listed=self._listed)

    def default(self, problem, device):
        return {"tactic": 21, "pad_m": 0}

    def seeds(self, problem, device):
        return [{"tactic": 7, "pad_m": 128}, {"tactic": 3, "pad_m": 0}]


def test_every_tactic_is_planned_without_padding_before_any_with():
    (planned,) = plan({Padding.name: Padding()}, PROBLEM, CPU, seed=0)
    assert len(planned.configs) == MAX_CONFIGS
    assert planned.more == 5 * 33 - MAX_CONFIGS
    assert planned.configs[:2] == [{"tactic": 21, "pad_m": 0}, {"tactic": 3, "pad_m": 0}]
    unpadded, rest = planned.configs[:33], planned.configs[33:]
    assert sorted(config["tactic"] for config in unpadded) == list(range(33))
    assert {config["pad_m"] for config in unpadded} == {0}
    assert rest[0] == {"tactic": 7, "pad_m": 128}, "a seed comes first of its kind"
    assert {config["pad_m"] for config in rest} == {16, 32, 64, 128}, "a sample of all paddings"
    assert len({config_key(config) for config in planned.configs}) == MAX_CONFIGS


def test_of_more_tactics_than_are_planned_it_is_a_sample_without_padding():
    (planned,) = plan({Padding.name: Padding(200)}, PROBLEM, CPU, seed=0)
    assert len(planned.configs) == MAX_CONFIGS
    assert {config["pad_m"] for config in planned.configs} == {0}
    tactics = [config["tactic"] for config in planned.configs]
    assert max(tactics) > 2 * MAX_CONFIGS, "not the first of the list"
    assert plan({Padding.name: Padding(200)}, PROBLEM, CPU, seed=0) == [planned]
    assert plan({Padding.name: Padding(200)}, PROBLEM, CPU, seed=1) != [planned]


def test_a_space_that_is_too_large_to_list_is_sampled_and_not_counted():
    class Large(Unparametrised):
        def space(self, problem, device):
            return Space((Parameter("a", tuple(range(1000))), Parameter("b", tuple(range(1000)))))

        def default(self, problem, device):
            return {"a": 1, "b": 1}

    (planned,) = plan({Large.name: Large()}, PROBLEM, CPU, seed=0)
    assert (len(planned.configs), planned.more, planned.configs[0]) == (MAX_CONFIGS, None, {"a": 1, "b": 1})


def test_nothing_at_all_is_begun_once_the_grace_is_over():
    found = numerics(Unparametrised(), clock=Clock(step_s=GRACE_S), deadline=-1.0)
    assert not found.checked
    (one,) = found.findings
    assert (one.outcome, one.text) == (Outcome.NOT_RUN, "No config ran: 1 was left out.")
    assert found.ok


class Lost:
    """An executor whose device goes away at the `after`-th collect."""

    def __init__(self, inner, after, error):
        self._inner, self._left, self._error = inner, after, error
        self.policy, self.lookahead = inner.policy, inner.lookahead

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def collect(self, effort, *, best_us=None):
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._inner.collect(effort, best_us=best_us)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BusyError("The device is gone."), "The device is gone."),
        (RuntimeError("t() expects"), "RuntimeError: t() expects"),
    ],
)
def test_a_device_that_is_lost_ends_the_problem_and_is_in_the_report(error, says):
    backend = FaultyBackend()
    executor = Lost(LocalExecutor(CPU, {backend.name: backend}), 1, error)
    found = numerics(backend, executor=executor)
    assert len(found.checked) == 1
    assert [one.text for one in found.findings if one.subject == PROBLEM.shape] == [says]
    assert found.left_out[0].why == "the device was lost, or the problem cannot be set up on it"
    assert not found.ok


def test_a_config_that_kills_its_worker_costs_itself_alone():
    """On a card the executor is that of a tuning run; here it is the same one, on a CPU."""
    backend, right = worker_faults.Faulty(), Unparametrised()
    by_name = {backend.name: backend, right.name: right}
    executor = WorkerExecutor(CPU, by_name, policy="cpu.warm", deadlines=Deadlines(check=3.0, sample=3.0), spare=False)
    planned = [
        Planned(backend.name, [{"fault": name} for name in ("none", "sigkill", "wrong")]),
        Planned(right.name, [{}]),
    ]
    found = report()
    try:
        check_numerics(executor, PROBLEM, planned, found, deadline=1000.0, now=Clock())
    finally:
        executor.shutdown()
    ended = {c.config.get("fault", "right"): c.status for c in found.checked}
    assert ended == {
        "none": TrialStatus.OK, "right": TrialStatus.OK, "sigkill": TrialStatus.CRASHED, "wrong": TrialStatus.WRONG,
    }  # fmt: skip
    outcomes = {one.subject: one.outcome for one in found.findings}
    assert outcomes == {"bad.kernel 4x32x64": Outcome.WRONG, "test.fixed 4x32x64": Outcome.OK}


def test_a_compiler_that_does_not_come_back_is_not_waited_for():
    backend, right = worker_faults.FaultyCompiler(), Unparametrised()
    by_name = {backend.name: backend, right.name: right}
    executor = WorkerExecutor(CPU, by_name, policy="cpu.warm", spare=False)
    planned = [Planned(backend.name, [{"compiler": "hangs"}]), Planned(right.name, [{}])]
    found, start = report(), time.monotonic()
    try:
        check_numerics(executor, PROBLEM, planned, found, deadline=start + 10.0 - GRACE_S)
    finally:
        executor.shutdown()
    assert time.monotonic() - start < 30, "the pool gives a compiler 60 s"
    assert [(one.backend, one.n) for one in found.left_out] == [(backend.name, 1)]
    assert {one.subject: one.text for one in found.findings if one.outcome is Outcome.NOT_RUN} == {
        "compiled.kernel 4x32x64": "No config ran: 1 was left out."
    }
    assert found.ok


def test_a_card_is_used_through_worker_processes_only(monkeypatch):
    made = {}

    class Executor:
        def __init__(self, device, backends, **options):
            made.update(options, device=device)

    monkeypatch.setattr(job, "WorkerExecutor", Executor)
    card = CARDS["rtx-pro-6000"]
    job._executor(job.Means(card, exporting=lambda *_: []), {})
    assert made["device"] is card
    assert made["policy"] == "cuda.graph"
    assert made["deadlines"].prepare <= 30, "two minutes is all there is"
