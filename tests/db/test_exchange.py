"""Export and import: the same from any database to any other, once or often, never in place of what is newer."""

from __future__ import annotations

import gzip
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import exchange_files as files
import pytest
from exchange_files import fill, said
from fp4tune.db import Store
from fp4tune.db.records import RunStatus, WinnerFilter
from fp4tune.kernels.errors import BusyError, InvalidInputError, NotFoundError, StoreError
from store_factory import (
    HOST,
    LARGE,
    ON_CARD,
    ROOFS,
    SMALL,
    START,
    Clock,
    choice,
    new_run,
    new_static_facts,
    new_trial,
    new_winner,
)


@pytest.fixture
def other(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], Store]]:
    """Makes further databases."""
    with ExitStack() as stack:
        made: list[int] = []

        def make() -> Store:
            made.append(1)
            return stack.enter_context(Store.open(tmp_path / f"other{len(made)}.db", clock=clock))

        yield make


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Exports a store to a new file."""
    made: list[int] = []

    def write(store: Store, *run_ids: str) -> Path:
        made.append(1)
        path = tmp_path / f"{len(made)}.jsonl.gz"
        store.export(path, run_ids=run_ids or None)
        return path

    return write


def test_what_is_imported_is_what_was_exported(store: Store, clock: Clock, other, export):
    """From either database to SQLite, and from there back into an empty one of the first kind."""
    fill(store, clock)
    first, copy = export(store), other()
    summary = copy.import_from(first)
    assert summary.added == {
        "environment": 2, "run": 2, "run_problem": 4, "trial": 6, "winner": 5, "roofs": 1, "static_facts": 3,
    }  # fmt: skip
    assert (sum(summary.known.values()), summary.notes) == (0, ())
    assert said(copy) == said(store)
    assert export(copy).read_bytes() == first.read_bytes()


def test_a_file_of_sqlite_goes_into_either_database(store: Store, clock: Clock, other, export):
    source = other()
    fill(source, clock)
    path = export(source)
    generation = store.generation()
    store.import_from(path)
    assert store.generation() == generation + 1
    assert said(store) == said(source)
    assert export(store).read_bytes() == path.read_bytes()
    assert [entry.id for entry in store.winner_changes()] == sorted(w.id for w in store.winners().items)


def test_the_same_file_again_changes_nothing(store: Store, clock: Clock, other, export):
    source = other()
    fill(source, clock)
    path = export(source)
    store.import_from(path)
    before, generation = said(store), store.generation()
    again = store.import_from(path)
    assert sum(again.added.values()) == 0
    assert sum(again.known.values()) == 23
    assert said(store) == before
    assert store.generation() == generation
    fresh = store.create_run(new_run())
    store.add_trials([new_trial(fresh)])
    store.add_winner(new_winner(fresh))
    assert len(store.winners(WinnerFilter(current=None)).items) == 6


def test_the_file_has_no_time_no_name_and_a_header_first(sqlite_store: Store, clock: Clock, export):
    fill(sqlite_store, clock)
    path = export(sqlite_store)
    raw = path.read_bytes()
    assert raw[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff", "deflate, no name, mtime 0, best, no system"
    header = files.read(path)[0]
    assert (header["format"], header["version"]) == ("fp4tune.export", 1)
    assert header["counts"]["trial"] == 6
    clock.advance(1000)
    assert export(sqlite_store).read_bytes() == raw, "the same data, the same bytes"
    assert b"\n{" in gzip.decompress(raw)


def test_the_order_of_writing_does_not_show(sqlite_store: Store, other, export):
    """The same rows, stored in another order, in other batches."""
    copy = other()
    path = export(sqlite_store)
    run_id = sqlite_store.create_run(new_run())
    batch = [new_trial(run_id, n, problem=problem) for problem in (SMALL, LARGE) for n in range(5)]
    sqlite_store.add_trials(batch)
    sqlite_store.add_winners([new_winner(run_id), new_winner(run_id, problem=LARGE)])
    sqlite_store.finish_run(run_id, RunStatus.FINISHED)
    path = export(sqlite_store)
    lines = files.read(path)
    shuffled = [line for line in lines if line.get("kind") not in ("trial", "winner", "roofs")]
    shuffled += files.of_kind(lines, "winner")[::-1] + files.of_kind(lines, "trial")[::-1]
    files.rewrite(path, shuffled)
    copy.import_from(path)
    assert export(copy).read_bytes() == export(sqlite_store).read_bytes()


# Some runs


def test_one_run_with_what_belongs_to_it(store: Store, clock: Clock, other, export):
    first, second = fill(store, clock)
    copy = other()
    copy.import_from(export(store, second[:20]))
    assert [run.id for run in copy.runs()] == [second]
    assert [e.environment.device.kind for e in copy.environments()] == ["cpu"]
    assert copy.roofs(ON_CARD) is None
    # Of the problem that its trial is of; those of its list are SMALL and GROUPED.
    assert {stored.problem for stored in copy.static_facts().items} == {SMALL, LARGE}
    copy.import_from(export(store, first, second))
    assert said(copy) == said(store)


def test_no_such_run(store: Store, clock: Clock, tmp_path: Path):
    fill(store, clock)
    for name in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "ZZZZZZ", "não-não"):
        with pytest.raises(NotFoundError, match="no run"):
            store.export(tmp_path / "x.gz", run_ids=[name])
    with pytest.raises(InvalidInputError, match="at least 6 characters"):
        store.export(tmp_path / "x.gz", run_ids=["01"])
    assert not list(tmp_path.glob("*.gz*"))
    assert not list(tmp_path.glob(".*partial"))


def test_an_empty_database_makes_an_empty_export(store: Store, other, export):
    path = export(store)
    assert len(files.read(path)) == 1
    assert sum(other().import_from(path).added.values()) == 0


def test_a_run_that_is_alive_is_left_out_with_a_sentence(store: Store, clock: Clock, tmp_path: Path):
    fill(store, clock)
    alive = store.create_run(new_run(host=socket.gethostname(), pid=os.getpid()))
    store.add_trials([new_trial(alive)])
    summary = store.export(tmp_path / "x.gz")
    assert summary.counts["run"] == 2
    (note,) = summary.notes
    assert note == f"Run {alive} is still running as process {os.getpid()} on {socket.gethostname()}, and was left out."
    with pytest.raises(BusyError, match=f"Run {alive} is still running .*: export it when it has ended"):
        store.export(tmp_path / "y.gz", run_ids=[alive])
    assert not (tmp_path / "y.gz").exists()


def test_a_run_that_was_killed_is_exported_as_interrupted(store: Store, clock: Clock, other, tmp_path: Path):
    run_id = store.create_run(new_run())
    store.add_trials([new_trial(run_id)])
    beat = clock.now
    clock.advance(61)
    assert store.export(tmp_path / "x.gz").notes == ()
    assert store.run(run_id).status is RunStatus.RUNNING, "an export changes nothing"
    copy = other()
    copy.import_from(tmp_path / "x.gz")
    run = copy.run(run_id)
    assert (run.status, run.finished_at, run.n_trials) == (RunStatus.INTERRUPTED, beat, 1)
    assert store.import_from(tmp_path / "x.gz").known["run"] == 1
    assert copy.take_over_run(run_id, host=HOST, pid=1).status is RunStatus.RUNNING


# What is there already


def changed(lines: list[files.Line], kind: str, **fields: object) -> None:
    files.of_kind(lines, kind)[0].update(fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: changed(lines, "run", seed=8),
        lambda lines: changed(lines, "run_problem", outcome="otherwise"),
        lambda lines: changed(lines, "trial", wall_s=0.5),
        lambda lines: changed(lines, "trial", samples_us=[1.0], conditions=None),
        lambda lines: changed(lines, "winner", n_trials=25),
        lambda lines: lines.remove(files.of_kind(lines, "trial")[1]),
        lambda lines: lines.remove(files.of_kind(lines, "winner")[-1]),
        lambda lines: lines.remove(files.of_kind(lines, "run_problem")[0]),
        lambda lines: lines.insert(8, {**files.of_kind(lines, "trial")[0], "number": 99}),
    ],
)
def test_a_run_that_is_there_with_other_content_is_refused(store: Store, clock: Clock, export, change):
    fill(store, clock)
    path = export(store)
    before = said(store)
    lines = files.read(path)
    change(lines)
    # Something new in front of it, which must not stay either.
    lines.insert(1, files.of_kind(export_of_another(path.parent), "environment")[0])
    files.rewrite(path, lines)
    with pytest.raises(InvalidInputError, match=r"the run \w{26} is in the database already with other content"):
        store.import_from(path)
    assert said(store) == before


def export_of_another(folder: Path) -> list[files.Line]:
    """An export with an environment of its own."""
    from fp4tune.kernels.device import Environment

    with Store.open(folder / "another.db") as another:
        another.set_roofs(Environment(ON_CARD.device, {"torch": "9"}), ROOFS)
        another.export(folder / "another.gz")
    return files.read(folder / "another.gz")


def test_a_run_that_went_on_since_is_refused(store: Store, clock: Clock, export):
    first, _ = fill(store, clock)
    path = export(store, first)
    store.take_over_run(first, host=HOST, pid=1)
    store.add_trials([new_trial(first, 50)])
    store.finish_run(first, RunStatus.FINISHED)
    with pytest.raises(InvalidInputError, match="other content"):
        store.import_from(path)


def test_that_a_winner_was_superseded_meanwhile_is_no_other_content(store: Store, clock: Clock, export):
    fill(store, clock)
    path = export(store)
    run_id = store.create_run(new_run())
    store.add_winner(new_winner(run_id, choice=choice(8.0)))
    before = said(store)
    assert sum(store.import_from(path).added.values()) == 0
    assert said(store) == before


# Winners of two databases


def tuned(store: Store, clock: Clock, seconds: float, time_us: float, policy: str = "cuda.graph") -> str:
    """A run that ended, with one winner that was found `seconds` after START."""
    clock.now = START
    clock.advance(seconds)
    run_id = store.create_run(new_run())
    store.add_winner(new_winner(run_id, choice=choice(time_us), policy=policy))
    store.finish_run(run_id, RunStatus.FINISHED)
    return run_id


def history(store: Store) -> list[tuple[float, float | None]]:
    """Time of every winner, and seconds after START when it was superseded."""
    found = store.winners(WinnerFilter(current=None)).items
    return sorted(
        (w.choice.time_us, None if w.superseded_at is None else (w.superseded_at - START).total_seconds())
        for w in found
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_the_newest_winner_is_served_whatever_came_first(store: Store, clock: Clock, other, export, order):
    paths = []
    for i in range(3):
        source = other()
        tuned(source, clock, 10.0 * i, 30.0 - i)
        paths.append(export(source))
    for i in order:
        store.import_from(paths[i])
    assert [w.choice.time_us for w in store.winners().items] == [28.0]
    newest, middle, (time_us, superseded) = history(store)
    assert (newest, middle, time_us) == ((28.0, None), (29.0, 20.0), 30.0)
    assert superseded == (10.0 if order in ((0, 1, 2), (1, 0, 2)) else 20.0), "when the one that came next was found"
    assert len(store.winner_changes()) == 1


def test_an_older_winner_becomes_history_with_a_note(store: Store, clock: Clock, other, export):
    source = other()
    tuned(source, clock, 0, 20.0)
    tuned(source, clock, 1, 21.0, "cuda.eager")
    path = export(source)
    tuned(store, clock, 100, 25.0)
    summary = store.import_from(path)
    assert summary.notes == ("1 winner is history here, because a newer one is served for its problem.",)
    assert [(w.choice.time_us, w.policy) for w in store.winners().items] == [
        (25.0, "cuda.graph"), (21.0, "cuda.eager"),
    ]  # fmt: skip
    assert history(store) == [(20.0, 100.0), (21.0, None), (25.0, None)]


def test_older_roofs_and_static_facts_replace_nothing(store: Store, clock: Clock, other, export):
    source = other()
    source.set_roofs(ON_CARD, ROOFS)
    source.add_static_facts([new_static_facts(compile_s=1.0)])
    path = export(source)
    clock.advance(10)
    newer = replace(ROOFS, copy_bytes_per_s=1.0, measured_at=clock.now)
    store.set_roofs(ON_CARD, newer)
    store.add_static_facts([new_static_facts(compile_s=2.0)])
    summary = store.import_from(path)
    assert (summary.known["roofs"], summary.known["static_facts"]) == (1, 1)
    assert store.roofs(ON_CARD) == newer
    newest = export(store)
    source.import_from(newest)
    assert source.roofs(ON_CARD) == newer
    assert source.static_facts().items[0].compile_s == 2.0
    assert source.static_facts().items[0].created_at == clock.now


# Where to, and from where


def test_an_export_never_overwrites(sqlite_store: Store, tmp_path: Path):
    path = tmp_path / "x.gz"
    path.write_text("mine")
    with pytest.raises(InvalidInputError, match="exists already"):
        sqlite_store.export(path)
    assert path.read_text() == "mine"
    with pytest.raises(NotFoundError, match="directory .* does not exist"):
        sqlite_store.export(tmp_path / "no" / "x.gz")


def test_a_store_that_is_open_for_reading_exports_and_imports_nothing(
    sqlite_store: Store, clock: Clock, tmp_path: Path
):
    fill(sqlite_store, clock)
    with Store.open(tmp_path / "fp4tune.db", mode="read") as reader:
        reader.export(tmp_path / "x.gz")
        with pytest.raises(StoreError, match="opened for reading only"):
            reader.import_from(tmp_path / "x.gz")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_into_a_read_only_file(sqlite_store: Store, clock: Clock, tmp_path: Path):
    fill(sqlite_store, clock)
    sqlite_store.export(tmp_path / "x.gz")
    Store.open(tmp_path / "other.db").close()
    (tmp_path / "other.db").chmod(0o444)
    with Store.open(tmp_path / "other.db") as store, pytest.raises(StoreError, match="is read-only"):
        store.import_from(tmp_path / "x.gz")


def test_into_a_database_that_refuses_writes(sqlite_store: Store, clock: Clock, other, export):
    """As root sees a read-only file system: SQLite itself says no, in the middle of the import."""
    source = other()
    fill(source, clock)
    path = export(source)
    with sqlite_store._writer.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER no_more BEFORE INSERT ON winners BEGIN SELECT RAISE(ABORT, 'not today'); END"
        )
    with pytest.raises(StoreError, match="not today"):
        sqlite_store.import_from(path)
    assert sqlite_store.runs() == sqlite_store.trials().items == sqlite_store.environments() == []


def test_an_export_is_one_moment(store: Store, url: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Somebody writes between two statements of the export, and is not seen."""
    from fp4tune.db import exporting

    first, second = fill(store, clock)
    whole = exporting._roofs

    def meanwhile(*arguments):
        with Store.open(url, mode="write", clock=clock) as writer:
            writer.add_static_facts([new_static_facts(config={"meanwhile": 1})])
            writer.finish_problem(first, 1, "meanwhile")
        return whole(*arguments)

    monkeypatch.setattr(exporting, "_roofs", meanwhile)
    store.export(tmp_path / "x.gz")
    monkeypatch.undo()
    lines = files.read(tmp_path / "x.gz")
    assert len(files.of_kind(lines, "static_facts")) == 3
    assert "meanwhile" not in {line["outcome"] for line in files.of_kind(lines, "run_problem")}
    assert second in {line["id"] for line in files.of_kind(lines, "run")}


def test_a_file_that_was_imported_is_a_database_like_any_other(
    sqlite_store: Store, clock: Clock, other, export, tmp_path
):
    fill(sqlite_store, clock)
    other().import_from(export(sqlite_store))
    with sqlite3.connect(tmp_path / "other1.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
