"""The store: the one door to the database, for every reader and writer. docs/decisions/0002 is its contract."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import sqlalchemy as sa

from ..kernels.device import Device, Environment
from ..kernels.errors import InvalidInputError, StoreError, UnsupportedError
from . import latency_models, misses, places, references, roofs, runs, schema, static_facts, trials, winners
from .backup import backup
from .engine import Mode, Target, make_engine, parse_target, use_wal, writer
from .faults import reading, translated
from .ids import UlidSource
from .publish import new_file
from .records import (
    LatencyModel,
    Miss,
    NewRun,
    NewStaticFacts,
    NewTrial,
    NewWinner,
    Page,
    ReferenceImport,
    ReferenceRow,
    ReferenceSource,
    Roofs,
    Run,
    RunProblemState,
    RunStatus,
    SchemaState,
    StaticFactsFilter,
    StoredEnvironment,
    StoredStaticFacts,
    Trial,
    TrialFilter,
    Winner,
    WinnerEntry,
    WinnerFilter,
)

if TYPE_CHECKING:
    from .dashboard import Question
    from .exchange import ExportSummary, ImportSummary

T = TypeVar("T")

ANY_TRIAL = TrialFilter()
CURRENT_WINNERS = WinnerFilter()
ANY_STATIC_FACTS = StaticFactsFilter()


def utc_now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


class Store:
    """Runs, trials, winners and misses, in SQLite or PostgreSQL.

    Make one with `Store.open`. Threads may share it; every process opens its own (not across a fork). Each call is
    one transaction: when a write returns, it is committed; when it raises, nothing of it is.

    Every method may raise:
        StoreError: the database cannot do it (read-only, full, damaged, locked, unreachable); one sentence says which.
        InvalidInputError: something given cannot be stored or cannot be a filter.

    Attributes:
        url: where the database is, with any password masked.
        mode: how it was opened.
    """

    def __init__(
        self, target: Target, mode: Mode, engine: sa.Engine, found: str | None, clock: Callable[[], datetime]
    ) -> None:
        self.url = target.masked
        self.mode: Mode = mode
        self._target = target
        self._engine = engine
        self._writer = writer(engine)
        self._found = found
        self._clock = clock
        self._ulids = UlidSource()

    @classmethod
    def open(cls, url: str | Path, *, mode: Mode = "create", clock: Callable[[], datetime] = utc_now) -> Self:
        """Open a database.

        Args:
            url: a path, `sqlite:///path` or `postgresql+psycopg://user:password@host/database`.
            mode: `create` makes the database if it is missing and migrates an older schema; `write` needs one that
                is there and current; `read` needs the same, never writes to it, and works on a read-only file.
            clock: gives the time (with a time zone) that is noted for runs, winners and heartbeats.

        Raises:
            InvalidInputError: the URL cannot be read.
            NotFoundError: the file (`write`, `read`) or its directory does not exist.
            StoreError: it cannot be opened, is no fp4tune database, or has another schema; nothing was written to it.
            UnsupportedError: another kind of database.
        """
        target = parse_target(url)
        engine = make_engine(target, mode)
        try:
            with translated(target.shown):
                if mode == "create":
                    found = schema.migrate(engine, target)
                else:
                    with engine.begin() as connection:
                        found = schema.revision(connection, target)
                    schema.require_current(found, target)
                if target.path is not None and mode != "read":
                    use_wal(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(target, mode, engine, found, clock)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A transaction for reading."""
        with reading(self._target.shown), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction for writing, committed at the end."""
        if self.mode == "read":
            raise StoreError(f"The database {self._target.shown} was opened for reading only.")
        with translated(self._target.shown), self._writer.begin() as connection:
            yield connection

    # Runs

    def create_run(self, new: NewRun) -> str:
        """Store a run that starts now, and mark runs of this host whose process is gone as interrupted.

        Returns:
            The run's id: a ULID, 26 characters, sortable by start, strictly growing within this Store.
        """
        row, items = runs.own_columns(new), [runs.item_columns(item) for item in new.problems]
        now = self._clock()
        ulid = self._ulids.next(now)
        with self._writing() as connection:
            runs.create(connection, new, row, items, ulid=ulid, now=now)
        return ulid

    def is_alive(self, run: Run) -> bool:
        """Whether a run says that it is running, and is: see the contract for what counts.

        Raises:
            NotFoundError: there is no such run.
        """
        with self._reading() as connection:
            return runs.alive(connection, run.id, host=socket.gethostname(), now=self._clock())

    def heartbeat(self, run_id: str) -> None:
        """Note that a run lives. Adding trials and finishing problems does so too.

        Raises:
            NotFoundError: there is no such run.
        """
        with self._writing() as connection:
            runs.heartbeat(connection, run_id, self._clock())

    def finish_problem(self, run_id: str, position: int, outcome: str) -> None:
        """Note that a problem of a run is done, with one sentence about its end. Once more changes the sentence.

        Raises:
            NotFoundError: there is no such run, or it has no such problem.
        """
        with self._writing() as connection:
            runs.finish_problem(connection, run_id, position, outcome, self._clock())

    def finish_run(self, run_id: str, status: RunStatus, error: str = "") -> None:
        """Note that a run ended.

        Raises:
            InvalidInputError: the status is `running`.
            NotFoundError: there is no such run.
        """
        with self._writing() as connection:
            runs.finish(connection, run_id, status, error, self._clock())

    def take_over_run(self, run_id: str, *, host: str, pid: int) -> Run:
        """Make a run that is not alive run again, as process `pid` on `host`.

        Also marks other runs of this host whose process is gone as interrupted.

        Raises:
            BusyError: the run is alive; the sentence names its host and process.
            NotFoundError: there is no such run.
        """
        with self._writing() as connection:
            return runs.take_over(connection, run_id, host=host, pid=pid, now=self._clock())

    def run(self, run_id: str) -> Run:
        """The run with this id, or the only one whose id begins with these 6 or more characters.

        Raises:
            InvalidInputError: fewer than 6 characters, or several runs begin with them.
            NotFoundError: there is no such run.
        """
        with self._reading() as connection:
            return runs.find(connection, run_id)

    def runs(self, *, limit: int = 100, before: str | None = None) -> list[Run]:
        """Runs, newest first. `before`: only those older than the run with this id.

        `status` is as stored: a run that was killed says `running` until somebody marks it (see `is_alive`).
        """
        with self._reading() as connection:
            return runs.newest(connection, limit=limit, before=before)

    def run_problems(self, run_id: str) -> list[RunProblemState]:
        """A run's problems, in order.

        Raises:
            NotFoundError: there is no such run.
        """
        with self._reading() as connection:
            return runs.problems(connection, run_id)

    # Trials

    def add_trials(self, new: Sequence[NewTrial]) -> list[int]:
        """Store a batch of trials, all or none; those that are there (same run, problem and number) are left as is.

        Returns:
            The id of each, also of those that were there.

        Raises:
            InvalidInputError: a trial cannot be stored (NaN in a config, a name that is too long, ...).
            NotFoundError: a trial's run does not exist.
        """
        rows = [trials.measured_columns(trial) for trial in new]
        if not rows:
            return []
        with self._writing() as connection:
            return trials.add(connection, new, rows, self._clock())

    def trials(self, filter: TrialFilter = ANY_TRIAL, *, limit: int = 100, after: int = 0) -> Page[Trial]:  # noqa: A002 - what it is
        """A page of trials by id, after the one with id `after`."""
        with self._reading() as connection:
            return trials.page(connection, filter, limit=limit, after=after)

    # Winners

    def add_winner(self, new: NewWinner) -> int:
        """Store a winner; it supersedes what was served for its problem, environment and policy. Returns its id.

        Raises:
            NotFoundError: its run does not exist.
        """
        return self.add_winners([new])[0]

    def add_winners(self, new: Sequence[NewWinner]) -> list[int]:
        """Store winners, all or none; of several for one problem, environment and policy the last is served.

        Returns:
            Their ids.

        Raises:
            NotFoundError: a winner's run does not exist.
        """
        rows = [winners.measured_columns(winner) for winner in new]
        if not rows:
            return []
        with self._writing() as connection:
            return winners.add(connection, new, rows, self._clock())

    def winners(self, filter: WinnerFilter = CURRENT_WINNERS, *, limit: int = 100, after: int = 0) -> Page[Winner]:  # noqa: A002 - what it is
        """A page of winners by id, after the one with id `after`."""
        with self._reading() as connection:
            return winners.page(connection, filter, limit=limit, after=after)

    def winner_changes(self, after_id: int = 0, *, limit: int = 10_000) -> list[WinnerEntry]:
        """Winners that are served now and have an id above `after_id`, by id.

        This keeps an index up to date: start with 0, let each entry replace the one of the same problem, environment
        and policy, remember the largest id, and call again with it until fewer than `limit` come. Nothing is ever
        missed, because ids become visible in order, also with several writers on PostgreSQL.
        """
        with self._reading() as connection:
            return winners.changes(connection, after_id, limit=limit)

    def winners_for_index(self, *, after_id: int = 0, batch: int = 10_000) -> Iterator[list[WinnerEntry]]:
        """`winner_changes`, batch after batch, until up to date. Each batch is a transaction of its own."""
        while entries := self.winner_changes(after_id, limit=batch):
            yield entries
            after_id = entries[-1].id

    # Devices, environments

    def devices(self) -> list[tuple[Device, datetime]]:
        """Every device and when it was first seen, oldest first. The index (ordinal) is not stored and is 0."""
        with self._reading() as connection:
            return places.devices(connection)

    def environments(self) -> list[StoredEnvironment]:
        """Every environment with what was measured in it, oldest first."""
        with self._reading() as connection:
            return places.environments(connection)

    def environment(self, fingerprint: str) -> Environment:
        """The environment with this fingerprint.

        Raises:
            NotFoundError: there is none.
        """
        with self._reading() as connection:
            return places.environment(connection, fingerprint)

    def roofs(self, environment: Environment) -> Roofs | None:
        """What the card of an environment reaches at most; None if it was not measured."""
        with self._reading() as connection:
            return roofs.find(connection, environment.fingerprint)

    def set_roofs(self, environment: Environment, new: Roofs) -> None:
        """Store the roofs of an environment, in place of those that were there."""
        row = roofs.measured_columns(new)
        with self._writing() as connection:
            roofs.put(connection, environment, row, self._clock())

    # Static facts

    def add_static_facts(self, new: Sequence[NewStaticFacts]) -> list[int]:
        """Store what a compiler says of configs, all or none.

        An entry replaces the one of the same problem, backend, config, target and versions, and keeps its id.

        Returns:
            Their ids.
        """
        rows = [static_facts.compiled_columns(entry) for entry in new]
        if not rows:
            return []
        with self._writing() as connection:
            return static_facts.put(connection, new, rows, [self._clock()] * len(rows))

    def static_facts(
        self,
        filter: StaticFactsFilter = ANY_STATIC_FACTS,  # noqa: A002 - what it is
        *,
        limit: int = 100,
        after: int = 0,
    ) -> Page[StoredStaticFacts]:
        """A page of static facts by id, after the one with id `after`."""
        with self._reading() as connection:
            return static_facts.page(connection, filter, limit=limit, after=after)

    # Published measurements, latency models

    def import_reference(self, source: ReferenceSource, rows: Iterable[ReferenceRow]) -> ReferenceImport:
        """Store a file of published measurements, all of it or nothing. Again changes nothing.

        Args:
            source: the file; `imported_at` and `n_rows` are set here.
            rows: what it says, each (kernel, layer, m) once.

        Raises:
            InvalidInputError: a row says what cannot be, or this version of the package was imported with other
                content under this file's name.
        """
        row, curves = references.source_columns(source), references.curves_of(rows)
        with self._writing() as connection:
            return references.add(connection, row, curves, self._clock())

    def reference_sources(self) -> list[ReferenceSource]:
        """Every imported file of published measurements, by system, framework and version."""
        with self._reading() as connection:
            return references.sources(connection)

    def reference_systems(self, device_name: str) -> list[str]:
        """Imported systems that are published for a card of this name (`Device.name`); those of the very card first.

        `reference_systems.variant_note` says which of them are another variant of it.
        """
        with self._reading() as connection:
            return references.systems(connection, device_name)

    def reference_layers(self, systems: Sequence[str]) -> frozenset[references.Layer]:
        """Every layer that is published for some systems: op, n, k, experts, experts_total, top_k as below.

        Args:
            systems: as `reference_systems` gives them.
        """
        with self._reading() as connection:
            return references.layers(connection, systems)

    def reference_rows(
        self, systems: Sequence[str], op: str, n: int, k: int, experts: int = 0, experts_total: int = 0, top_k: int = 0
    ) -> list[tuple[ReferenceSource, ReferenceRow]]:
        """Every published row of one layer: all frameworks, kernels, precisions and M, by one indexed query.

        Of several versions of a package that publish the same version of a framework, only the newest that has the
        layer counts. Ordered by system, framework, precision, kernel and m.

        Args:
            systems: as `reference_systems` gives them.
            op: `dense` or `moe`.
            n: as in ReferenceRow.
            k: as in ReferenceRow.
            experts: of one rank; 0 for dense.
            experts_total: of the layer; 0 for dense.
            top_k: experts a token; 0 for dense.
        """
        with self._reading() as connection:
            return references.rows(
                connection, systems, op, n, k, experts=experts, experts_total=experts_total, top_k=top_k
            )

    def save_latency_model(self, model: LatencyModel) -> None:
        """Store a latency model, in place of the one of the same device, op, format and policy."""
        row = latency_models.fitted_columns(model)
        with self._writing() as connection:
            latency_models.put(connection, row)

    def latency_model(self, device_fingerprint: str, op: str, format: str, policy: str) -> LatencyModel | None:  # noqa: A002 - what it is
        """The latency model of a device's measurements; None if none was fitted."""
        with self._reading() as connection:
            return latency_models.find(connection, device_fingerprint, op, format, policy)

    def latency_models(self) -> list[LatencyModel]:
        """Every latency model, by device, op, format and policy."""
        with self._reading() as connection:
            return latency_models.every(connection)

    def ask(self, question: Question[T]) -> T:
        """Answer a question of the dashboard (`fp4tune.db.dashboard`), by one transaction for reading."""
        with self._reading() as connection:
            return question.answer(connection)

    # Misses

    def add_misses(self, new: Sequence[Miss], *, cap: int = 10_000) -> int:
        """Add the counts of misses to those stored.

        Args:
            new: the misses.
            cap: most rows for each (device, environment); there are also at most `misses.TOTAL_CAP` in all.

        Returns:
            How many questions were dropped, because they were new and a cap was reached.
        """
        if cap < 0:
            raise InvalidInputError(f"The cap on misses must not be negative, and is {cap}.")
        merged = misses.checked(new)
        if not merged:
            return 0
        with self._writing() as connection:
            return misses.add(connection, merged, cap=cap)

    def misses(
        self, *, device_fingerprint: str | None = None, environment_fingerprint: str | None = None, limit: int = 100
    ) -> list[Miss]:
        """Misses, most asked first; None means any device or environment, an empty string those that named none."""
        with self._reading() as connection:
            return misses.most_asked(
                connection,
                device_fingerprint=device_fingerprint,
                environment_fingerprint=environment_fingerprint,
                limit=limit,
            )

    def forget_misses(self, problem_keys: Sequence[str], *, device_fingerprint: str) -> None:
        """Delete the misses of these problems on this device, in every environment."""
        with self._writing() as connection:
            misses.forget(connection, problem_keys, device_fingerprint=device_fingerprint)

    # Housekeeping

    def generation(self) -> int:
        """A number that grows with every change of what is served: one indexed read, cheap enough to poll."""
        with self._reading() as connection:
            return winners.generation(connection)

    def schema(self) -> SchemaState:
        """Which schema the database has, had when it was opened, and should have."""
        with self._reading() as connection:
            return SchemaState(schema.revision(connection, self._target), schema.HEAD, self._found)

    def upgrade(self) -> SchemaState:
        """Bring the schema up to date, if it is not. Opening with mode `create` does the same.

        Raises:
            StoreError: the database was opened for reading only.
        """
        if self.mode == "read":
            raise StoreError(f"The database {self._target.shown} was opened for reading only.")
        with translated(self._target.shown):
            schema.migrate(self._engine, self._target)
        return self.schema()

    def backup(self, path: Path) -> None:
        """Copy the SQLite database to a new file while it is in use; the copy is verified before it gets its name.

        Raises:
            InvalidInputError: the path exists.
            NotFoundError: its directory does not exist.
            StoreError: the copy could not be written.
            UnsupportedError: the database is PostgreSQL, which has a tool of its own.
        """
        if self._target.path is None:
            raise UnsupportedError("A PostgreSQL database is backed up with PostgreSQL's own tool: pg_dump.")
        with translated(self._target.shown), self._engine.connect() as connection:
            backup(connection.connection.driver_connection, Path(path))  # type: ignore[arg-type]

    def export(self, path: Path, *, run_ids: Sequence[str] | None = None) -> ExportSummary:
        """Write runs with all that belongs to them to a new file, as they are at one moment.

        Args:
            path: the file to make; it must not exist.
            run_ids: ids of runs or unique beginnings of them; None for all, and for whatever roofs and static facts
                there are. A run that is alive is left out then, and a note says so.

        Raises:
            BusyError: a run that was named is alive.
            InvalidInputError: the path exists; a run is named by too little.
            NotFoundError: the path's directory, or a run, does not exist.
        """
        from . import exchange, exporting

        with self._one_moment() as connection:
            chosen, notes = exporting.chosen_runs(connection, run_ids, host=socket.gethostname(), now=self._clock())
            with new_file(Path(path), "export") as partial, partial.open("wb") as file:
                lines = exporting.lines(connection, chosen, everything=run_ids is None)
                return exchange.ExportSummary(exchange.write(file, lines), tuple(notes))

    @contextlib.contextmanager
    def _one_moment(self) -> Iterator[sa.Connection]:
        """A transaction for reading in which every statement sees the same moment; on SQLite each one does."""
        engine = self._engine
        if self._target.path is None:
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        with reading(self._target.shown), engine.begin() as connection:
            yield connection

    def import_from(self, path: Path) -> ImportSummary:
        """Store what a file of `export` says, all of it or nothing. Again changes nothing.

        Runs keep their ids. A winner that is current in the file supersedes an older one here, and is history here
        beside a newer one; roofs and static facts replace older ones.

        Raises:
            InvalidInputError: the file is no export, is damaged, is of a newer version, or refers to what it does not
                have; or a run is there already with other content.
            NotFoundError: there is no such file.
        """
        from .importing import Importer

        with self._writing() as connection:
            return Importer(connection, self._clock()).read(Path(path))

    def check(self) -> None:
        """Raise a StoreError unless the database can be read and has the schema that this fp4tune needs."""
        if self._target.path is not None and not os.path.lexists(self._target.path):
            raise StoreError(f"The database {self._target.shown} was removed while it was open: restore a backup.")
        with self._reading() as connection:
            schema.require_current(schema.revision(connection, self._target), self._target)
            winners.generation(connection)
