"""What every part of a tuning job shares: where it runs, with what, how hard, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..db.records import Roofs
from ..kernels.backend import Backend
from ..kernels.device import Device, Environment
from .events import Event
from .executor import Executor
from .measure import Effort


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What decides how a job searches.

    Attributes:
        trials: most trials per problem, finals apart.
        budget_s: seconds of search per problem, finals apart.
        finals_s: seconds for the finals of a problem. finals_rounds: most rounds of the finals.
        seed: of operands, sampler and orders.
        effort: how hard a trial of the search is measured.
        policy: the measuring policy that was asked for; empty for what the device is measured by if nobody asks.
    """

    trials: int = 64
    budget_s: float = 30.0
    finals_s: float = 5.0
    finals_rounds: int = 40
    seed: int = 0
    effort: Effort = field(default_factory=Effort)
    policy: str = ""


class StopFlag:
    """Set by a signal handler; the job looks at it between trials."""

    def __init__(self) -> None:
        self.requested = False


def _ignore(_event: Event) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What every part of a job shares.

    Attributes:
        environment: where it runs.
        backends: the backends in the race, by name, all available on the device.
        executor: runs candidates.
        settings: how hard to search.
        tell: told every event; must not raise.
        stop: looked at between trials.
        roofs: what the card reaches at most, if it was measured; then trials get their share of it.
    """

    environment: Environment
    backends: Mapping[str, Backend]
    executor: Executor
    settings: JobSettings
    tell: Callable[[Event], None] = _ignore
    stop: StopFlag = field(default_factory=StopFlag)
    roofs: Roofs | None = None

    @property
    def device(self) -> Device:
        """The device of the environment."""
        return self.environment.device
