"""Which config to try next: defaults, seeds, then enumeration or Optuna's TPE over a constrained space without repeats.

Optuna is driven by ask and tell on an in-memory study; what is remembered lives in our store, from which a study is
rebuilt on resume. The sampler proposes points that break constraints or were tried before (it re-proposed 18 of 100
wanted GEMM trials in a brute-forced space and then ran dry), so proposals pass a filter: an illegal or known point
is told FAIL for free, and after MAX_ASKS of them the next point is an untried neighbour of the best, else a random
untried one.

Several proposals may be pending at a time, and be told in any order: what is pending is never proposed again, and is a
running trial of the study, which the sampler takes for a bad one (constant liar) so as not to crowd around it.
Baselines are no part of the study: what cannot be served must not draw the sampler.

A backend that is left far behind leaves the race: once LEFT_BEHIND_AFTER of its configs were timed and none came within
LEFT_BEHIND_FACTOR of the best of the others, nothing more of it is proposed. Its trials are kept; the study goes on
without them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..db.records import Origin
from ..kernels.backend import ConfigValue, Parameter, Space, config_key
from .executor import Candidate

ENUMERATE_UP_TO = 4096
"""Products larger than this are never listed whole; a list of this size takes milliseconds."""

MAX_ASKS = 12
"""Free asks of the sampler for one trial before the filter picks a point itself."""

LONG_SEARCH = 64
"""From this many trials on fewer asks are free, in inverse proportion, but never fewer than two: an ask takes time in
proportion to the trials so far (10 ms at 260), and a sampler that has settled proposes little that is new."""

STARTUP_TRIALS = 8
"""Random trials of the sampler before its model is used, defaults and seeds included."""

BASELINE_EVERY = 4
"""At most every fourth trial is a baseline's, the defaults apart: it shows what the others are compared with."""

LEFT_BEHIND_AFTER = 3
"""Timed configs of a backend, its default among them, after which it may be given up."""

LEFT_BEHIND_FACTOR = 4.0
"""A backend is given up when its fastest config takes this many times as long as the fastest of all. In the spaces that
were measured the best was at most 2.8 times as fast as the default (docs/cpu-space.md, docs/results)."""

MAX_BASELINE_CONFIGS = 16
"""Configs of a baseline that are tried at most, its default and its seeds included."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to try next and why."""

    candidate: Candidate
    origin: Origin


@dataclass(frozen=True, slots=True)
class Arm:
    """A backend that can run the problem, with its space and what it would do untuned.

    Attributes:
        backend: backend name. space: its space. default: its default config. seeds: configs worth trying first.
        served: the config that is served now for this very problem and environment, if it is one of this backend.
        is_baseline: True if nothing of it can be served; it is measured to compare with.
    """

    backend: str
    space: Space
    default: Mapping[str, ConfigValue]
    seeds: Sequence[Mapping[str, ConfigValue]] = ()
    served: Mapping[str, ConfigValue] | None = None
    is_baseline: bool = False


def candidate_key(candidate: Candidate) -> str:
    """Backend and canonical config: two candidates are the same iff this is."""
    return f"{candidate.backend} {config_key(candidate.config)}"


def first_candidates(arms: Sequence[Arm]) -> list[Candidate]:
    """What a search of these arms tries first: defaults, what is served now, defaults of baselines, seeds."""
    return [candidate for candidate, _ in [*_musts(arms), *_baseline_defaults(arms), *_seeds(arms)]]


