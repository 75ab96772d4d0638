"""Improved, unchanged, regressed, or not enough evidence: what two measurements of one problem say of a change.

The question is whether the time that a server gets changed by an amount that counts. The rule:

1. **The ratio** is the later median over the earlier one. Above 1 is slower.
2. **Its interval** has three independent parts: the 95 % intervals of the two medians, and A/A noise, which is what two
   measurements of one config in two processes differ by when nothing changed, and which is in neither interval, because
   each of them is about the samples of one process. They are added on a log scale by the method of variance estimates
   recovery (Zou and Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008):
   the lower end is the ratio less the root of the sum of squares of [the later median's distance to its lower end, the
   earlier's to its upper end, the noise], the upper end the other way round. It needs no distribution, keeps skewed
   intervals skewed, and swapping the two measurements gives the reciprocal.
3. **The band** is what counts: on a card a change below 1 % is none, as for the tuner, which does not replace a default
   for less. All of the interval above the band is `regressed`, all of it below is `improved`, all of it inside is
   `unchanged`; one that crosses an edge is `not enough evidence`. So `unchanged` is a finding (whatever changed is less
   than what counts), and not just that no change was seen. A claim is wrong in about one of 40 where the truth lies
   at the very edge of the band, and in next to none where nothing changed, however many problems a page lists.
4. **No evidence** is a time that is missing, not finite or not positive, an interval that does not hold its median, and
   fewer than six samples, whose whole range covers the median less than 95 % of the time.
5. **Throttling**: if most samples of one measurement were throttled, and much fewer of the other, the clock made it
   slower by an unknown amount (on an H200 at its power limit by up to 4.5 %: 1890 of 1980 MHz). Without that it would
   have been at least as fast: that it looks slower, or as slow, is no evidence; that it is faster in spite of that is.

Not in the interval: another hour, and another card of the same name, which has the same fingerprint. Therefore the
default is looked at beside what is served (`cause`): it was measured in the same rounds, and if its config did not
change and its time did, then the machine or its software changed and not the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from .model import Mark

CARD_NOISE = 0.0052
"""A/A noise of a GPU: how far apart two measurements of one config in two processes lie at most, 95 % of the time.

The worst of 25 such pairs (22 configs, `across` in docs/results/h200-noise.json) on an NVIDIA H200 by `cuda.graph`,
0.515 %, rounded up; with 93 % confidence 90 % of all pairs lie within the worst of 25 (1 - 0.9^25). `cuda.eager` takes
the same, and has not been measured.
"""

CARD_BAND = 0.01
"""What counts on a GPU: 1 %, as `tuner.select.MIN_GAIN`, and about twice the noise, so that it can be resolved."""

CPU_NOISE = 0.161
"""A/A noise of a CPU: the worst of 11 pairs on two cores of a shared AMD EPYC, column `noise` of docs/cpu-space.md."""

CPU_BAND = 0.20
"""What counts on a CPU: more than its noise, or nothing could ever be called unchanged."""

MIN_SAMPLES = 6
"""The range of six samples covers the median 96.9 % of the time, that of five 93.8 % (`tuner.stats`)."""

MOSTLY = 0.5
"""As long as fewer than half of the samples were throttled, the median is the time of one that was not."""

THROTTLE_GAP = 0.25
"""Shares of throttled samples closer than this were measured alike, also at either side of MOSTLY."""


class Verdict(StrEnum):
    """What became of a time."""

    REGRESSED = "regressed"
    NOT_ENOUGH = "not enough evidence"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"


MARKS = {
    Verdict.REGRESSED: Mark.BAD,
    Verdict.NOT_ENOUGH: Mark.UNSURE,
    Verdict.IMPROVED: Mark.GOOD,
}
"""How a verdict's cell is marked; unchanged is plain."""

