"""Verdicts: what is no evidence, what must hold for all figures, and what real A/A measurements come out as."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fp4tune.api.dashboard.verdicts import (
    CARD_BAND,
    CARD_NOISE,
    CPU_BAND,
    CPU_NOISE,
    Judgement,
    Measurement,
    Verdict,
    cause,
    judge,
    longer,
    microseconds,
)
from hypothesis import assume, given
from hypothesis import strategies as st

DOCS = Path(__file__).resolve().parents[3] / "docs"
GRAPH, CPU = "cuda.graph", "cpu.warm"
MIRROR = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}


def measured(time_us: float = 10.0, *, off: float = 0.001, policy: str = GRAPH, **more) -> Measurement:
    """A time with an interval of plus and minus a share of it."""
    return Measurement(policy, time_us, time_us * (1 - off), time_us * (1 + off), **more)


@st.composite
def measurements(draw, policy: str = GRAPH) -> Measurement:
    """Times near each other, so that every verdict comes up, with skewed intervals."""
    time = draw(st.floats(9.0, 11.0))
    down, up = draw(st.floats(0, 0.05)), draw(st.floats(0, 0.05))
    return Measurement(
        policy, time, time * (1 - down), time * (1 + up),
        draw(st.none() | st.integers(1, 400)), draw(st.none() | st.floats(0, 1)),
    )  # fmt: skip


# What is no evidence


@pytest.mark.parametrize("nonsense", [None, math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 10**400, "10", b"x"])
@pytest.mark.parametrize("field", ["time_us", "low_us", "high_us"])
def test_what_is_no_time_is_not_enough_evidence(field, nonsense):
    broken = replace(measured(), **{field: nonsense})
    for pair in ((broken, measured()), (measured(), broken), (broken, broken)):
        found = judge(*pair)
        assert found.verdict is Verdict.NOT_ENOUGH
        assert found.ratio is found.low is found.high is None
        assert "positive number inside its interval" in found.sentence


def test_the_sentence_says_which_time_is_missing():
    missing = Measurement(GRAPH, None, None, None)
    assert judge(missing, measured()).sentence.startswith("The earlier time is not")
    assert judge(measured(), missing).sentence.startswith("The later time is not")
    assert judge(missing, missing).sentence.startswith("Neither time is")


def test_an_interval_that_does_not_hold_its_median_is_no_evidence():
    for low, time, high in ((11.0, 10.0, 12.0), (8.0, 10.0, 9.0), (12.0, 10.0, 8.0)):
        assert judge(measured(), Measurement(GRAPH, time, low, high)).verdict is Verdict.NOT_ENOUGH


def test_times_of_two_worlds_do_not_overflow():
    tiny, huge = measured(1e-290), measured(1e290)
    for pair in ((tiny, huge), (huge, tiny)):
        found = judge(*pair)
        assert found.verdict is Verdict.NOT_ENOUGH
        assert found.ratio is None


@pytest.mark.parametrize("n", [-3, 0, 1, 3, 5])
def test_few_samples_are_no_evidence_however_far_apart_the_times_are(n):
    for pair in ((measured(10.0, n_samples=n), measured(20.0)), (measured(10.0), measured(20.0, n_samples=n))):
        found = judge(*pair)
        assert found.verdict is Verdict.NOT_ENOUGH
        assert found.ratio == pytest.approx(2.0)
        assert "fewer than 6" in found.sentence
    assert judge(measured(10.0, n_samples=6), measured(20.0, n_samples=6)).verdict is Verdict.REGRESSED


def test_figures_of_two_policies_are_never_compared():
    with pytest.raises(ValueError, match=r"cuda\.graph and cuda\.eager"):
        judge(measured(), measured(policy="cuda.eager"))


# What throttling takes away


def test_a_slowdown_under_throttling_is_no_regression():
    cool, hot = {"throttled_share": 0.0}, {"throttled_share": 0.9}
    found = judge(measured(10.0, **cool), measured(10.5, **hot))
    assert found.verdict is Verdict.NOT_ENOUGH
    assert "in 0 % of the samples, then in 90 %" in found.sentence
    assert judge(measured(10.0, **hot), measured(10.5, **cool)).verdict is Verdict.REGRESSED
    assert judge(measured(10.0, **cool), measured(9.5, **hot)).verdict is Verdict.IMPROVED
    assert judge(measured(10.0, **hot), measured(9.5, **cool)).verdict is Verdict.NOT_ENOUGH
    assert judge(measured(10.0, **cool), measured(10.0, **hot)).verdict is Verdict.NOT_ENOUGH
    assert judge(measured(10.0, **hot), measured(10.5, **hot)).verdict is Verdict.REGRESSED
    some = {"throttled_share": 0.45}  # the median is still that of a sample at full clock
    assert judge(measured(10.0, **cool), measured(10.5, **some)).verdict is Verdict.REGRESSED
    assert judge(measured(10.0, throttled_share=math.nan), measured(10.5, **hot)).verdict is Verdict.REGRESSED


# The four verdicts


@pytest.mark.parametrize(
    ("later_us", "verdict"),
    [
        (10.30, Verdict.REGRESSED), (10.17, Verdict.REGRESSED), (10.12, Verdict.NOT_ENOUGH),
        (10.07, Verdict.NOT_ENOUGH), (10.02, Verdict.UNCHANGED), (10.0, Verdict.UNCHANGED), (9.97, Verdict.UNCHANGED),
        (9.9, Verdict.NOT_ENOUGH), (9.8, Verdict.IMPROVED), (5.0, Verdict.IMPROVED),
    ],
)  # fmt: skip
def test_four_verdicts_of_sharp_times(later_us, verdict):
    found = judge(measured(10.0), measured(later_us))
    assert found.verdict is verdict
    assert found.low < found.ratio < found.high
    assert found.sentence.endswith("1 % that counts.")


def test_wide_intervals_are_no_evidence_even_of_no_change():
    assert judge(measured(10.0, off=0.02), measured(10.0, off=0.02)).verdict is Verdict.NOT_ENOUGH
    assert judge(measured(10.0, off=0.05), measured(10.4, off=0.05)).verdict is Verdict.NOT_ENOUGH
    assert judge(measured(10.0, off=0.05), measured(12.0, off=0.05)).verdict is Verdict.REGRESSED


def test_a_sentence_has_the_numbers():
    found = judge(measured(12.34), measured(12.61))
    assert re.fullmatch(
        r"12\.34 µs, then 12\.61 µs: takes 2\.2 % longer \(95 % interval \+1\.6 % to \+2\.7 %\), "
        r"all of it beyond the 1 % that counts\.",
        found.sentence,
    )


def test_a_cpu_needs_more():
    assert judge(measured(10.0), measured(11.5)).verdict is Verdict.REGRESSED
    assert judge(measured(10.0, policy=CPU), measured(11.5, policy=CPU)).verdict is Verdict.NOT_ENOUGH
    assert judge(measured(10.0, policy=CPU), measured(15.0, policy=CPU)).verdict is Verdict.REGRESSED
    assert judge(measured(10.0, policy=CPU), measured(10.2, policy=CPU)).verdict is Verdict.UNCHANGED
    assert judge(measured(10.0, policy="x"), measured(11.5, policy="x")).verdict is Verdict.NOT_ENOUGH


# What must hold for all figures


@given(measurements(), measurements())
def test_swapping_mirrors_the_verdict(earlier, later):
    there, back = judge(earlier, later), judge(later, earlier)
    assert back.verdict is MIRROR.get(there.verdict, there.verdict)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)


@given(measurements(), measurements(), st.integers(-20, 20))
def test_the_unit_does_not_matter(earlier, later, exponent):
    def scaled(one: Measurement) -> Measurement:
        by = 2.0**exponent
        return replace(one, time_us=one.time_us * by, low_us=one.low_us * by, high_us=one.high_us * by)

    found, again = judge(earlier, later), judge(scaled(earlier), scaled(later))
    assert (again.verdict, again.ratio, again.low, again.high) == (found.verdict, found.ratio, found.low, found.high)


@given(measurements(), measurements(), st.floats(1.0, 1.5))
def test_slower_never_looks_better(earlier, later, factor):
    slower = replace(
        later, time_us=later.time_us * factor, low_us=later.low_us * factor, high_us=later.high_us * factor
    )  # fmt: skip
    assume(factor == 1.0 or factor > 1.0 + 1e-12)
    found, worse = judge(earlier, later), judge(earlier, slower)
    if found.verdict is Verdict.REGRESSED:
        assert worse.verdict is Verdict.REGRESSED
    if worse.verdict is Verdict.IMPROVED:
        assert found.verdict is Verdict.IMPROVED
    if found.verdict is Verdict.UNCHANGED:
        assert worse.verdict is not Verdict.IMPROVED


@given(measurements(), measurements(), st.floats(0.9, 1.0), st.floats(1.0, 1.1))
def test_knowing_less_never_says_more(earlier, later, down, up):
    found = judge(earlier, later)
    vague = judge(earlier, replace(later, low_us=later.low_us * down, high_us=later.high_us * up))
    assert vague.verdict in {found.verdict, Verdict.NOT_ENOUGH}
    assert vague.low <= found.low
    assert vague.high >= found.high


@given(measurements(), measurements())
def test_one_measurement_against_itself_is_no_change(one, other):
    assert judge(one, one).verdict in {Verdict.UNCHANGED, Verdict.NOT_ENOUGH}
    found = judge(one, other)
    assert found.low <= found.ratio <= found.high
    assert found.high / found.ratio >= 1 + CARD_NOISE - 1e-9


anything = st.none() | st.floats() | st.integers() | st.text(max_size=3)


@given(
    *[
        st.builds(
            Measurement,
            st.just(GRAPH),
            anything,
            anything,
            anything,
            st.none() | st.integers(),
            st.none() | st.floats(),
        )
    ]
    * 2
)
def test_no_figures_break_it(earlier, later):
    found = judge(earlier, later)
    assert found.verdict in Verdict
    assert found.sentence.endswith(".")


# What was measured


def test_the_noise_covers_what_was_measured_of_a_card():
    noise = json.loads((DOCS / "results" / "h200-noise.json").read_text())["noise"]
    across = [max(r, 1 / r) - 1 for one in noise for r in one["across"]["ratios"]]
    assert {one["policy"] for one in noise} == {GRAPH}
    assert (len(noise), len(across)) == (22, 25)
    assert math.ceil(max(across) * 1e4) / 1e4 == CARD_NOISE
    assert CARD_BAND > CARD_NOISE


def test_no_real_pair_of_one_config_is_a_change_and_most_are_unchanged():
    noise = json.loads((DOCS / "results" / "h200-noise.json").read_text())["noise"]
    found = [
        judge(measured(before[0]), measured(after[0])).verdict
        for one in noise
        for before, after in pairwise(one["times_us"])
    ]
    assert set(found) <= {Verdict.UNCHANGED, Verdict.NOT_ENOUGH}
    assert found.count(Verdict.UNCHANGED) >= 0.9 * len(found)


def test_the_noise_of_a_cpu_is_the_worst_of_its_table():
    text = (DOCS / "cpu-space.md").read_text()
    noise = [float(x) / 100 for x in re.findall(r"\| ([0-9.]+)% \| [0-9]+% \|$", text, re.MULTILINE)]
    assert len(noise) == 11
    assert max(noise) == pytest.approx(CPU_NOISE)
    assert CPU_BAND > CPU_NOISE


# What it comes from


def judged(verdict: Verdict, ratio: float = 1.05) -> Judgement:
    return Judgement(verdict, ratio, ratio, ratio, "")


def told(*args, **kwargs) -> str:
    return cause(*args, **kwargs).sentence


def test_the_default_tells_the_machine_from_the_choice():
    slower = judged(Verdict.REGRESSED)
    say = {"same_config": True, "same_default": True, "environment_changed": False}
    moved = say | {"environment_changed": True}
    assert "Likely the machine, and not the choice" in told(slower, judged(Verdict.REGRESSED), **say)
    assert "Likely the environment" in told(slower, judged(Verdict.REGRESSED), **moved)
    assert "Likely this config, and not the whole machine" in told(slower, judged(Verdict.UNCHANGED, 1.0), **say)
    other = say | {"same_config": False}
    assert "Likely the choice of another config" in told(slower, judged(Verdict.UNCHANGED, 1.0), **other)
    assert "Likely this config" in told(slower, judged(Verdict.IMPROVED, 0.9), **say)
    for default, more in (
        (None, {}), (judged(Verdict.UNCHANGED), {"same_default": False}), (judged(Verdict.NOT_ENOUGH), {}),
        (Judgement(Verdict.NOT_ENOUGH, None, None, None, ""), {}),
    ):  # fmt: skip
        assert "cannot be told" in told(slower, default, **say | more)
    for verdict in (Verdict.UNCHANGED, Verdict.NOT_ENOUGH):
        assert cause(judged(verdict), judged(Verdict.REGRESSED), **say) is None


def test_an_update_that_slows_one_config_only_is_not_cleared_by_the_default():
    """A new compiler or driver may slow one kernel, and not the one that the default is."""
    say = {"same_config": True, "same_default": True, "environment_changed": True}
    found = cause(judged(Verdict.REGRESSED), judged(Verdict.UNCHANGED, 1.0), **say)
    assert found.short == "this config in the new environment"
    assert "not the environment" not in found.sentence


def test_words_for_ratios_and_times():
    assert longer(1.022) == "takes 2.2 % longer"
    assert longer(0.97) == "takes 3.0 % less time"
    assert longer(3.14159) == "takes 3.14 times as long"
    assert longer(1.0001) == "takes as long as before"
    assert longer(math.nan) == longer(-1) == "takes an unknown time"
    assert [microseconds(x) for x in (12.34, 12345.6, 1e12, 0.0001)] == [
        "12.34 µs", "12,346 µs", "1e+12 µs", "0.0001 µs"
    ]  # fmt: skip
