from __future__ import annotations

import random

from fp4tune.db.records import Timing, TrialStatus
from fp4tune.kernels.backend import Parameter, Space
from fp4tune.tuner.executor import Candidate, Evaluation
from fp4tune.tuner.measure import FINALIST_FACTOR
from fp4tune.tuner.select import MAX_BASELINES, MAX_FINALISTS, Searched, finalists, select
from fp4tune.tuner.stats import median_interval

SPACE = Space((Parameter("tile", (128, 64, 32, 16)),))
SPACES = {"a": SPACE}


def searched(tile: int, time_us: float, *, is_default: bool = False, backend: str = "a") -> Searched:
    return Searched(Candidate(backend, {"tile": tile}), time_us, is_default)


def timed(base_us: float, *, noise: float = 0.002, n: int = 40, seed: int = 0, drift: bool = True) -> Evaluation:
    """Samples around base_us; rounds drift together by up to 20 %, as a shared machine does."""
    own, common = random.Random(seed), random.Random(99)
    samples = [base_us * (1 + (common.random() * 0.2 if drift else 0)) * (1 + own.gauss(0, noise)) for _ in range(n)]
    interval = median_interval(samples)
    timing = Timing(interval.median, interval.low, interval.high, samples, n)
    return Evaluation(TrialStatus.OK, timing, "", 0.001, 0.1)


FAILED = Evaluation(TrialStatus.CRASHED, None, "boom", None, 0.1)


def test_a_clearly_faster_config_replaces_the_default_despite_drift():
    entrants = [searched(128, 100.0, is_default=True), searched(16, 95.0)]
    found = select(entrants, [timed(100, seed=1), timed(95, seed=2)], SPACES)
    assert found is not None
    assert not found.is_default
    assert found.served.config == {"tile": 16}
    assert found.default.config == {"tile": 128}


def test_a_gain_inside_the_noise_keeps_the_default():
    entrants = [searched(128, 100.0, is_default=True), searched(16, 98.0)]
    found = select(entrants, [timed(100, noise=0.08, seed=1), timed(99, noise=0.08, seed=2)], SPACES)
    assert found is not None
    assert found.is_default
    assert found.served.config == {"tile": 128}
    assert len(found.tie_set) == 2


def test_a_gain_below_one_percent_keeps_the_default_however_well_it_is_known():
    entrants = [searched(128, 100.0, is_default=True), searched(16, 99.5)]
    found = select(entrants, [timed(100, noise=1e-5, seed=1), timed(99.5, noise=1e-5, seed=2)], SPACES)
    assert found is not None
    assert found.is_default


def test_inside_a_tie_the_order_of_the_space_decides_not_the_clock():
    """64 comes before 32 and 16 in the space; which of them was fastest in the finals is noise."""
    entrants = [searched(128, 100.0, is_default=True), searched(16, 80.0), searched(32, 80.0), searched(64, 80.0)]
    picks = set()
    for seed in range(12):
        evaluations = [timed(100, seed=seed)] + [timed(80, noise=0.01, seed=seed * 7 + i) for i in (1, 2, 3)]
        found = select(entrants, evaluations, SPACES)
        assert found is not None
        picks.add(found.served.config["tile"])
        assert len(found.tie_set) == 3
    assert picks == {64}


def test_a_tie_that_does_not_itself_beat_the_default_is_not_served():
    """64 ties with the fastest (16), but 64 is within 1 % of the default, so 64 must not replace it."""
    entrants = [searched(128, 100.0, is_default=True), searched(64, 99.3), searched(16, 98.5)]
    evaluations = [timed(b, noise=1e-5, seed=i) for i, b in enumerate((100, 99.3, 98.6))]
    found = select(entrants, evaluations, SPACES)
    assert found is not None
    assert found.served.config == {"tile": 16}
    assert {c.config["tile"] for c in found.tie_set} == {64, 16}


def test_the_bar_is_the_fastest_default_of_any_backend():
    entrants = [
        searched(128, 100.0, is_default=True),
        searched(1, 90.0, is_default=True, backend="b"),
        searched(16, 95.0),
    ]
    found = select(entrants, [timed(100, seed=1), timed(90, seed=2), timed(95, seed=3)], SPACES)
    assert found is not None
    assert found.served.backend == found.default.backend == "b"
    assert found.is_default


def test_a_default_that_fails_in_the_finals_is_no_bar_and_a_finalist_that_fails_is_out():
    entrants = [searched(128, 100.0, is_default=True), searched(16, 95.0), searched(32, 90.0)]
    found = select(entrants, [FAILED, timed(95, seed=1), FAILED], SPACES)
    assert found is not None
    assert found.served.config == {"tile": 16}
    assert select(entrants, [FAILED] * 3, SPACES) is None


def test_finalists_are_all_defaults_and_the_best_others():
    entries = [searched(128, 500.0, is_default=True), searched(128, 500.0)]
    entries += [Searched(Candidate("a", {"tile": 1000 + i}), 100.0 + i / 10, is_default=False) for i in range(20)]
    entries += [searched(7, 100.0 * FINALIST_FACTOR + 1)]
    picked = finalists(entries, round_s=3.0)
    assert picked[0].is_default
    assert len(picked) == 1 + MAX_FINALISTS
    assert [p.candidate.config["tile"] for p in picked[1:]] == list(range(1000, 1000 + MAX_FINALISTS))
    assert finalists([], round_s=3.0) == []


