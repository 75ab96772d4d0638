"""Which backends win, and what each of them reached on the problems that are served."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ...kernels.backend import ConfigValue
from ...kernels.errors import NotFoundError
from ...kernels.problem import Problem
from .. import details, listing, places, values
from ..faults import from_row
from ..models import ProblemRow, RunRow, TrialCountRow, TrialRow, WinnerRow
from ..records import Origin, TrialStatus
from ..winners import current_in

MAX_TRIALS = 100_000
"""Trials of the problems of one page together: SQL goes through them in a fifth of a second of one core."""

MAX_BACKENDS = 64
"""Backends of one problem that are looked at: those with most trials."""

MAX_COUNTS = 5000
"""Counts of one problem that are read: there is one a backend and status."""

MAX_MARKED = 400
"""Finals and defaults of one problem in one run that are read: there are some twenty."""

_ERROR = 500
"""Characters of an error that are read."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A config and what it took: in the finals, or in the search if it was not among the finalists.

    Attributes:
        backend: backend name. config: decoded config.
        time_us, time_us_low, time_us_high: median and 95% interval, microseconds; None if it did not run.
        status: how it ended. error: the beginning of why it did not run; empty if it did.
        is_final: whether the figures are those of the interleaved finals.
        number: of the trial, inside its run and problem.
    """

    backend: str
    config: Mapping[str, ConfigValue]
    time_us: float | None
    time_us_low: float | None
    time_us_high: float | None
    status: TrialStatus
    error: str
    is_final: bool
    number: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """What every backend reached on a problem, in the run that its winner comes from.

    Attributes:
        winner_id: of the winner. problem: what was computed. run_id: the run.
        backend, config, time_us, time_us_low, time_us_high: what is served, microseconds.
        n_trials: trials by backend, finals among them, of at most MAX_BACKENDS. n_ok: those that ran.
        defaults: every backend's default, by backend; those that could not run say why.
        bests: every backend's fastest config, by backend; a config that was in the finals counts with its time there.
        finals: every backend's fastest config of the finals alone, by backend.
    """

    winner_id: int
    problem: Problem
    run_id: str
    backend: str
    config: Mapping[str, ConfigValue]
    time_us: float
    time_us_low: float
    time_us_high: float
    n_trials: Mapping[str, int]
    n_ok: Mapping[str, int]
    defaults: Mapping[str, Measured]
    bests: Mapping[str, Measured]
    finals: Mapping[str, Measured]


@dataclass(frozen=True, slots=True)
class CandidatesPage:
    """Some problems, newest winner first.

    Attributes:
        items: the problems.
        before: pass as `before` for the next page; None on the last.
    """

    items: Sequence[Candidates]
    before: int | None


@dataclass(frozen=True, slots=True)
class WinsOf:
    """How many problems each backend is served for in an environment under a policy, by name.

    Attributes:
        environment: its fingerprint. policy: the measuring policy.
    """

    environment: str
    policy: str

    def answer(self, connection: sa.Connection) -> dict[str, int]:
        """See Question."""
        rows = connection.execute(
            sa.select(WinnerRow.backend, sa.func.count())
            .where(*current_in(connection, WinnerRow, self.environment, self.policy))
            .group_by(WinnerRow.backend)
        )
        return dict(sorted((name, n) for name, n in rows))


@dataclass(frozen=True, slots=True)
class CandidatesOf:
    """What every backend reached on one problem that is served in an environment under a policy.

    Attributes:
        environment: its fingerprint. policy: the measuring policy. problem: the problem's key.
    """

    environment: str
    policy: str
    problem: str

    def answer(self, connection: sa.Connection) -> Candidates:
        """See Question.

        Raises:
            NotFoundError: nothing is served for the problem there.
        """
        row = connection.execute(
            _winners().where(
                WinnerRow.problem_id == listing.id_of(ProblemRow, ProblemRow.key, self.problem, "A problem's key"),
                WinnerRow.environment_id == places.environment_id(self.environment),
                WinnerRow.policy == self.policy,
                WinnerRow.superseded_at.is_(None),
            )
        ).one_or_none()
        if row is None or row.problem_key is None:
            raise NotFoundError(
                f"Nothing is served for {self.problem[:200]} in environment {self.environment} by {self.policy}."
            )
        return _candidates(connection, row, _counts(connection, row))


@dataclass(frozen=True, slots=True)
class CandidatesIn:
    """What every backend reached on the problems that are served in an environment under a policy, newest first.

    Attributes:
        environment: its fingerprint. policy: the measuring policy.
        before: only winners with ids below this one; None for the newest.
        limit: most problems. They are fewer where their runs tried more than MAX_TRIALS configs together.
    """

    environment: str
    policy: str
    before: int | None = None
    limit: int = 50

    def answer(self, connection: sa.Connection) -> CandidatesPage:
        """See Question."""
        listing.check_limit(self.limit)
        select = _winners().where(*current_in(connection, WinnerRow, self.environment, self.policy))
        if self.before is not None:
            select = select.where(WinnerRow.id < values.int64(self.before, "The id to list before", least=0))
        rows = connection.execute(select.order_by(WinnerRow.id.desc()).limit(self.limit + 1)).all()
        items: list[Candidates] = []
        left, last = MAX_TRIALS, None
        for row in rows[: self.limit]:
            counts = _counts(connection, row)
            left -= sum(n for n, _ in counts.values())
            if left < 0 and last is not None:
                return CandidatesPage(items, last)
            last = row.id
            if row.problem_key is not None:
                items.append(_candidates(connection, row, counts))
        return CandidatesPage(items, last if len(rows) > self.limit else None)


def _winners() -> Any:
    """Winners as _candidates reads them. From the left, for the reason that `listing` gives."""
    return (
        sa.select(
            *places.PROBLEM_COLUMNS, ProblemRow.key.label("problem_key"), WinnerRow.id, RunRow.ulid, WinnerRow.backend,
            WinnerRow.config, WinnerRow.time_us, WinnerRow.time_us_low, WinnerRow.time_us_high,
            WinnerRow.run_id.label("run_row"), WinnerRow.problem_id.label("problem_row"),
            WinnerRow.environment_id.label("environment_row"),
        )
        .select_from(WinnerRow)
        .outerjoin(ProblemRow, ProblemRow.id == WinnerRow.problem_id)
        .outerjoin(RunRow, RunRow.id == WinnerRow.run_id)
    )  # fmt: skip


# Statements on one problem in one run, made once: making them anew takes longer than running them. Three go through its
# trials, and none brings them here.

_MEASURED: tuple[Any, ...] = (
    TrialRow.number, TrialRow.backend, TrialRow.config, TrialRow.time_us, TrialRow.time_us_low, TrialRow.time_us_high,
    TrialRow.origin, TrialRow.status, sa.func.substr(TrialRow.error, 1, _ERROR).label("error"),
)  # fmt: skip

_OWN: tuple[Any, ...] = (
    TrialRow.run_id == sa.bindparam("run_row"),
    TrialRow.problem_id == sa.bindparam("problem_row"),
    # By the run and the problem: an index of the environment's would lead to all other problems of it.
    TrialRow.environment_id + 0 == sa.bindparam("environment_row"),
)
"""The trials that a winner was chosen from."""

_COUNTED: Any = (
    sa.select(TrialCountRow.backend, TrialCountRow.status, TrialCountRow.n)
    .where(
        TrialCountRow.run_id == sa.bindparam("run_row"),
        TrialCountRow.problem_id == sa.bindparam("problem_row"),
        TrialCountRow.environment_id == sa.bindparam("environment_row"),
    )
    .limit(MAX_COUNTS)
)

_MARKED: Any = (
    sa.select(*_MEASURED)
    .where(*_OWN, TrialRow.origin.in_([Origin.FINAL.value, Origin.DEFAULT.value]))
    .order_by(TrialRow.number)
    .limit(MAX_MARKED)
)

_NUMBERED: Any = sa.select(*_MEASURED).where(*_OWN, TrialRow.number.in_(sa.bindparam("numbers", expanding=True)))

_SEARCHED: tuple[Any, ...] = (
    *_OWN,
    TrialRow.origin != Origin.FINAL.value,
    TrialRow.time_us.is_not(None),
    sa.tuple_(TrialRow.backend, TrialRow.config).not_in(sa.bindparam("finals", expanding=True)),
)
"""Those of the search, without configs that were in the finals."""


@functools.cache
def _least_times(n: int) -> Any:
    """The least time of each of `n` backends in the search."""
    of = [TrialRow.backend == sa.bindparam(f"name_{i}") for i in range(n)]
    return sa.select(*(sa.func.min(sa.case((one, TrialRow.time_us))) for one in of)).where(*_SEARCHED)


@functools.cache
def _first_numbers(n: int) -> Any:
    """The first trial of each of `n` backends in the search that took a given time."""
    of = [
        sa.and_(TrialRow.backend == sa.bindparam(f"name_{i}"), TrialRow.time_us == sa.bindparam(f"time_{i}"))
        for i in range(n)
    ]
    return sa.select(*(sa.func.min(sa.case((one, TrialRow.number))) for one in of)).where(*_SEARCHED)


def _place(row: Any) -> dict[str, Any]:
    """The parameters of all of these."""
    return {name: getattr(row, name) for name in ("run_row", "problem_row", "environment_row")}


def _counts(connection: sa.Connection, row: Any) -> dict[str, tuple[int, int]]:
    """(trials, those that ran) of a winner's problem in its run and environment, by backend."""
    found: dict[str, tuple[int, int]] = {}
    for backend, status, n in connection.execute(_COUNTED, _place(row)):
        n_all, n_ok = found.get(backend, (0, 0))
        found[backend] = n_all + n, n_ok + (n if status == TrialStatus.OK.value else 0)
    return found


