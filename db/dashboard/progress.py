"""How a search of one problem went, of one run: thinned in SQL, so that a run of 100,000 trials costs no more to draw.

One pass over the trials by the unique index (run, problem, number) numbers the draws and keeps the best so far, and
gives back every trial that improved on it and an even choice of the others. A second one reads one float a trial: what
a calculated random search is made of has no shorter form that is exact. On a run of 100,000 trials both together take
under half a second, where the rows with their samples would be a hundred megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from ...kernels.backend import ConfigValue
from .. import details, listing, runs, values
from ..faults import from_row
from ..models import ProblemRow, RunRow, TrialCountRow, TrialRow, WinnerRow
from ..records import Origin, TrialStatus

MOST = 1200
"""About so many trials are drawn, those that improved on the best apart."""

MAX_READ = 120_000
"""Trials that are looked at: more than the 100,000 that `fp4tune tune --trials` allows a problem, with its finals. Of
more, which only an import can bring, about so many are."""

MAX_TRIED = 300
"""About so many configs are read to ask which parameters matter."""

TAIL = 128
"""The finals are among the last trials: at most 8 finalists, 2 baselines and a default of every backend."""

_GOLDEN = 2_654_435_761
"""2^32 over the golden ratio: multiples of it, modulo 2^32, are spread as evenly as any, whatever the period of what
they choose from (Knuth, The Art of Computer Programming 3, section 6.4). Every 50th trial would never meet a backend
that takes every fourth."""

_HUGE_US = 1e300
"""No time. Above are infinities, and NaN on PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A trial of the search.

    Attributes:
        draw: its place among the draws, from 1. number: its number in the run.
        backend: whose config. origin: why it was tried.
        time_us: its time, microseconds; None if it did not run.
        best_us: the best so far of what could be served, itself included, microseconds; None before the first.
        improved: whether it is the best so far.
    """

    draw: int
    number: int
    backend: str
    origin: str
    time_us: float | None
    best_us: float | None
    improved: bool


@dataclass(frozen=True, slots=True)
class FinalTime:
    """A re-measurement in the finals.

    Attributes:
        number: of the trial. backend: whose config. config: decoded config.
        time_us, time_us_low, time_us_high: median and 95 % interval, microseconds; None if it did not run.
    """

    number: int
    backend: str
    config: Mapping[str, ConfigValue]
    time_us: float | None
    time_us_low: float | None
    time_us_high: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How the search of one problem went.

    A draw is a trial of the search: no final, and no backend that was refused before anything was tried.

    Attributes:
        n_draws: draws that were looked at. are_all: whether these are all; else they are spread evenly.
        n_ran: draws that could be served and ran. n_baselines: draws that can never be served.
        n_sampled: draws that a sampler proposed. n_enumerated: draws of an enumeration, in random order.
        drawn: those that improved on the best, and about MOST others, by number.
        times_us: of all draws that could be served and ran, microseconds, by number.
        finals: the re-measurements, by number.
        backends: every backend with how many of its trials ran and how many there are, finals included.
        first_at, last_at: UTC, when the first and the last trial started; None without any.
    """

    n_draws: int
    are_all: bool
    n_ran: int
    n_baselines: int
    n_sampled: int
    n_enumerated: int
    drawn: tuple[Drawn, ...]
    times_us: Sequence[float]
    finals: tuple[FinalTime, ...]
    backends: Mapping[str, tuple[int, int]]
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewestRunWith:
    """The id of the newest run that has trials of a problem; None if there is none.

    Attributes:
        problem_key: the problem's key.
    """

    problem_key: str

    def answer(self, connection: sa.Connection) -> str | None:
        """See Question."""
        key = values.name(self.problem_key, "A problem's key")
        problem_id = sa.select(ProblemRow.id).where(ProblemRow.key == key).scalar_subquery()
        return connection.execute(
            sa.select(sa.func.max(RunRow.ulid))
            .select_from(TrialCountRow)
            .join(RunRow, RunRow.id == TrialCountRow.run_id)
            .where(TrialCountRow.problem_id == problem_id)
        ).scalar()


@dataclass(frozen=True, slots=True)
class Found:
    """What a run stored as served for a problem, whether or not it still is.

    Attributes:
        backend: whose config. config: decoded config. n_ties: size of the tie set, the config included.
    """

    backend: str
    config: Mapping[str, ConfigValue]
    n_ties: int


