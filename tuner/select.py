"""Which config is served: finalists against the default, pair by pair, and a fixed rule inside a tie.

Noise decides winners when nobody stops it: on 4 GB300 the gap from the best tactic to the next was 0.08 % while the
same tactic differed by 1.2 % between ranks, and 20 of 20 buckets picked different tactics (sgl-project/sglang#35343).
So nothing is served because it was fastest once. Finalists are re-measured interleaved with every default; a
finalist replaces the default only if it is faster beyond the noise *and* by at least MIN_GAIN; what cannot be told
apart from the fastest forms the tie set, and a rule that does not look at the clock picks among it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..db.records import Choice, Timing
from ..kernels.backend import Space
from .executor import Candidate, Evaluation
from .search import candidate_key
from .stats import paired_ratio

MIN_GAIN = 0.01
"""A config closer than 1 % to another is its equal: below what two measurements of one config differ by on a card
(1.2 % between ranks in sgl-project/sglang#35343), so serving it would trade a known default for nothing."""

MAX_FINALISTS = 8
"""Configs re-measured, the defaults apart."""

FINALIST_FACTOR = 1.15
"""A config slower than this many times the best of the search is no finalist."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A candidate that passed the gate, with what the search measured.

    Attributes:
        candidate: backend and config. time_us: median. is_default: True for a backend's default.
    """

    candidate: Candidate
    time_us: float
    is_default: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """What is served and why.

    Attributes:
        served: what is served. default: the fastest default, measured in the same rounds.
        tie_set: what cannot be told apart from the fastest, the served one included.
        is_default: True if the default is served. sentence: the reason, for people.
    """

    served: Choice
    default: Choice
    tie_set: tuple[Choice, ...]
    is_default: bool
    sentence: str


def finalists(searched: Sequence[Searched]) -> list[Searched]:
    """The defaults that ran, then the best others, fastest first; no candidate twice."""
    defaults = [s for s in searched if s.is_default]
    best_us = min((s.time_us for s in searched), default=0.0)
    others = sorted(
        (s for s in searched if not s.is_default and s.time_us <= FINALIST_FACTOR * best_us),
        key=lambda s: s.time_us,
    )
    picked: dict[str, Searched] = {}
    for entry in defaults + others[:MAX_FINALISTS]:
        picked.setdefault(candidate_key(entry.candidate), entry)
    return list(picked.values())


def select(
    finalists_: Sequence[Searched], evaluations: Sequence[Evaluation], spaces: Mapping[str, Space]
) -> Selection | None:
    """Pick what is served.

    Args:
        finalists_: what was re-measured.
        evaluations: what became of each, same order; sample i of all of them comes from the same round.
        spaces: each backend's space, whose order of values is the tie rule.

    Returns:
        None if no finalist ran.
    """
    ran = {
        candidate_key(f.candidate): (f, e.timing)
        for f, e in zip(finalists_, evaluations, strict=True)
        if e.timing is not None
    }
    if not ran:
        return None
    defaults = [key for key, (f, _) in ran.items() if f.is_default]
    fastest = min(ran, key=lambda key: ran[key][1].time_us)
    # Without a default that runs (every backend's default failed the gate) the fastest itself is the bar.
    bar = min(defaults, key=lambda key: ran[key][1].time_us) if defaults else fastest
    ties = [key for key in ran if key == fastest or not _slower(ran[key][1], ran[fastest][1])]
    choices = {key: _choice(f.candidate, timing) for key, (f, timing) in ran.items()}
    if bar in ties:
        served = bar
        gain = ran[bar][1].time_us / ran[fastest][1].time_us - 1
        sentence = (
            "the default is the fastest"
            if bar == fastest
            else f"the default is kept: the fastest finalist is {gain:.1%} ahead, which is not beyond the noise"
        )
    else:
        # Inside the tie only what itself beats the default may replace it; the fastest does.
        worthy = [key for key in ties if _slower(ran[bar][1], ran[key][1])]
        served = min(worthy, key=lambda key: _tie_rank(ran[key][0].candidate, spaces))
        gain = ran[bar][1].time_us / ran[served][1].time_us - 1
        sentence = f"{1 + gain:.2f}x as fast as the default"
    return Selection(
        served=choices[served],
        default=choices[bar],
        tie_set=tuple(choices[key] for key in sorted(ties, key=lambda k: _tie_rank(ran[k][0].candidate, spaces))),
        is_default=served == bar,
        sentence=sentence,
    )


def _slower(timing: Timing, than: Timing) -> bool:
    """True if `timing` is slower beyond the noise and by at least MIN_GAIN, pairing samples round by round."""
    n = min(len(timing.samples_us), len(than.samples_us))
    ratio = paired_ratio(timing.samples_us[:n], than.samples_us[:n])
    return ratio.low > 1 and ratio.median >= 1 + MIN_GAIN


def _choice(candidate: Candidate, timing: Timing) -> Choice:
    return Choice(candidate.backend, candidate.config, timing.time_us, timing.time_us_low, timing.time_us_high)


def _tie_rank(candidate: Candidate, spaces: Mapping[str, Space]) -> tuple[str, tuple[int, ...], str]:
    """Backends by name, then configs in the order in which their space lists them. Independent of any clock."""
    space = spaces.get(candidate.backend)
    order: tuple[int, ...] = ()
    if space is not None and candidate.config in space:
        order = tuple(p.values.index(candidate.config[p.name]) for p in space.parameters)
    return candidate.backend, order, candidate_key(candidate)
