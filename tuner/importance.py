"""Which parameters of a backend's configs matter: Optuna's own importances, of trials that are stored.

The evaluator is PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023, arXiv:2304.10255): how far the values of a
parameter among the fastest trials are from its values among all of them, as a divergence of two densities. It asks what
it takes to be fast, where fANOVA asks what makes the difference between all of them, and it needs no scikit-learn, so
that every installation gives the same answer. Values are categories, which presumes no order and no scale; each is
known by its JSON text, because True is 1 in Python. Of a search's trials it says what mattered to this search: a
parameter that was hardly varied cannot show that it matters.

Few trials give every parameter some importance. Which of them could be chance is asked of permutations: Pearson's
chi-square of a parameter's values among the fastest trials, against its values among as many trials picked at random
(Fisher's randomisation test). A search does not try configs independently, so that this is a rough guide, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.backend import ConfigValue

MIN_TRIALS = 20
"""Fewer trials that ran say nothing about a handful of parameters."""

MAX_TRIALS = 300
"""More are thinned, evenly over the order they come in: a study of so many takes a tenth of a second."""

TOP_SHARE = 0.1
"""What counts as fast: this share of the trials (Optuna's own choice)..."""

MIN_TOP = 5
"""...and at least so many, as Optuna's documentation of the evaluator asks for."""

PERMUTATIONS = 199
"""Random picks that the fastest trials are held against: the least chance that they can show is 1/200."""

CHANCE = 0.05
"""From this chance on an importance may be one."""

Tried = tuple[Mapping[str, ConfigValue], float]
"""A config and its time in microseconds."""


@dataclass(frozen=True, slots=True)
class Importance:
    """A parameter.

    Attributes:
        name: as in a config.
        share: of what all parameters explain, 0 to 1; they add up to 1.
        values: its values that were seen, as JSON text, those of the fastest trials first.
        best: its value in the fastest trial, as JSON text.
        chance: how often as many trials picked at random differ from all as much as the fastest do, 0 to 1.
    """

    name: str
    share: float
    values: tuple[str, ...]
    best: str
    chance: float

    @property
    def may_be_chance(self) -> bool:
        """Whether so many trials may show such an importance where there is none."""
        return self.chance >= CHANCE


@dataclass(frozen=True, slots=True)
class Importances:
    """What matters.

    Attributes:
        parameters: most important first; empty if it cannot be said.
        fixed: parameters that never varied, with the value they had as JSON text.
        n_trials: trials that it was made of. n_top: those of them that counted as fast.
        why_not: why it cannot be said, in a sentence; empty if it can.
    """

    parameters: tuple[Importance, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    n_trials: int = 0
    n_top: int = 0
    why_not: str = ""


def importances(tried: Sequence[Tried]) -> Importances:
    """Ask Optuna which parameters matter.

    Args:
        tried: configs of one backend that ran, each once, in the order of their trials. Parameters that not all of them
            have are left out.
    """
    ran = [(config, time_us) for config, time_us in tried if math.isfinite(time_us) and time_us > 0]
    n = len(ran)
    if n < MIN_TRIALS:
        return Importances(
            n_trials=n,
            why_not=f"{_trials(n)} ran, and fewer than {MIN_TRIALS} say nothing about which parameter matters.",
        )
    if n > MAX_TRIALS:
        ran = [ran[i * n // MAX_TRIALS] for i in range(MAX_TRIALS)]
    ran.sort(key=lambda one: one[1])  # stable: the order of trials among equals
    names = sorted(set.intersection(*(set(config) for config, _ in ran)))
    rows = [({name: json.dumps(config[name]) for name in names}, time_us) for config, time_us in ran]
    seen = {name: tuple(dict.fromkeys(row[name] for row, _ in rows)) for name in names}
    fixed = tuple((name, values[0]) for name, values in seen.items() if len(values) == 1)
    varied = {name: values for name, values in seen.items() if len(values) > 1}
    top_share = min(0.5, max(TOP_SHARE, MIN_TOP / len(rows)))
    bar_us = rows[math.ceil(top_share * len(rows)) - 1][1]
    n_top = sum(time_us <= bar_us for _, time_us in rows)
    if not varied:
        why_not = "Every trial had the same value of every parameter."
    elif n_top == len(rows):
        why_not = f"The fastest and the slowest of {len(rows)} trials took the same time."
    else:
        shares, chances = _ask_optuna(varied, rows, top_share), _chances(varied, rows, n_top)
        best = rows[0][0]
        found = [Importance(name, shares[name], varied[name], best[name], chances[name]) for name in varied]
        found.sort(key=lambda one: (-one.share, one.name))
        if any(one.share > 0 for one in found):
            return Importances(tuple(found), fixed, len(rows), n_top)
        why_not = "No parameter's values differ between the fastest trials and all of them."
    return Importances((), fixed, len(rows), n_top, why_not)


def _ask_optuna(
    varied: Mapping[str, Sequence[str]], rows: Sequence[tuple[Mapping[str, str], float]], top_share: float
) -> dict[str, float]:
    """Each parameter's share, by Optuna."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(values) for name, values in varied.items()
    }
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: row[name] for name in varied}, distributions=spaces, value=math.log(time_us)
            )
            for row, time_us in rows
        ]
    )
    found = optuna.importance.get_param_importances(study, evaluator=_evaluator(top_share), params=list(varied))
    return {name: share if math.isfinite(share) else 0.0 for name, share in found.items()}


def _evaluator(top_share: float) -> Any:
    """PED-ANOVA with what counts as fast. Optuna 4 calls that `baseline_quantile`, later ones `target_quantile`."""
    from optuna.importance import PedAnovaImportanceEvaluator

    evaluator: Any = PedAnovaImportanceEvaluator
    try:
        return evaluator(target_quantile=top_share)
    except TypeError:
        return evaluator(baseline_quantile=top_share)


def _chances(
    varied: Mapping[str, Sequence[str]], rows: Sequence[tuple[Mapping[str, str], float]], n_top: int
) -> dict[str, float]:
    """How often random picks of `n_top` rows differ from all rows as much as the first `n_top` do, by parameter."""
    import numpy as np

    codes = {name: np.array([values.index(row[name]) for row, _ in rows]) for name, values in varied.items()}
    shares = {name: np.bincount(code) / len(rows) for name, code in codes.items()}
    random = np.random.default_rng(0)  # the same trials give the same answer
    picks = [np.arange(n_top), *(random.permutation(len(rows))[:n_top] for _ in range(PERMUTATIONS))]
    chances = {}
    for name, code in codes.items():
        expected = shares[name] * n_top
        counts = np.array([np.bincount(code[pick], minlength=len(expected)) for pick in picks])
        square = ((counts - expected) ** 2 / expected).sum(axis=1)
        chances[name] = float((square >= square[0] * (1 - 1e-9)).mean())
    return chances


def _trials(n: int) -> str:
    return {0: "No trial", 1: "1 trial"}.get(n, f"{n} trials")