@dataclass(frozen=True, slots=True)
class FoundBy:
    """The last that a run stored as served for a problem; None if it stored nothing.

    Attributes:
        run_id: the run's whole id. problem_key: the problem's key.
    """

    run_id: str
    problem_key: str

    def answer(self, connection: sa.Connection) -> Found | None:
        """See Question."""
        run_id, problem_id = _place(connection, self.run_id, self.problem_key)
        filters = [(WinnerRow.problem_id, problem_id), (WinnerRow.run_id, run_id)]
        row = connection.execute(
            sa.select(WinnerRow.backend, WinnerRow.config, WinnerRow.n_ties)
            .where(*listing.conditions(connection, filters))
            .order_by(WinnerRow.id.desc())
            .limit(1)
        ).one_or_none()
        return None if row is None or problem_id is None else Found(row[0], _config(row[1]), row[2])


@dataclass(frozen=True, slots=True)
class BackendsOf:
    """Every backend that tried a problem in a run, by name, with (trials that ran, all trials), finals included.

    Attributes:
        run_id: the run's whole id. problem_key: the problem's key.
    """

    run_id: str
    problem_key: str

    def answer(self, connection: sa.Connection) -> dict[str, tuple[int, int]]:
        """See Question."""
        return _backends(connection, *_place(connection, self.run_id, self.problem_key))


