"""An export into a database: all of it or nothing, once or many times, never in place of what is newer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ..kernels.device import Environment
from ..kernels.errors import InvalidInputError
from ..kernels.problem import Problem
from . import bulk, exporting, places, roofs, static_facts, trial_counts, winners
from . import exchange_lines as as_lines
from .exchange import ImportSummary, Line, Reader
from .exchange_lines import WinnerLine
from .fields import Fields
from .models import EnvironmentRow, RoofsRow, RunProblemRow, RunRow, TrialRow, WinnerRow
from .records import NewStaticFacts, NewTrial

BATCH = 500
"""Trials, or entries of static facts, that are stored at a time."""

_OF_A_RUN = ("run_problem", "trial", "winner")


class Importer:
    """Stores the lines of one file.

    Args:
        connection: in a transaction for writing; whoever began it rolls back when something is raised.
        now: the time.
    """

    def __init__(self, connection: sa.Connection, now: datetime) -> None:
        self._connection = connection
        self._now = now
        self._environments: dict[str, Environment] = {}
        self._ids: dict[str, tuple[int, int]] = {}
        """Of environments and their devices, by the environment's fingerprint."""
        self._run: _New | _Known | None = None
        self._facts: list[tuple[Any, NewStaticFacts, datetime]] = []
        self._added: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        self._n_history = 0
        self._moved = False

    def read(self, path: Path) -> ImportSummary:
        """Store a file.

        Raises:
            InvalidInputError: a line is wrong; or a run is there already, and differs.
            NotFoundError: there is no such file.
        """
        with Reader(path) as reader:
            for kind, fields in reader.lines():
                try:
                    self._line(kind, fields)
                except InvalidInputError as error:
                    reader.refuse(str(error))
            try:
                self._end_run()
                self._store_facts()
            except InvalidInputError as error:
                reader.refuse(str(error))
        notes = []
        if self._n_history == 1:
            notes.append("1 winner is history here, because a newer one is served for its problem.")
        elif self._n_history:
            notes.append(
                f"{self._n_history} winners are history here, because newer ones are served for their problems."
            )
        return ImportSummary(dict(self._added), dict(self._known), tuple(notes))

    def _line(self, kind: str, fields: Fields) -> None:
        if kind in _OF_A_RUN:
            run = fields.text("run")
            if self._run is None or self._run.ulid != run:
                raise InvalidInputError(f"it belongs to the run {run[:40]!r}, and does not follow it")
            self._of_run(self._run, kind, fields)
            return
        self._end_run()
        if kind == "environment":
            self._environment(fields)
        elif kind == "run":
            self._begin_run(fields)
        elif kind == "roofs":
            self._roofs(fields)
        else:
            self._facts.append(as_lines.read_static_facts(fields))
            if len(self._facts) == BATCH:
                self._store_facts()

    def _count(self, kind: str, *, new: bool) -> None:
        (self._added if new else self._known)[kind] += 1

    def _environment(self, fields: Fields) -> None:
        environment = as_lines.read_environment(fields)
        select = sa.select(EnvironmentRow.id).where(EnvironmentRow.fingerprint == environment.fingerprint)
        self._count("environment", new=self._connection.execute(select).first() is None)
        self._ids |= places.environment_ids(self._connection, [environment], self._now)
        self._environments[environment.fingerprint] = environment

    # Runs

    def _begin_run(self, fields: Fields) -> None:
        row, environment = as_lines.read_run(fields, self._environments)
        there = (
            self._connection.execute(sa.select(RunRow.__table__).where(RunRow.ulid == row["ulid"])).mappings().first()
        )
        self._count("run", new=there is None)
        if there is not None:
            known = self._run = _Known(row["ulid"], self._lines_of(there))
            known.compare("run", as_lines.run_line(row, environment.fingerprint))
            return
        counters = {"n_problems": 0, "n_done": 0, "n_trials": 0}
        full = {**row, **counters, "environment_id": self._ids[environment.fingerprint][0]}
        id_ = self._connection.execute(sa.insert(RunRow).returning(RunRow.id), full).scalar_one()
        self._run = _New(row["ulid"], id_)

    def _lines_of(self, run: Any) -> Iterator[Line]:
        """What the database says of a run."""
        rows = self._connection.execute(sa.select(EnvironmentRow.id, EnvironmentRow.fingerprint))
        return exporting.run_lines(self._connection, run, {row.id: row.fingerprint for row in rows})

    def _of_run(self, run: _New | _Known, kind: str, fields: Fields) -> None:
        """A line that belongs to the run that was begun last."""
        self._count(kind, new=isinstance(run, _New))
        said = {"run": run.ulid}
        if kind == "run_problem":
            row, problem = as_lines.read_run_problem(fields)
            if isinstance(run, _Known):
                run.compare(kind, said | as_lines.run_problem_line(row, problem.key))
            else:
                run.problems.append((row, problem))
        elif kind == "trial":
            row, trial = as_lines.read_trial(fields, run.ulid, self._environments)
            if isinstance(run, _Known):
                run.compare(kind, said | as_lines.trial_line(row, trial.problem.key, trial.environment.fingerprint))
            else:
                run.add_trial(row, trial)
                if len(run.trials) == BATCH:
                    self._store_trials(run)
        else:
            winner = as_lines.read_winner(fields, run.ulid, self._environments)
            if isinstance(run, _Known):
                row = {**winner.row, "created_at": winner.created_at, "superseded_at": winner.superseded_at}
                where = winner.new.problem.key, winner.new.environment.fingerprint
                run.compare(kind, said | as_lines.winner_line(row, *where))
            else:
                run.winners.append(winner)

    def _end_run(self) -> None:
        """Store what is left of a run; or refuse one that is there already, and has more."""
        run, self._run = self._run, None
        if isinstance(run, _Known):
            run.end()
        if not isinstance(run, _New):
            return
        self._store_problems(run)
        self._store_trials(run)
        trial_counts.count_run(self._connection, run.id)
        self._store_winners(run)
        counters = {"n_problems": len(run.problems), "n_done": sum(row["done"] for row, _ in run.problems)}
        self._connection.execute(
            sa.update(RunRow).where(RunRow.id == run.id).values(**counters, n_trials=len(run.seen))
        )  # fmt: skip

    def _store_problems(self, run: _New) -> None:
        ids = places.problem_ids(self._connection, [problem for _, problem in run.problems])
        rows = [
            {"run_id": run.id, "position": position, "problem_id": ids[problem.key], **row}
            for position, (row, problem) in enumerate(run.problems)
        ]
        bulk.insert(self._connection, RunProblemRow, rows)

    def _store_trials(self, run: _New) -> None:
        ids = places.problem_ids(self._connection, [trial.problem for _, trial in run.trials])
        rows = []
        for row, trial in run.trials:
            environment_id, device_id = self._ids[trial.environment.fingerprint]
            refs = {"run_id": run.id, "problem_id": ids[trial.problem.key]}
            rows.append({**refs, "environment_id": environment_id, "device_id": device_id, **row})
        bulk.insert(self._connection, TrialRow, rows)
        run.trials.clear()

    # Winners

    def _store_winners(self, run: _New) -> None:
        if not run.winners:
            return
        if not self._moved:
            winners.move_generation(self._connection)
            self._moved = True
        problem_ids = places.problem_ids(self._connection, [winner.new.problem for winner in run.winners])
        rows = []
        for id_, winner in zip(
            bulk.next_ids(self._connection, WinnerRow, len(run.winners)), run.winners, strict=True
        ):  # fmt: skip
            environment_id, device_id = self._ids[winner.new.environment.fingerprint]
            refs = {"run_id": run.id, "problem_id": problem_ids[winner.new.problem.key]}
            refs |= {"environment_id": environment_id, "device_id": device_id}
            times = {"created_at": winner.created_at, "superseded_at": self._superseded(winner, refs)}
            rows.append({"id": id_, **winner.row, **refs, **times})
            # One at a time, so that the next one meets it.
            bulk.insert(self._connection, WinnerRow, rows[-1:])

    def _superseded(self, winner: WinnerLine, refs: dict[str, int]) -> datetime | None:
        """When a winner was superseded, after whatever it supersedes here was.

        A winner that is current in the file and newer than the one here supersedes that at the time it was found; an
        older one was superseded by that when that was found. So the order of imports does not decide what is served.
        """
        if winner.superseded_at is not None:
            return winner.superseded_at
        current = (
            WinnerRow.problem_id == refs["problem_id"],
            WinnerRow.environment_id == refs["environment_id"],
            WinnerRow.policy == winner.new.policy,
            WinnerRow.superseded_at.is_(None),
        )
        served = self._connection.execute(sa.select(WinnerRow.created_at).where(*current)).scalar_one_or_none()
        if served is not None and served >= winner.created_at:
            self._n_history += 1
            return served
        self._connection.execute(sa.update(WinnerRow).where(*current).values(superseded_at=winner.created_at))
        return None

    # Roofs, static facts

    def _roofs(self, fields: Fields) -> None:
        row, environment = as_lines.read_roofs(fields, self._environments)
        environment_id = self._ids[environment.fingerprint][0]
        select = sa.select(RoofsRow.measured_at).where(RoofsRow.environment_id == environment_id)
        there = self._connection.execute(select).scalar_one_or_none()
        newer = there is None or there < row["measured_at"]
        self._count("roofs", new=newer)
        if newer:
            roofs.put(self._connection, environment, row, self._now)

    def _store_facts(self) -> None:
        """Store those of the entries that are newer than what is there."""
        there = static_facts.created(self._connection, [row["key"] for row, _, _ in self._facts])
        newer = [entry for entry in self._facts if entry[0]["key"] not in there or there[entry[0]["key"]] < entry[2]]
        self._added["static_facts"] += len(newer)
        self._known["static_facts"] += len(self._facts) - len(newer)
        if newer:
            rows, new, at = zip(*newer, strict=True)
            static_facts.put(self._connection, new, rows, at)
        self._facts.clear()


