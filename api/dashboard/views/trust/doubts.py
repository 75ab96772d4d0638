"""What casts doubt on a served config, in words: everything that its run and its finals remember, weighed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .....db.dashboard.trust import Evidence, Final
from .....db.records import Conditions, RunStatus, Source
from .....kernels.backend import config_key
from .....tuner.plausible import doubt_in
from .....tuner.select import MIN_GAIN
from .....tuner.stats import FEW
from ....results.agreement import Verdict, verdict_on
from ...measures import half_width, share_text
from ...numerics import allowed
from ..run_words import settings_of
from .spread import Spread, spread

WIDE = MIN_GAIN
"""Half an interval that is wider than what counts as a gain."""

NEAR_LIMIT = 0.8
"""From this share of what the gate allows on a result is called near the limit."""

CLOCKS = 0.01
"""SM clocks that move by more than this move a time that is bound by them by as much as counts."""

THROTTLE_GAP = 0.25
"""Two configs of which one is throttled so much more often were not measured alike."""

HARDWARE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Reasons that say more about this card's cooling or supply than about the card (docs/measuring.md)."""


def doubts(evidence: Evidence) -> list[str]:
    """What speaks against trusting a served config, a sentence each, the worst first; empty if nothing does."""
    served = final_of(evidence, evidence.winner.choice.backend, evidence.winner.choice.config)
    return [
        *_of_the_run(evidence),
        *_of_the_measurement(evidence, served),
        *(_of_the_samples(served) if served is not None else ()),
        *_of_the_conditions(evidence, served),
        *(_of_the_result(evidence, served) if served is not None else ()),
        *_of_other_runs(evidence),
    ]


def final_of(evidence: Evidence, backend: str, config: Mapping[str, Any]) -> Final | None:
    """The final of a config, if it is there."""
    key = f"{backend} {config_key(config)}"
    return next((one for one in evidence.finals if one.key == key), None)


def _of_the_run(evidence: Evidence) -> Iterator[str]:
    winner, run = evidence.winner, evidence.run
    if doubt := doubt_in(evidence.outcome):
        yield f"The run itself doubted it: {doubt}."
    if winner.source is not Source.MEASURED:
        yield f"Its time was not measured: its source is {winner.source.value}."
    shared = settings_of(run).get("shared_with")
    if shared:
        said = "; ".join(map(str, shared)) if isinstance(shared, list) else str(shared)
        yield f"The device was shared when the run began: {said[:1000]}. Times measured beside others are too long."
    if run.status is RunStatus.FAILED:
        yield f"The run that found it failed: {run.error[:1000] or 'it did not say why'}."
    elif not evidence.done and run.status is not RunStatus.RUNNING:
        yield "The search was cut short before it came to its end with this problem."


def _of_the_measurement(evidence: Evidence, served: Final | None) -> Iterator[str]:
    choice = evidence.winner.choice
    half = half_width(choice.time_us, choice.time_us_low, choice.time_us_high)
    if math.isnan(half):
        yield "Its time is none: the database holds a number that no measurement gives."
    elif half > WIDE:
        counts = share_text(MIN_GAIN)
        yield f"Its time is known to ±{share_text(half)} only, where a difference of {counts} counts."
    if served is None:
        yield "The trial that measured it is not in this database, so its samples and conditions cannot be looked at."
    elif not served.samples_us:
        yield "None of its samples were kept."
    elif served.n_samples < FEW:
        yield f"It was sampled {served.n_samples} times only; intervals are good from {FEW} on."


def _of_the_samples(served: Final) -> Iterator[str]:
    found = spread(served.samples_us)
    if found is None:
        return
    if found.drifts and found.drift is not None and abs(found.drift) >= MIN_GAIN:
        where = "slower" if found.drift > 0 else "faster"
        yield (
            f"It drifted: the later half of its samples is {share_text(abs(found.drift))} {where} than the earlier "
            "half, as when a card warms up or somebody else begins to compute."
        )
    if _is_too_narrow(found):
        yield (
            f"Its samples resemble their neighbours (autocorrelation {found.autocorrelation:.2f}), so its interval of "
            f"±{share_text(found.half_width)} is too narrow: ±{share_text(found.honest_half_width)} is truer."
        )


def _is_too_narrow(found: Spread) -> bool:
    return found.hangs_together and found.half_width <= WIDE < found.honest_half_width


def _of_the_conditions(evidence: Evidence, served: Final | None) -> Iterator[str]:
    winner = evidence.winner
    conditions = served.conditions if served is not None else winner.conditions
    if conditions is None:
        if winner.environment.device.kind != "cpu":
            yield (
                "Nobody looked at clocks, temperature and throttling while it was measured: NVIDIA's bindings were not "
                "installed (pip install 'fp4tune[cuda]')."
            )
        return
    n_kept = len(served.samples_us) if served is not None else 0
    n_throttled = len(conditions.throttled_samples)
    if n_throttled:
        why = ", ".join(conditions.throttle_reasons) or "no reason was given"
        of = f"{n_throttled} of {n_kept} samples" if n_kept >= n_throttled else f"{n_throttled} samples"
        yield f"{of} were throttled ({why}); a throttled sample is kept, because a server throttles, too."
    hardware = [reason for reason in conditions.throttle_reasons if reason in HARDWARE]
    if hardware:
        yield (
            f"The card was too hot, or its supply too weak ({', '.join(hardware)}): the time says little about another "
            "card of its name."
        )
    yield from _of_the_clocks(conditions)
    if served is not None:
        yield from _of_the_default(evidence, served)


def _of_the_default(evidence: Evidence, served: Final) -> Iterator[str]:
    """A gain over a default that was throttled more often is partly the clock's."""
    default = final_of(evidence, evidence.winner.default.backend, evidence.winner.default.config)
    if default is None or default is served:
        return
    mine, theirs = _throttled_share(served), _throttled_share(default)
    if mine is not None and theirs is not None and abs(mine - theirs) > THROTTLE_GAP:
        yield (
            f"{share_text(mine)} of its samples were throttled and {share_text(theirs)} of the default's: part of what "
            "is between them is the clock's."
        )


def _throttled_share(final: Final) -> float | None:
    if final.conditions is None or not final.samples_us:
        return None
    return len(final.conditions.throttled_samples) / len(final.samples_us)


def _of_the_clocks(conditions: Conditions) -> Iterator[str]:
    span = conditions.sm_clock_mhz
    if span is not None and span[0] < (1 - CLOCKS) * span[1]:
        yield f"The SM clock moved between {span[0]:,} and {span[1]:,} MHz meanwhile."


def _of_the_result(evidence: Evidence, served: Final) -> Iterator[str]:
    limit = allowed(evidence.winner.problem)
    if served.rel_error is not None and served.rel_error > NEAR_LIMIT * limit:
        yield (
            f"Its result differs from the reference by {served.rel_error:.1e}, which is near the {limit:.1e} that the "
            "gate allows."
        )


def _of_other_runs(evidence: Evidence) -> Iterator[str]:
    here = evidence.winner.environment.fingerprint
    alike = [other for other in evidence.others if other.environment.fingerprint == here]
    if not alike:
        yield "Only one run has tuned it in this environment, so it is not known whether another would choose the same."
    different = [other for other in alike if verdict_on(evidence.winner, other) is Verdict.DIFFERENT]
    if different:
        yield (
            f"{_runs(different)} in this environment served another config, which is not tied with this one."
        )  # fmt: skip


def _runs(others: Sequence[object]) -> str:
    return f"{len(others)} other run{'s' * (len(others) != 1)}"