@dataclass(frozen=True, slots=True)
class ProgressOf:
    """How the search of one problem went in one run.

    Attributes:
        run_id: the run's whole id. problem_key: the problem's key.
        baselines: backends of which nothing can be served: they are no best so far.
    """

    run_id: str
    problem_key: str
    baselines: tuple[str, ...] = ()

    def answer(self, connection: sa.Connection) -> Progress:
        """See Question."""
        run_id, problem_id = _place(connection, self.run_id, self.problem_key)
        backends = _backends(connection, run_id, problem_id)
        n_trials = sum(n for _, n in backends.values())
        of_problem = [TrialRow.run_id == run_id, TrialRow.problem_id == problem_id]
        draws = [*of_problem, *_IS_DRAW, _is_chosen(TrialRow.number, n_trials, MAX_READ)]
        serves = TrialRow.backend.not_in(self.baselines) if self.baselines else sa.true()
        ran = sa.and_(TrialRow.time_us > 0, TrialRow.time_us < _HUGE_US, serves)
        counts = connection.execute(
            sa.select(
                sa.func.count(), _count(ran), _count(sa.not_(serves)),
                _count(TrialRow.origin == Origin.SAMPLER.value), _count(TrialRow.origin == Origin.ENUMERATED.value),
            ).where(*draws)
        ).one()  # fmt: skip
        n_draws, n_ran, n_baselines, n_sampled, n_enumerated = (int(n or 0) for n in counts)
        one_a_trial = sa.select(TrialRow.time_us).where(*draws, ran).order_by(TrialRow.number)
        times_us = array("d", connection.scalars(one_a_trial.execution_options(stream_results=True)))
        first_at, last_at = (
            connection.execute(sa.select(TrialRow.started_at).where(*of_problem).order_by(order).limit(1)).scalar()
            for order in (TrialRow.number.asc(), TrialRow.number.desc())
        )
        return Progress(
            n_draws, n_trials <= MAX_READ, n_ran, n_baselines, n_sampled, n_enumerated,
            _drawn(connection, draws, ran, n_draws), times_us, _finals(connection, of_problem),
            backends, first_at, last_at,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TriedOf:
    """Configs of one backend that ran, with their times in microseconds: about MAX_TRIED, spread evenly, by number.

    Attributes:
        run_id: the run's whole id. problem_key: the problem's key. backend: whose configs.
    """

    run_id: str
    problem_key: str
    backend: str

    def answer(self, connection: sa.Connection) -> list[tuple[dict[str, ConfigValue], float]]:
        """See Question."""
        run_id, problem_id = _place(connection, self.run_id, self.problem_key)
        n_ran, n_trials = _backends(connection, run_id, problem_id).get(self.backend, (0, 0))
        inner = (
            sa.select(
                TrialRow.config, TrialRow.time_us, sa.func.row_number().over(order_by=TrialRow.number).label("place")
            )
            .where(
                TrialRow.run_id == run_id, TrialRow.problem_id == problem_id, *_IS_DRAW,
                TrialRow.backend == self.backend,
                TrialRow.time_us > 0, TrialRow.time_us < _HUGE_US,
                _is_chosen(TrialRow.number, n_trials, MAX_READ),
            )
            .subquery()
        )  # fmt: skip
        rows = connection.execute(
            sa.select(inner.c.place, inner.c.config, inner.c.time_us).where(
                _is_chosen(inner.c.place, min(n_ran, n_ran * MAX_READ // max(1, n_trials)), MAX_TRIED)
            )
        )
        return [(_config(text), time_us) for _, text, time_us in sorted(rows, key=itemgetter(0))]


_IS_DRAW = (
    TrialRow.origin != Origin.FINAL.value,
    # A backend that was refused is remembered as a trial without a config.
    sa.not_(sa.and_(TrialRow.status == TrialStatus.UNSUPPORTED.value, TrialRow.config == "{}")),
)


def _place(connection: sa.Connection, ulid: str, problem_key: str) -> tuple[int, int | None]:
    """The database's ids of a run and a problem; None for a problem that nobody knows, which has no trials."""
    key = values.name(problem_key, "A problem's key")
    problem_id = connection.execute(sa.select(ProblemRow.id).where(ProblemRow.key == key)).scalar_one_or_none()
    return runs.ids(connection, [ulid])[ulid], problem_id


def _backends(connection: sa.Connection, run_id: int, problem_id: int | None) -> dict[str, tuple[int, int]]:
    rows = connection.execute(
        sa.select(TrialCountRow.backend, TrialCountRow.status, TrialCountRow.n).where(
            TrialCountRow.run_id == run_id, TrialCountRow.problem_id == problem_id
        )
    )
    found: dict[str, tuple[int, int]] = {}
    for backend, status, n in rows:
        n_ran, n_all = found.get(backend, (0, 0))
        found[backend] = n_ran + (n if status == TrialStatus.OK.value else 0), n_all + n
    return dict(sorted(found.items()))


def _count(condition: Any) -> Any:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _is_chosen(place: Any, n: int, most: int) -> Any:
    """Whether a row is one of about `most` that are spread evenly over n; places are small, or wrong."""
    if n <= most:
        return sa.true()
    return (place % 2**31 * _GOLDEN) % 2**32 < 2**32 * most // n


def _drawn(connection: sa.Connection, draws: Sequence[Any], ran: Any, n_draws: int) -> tuple[Drawn, ...]:
    time_us = sa.case((ran, TrialRow.time_us))
    so_far: dict[str, Any] = {"order_by": TrialRow.number, "rows": (None, 0)}  # one for both: two take twice as long
    inner = (
        sa.select(
            TrialRow.number, TrialRow.backend, TrialRow.origin, TrialRow.time_us, time_us.label("counts_us"),
            sa.func.count().over(**so_far).label("draw"), sa.func.min(time_us).over(**so_far).label("best_us"),
        )
        .where(*draws)
        .subquery()
    )  # fmt: skip
    row = inner.c
    rows = connection.execute(
        sa.select(row.draw, row.number, row.backend, row.origin, row.time_us, row.best_us).where(
            sa.or_(row.counts_us == row.best_us, _is_chosen(row.draw, n_draws, MOST))
        )
    )
    drawn: list[Drawn] = []
    earlier_us = math.inf
    for draw, number, backend, origin, taken_us, best_us in sorted(rows, key=itemgetter(0)):
        improved = best_us is not None and best_us < earlier_us
        drawn.append(Drawn(draw, number, backend, origin, taken_us, best_us, improved))
        earlier_us = math.inf if best_us is None else best_us
    return tuple(drawn)


def _finals(connection: sa.Connection, of_problem: Sequence[Any]) -> tuple[FinalTime, ...]:
    tail = (
        sa.select(
            TrialRow.number, TrialRow.backend, TrialRow.config, TrialRow.origin,
            TrialRow.time_us, TrialRow.time_us_low, TrialRow.time_us_high,
        )
        .where(*of_problem)
        .order_by(TrialRow.number.desc())
        .limit(TAIL)
        .subquery()
    )  # fmt: skip
    rows = connection.execute(
        sa.select(
            tail.c.number, tail.c.backend, tail.c.config, tail.c.time_us, tail.c.time_us_low, tail.c.time_us_high
        ).where(tail.c.origin == Origin.FINAL.value)
    ).all()  # fmt: skip
    finals = (FinalTime(number, backend, _config(text), *times) for number, backend, text, *times in rows)
    return tuple(sorted(finals, key=lambda one: one.number))


_config = from_row(details.config_from)