class _New:
    """A run that is not there yet, and what of it waits to be stored."""

    def __init__(self, ulid: str, id_: int) -> None:
        self.ulid = ulid
        self.id = id_
        self.problems: list[tuple[Any, Problem]] = []
        self.trials: list[tuple[Any, NewTrial]] = []
        self.winners: list[WinnerLine] = []
        self.seen: set[tuple[str, int]] = set()
        """Problem's key and number of every trial."""

    def add_trial(self, row: Any, trial: NewTrial) -> None:
        """Take a trial."""
        place = (trial.problem.key, trial.number)
        if place in self.seen:
            raise InvalidInputError(f"trial {trial.number} of {trial.problem.key} is there twice")
        self.seen.add(place)
        self.trials.append((row, trial))


class _Known:
    """A run that is there already: the file must say of it what the database says."""

    def __init__(self, ulid: str, there: Iterator[Line]) -> None:
        self.ulid = ulid
        self._there = there

    def compare(self, kind: str, document: dict[str, Any]) -> None:
        """Refuse a line that the database does not have. When a winner was superseded is not compared."""
        found = next(self._there, ("end", {}))
        if (kind, _lasting(document)) != (found[0], _lasting(found[1])):
            raise self._differs(f"the first difference is in a line of the kind {kind}")

    def end(self) -> None:
        """Refuse if the database has more."""
        found = next(self._there, None)
        if found is not None:
            raise self._differs(f"it has a {found[0]} more than the file")

    def _differs(self, how: str) -> InvalidInputError:
        return InvalidInputError(
            f"the run {self.ulid} is in the database already with other content ({how}): "
            "import the file into another database"
        )


def _lasting(document: dict[str, Any]) -> dict[str, Any]:
    """A line without what may change after its run has ended."""
    return {name: value for name, value in document.items() if name != "superseded_at"}
