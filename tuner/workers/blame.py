"""Who killed the workers. A config that did so twice is in quarantine: no worker sees it again in this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...kernels.backend import config_key
from ...kernels.problem import Problem

if TYPE_CHECKING:
    from ..executor import Candidate

STRIKES = 2
"""Workers that a config may kill. One may die of something else: the system was out of memory, an ECC error."""

Key = tuple[str, str, str]


def key_of(problem: Problem, candidate: Candidate) -> Key:
    """What a config of a problem is known by, across workers and in dictionaries."""
    return problem.key, candidate.backend, config_key(candidate.config)


class Blame:
    """The deaths of a run and the configs that they are blamed on.

    A config may be fine for another problem, so that a death counts for its problem alone.
    """

    def __init__(self) -> None:
        self._deaths: dict[Key, list[str]] = {}

    def add(self, problem: Problem, candidate: Candidate, *sentences: str) -> None:
        """A worker died of this config.

        Args:
            problem: what it computed.
            candidate: the config.
            sentences: how, one for each death.
        """
        self._deaths.setdefault(key_of(problem, candidate), []).extend(sentences)

    def verdict(self, problem: Problem, candidate: Candidate) -> str:
        """Why the config must not reach a worker again; empty if it may."""
        deaths = self._deaths.get(key_of(problem, candidate), [])
        if len(deaths) < STRIKES:
            return ""
        first, second = deaths[0], deaths[-1]
        what = first if first == second else f"{first} Then: {second}"
        return f"It ended its worker {len(deaths)} times and is not run again. {what}"
