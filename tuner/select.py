"""Which config is served: finalists against the default, pair by pair, and a fixed rule inside a tie.

Noise decides winners when nobody stops it: on 4 GB300 the gap from the best tactic to the next was 0.08 % while the
same tactic differed by 1.2 % between ranks, and 20 of 20 buckets picked different tactics (sgl-project/sglang#35343).
So nothing is served because it was fastest once. Finalists are re-measured interleaved with every default; a
finalist replaces the default only if it is faster beyond the noise *and* by at least MIN_GAIN; what cannot be told
apart from the fastest forms the tie set, and a rule that does not look at the clock picks among it.

Baselines are measured in the same rounds, and that is all: none is served, is the default, or is in the tie set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..db.records import Choice, Timing
from ..kernels.backend import Space
from .executor import Candidate, Evaluation
from .measure import FINALIST_FACTOR
from .search import candidate_key
from .stats import paired_ratio

MIN_GAIN = 0.01
"""A config closer than 1 % to another is its equal: below what two measurements of one config differ by on a card
(1.2 % between ranks in sgl-project/sglang#35343), so serving it would trade a known default for nothing."""

MAX_FINALISTS = 8
"""Configs re-measured, the defaults apart."""

MAX_BASELINES = 2
"""Configs of baselines that are re-measured beside them: the fastest, and one more if it is nearly as fast."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A candidate that passed the gate, with what the search measured.

    Attributes:
        candidate: backend and config. time_us: median.
        is_default: True for the default of a backend that can be served.
        is_baseline: True if it is there to compare with and cannot be served.
    """

    candidate: Candidate
    time_us: float
    is_default: bool
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """What is served and why.

    Attributes:
        served: what is served.
        default: the fastest default, measured in the same rounds; what is served if no default runs.
        tie_set: what cannot be told apart from the fastest, the served one included.
        is_default: True if the default is served. sentence: the reason, for people.
        baseline: the fastest baseline, measured in the same rounds, if there is one.
    """

    served: Choice
    default: Choice
    tie_set: tuple[Choice, ...]
    is_default: bool
    sentence: str
    baseline: Choice | None = None


def finalists(searched: Sequence[Searched], *, round_s: float) -> list[Searched]:
    """The defaults that ran, then the best others, fastest first, then the best baselines; no candidate twice.

    Args:
        searched: what passed the gate in the search.
        round_s: seconds that one round may take: one config enters beside the defaults even if it is slower, and at
            most MAX_FINALISTS do; the fastest baseline always enters.

    Returns:
        Nothing if all that ran are baselines.
    """
    racing = [s for s in searched if not s.is_baseline]
    defaults = [s for s in racing if s.is_default]
    others = _nearly_best([s for s in racing if not s.is_default], min((s.time_us for s in racing), default=0.0))
    baselines = [s for s in searched if s.is_baseline]
    baselines = _nearly_best(baselines, min((s.time_us for s in baselines), default=0.0))
    picked = {candidate_key(entry.candidate): entry for entry in reversed(defaults)}
    n_defaults = len(picked)
    left_us = round_s * 1e6 - sum(entry.time_us for entry in (*picked.values(), *baselines[:1]))
    for entry in others[:MAX_FINALISTS]:
        left_us -= entry.time_us
        if left_us < 0 and len(picked) > n_defaults:
            break
        picked.setdefault(candidate_key(entry.candidate), entry)
    entering = baselines[: MAX_BASELINES if left_us >= 0 else 1]
    picked.update({candidate_key(entry.candidate): entry for entry in entering})
    return list(picked.values()) if racing else []


def _nearly_best(searched: Sequence[Searched], best_us: float) -> list[Searched]:
    """Those within FINALIST_FACTOR of the best, fastest first."""
    near = (s for s in searched if s.time_us <= FINALIST_FACTOR * best_us)
    return sorted(near, key=lambda s: s.time_us)


def select(
    finalists_: Sequence[Searched], evaluations: Sequence[Evaluation], spaces: Mapping[str, Space]
) -> Selection | None:
    """Pick what is served.

    Args:
        finalists_: what was re-measured.
        evaluations: what became of each, same order; sample i of all of them comes from the same round.
        spaces: each backend's space, whose order of values is the tie rule.

    Returns:
        None if no finalist ran that could be served.
    """
    timed = [(f, e.timing) for f, e in zip(finalists_, evaluations, strict=True) if e.timing is not None]
    ran = {candidate_key(f.candidate): (f, timing) for f, timing in timed if not f.is_baseline}
    baselines = [_choice(f.candidate, timing) for f, timing in timed if f.is_baseline]
    if not ran:
        return None
    defaults = [key for key, (f, _) in ran.items() if f.is_default]
    fastest = min(ran, key=lambda key: ran[key][1].time_us)
    ties = [key for key in ran if key == fastest or not _beats(ran[fastest][1], ran[key][1])]
    ties.sort(key=lambda key: _tie_rank(ran[key][0].candidate, spaces))
    choices = {key: _choice(f.candidate, timing) for key, (f, timing) in ran.items()}
    bar = min(defaults, key=lambda key: ran[key][1].time_us) if defaults else ties[0]
    gain = ran[bar][1].time_us / ran[fastest][1].time_us - 1
    if not defaults:
        served = bar
        sentence = "no default runs, so there is nothing to compare it with"
    elif bar == fastest:
        served = bar
        sentence = "the default is the fastest"
    elif bar in ties:
        served = bar
        why = "within the noise" if gain >= MIN_GAIN else f"less than the {MIN_GAIN:.0%} that counts"
        sentence = f"the default is kept: the fastest finalist is {gain:.1%} ahead, {why}"
    else:
        # Inside the tie only what itself beats the default may replace it. The fastest does.
        served = next(key for key in ties if _beats(ran[key][1], ran[bar][1]))
        sentence = f"{ran[bar][1].time_us / ran[served][1].time_us:.2f}x as fast as the default"
    return Selection(
        served=choices[served],
        default=choices[bar],
        tie_set=tuple(choices[key] for key in ties),
        is_default=ran[served][0].is_default,
        sentence=sentence,
        baseline=min(baselines, key=lambda choice: choice.time_us, default=None),
    )


def _beats(timing: Timing, other: Timing) -> bool:
    """True if `timing` is faster than `other` beyond the noise and by at least MIN_GAIN.

    Samples are paired round by round; the medians, which are what is published, must say so, too: the two do not
    always agree.
    """
    n = min(len(timing.samples_us), len(other.samples_us))
    ratio = paired_ratio(other.samples_us[:n], timing.samples_us[:n])
    return ratio.low > 1 and min(ratio.median, other.time_us / timing.time_us) >= 1 + MIN_GAIN


def _choice(candidate: Candidate, timing: Timing) -> Choice:
    return Choice(candidate.backend, candidate.config, timing.time_us, timing.time_us_low, timing.time_us_high)


def _tie_rank(candidate: Candidate, spaces: Mapping[str, Space]) -> tuple[str, tuple[int, ...], str]:
    """Backends by name, then configs in the order in which their space lists them. Independent of any clock."""
    space = spaces.get(candidate.backend)
    order: tuple[int, ...] = ()
    if space is not None and candidate.config in space:
        order = tuple(p.values.index(candidate.config[p.name]) for p in space.parameters)
    return candidate.backend, order, candidate_key(candidate)
