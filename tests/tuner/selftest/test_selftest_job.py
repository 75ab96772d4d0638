"""The selftest from end to end on this machine's CPU, with small problems; and what it does for a card that is not here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faulty_backends import FaultyBackend, Unparametrised
from fp4tune.kernels.backend import Availability, Parameter, Space, StaticFacts
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.patience import OutOfTimeError, seconds_left
from fp4tune.kernels.problem import Op, parse_shape
from fp4tune.tuner.checkup import Check, Checkup
from fp4tune.tuner.executor import LocalExecutor
from fp4tune.tuner.selftest import Means, Outcome, job, plan, run_selftest
from fp4tune.tuner.selftest.report import Finding
from fp4tune.tuner.selftest.without_card import compile_one_each, contract

CPU = detect("cpu")
CARD = CARDS["rtx-pro-6000"]
PROBLEM = parse_shape("4x32x64")
SMALL = ("4x32x64", "e4k2:4x32x64")


class OnCards(Unparametrised):
    """A backend for cards, as far as it can be asked without one."""

    name = "test.cards"

    def probe(self, device):
        here = device.kind == "cuda"
        return Availability(here, "" if here else "It needs a CUDA device.")


class CompilesOnCards(OnCards):
    name = "test.compiles"

    def compile(self, problem, device, config):
        return StaticFacts("sm_120a", 64, 0, 1024, {"OMMA": 8})


class ForFp4(CompilesOnCards):
    name = "test.fp4"

    def probe(self, device):
        new = job._has_fp4(device)
        return Availability(new, "" if new else f"{device.name} has no FP4 units.")


class DoesNotCompile(OnCards):
    name = "test.broken"

    def compile(self, problem, device, config):
        raise RuntimeError("ptxas: error")


class IsSlow(OnCards):
    """Its compiler takes minutes, and `built` values of its only parameter are in its cache. The default is 0."""

    name = "test.cached"
    compile_s = 900.0
    built = (1, 2)

    def space(self, problem, device):
        return Space((Parameter("tile", (0, 1, 2, 3)),))

    def default(self, problem, device):
        return {"tile": 0}

    def is_compiled(self, problem, device, config):
        return config["tile"] in self.built

    def compile(self, problem, device, config):
        assert config["tile"] in self.built, "it must not be begun"
        return StaticFacts("sm_120a", 64, 0, 1024, {"OMMA": 8})


class IsSlowOnCpu(IsSlow):
    name = "test.cached_cpu"

    def probe(self, device):
        return Availability(True)


class NothingBuilt(IsSlow):
    name = "test.uncached"
    built = ()

    def probe(self, device):
        return Availability(True)


class OutOfTime(Unparametrised):
    """As `flashinfer.cudnn`: a child process is asked, for as long as whoever asks can wait."""

    name = "test.live"
    given_s = ()

    def space(self, problem, device):
        type(self).given_s += (seconds_left(300.0),)
        raise OutOfTimeError("test.live did not list its tactics.")


class TakesMinutes(OnCards):
    name = "test.slow"
    compile_s = 900.0

    def compile(self, problem, device, config):
        raise AssertionError("it must not be begun")


@pytest.fixture
def exported():
    """What the export step was asked."""
    return []


@pytest.fixture
def means(exported, monkeypatch):
    monkeypatch.setattr(plan, "SHAPES", SMALL)
    monkeypatch.setattr(plan, "MAX_CONFIGS", 3)

    def exporting(backends, device, candidates):
        exported.append((sorted(backends), device, list(candidates)))
        return [Finding("export", "test", Outcome.OK, "it is")]

    def make(*backends):
        return Means(CPU, exporting=exporting, backends={one.name: one for one in backends}, budget_s=60.0)

    return make


def by_subject(report, step):
    return {one.subject: one for one in report.findings if one.step == step}


def test_without_a_card_the_part_that_needs_none_runs_and_the_rest_is_named(means, exported):
    report = run_selftest(means(CpuDequant(), OnCards()))
    assert report.ok
    assert not report.ran_on_card
    assert report.card == CARD.name
    numerics = by_subject(report, "numerics")
    for shape in SMALL:
        assert numerics[f"cpu.dequant {shape}"].outcome is Outcome.OK
        assert numerics[f"cpu.dequant {shape}"].text.startswith("3 of 3 configs right")
    assert numerics[CARD.name].outcome is Outcome.NOT_RUN
    assert "numerics and launches of test there are not checked" in numerics[CARD.name].text
    assert by_subject(report, "contract")["test.cards 4x32x64"].outcome is Outcome.OK
    assert not by_subject(report, "backends"), "what ran here, and what only a card has, is no finding of its own"
    assert exported == [(["cpu.dequant", "test.cards"], CARD, [])]
    assert [one.subject for one in report.findings if one.step == "export"] == ["test"]
    assert report.environment.versions["torch"]
    assert {check.name for check in report.checks} >= {"NVIDIA driver", "nvcc"}


def test_backends_that_contradict_each_other_are_a_finding(means):
    class Other(Unparametrised):
        name = "test.other"

        def versions(self, device):
            return {"torch": "0.0"}

    report = run_selftest(means(Unparametrised(), Other()))
    (finding,) = [one for one in report.findings if one.step == "environment"]
    assert finding.outcome is Outcome.WRONG
    assert "one environment needs one version" in finding.text
    assert not report.ok


def test_a_backend_that_computes_wrongly_makes_it_fail(means):
    report = run_selftest(means(FaultyBackend(default_fault="zero_tile")))
    assert not report.ok


def test_a_compiler_that_takes_minutes_is_left_out_of_the_numerics(means):
    class Slow(Unparametrised):
        name = "test.minutes"
        compile_s = 900.0

    report = run_selftest(means(Slow(), Unparametrised()))
    finding = by_subject(report, "numerics")["test.minutes 4x32x64"]
    assert finding.outcome is Outcome.NOT_RUN
    assert "may take 900 s to compile" in finding.text
    assert "--budget-s" in finding.text
    assert not any(one.backend == "test.minutes" for one in report.checked)


def test_of_a_compiler_that_takes_minutes_what_is_compiled_already_runs(means):
    report = run_selftest(means(IsSlowOnCpu(), NothingBuilt()))
    assert report.ok
    ran = [one for one in report.checked if one.backend == "test.cached_cpu" and one.problem.startswith("dense")]
    assert sorted(one.config["tile"] for one in ran) == [1, 2]
    assert not any(one.is_default for one in ran), "its default is not compiled"
    left = [one for one in report.left_out if one.backend == "test.cached_cpu"]
    assert [(one.n, one.why) for one in left] == [(2, "not compiled yet")] * len(SMALL)
    numerics = by_subject(report, "numerics")
    assert numerics["test.cached_cpu 4x32x64"].text.startswith("2 of 2 configs right")
    nothing = numerics["test.uncached 4x32x64"]
    assert nothing.outcome is Outcome.NOT_RUN
    assert "None is compiled yet: `fp4tune compile --backend test.uncached --shape 4x32x64` does it." in nothing.text
    assert not any(one.backend == "test.uncached" for one in report.checked)


def test_a_default_that_is_compiled_already_is_the_default(monkeypatch):
    monkeypatch.setattr(IsSlow, "built", (0, 3))
    (planned,) = plan.plan({IsSlow.name: IsSlow()}, PROBLEM, CARD, seed=0, slow={IsSlow.name: "It is slow."})
    assert [(candidate.config, first) for candidate, first in plan.in_order([planned])] == [
        ({"tile": 0}, True), ({"tile": 3}, False),
    ]  # fmt: skip


def test_with_time_for_its_compiler_everything_is_planned_though_nothing_is_compiled(means):
    report = run_selftest(replace(means(NothingBuilt()), budget_s=3600.0))
    assert any(one.backend == "test.uncached" and one.is_default for one in report.checked)


def test_who_is_asked_has_a_part_of_the_budget_and_is_no_failure_when_it_runs_out(means, monkeypatch):
    monkeypatch.setattr(OutOfTime, "given_s", ())
    report = run_selftest(means(OutOfTime(), Unparametrised()))
    assert report.ok
    finding = by_subject(report, "numerics")["test.live 4x32x64"]
    assert finding.outcome is Outcome.NOT_RUN
    assert finding.text == "test.live did not list its tactics. Give more time with --budget-s."
    assert by_subject(report, "numerics")["test.fixed 4x32x64"].outcome is Outcome.OK
    assert by_subject(report, "contract")["test.live 4x32x64"].outcome is Outcome.NOT_RUN
    numerics_s = job.ASKING_PART * job.NUMERICS_PART["cpu"] * 60.0
    assert OutOfTime.given_s, "it was asked"
    assert all(0 < given_s <= numerics_s for given_s in OutOfTime.given_s[: len(SMALL)])
    assert all(given_s < 60.0 for given_s in OutOfTime.given_s)
    assert seconds_left(300.0) == 300.0, "afterwards nobody is in a hurry"


def test_on_a_card_who_ran_out_of_time_is_not_waited_for_again(means, monkeypatch):
    monkeypatch.setattr(OutOfTime, "given_s", ())
    monkeypatch.setattr(job, "_executor", lambda means, ready: LocalExecutor(CPU, ready))
    monkeypatch.setattr(job, "check_up", lambda *_, **__: Checkup(()))
    report = run_selftest(replace(means(OutOfTime(), OnCards()), device=CARD))
    assert report.ok
    assert all(given_s > 0 for given_s in OutOfTime.given_s[: len(SMALL)])
    assert OutOfTime.given_s[len(SMALL) :] == (0.0,) * len(SMALL)


def test_the_card_itself_is_what_everything_is_about_if_it_has_fp4():
    assert job._has_fp4(CARD)
    assert job._has_fp4(CARDS["b200"])
    assert not job._has_fp4(CARDS["h200"])
    assert not job._has_fp4(CPU)


def test_the_plan_is_a_decode_layer_of_each_kind_that_every_backend_of_sm120_takes():
    found = plan.problems()
    assert [one.op for one in found] == [Op.DENSE, Op.GROUPED, Op.MOE]
    for one in found:
        assert one.n % 128 == 0
        assert one.k % 256 == 0
        assert one.m & (one.m - 1) == 0, "a bucket of FlashInfer's"


# --- contracts and compilers of a card that is not here -----------------------------------------------------------------


def broken(name, **methods):
    return type(name, (OnCards,), {"name": f"test.{name}", **methods})()


def raising(error):
    def method(self, *_):
        raise error

    return method


@pytest.mark.parametrize(
    ("backend", "outcome", "says"),
    [
        (OnCards(), Outcome.OK, "1 configs; the default and all seeds are in the space"),
        (broken("refuses", space=raising(UnsupportedError("K is odd."))), Outcome.REFUSED, "K is odd."),
        (broken("raises", space=raising(KeyError("x"))), Outcome.WRONG, "space raised KeyError"),
        (broken("no_default", default=raising(KeyError("x"))), Outcome.WRONG, "for its default and seeds it raised"),
        (broken("default", default=lambda *_: {"a": 1}), Outcome.WRONG, "Its default {'a': 1} is not in its space."),
        (broken("seed", seeds=lambda *_: [{"a": 1}]), Outcome.WRONG, "Its seed {'a': 1} is not in its space."),
        (broken("versions", versions=lambda *_: {}), Outcome.WRONG, "never become stale"),
        (broken("no_versions", versions=raising(OSError("x"))), Outcome.WRONG, "versions raised OSError"),
    ],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_what_a_backend_offers_is_held_against_its_contract(backend, outcome, says):
    found = contract(backend, PROBLEM, CARD)
    assert (found.step, found.outcome) == ("contract", outcome)
    assert says in found.text


def test_one_kernel_of_each_compiler():
    ours = (OnCards(), CompilesOnCards(), DoesNotCompile(), TakesMinutes(), IsSlow())
    backends = {one.name: one for one in ours}
    found = {
        one.subject.split()[0]: one
        for one in compile_one_each(backends, [PROBLEM], CARD, deadline=100.0, now=lambda: 0.0)
    }
    assert set(found) == {"test.compiles", "test.broken", "test.slow", "test.cached"}, (
        "of what does not compile there is nothing to say"
    )
    assert found["test.compiles"].outcome is Outcome.OK
    assert "for sm_120a: 64 registers, 8x OMMA" in found["test.compiles"].text
    assert found["test.broken"].outcome is Outcome.WRONG
    assert found["test.broken"].text == "RuntimeError: ptxas: error"
    assert found["test.slow"].outcome is Outcome.NOT_RUN
    command = "fp4tune compile --backend test.slow --shape 4x32x64 --arch sm_120a"
    assert f"`{command}` does it" in found["test.slow"].text
    assert found["test.cached"].outcome is Outcome.OK
    assert found["test.cached"].text.startswith("compiled before, found in ")


def test_a_kernel_that_is_not_done_in_time_is_not_wrong():
    backends = {CompilesOnCards.name: CompilesOnCards()}
    (found,) = compile_one_each(backends, [PROBLEM], CARD, deadline=0.0, now=lambda: 0.0)
    assert (found.outcome, found.text) == (Outcome.NOT_RUN, "Time ran out before it was compiled.")


def test_a_backend_that_raises_where_it_may_not_is_wrong_and_no_end(means):
    class Broken(Unparametrised):
        name = "test.raises"

        def space(self, problem, device):
            raise KeyError("x")

    report = run_selftest(means(Broken()))
    finding = by_subject(report, "numerics")["test.raises 4x32x64"]
    assert (finding.outcome, finding.text) == (Outcome.WRONG, "KeyError: 'x'")


def test_an_export_step_that_raises_does_not_cost_the_report(means):
    def raises(*_):
        raise ValueError("garbage")

    report = run_selftest(replace(means(Unparametrised()), exporting=raises))
    (finding,) = [one for one in report.findings if one.step == "export"]
    assert (finding.outcome, finding.text) == (Outcome.WRONG, "ValueError: garbage")
    assert report.checked


def test_on_a_card_with_fp4_everything_is_about_it(means, exported, monkeypatch):
    """The card is a stand-in, the kernels compute on the CPU: what is tested is who is asked what."""
    monkeypatch.setattr(job, "_executor", lambda means, ready: LocalExecutor(CPU, ready))
    monkeypatch.setattr(job, "check_up", lambda *_, **__: Checkup(()))
    report = run_selftest(replace(means(OnCards(), NotHere()), device=CARD))
    assert report.ok
    assert report.ran_on_card
    assert report.card == CARD.name
    numerics = by_subject(report, "numerics")
    assert {name: one.outcome for name, one in numerics.items()} == {
        f"test.cards {shape}": Outcome.OK for shape in SMALL
    }  # fmt: skip
    assert by_subject(report, "contract")["test.cards 4x32x64"].outcome is Outcome.OK
    assert [(one.subject, one.text) for one in report.not_run] == [(f"test.absent on {CARD.name}", "It is not here.")]
    ((_, device, candidates),) = exported
    assert device is CARD
    assert [(problem.shape, one.backend) for problem, one in candidates] == [(shape, "test.cards") for shape in SMALL]


def test_on_a_card_without_fp4_units_kernels_run_there_and_the_rest_is_for_a_card_with_them(
    means, exported, monkeypatch
):
    """As on an H200, with kernels that compute on the CPU."""
    monkeypatch.setattr(job, "_executor", lambda means, ready: LocalExecutor(CPU, ready))
    monkeypatch.setattr(job, "check_up", lambda *_, **__: Checkup((Check(job.OWN_LOCK, ok=False, text="held by us"),)))
    report = run_selftest(replace(means(OnCards(), ForFp4()), device=CARDS["h200"]))
    assert report.ok
    assert report.ran_on_card
    assert (report.card, report.checks) == (CARD.name, [])
    numerics = by_subject(report, "numerics")
    assert {name: numerics.pop(name).outcome for name in list(numerics) if name.startswith("test.")} == {
        f"test.cards {shape}": Outcome.OK for shape in SMALL
    }  # fmt: skip
    assert [one.outcome for one in numerics.values()] == [Outcome.NOT_RUN]
    assert set(numerics) == {CARD.name}
    assert set(by_subject(report, "contract")) == {
        f"{name} {shape}" for name in ("test.cards", "test.fp4") for shape in SMALL
    }
    assert by_subject(report, "compile")["test.fp4 4x32x64"].outcome is Outcome.OK
    name = CARDS["h200"].name
    assert by_subject(report, "backends")[f"test.fp4 on {name}"].text == f"{name} has no FP4 units."
    ((_, device, candidates),) = exported
    assert (device, candidates) == (CARD, []), "what passed on another card is no entry of this one's file"


class NotHere(Unparametrised):
    name = "test.absent"

    def probe(self, device):
        return Availability(False, "It is not here.")