class Search:
    """Proposes candidates for one problem and learns from what became of them.

    Args:
        arms: the backends in the race, in a fixed order.
        seed: seed of the sampler and of every random pick.
    """

    def __init__(self, arms: Sequence[Arm], *, seed: int) -> None:
        import optuna

        self._arms = {arm.backend: arm for arm in arms if not arm.is_baseline}
        self._times: dict[str, list[float]] = {backend: [] for backend in self._arms}
        self._told: list[tuple[Candidate, float]] = []
        self._baselines = {arm.backend: arm for arm in arms if arm.is_baseline}
        self._seen: dict[str, float | None] = {}
        self._pending: set[str] = set()
        self._best: tuple[float, Candidate] | None = None
        self._random = random.Random(seed)  # noqa: S311 - a search, not a secret
        self._musts = _musts(arms)
        self._first = [*self._musts, *_baseline_defaults(arms), *_seeds(arms)]
        self._of_baselines = _baseline_candidates(arms, seed)
        self._listed = self._list()
        self._optuna = optuna
        self._seed = seed
        self._asked: dict[str, Any] = {}
        self._study = self._new_study()
        self.optimizer_version = str(optuna.__version__)

    @property
    def optimizer(self) -> str:
        """Name of the optimiser, stored with every trial."""
        return "optuna.tpe"

    @property
    def n_listed(self) -> int | None:
        """How many legal candidates there are, if that is known without effort."""
        return None if self._listed is None else len(self._listed) + len(self._of_baselines)

    @property
    def musts_left(self) -> bool:
        """True while it has not been told what became of a default, or of what is served now."""
        return any(candidate_key(candidate) not in self._seen for candidate, _ in self._musts)

    @property
    def musts_to_propose(self) -> bool:
        """True while a default, or what is served now, has neither been tried nor is pending."""
        return any(self._is_fresh(candidate) for candidate, _ in self._musts)

    def is_baseline(self, backend: str) -> bool:
        """True if a backend in the race is there to compare with and can never be served."""
        return backend in self._baselines

    def propose(self, *, trials_left: int) -> Proposal | None:
        """The next candidate, which is pending from now on; None when every candidate was tried or is pending.

        Args:
            trials_left: how many more trials the budget allows; a space that fits is enumerated in random order.
        """
        proposal = self._next(trials_left)
        if proposal is not None:
            self._pending.add(candidate_key(proposal.candidate))
        return proposal

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        """What became of a candidate, pending or not: its median in microseconds, or None if it did not run."""
        key = candidate_key(candidate)
        self._seen[key] = time_us
        self._pending.discard(key)
        if self.is_baseline(candidate.backend):
            return
        self._teach(key, candidate, time_us)
        if time_us is not None and candidate.backend in self._arms:
            self._times[candidate.backend].append(time_us)
            self._told.append((candidate, time_us))
            self._let_the_slow_leave()

    def _teach(self, key: str, candidate: Candidate, time_us: float | None) -> None:
        if time_us is not None and (self._best is None or time_us < self._best[0]):
            self._best = (time_us, candidate)
        trial = self._asked.pop(key, None)
        state = self._optuna.trial.TrialState
        if trial is not None:
            if time_us is None:
                self._study.tell(trial, state=state.FAIL)
            else:
                self._study.tell(trial, time_us)
        elif time_us is not None:
            self._add(candidate, time_us)

    def _add(self, candidate: Candidate, time_us: float) -> None:
        """Add a finished trial to the study, if it can teach: not of a backend that left, nor of an older space."""
        arm = self._arms.get(candidate.backend)
        if arm is not None and candidate.config in arm.space:
            self._study.add_trial(self._frozen(arm, candidate, time_us))

    def _let_the_slow_leave(self) -> None:
        """Take out of the race what is left far behind: its seeds, its configs, its trials in the study."""
        fastest = min(min(times) for times in self._times.values() if times)
        slow = [
            backend
            for backend, times in self._times.items()
            if backend in self._arms and len(times) >= LEFT_BEHIND_AFTER and min(times) >= LEFT_BEHIND_FACTOR * fastest
        ]
        if not slow:
            return
        for backend in slow:
            del self._arms[backend]
        self._first = [one for one in self._first if one in self._musts or one[0].backend not in slow]
        self._listed = self._list()
        self._asked.clear()
        self._study = self._new_study()
        for candidate, time_us in self._told:
            self._add(candidate, time_us)

    def _list(self) -> list[Candidate] | None:
        """Every legal candidate in the race, if they are few."""
        total = sum(arm.space.size for arm in self._arms.values())
        return list(self._every_candidate()) if total <= ENUMERATE_UP_TO else None

    def _new_study(self) -> Any:
        with _quiet():
            sampler = self._optuna.samplers.TPESampler(
                seed=self._seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, group=True, constant_liar=True
            )
        return self._optuna.create_study(direction="minimize", sampler=sampler)

    def _next(self, trials_left: int) -> Proposal | None:
        for candidate, origin in self._first:
            if self._is_fresh(candidate):
                return Proposal(candidate, origin)
        baseline = next(((c, origin) for c, origin in self._of_baselines if self._is_fresh(c)), None)
        n_baseline = sum(not self._is_fresh(c) for c, _ in self._of_baselines)
        if baseline is not None and BASELINE_EVERY * n_baseline <= len(self._seen) + len(self._pending):
            return Proposal(*baseline)
        proposal = self._next_in_race(trials_left)
        return Proposal(*baseline) if proposal is None and baseline is not None else proposal

    def _next_in_race(self, trials_left: int) -> Proposal | None:
        """The next candidate that could be served, the first ones apart."""
        untried = None
        if self._listed is not None:
            untried = [c for c in self._listed if self._is_fresh(c)]
            if not untried:
                return None
            if len(untried) <= trials_left:
                return Proposal(self._random.choice(untried), Origin.ENUMERATED)
        for _ in range(max(2, MAX_ASKS * LONG_SEARCH // max(LONG_SEARCH, len(self._seen)))):
            candidate, trial = self._ask()
            if candidate.config in self._arms[candidate.backend].space and self._is_fresh(candidate):
                self._asked[candidate_key(candidate)] = trial
                return Proposal(candidate, Origin.SAMPLER)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        picked = self._neighbour() or self._random_untried(untried)
        return None if picked is None else Proposal(picked, Origin.SAMPLER)

    def _is_fresh(self, candidate: Candidate) -> bool:
        """True if a candidate was neither tried nor is pending."""
        key = candidate_key(candidate)
        return key not in self._seen and key not in self._pending

    def _every_candidate(self) -> Iterator[Candidate]:
        for arm in self._arms.values():
            for config in arm.space:
                yield Candidate(arm.backend, config)

    def _ask(self) -> tuple[Candidate, Any]:
        trial = self._study.ask()
        names = list(self._arms)
        backend = trial.suggest_categorical("backend", names) if len(names) > 1 else names[0]
        config: dict[str, ConfigValue] = {}
        for parameter in self._arms[backend].space.parameters:
            name = f"{backend}.{parameter.name}"
            if _is_ordered(parameter):
                config[parameter.name] = parameter.values[trial.suggest_int(name, 0, len(parameter.values) - 1)]
            else:
                chosen: Any = trial.suggest_categorical(name, list(parameter.values))
                config[parameter.name] = chosen
        return Candidate(backend, config), trial

    def _frozen(self, arm: Arm, candidate: Candidate, time_us: float) -> Any:
        """A finished trial for a candidate that the sampler did not propose itself."""
        distributions = self._optuna.distributions
        params: dict[str, Any] = {}
        spaces: dict[str, Any] = {}
        if len(self._arms) > 1:
            params["backend"] = arm.backend
            spaces["backend"] = distributions.CategoricalDistribution(list(self._arms))
        for parameter in arm.space.parameters:
            name, value = f"{arm.backend}.{parameter.name}", candidate.config[parameter.name]
            if _is_ordered(parameter):
                params[name] = parameter.values.index(value)
                spaces[name] = distributions.IntDistribution(0, len(parameter.values) - 1)
            else:
                params[name] = value
                spaces[name] = distributions.CategoricalDistribution(list(parameter.values))
        return self._optuna.trial.create_trial(params=params, distributions=spaces, value=time_us)

    def _neighbour(self) -> Candidate | None:
        """An untried legal config one step of one parameter away from the best."""
        if self._best is None or self._best[1].backend not in self._arms:
            return None
        best = self._best[1]
        space = self._arms[best.backend].space
        if best.config not in space:
            return None
        steps = [
            Candidate(best.backend, {**best.config, parameter.name: value})
            for parameter in space.parameters
            for value in parameter.values
            if value != best.config[parameter.name]
        ]
        fresh = [c for c in steps if c.config in space and self._is_fresh(c)]
        return self._random.choice(fresh) if fresh else None

    def _random_untried(self, untried: list[Candidate] | None) -> Candidate | None:
        if untried:
            return self._random.choice(untried)
        arms = list(self._arms.values())
        for _ in range(1000):
            arm = self._random.choice(arms)
            config = {p.name: self._random.choice(p.values) for p in arm.space.parameters}
            candidate = Candidate(arm.backend, config)
            if config in arm.space and self._is_fresh(candidate):
                return candidate
        fresh = (c for c in self._every_candidate() if self._is_fresh(c))
        return next(itertools.islice(fresh, 1), None)


def _musts(arms: Sequence[Arm]) -> list[tuple[Candidate, Origin]]:
    """What is tried however small the budget: the defaults, and what is served now."""
    racing = [arm for arm in arms if not arm.is_baseline]
    defaults = [(Candidate(arm.backend, arm.default), Origin.DEFAULT) for arm in racing]
    served = [(arm.backend, arm.served) for arm in racing if arm.served is not None and arm.served in arm.space]
    return defaults + [(Candidate(backend, config), Origin.SEED) for backend, config in served]


def _baseline_defaults(arms: Sequence[Arm]) -> list[tuple[Candidate, Origin]]:
    return [(Candidate(arm.backend, arm.default), Origin.DEFAULT) for arm in arms if arm.is_baseline]


def _seeds(arms: Sequence[Arm]) -> list[tuple[Candidate, Origin]]:
    return [
        (Candidate(arm.backend, config), Origin.SEED)
        for arm in arms
        for config in arm.seeds
        if config in arm.space and not arm.is_baseline
    ]


def _baseline_candidates(arms: Sequence[Arm], seed: int) -> list[tuple[Candidate, Origin]]:
    """What is tried of the baselines: defaults, seeds, and others up to MAX_BASELINE_CONFIGS each, at random."""
    found: list[tuple[Candidate, Origin]] = []
    for arm in arms:
        if not arm.is_baseline:
            continue
        others = list(itertools.islice(arm.space, ENUMERATE_UP_TO))
        random.Random(seed).shuffle(others)  # noqa: S311 - a search, not a secret
        mine = {config_key(arm.default): (Candidate(arm.backend, arm.default), Origin.DEFAULT)}
        for config in arm.seeds:
            if config in arm.space:
                mine.setdefault(config_key(config), (Candidate(arm.backend, config), Origin.SEED))
        for config in others:
            mine.setdefault(config_key(config), (Candidate(arm.backend, config), Origin.ENUMERATED))
        found += list(mine.values())[:MAX_BASELINE_CONFIGS]
    return found


def _is_ordered(parameter: Parameter) -> bool:
    """Numbers in rising order carry distance, which TPE can use; names and switches do not."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in parameter.values)
    return numbers and len(parameter.values) > 1 and list(parameter.values) == sorted(parameter.values)


class _quiet:  # noqa: N801 - used like a function
    """Silences Optuna's notices that multivariate TPE is experimental: it is chosen on purpose."""

    def __enter__(self) -> None:
        import warnings

        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._catch = warnings.catch_warnings()
        self._catch.__enter__()
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

    def __exit__(self, *exc: object) -> None:
        self._catch.__exit__(None, None, None)