def test_without_a_default_that_runs_the_rule_decides_and_the_sentence_does_not_speak_of_a_default():
    entrants = [searched(128, 100.0, is_default=True), searched(16, 80.0), searched(32, 80.0), searched(64, 80.0)]
    for seed in range(6):
        found = select(entrants, [FAILED] + [timed(80, noise=0.01, seed=seed * 7 + i) for i in (1, 2, 3)], SPACES)
        assert found is not None
        assert found.served.config == found.default.config == {"tile": 64}
        assert not found.is_default
        assert "no default runs" in found.sentence


def test_the_published_medians_never_say_that_what_is_served_is_slower_than_the_default():
    """Ratios round by round and medians of each can disagree when a machine's speed jumps and outliers are common."""
    draw = random.Random(1)
    entrants = [searched(tile, 1.0, is_default=tile == 128) for tile in (128, 64, 32, 16)]
    replaced = 0
    for _ in range(2000):
        n = draw.choice((6, 7, 8, 12, 20))
        speed = [draw.choice((1, 1, 1.3, 2, 5)) for _ in range(n)]
        evaluations = []
        for base_us in (100, 96, 95, 94):
            samples = [base_us * s * (1 + draw.gauss(0, 0.05) ** 2) * draw.choice((1, 1, 1, 1, 1.5)) for s in speed]
            interval = median_interval(samples)
            timing = Timing(interval.median, interval.low, interval.high, samples, n)
            evaluations.append(Evaluation(TrialStatus.OK, timing, "", 0.001, 0.1))
        found = select(entrants, evaluations, SPACES)
        assert found is not None
        assert found.served.time_us <= found.default.time_us
        assert found.served in found.tie_set
        replaced += not found.is_default
    assert replaced > 100


def test_of_slow_configs_only_the_best_enters_the_finals():
    """Each takes a second and a round may take three: the default and two others, or one where not even one fits."""
    entries = [searched(128, 1e6, is_default=True)] + [searched(tile, 1e6 + tile) for tile in (16, 32, 64)]
    assert len(finalists(entries, round_s=3.1)) == 3
    assert [f.candidate.config["tile"] for f in finalists(entries, round_s=0.1)] == [128, 16]


def test_no_winner_is_served_with_a_speed_up_below_one_percent():
    """Pairs and medians can disagree; what is published must not contradict the rule."""
    draw = random.Random(5)
    served = 0
    for seed in range(300):
        entrants = [searched(128, 100.0, is_default=True), searched(16, 99.0), searched(32, 98.0)]
        bases = (100.0, 100 - draw.uniform(0, 3), 100 - draw.uniform(0, 3))
        found = select(entrants, [timed(b, noise=0.01, n=12, seed=seed * 3 + i) for i, b in enumerate(bases)], SPACES)
        assert found is not None
        if not found.is_default:
            served += 1
            assert found.default.time_us >= 1.01 * found.served.time_us
    assert served > 20


def baseline(number: int, time_us: float) -> Searched:
    return Searched(Candidate("base", {"way": number}), time_us, is_default=False, is_baseline=True)


def test_a_baseline_is_measured_and_reported_and_nothing_else():
    entrants = [searched(128, 100.0, is_default=True), searched(16, 80.0), baseline(0, 20.0), baseline(1, 21.0)]
    without = select(entrants[:2], [timed(100, seed=1), timed(80, seed=2)], SPACES)
    found = select(entrants, [timed(b, seed=i) for i, b in enumerate((100, 80, 20, 21), start=1)], SPACES)
    assert found is not None
    assert without is not None
    assert found.baseline is not None
    assert found.baseline.config == {"way": 0}
    assert without.baseline is None
    assert (found.served, found.default, found.tie_set, found.sentence) == (
        without.served, without.default, without.tie_set, without.sentence,
    )  # fmt: skip


def test_a_baseline_that_fails_in_the_finals_is_none_and_alone_it_selects_nothing():
    entrants = [searched(128, 100.0, is_default=True), baseline(0, 20.0)]
    found = select(entrants, [timed(100, seed=1), FAILED], SPACES)
    assert found is not None
    assert found.baseline is None
    assert select(entrants, [FAILED, timed(20, seed=1)], SPACES) is None


def test_the_fastest_baseline_enters_the_finals_whatever_it_costs():
    entries = [searched(128, 100.0, is_default=True), *(baseline(i, 30.0 + i) for i in range(4)), searched(16, 90.0)]
    picked = finalists(entries, round_s=3.0)
    assert [p.candidate.config for p in picked if p.is_baseline] == [{"way": 0}, {"way": 1}]
    assert sum(p.is_baseline for p in picked) == MAX_BASELINES
    assert [p.candidate.config["tile"] for p in picked if not p.is_baseline] == [128, 16]
    slow = [searched(128, 1e6, is_default=True), searched(16, 1e6), baseline(0, 5e6), baseline(1, 5.1e6)]
    assert [p.candidate.config for p in finalists(slow, round_s=0.1) if p.is_baseline] == [{"way": 0}]
    assert finalists([baseline(0, 1.0)], round_s=3.0) == []
