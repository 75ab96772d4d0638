"""The counts of trials are what counting the trials would say, whatever was added, imported or killed."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fp4tune.db import Store
from fp4tune.db.models import TrialCountRow, TrialRow
from fp4tune.db.records import NewTrial, RunStatus, TrialStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st
from query_plans import plans
from store_factory import GROUPED, ON_CARD, ON_CPU, SMALL, failed_trial, new_run, new_trial

KEY = ("run_id", "problem_id", "backend", "status", "environment_id")


def counts(store: Store) -> list[tuple[object, ...]]:
    columns = [getattr(TrialCountRow, name) for name in (*KEY, "n", "last_trial_id")]
    with store._reading() as connection:
        return sorted(tuple(row) for row in connection.execute(sa.select(*columns)))


def counted(store: Store) -> list[tuple[object, ...]]:
    """The same, counted."""
    key = [getattr(TrialRow, name) for name in KEY]
    select = sa.select(*key, sa.func.count(), sa.func.max(TrialRow.id)).group_by(*key)
    with store._reading() as connection:
        return sorted(tuple(row) for row in connection.execute(select))


def trial(run_id: str, number: int, status: TrialStatus, **fields: object) -> NewTrial:
    if status is TrialStatus.OK:
        return new_trial(run_id, number, **fields)
    return failed_trial(run_id, number, status, **fields)


def test_a_batch_that_is_refused_is_not_counted(store: Store):
    run_id = store.create_run(new_run())
    with pytest.raises(InvalidInputError):
        store.add_trials([new_trial(run_id), new_trial(run_id, -1)])
    with pytest.raises(NotFoundError):
        store.add_trials([new_trial(run_id), new_trial("01ARZ3NDEKTSV4RRFFQ69G5FAV")])
    assert counts(store) == counted(store) == []


def test_what_is_written_again_is_counted_once(store: Store):
    run_id = store.create_run(new_run())
    batch = [new_trial(run_id, n) for n in range(3)]
    store.add_trials([*batch, batch[0]])
    store.add_trials(batch)
    # The first to be stored stays, and so does how it ended.
    store.add_trials([failed_trial(run_id, 2), failed_trial(run_id, 3)])
    assert counts(store) == counted(store)
    assert [(row[3], row[5]) for row in counts(store)] == [("crashed", 1), ("ok", 3)]


def test_a_run_in_two_environments_is_counted_in_each(store: Store):
    run_id = store.create_run(new_run())
    store.add_trials([new_trial(run_id, n, environment=ON_CPU if n % 3 else ON_CARD) for n in range(9)])
    assert counts(store) == counted(store)
    assert sorted(row[5] for row in counts(store)) == [3, 6]
    assert {e.environment.device.kind: e.n_trials for e in store.environments()} == {"cuda": 3, "cpu": 6}


def test_an_import_counts_and_a_second_one_does_not(store: Store, tmp_path: Path):
    with Store.open(tmp_path / "other.db") as other:
        run_id = other.create_run(new_run())
        other.add_trials([trial(run_id, n, list(TrialStatus)[n % 6], problem=SMALL) for n in range(700)])
        other.add_trials([new_trial(run_id, 0, problem=GROUPED, backend="cutlass.grouped")])
        other.finish_run(run_id, RunStatus.FINISHED)
        other.export(tmp_path / "runs.gz")
    store.add_trials([new_trial(store.create_run(new_run()))])
    for _ in range(2):
        store.import_from(tmp_path / "runs.gz")
        assert counts(store) == counted(store)
        assert sum(row[5] for row in counts(store)) == 702


def test_many_threads_that_add_to_one_run_lose_no_count(url: str):
    with Store.open(url) as store:
        run_id = store.create_run(new_run())
        start, errors = threading.Barrier(6), []

        def work(i: int) -> None:
            try:
                start.wait(30)
                for first in range(0, 30, 5):
                    # Every second thread writes what another one writes, too.
                    store.add_trials([new_trial(run_id, (i // 2) * 30 + first + n) for n in range(5)])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert counts(store) == counted(store)
        assert sum(row[5] for row in counts(store)) == store.run(run_id).n_trials == 90


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.lists(
                st.tuples(
                    st.integers(0, 2), st.sampled_from([SMALL, GROUPED]), st.integers(0, 12),
                    st.sampled_from(["triton.native", "cutlass.grouped", "Ü'; --"]), st.sampled_from(TrialStatus),
                    st.sampled_from([ON_CARD, ON_CPU]),
                ),
                max_size=12,
            ),
        ),
        st.tuples(st.sampled_from(["import", "fail"]), st.integers(0, 2)),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_any_sequence_of_adds_and_imports(sqlite_template: Path, steps: list[tuple[str, object]]):
    with tempfile.TemporaryDirectory() as directory, Store.open(shutil.copy(sqlite_template, directory)) as store:
        run_ids = [store.create_run(new_run(pid=os.getpid())) for _ in range(3)]
        for i, (what, given_) in enumerate(steps):
            if what == "add":
                store.add_trials(
                    [
                        trial(run_ids[r], number, status, problem=problem, backend=backend, environment=environment)
                        for r, problem, number, backend, status, environment in given_
                    ]
                )
            elif what == "import":
                with Store.open(shutil.copy(sqlite_template, f"{directory}/{i}.db")) as other:
                    own = other.create_run(new_run(pid=1, host="elsewhere"))
                    other.add_trials([new_trial(own, n) for n in range(given_)])
                    other.finish_run(own, RunStatus.FINISHED)
                    other.export(Path(directory) / f"{i}.gz")
                store.import_from(Path(directory) / f"{i}.gz")
            else:
                with pytest.raises(InvalidInputError):
                    store.add_trials([new_trial(run_ids[given_], 50), new_trial(run_ids[given_], -1)])
            assert counts(store) == counted(store)


def test_environments_do_not_read_trials(sqlite_store: Store):
    run_id = sqlite_store.create_run(new_run())
    sqlite_store.add_trials([new_trial(run_id, n) for n in range(20)])
    with sqlite_store._writing() as connection:
        connection.exec_driver_sql("ANALYZE")
    for plan in plans(sqlite_store, sqlite_store.environments):
        assert "trials" not in plan.replace("trial_counts", "")


def test_counts_do_not_grow_with_trials(sqlite_store: Store):
    """One row a run, problem, backend, status and environment, and not one a trial."""
    run_id = sqlite_store.create_run(new_run())
    problems = [replace(SMALL, m=m) for m in range(1, 6)]
    for problem, first in itertools.product(problems, range(0, 100, 50)):
        sqlite_store.add_trials([new_trial(run_id, first + n, problem=problem) for n in range(50)])
    assert [row[5] for row in counts(sqlite_store)] == [100] * 5