LEGEND = (
    ((Mark.BAD,), "regressed: slower by more than counts"),
    ((Mark.UNSURE,), "not enough evidence: the interval crosses the edge of what counts"),
    ((Mark.GOOD,), "improved: faster by more than counts"),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a problem.

    Attributes:
        policy: the measuring policy.
        time_us: median, microseconds. low_us, high_us: its 95 % interval. Whatever a store may hold, None as well.
        n_samples: samples below it; None if that is not known, and then they are taken for enough.
        throttled_share: share of the samples that were throttled, 0 to 1; None if that is not known.
    """

    policy: str
    time_us: float | None
    low_us: float | None
    high_us: float | None
    n_samples: int | None = None
    throttled_share: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What two measurements say.

    Attributes:
        verdict: in a word.
        ratio: later median over earlier; None where a figure is missing.
        low, high: its 95 % interval, A/A noise included; None where it cannot be told.
        sentence: why, with numbers.
        held_back: whether it is held-back clocks that leave it open.
    """

    verdict: Verdict
    ratio: float | None
    low: float | None
    high: float | None
    sentence: str
    held_back: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """What a change is likely to come from.

    Attributes:
        short: in a few words: `the environment`, `cannot be told`.
        sentence: with the reason.
    """

    short: str
    sentence: str


def noise(policy: str) -> float:
    """A/A noise under a policy, 0.01 for 1 %; for one that is not known the larger one."""
    return CARD_NOISE if policy.startswith("cuda.") else CPU_NOISE


def band(policy: str) -> float:
    """What counts under a policy, 0.01 for 1 %."""
    return CARD_BAND if policy.startswith("cuda.") else CPU_BAND


def judge(earlier: Measurement, later: Measurement) -> Judgement:
    """Whether `later` is a change for the worse, for the better, or none; the rule is the module's text.

    Raises:
        ValueError: the two are of different policies, whose figures are never compared.
    """
    if earlier.policy != later.policy:
        raise ValueError(f"figures of two policies are never compared: {earlier.policy} and {later.policy}")
    before, after = _logs(earlier), _logs(later)
    if before is None or after is None:
        which = "Neither time is" if before is after else f"The {'earlier' if before is None else 'later'} time is not"
        return Judgement(Verdict.NOT_ENOUGH, None, None, None, f"{which} a positive number inside its interval.")
    step = _log_ratio(after.time, before.time)
    aa, counts = math.log1p(noise(later.policy)), math.log1p(band(later.policy))
    low = step - _root(after.down, before.up, aa)
    high = step + _root(after.up, before.down, aa)
    ratio, ratio_low, ratio_high = _exp(step), _exp(low), _exp(high)
    if ratio is None or ratio_low is None or ratio_high is None:
        return Judgement(Verdict.NOT_ENOUGH, None, None, None, "The two times are too far apart to be of one problem.")
    seen = f"{microseconds(before.time)}, then {microseconds(after.time)}: {longer(ratio)}"
    seen += f" (95 % interval {_percent(ratio_low)} to {_percent(ratio_high)})"
    few = [one.n_samples for one in (earlier, later) if one.n_samples is not None and one.n_samples < MIN_SAMPLES]
    if few:
        n = max(min(few), 0)
        why = f"one of the two rests on {n} sample{'s' * (n != 1)}, and fewer than {MIN_SAMPLES} give no such interval"
        return Judgement(Verdict.NOT_ENOUGH, ratio, ratio_low, ratio_high, f"{seen}; {why}.")
    verdict = _verdict(low, high, counts)
    gap = _gap(earlier.throttled_share, later.throttled_share)
    excused = {1: (Verdict.REGRESSED, Verdict.UNCHANGED), -1: (Verdict.IMPROVED, Verdict.UNCHANGED), 0: ()}[gap]
    if verdict in excused:
        shares = f"{_share(earlier.throttled_share)} of the samples, then in {_share(later.throttled_share)}"
        sentence = f"{seen}, but the clocks were held back in {shares}, so the clock may have made the difference."
        return Judgement(Verdict.NOT_ENOUGH, ratio, ratio_low, ratio_high, sentence, held_back=True)
    return Judgement(
        verdict, ratio, ratio_low, ratio_high, f"{seen}, {_SAYS[verdict]} {_share(band(later.policy))} that counts."
    )


def cause(
    change: Judgement, default: Judgement | None, *, same_config: bool, same_default: bool, environment_changed: bool
) -> Cause | None:
    """What a change is likely to come from; None where nothing changed or nothing can be said.

    Args:
        change: of what is served.
        default: of the fastest default, measured in the same rounds; None if the default is what was served both times.
        same_config: whether the same config of the same backend was served both times.
        same_default: whether the default is the same config of the same backend.
        environment_changed: whether the environment is another one.
    """
    if change.verdict not in (Verdict.REGRESSED, Verdict.IMPROVED):
        return None
    machine = "the environment" if environment_changed else "the machine"
    if default is None:
        return _unknown(machine, "the default is what is served.")
    if not same_default:
        return _unknown(machine, "the default is another config, too.")
    if default.verdict is Verdict.NOT_ENOUGH or default.ratio is None:
        return _unknown(machine, "of the default, with its config unchanged, there is not enough evidence.")
    if default.verdict is change.verdict:
        moved = longer(default.ratio)
        said = f"Likely {machine}, and not the choice: the default, with its config unchanged, {moved}, too."
        return Cause(machine, said)
    moved = "took as long" if default.verdict is Verdict.UNCHANGED else longer(default.ratio)
    beside = f"the default, with its config unchanged, {moved}."
    if not same_config:
        return Cause("another config", f"Likely the choice of another config, and not {machine}: {beside}")
    # The same config: an update may slow one kernel and leave the other alone, so the environment is not cleared.
    where = " in the new environment" if environment_changed else ""
    return Cause(f"this config{where}", f"Likely this config{where}, and not the whole machine: {beside}")


def _unknown(machine: str, why: str) -> Cause:
    return Cause("cannot be told", f"Whether {machine} or the choice changed cannot be told: {why}")


def longer(ratio: float, than: str = "before") -> str:
    """A ratio of times in words: `takes 2.2 % longer`, `takes 3.0 % less time`, `takes 3.1 times as long`."""
    if not math.isfinite(ratio) or ratio <= 0:
        return "takes an unknown time"
    if ratio >= 2:  # from there on a factor reads better than a percentage
        return f"takes {ratio:.3g} times as long"
    change = ratio - 1
    if abs(change) < 0.0005:  # what would be shown as 0.0 %
        return f"takes as long as {than}"
    return f"takes {abs(change):.1%} {'longer' if change > 0 else 'less time'}".replace("%", " %")


def microseconds(value: float) -> str:
    """A time for a sentence: `12.34 µs`."""
    if not 0.01 <= abs(value) < 1e9:  # outside of what a kernel takes
        return f"{value:.3g} µs"
    return f"{value:,.2f} µs" if abs(value) < 1000 else f"{value:,.0f} µs"  # four digits are enough


_SAYS = {
    Verdict.REGRESSED: "all of it beyond the",
    Verdict.IMPROVED: "all of it beyond the",
    Verdict.UNCHANGED: "all of it within the",
    Verdict.NOT_ENOUGH: "which is neither all beyond nor all within the",
}


_HUGE = 1e300
"""What is not below it is no time, in microseconds or in anything else."""


@dataclass(frozen=True, slots=True)
class _Logs:
    """A median, and the log distances from it to the ends of its interval."""

    time: float
    down: float
    up: float


def _logs(one: Measurement) -> _Logs | None:
    """None if the figures are no measurement."""
    figures = (one.low_us, one.time_us, one.high_us)
    if not all(isinstance(x, int | float) and 0 < x < _HUGE for x in figures):
        return None
    low, time, high = (float(x) for x in figures if x is not None)
    if not low <= time <= high:
        return None
    return _Logs(time, _log_ratio(time, low), _log_ratio(high, time))


def _log_ratio(above: float, below: float) -> float:
    """log(above/below), exactly the negative of log(below/above): a verdict must not depend on a last digit."""
    if above >= below:
        return math.log(above / below) if above / below < math.inf else math.inf
    return -_log_ratio(below, above)


def _root(*parts: float) -> float:
    """Root of the sum of squares, to the last digit whatever their order."""
    return math.hypot(*sorted(parts))


def _exp(x: float) -> float | None:
    """exp(x); None where that is no positive number."""
    return math.exp(x) if abs(x) < 700 else None  # exp overflows at 709.8


def _verdict(low: float, high: float, counts: float) -> Verdict:
    if low > counts:
        return Verdict.REGRESSED
    if high < -counts:
        return Verdict.IMPROVED
    return Verdict.UNCHANGED if -counts <= low and high <= counts else Verdict.NOT_ENOUGH


def _gap(earlier: float | None, later: float | None) -> int:
    """1 if the later was throttled and the earlier was not, -1 the other way round, 0 if alike or not known."""
    if earlier is None or later is None or not abs(later - earlier) > THROTTLE_GAP or max(earlier, later) <= MOSTLY:
        return 0
    return 1 if later > earlier else -1


def _share(value: float | None) -> str:
    """`25 %` for 0.25."""
    return "an unknown share" if value is None else f"{value:.0%}".replace("%", " %")


def _percent(ratio: float) -> str:
    """`+2.2 %` for 1.022, `12.5 times` for 12.5."""
    if ratio >= 10:
        return f"{ratio:.3g} times"
    return f"{ratio - 1:+.1%}".replace("%", " %")