def _candidates(connection: sa.Connection, row: Any, counts: Mapping[str, tuple[int, int]]) -> Candidates:
    marked = connection.execute(_MARKED, _place(row)).all()
    names = sorted(counts, key=lambda name: (-counts[name][1], name))[:MAX_BACKENDS]
    # As a results page has it: of several measurements of a config in the finals, or of a default, the last counts.
    finals = {(one.backend, one.config): one for one in marked if one.origin == Origin.FINAL.value}
    defaults = {one.backend: one for one in marked if one.origin == Origin.DEFAULT.value}
    in_finals = _fastest(_measured(one) for one in finals.values())
    searched = [_measured(one) for one in _searched(connection, row, names, list(finals))]
    return Candidates(
        row.id, places.problem_from(row), row.ulid or "", row.backend, _config(row.config), row.time_us,
        row.time_us_low, row.time_us_high,
        n_trials={name: counts[name][0] for name in sorted(names)},
        n_ok={name: counts[name][1] for name in sorted(names)},
        defaults={
            name: _measured(finals.get((name, one.config), one)) for name, one in sorted(defaults.items())
        },
        bests=_fastest([*searched, *in_finals.values()]),
        finals=in_finals,
    )  # fmt: skip


def _searched(
    connection: sa.Connection, row: Any, names: Sequence[str], finals: Sequence[tuple[str, str]]
) -> Sequence[Any]:
    """Of each backend the trial of the search that was fastest, configs of the finals left out."""
    if not names:
        return []
    given = {**_place(row), "finals": finals, **{f"name_{i}": name for i, name in enumerate(names)}}
    times = connection.execute(_least_times(len(names)), given).one()
    given |= {f"time_{i}": time for i, time in enumerate(times)}
    numbers = connection.execute(_first_numbers(len(names)), given).one()
    wanted = sorted({number for number in numbers if number is not None})
    return connection.execute(_NUMBERED, {**_place(row), "numbers": wanted}).all()


def _fastest(measured: Iterable[Measured]) -> dict[str, Measured]:
    """Every backend's fastest of these, by backend: of equals the first that was tried."""
    found: dict[str, Measured] = {}
    for one in sorted(measured, key=lambda one: one.number):
        best = found.get(one.backend)
        if one.time_us is not None and (best is None or best.time_us is None or one.time_us < best.time_us):
            found[one.backend] = one
    return dict(sorted(found.items()))


_config = from_row(details.config_from)


@from_row
def _measured(row: Any) -> Measured:
    number, backend, config, time_us, low, high, origin, status, error = row
    return Measured(
        backend, _config(config), time_us, low, high, TrialStatus(status), error,
        is_final=origin == Origin.FINAL.value, number=number,
    )  # fmt: skip
