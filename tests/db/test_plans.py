"""Listings and lookups use an index: there will be a million trials."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fp4tune.db import Store
from fp4tune.db.records import TrialFilter, TrialStatus, WinnerFilter
from query_plans import plans
from store_factory import GROUPED, LARGE, ON_CARD, SMALL, failed_trial, miss, new_run, new_trial, new_winner

TRIAL_FILTERS: dict[str, Any] = {
    "run_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "problem_key": SMALL.key,
    "status": TrialStatus.CRASHED,
    "environment_fingerprint": ON_CARD.fingerprint,
    "device_fingerprint": ON_CARD.device.fingerprint,
    "backend": "triton.native",
}
WINNER_FILTERS = {name: value for name, value in TRIAL_FILTERS.items() if name != "status"} | {"policy": "cuda.eager"}
INDEXES = {
    "run_id": "run_id_id",
    "problem_key": "problem_id_id",
    "status": "status_id",
    "environment_fingerprint": "environment_id_id",
    "device_fingerprint": "device_id_id",
    "backend": "backend_id",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "template.db"
    with Store.open(path) as store:
        for _ in range(3):
            run_id = store.create_run(new_run(pid=os.getpid()))
            for problem in (SMALL, LARGE, GROUPED):
                store.add_trials([new_trial(run_id, n, problem=problem) for n in range(100)])
                store.add_trials([failed_trial(run_id, 100 + n, problem=problem) for n in range(5)])
                store.add_winners([new_winner(run_id, problem=problem) for _ in range(20)])
        store.add_misses([miss(SMALL), miss(LARGE)])
    return path


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Iterator[Store]:
    with Store.open(shutil.copy(template, tmp_path / "fp4tune.db")) as store:
        yield store


def subsets(filters: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every filter alone, every two, and all."""
    return [*itertools.combinations(filters, 1), *itertools.combinations(filters, 2), tuple(filters)]


def test_trials_without_a_filter_go_by_id(filled: Store):
    (plan,) = plans(filled, lambda: filled.trials(after=5))
    assert "SEARCH trials USING INTEGER PRIMARY KEY (rowid>?)" in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("names", subsets(TRIAL_FILTERS))
def test_trials_by_filters_use_the_index_of_the_most_selective_one(filled: Store, names: tuple[str, ...]):
    where = TrialFilter(**{name: TRIAL_FILTERS[name] for name in names})
    (plan,) = plans(filled, lambda: filled.trials(where, after=5))
    assert f"SEARCH trials USING INDEX ix_trials_{INDEXES[names[0]]} (" in plan
    assert "TEMP B-TREE" not in plan
    assert "SCAN" not in plan


def test_the_usual_status_never_leads(filled: Store):
    for name in TRIAL_FILTERS.keys() - {"status"}:
        where = TrialFilter(status=TrialStatus.OK, **{name: TRIAL_FILTERS[name]})
        (plan,) = plans(filled, lambda where=where: filled.trials(where))
        assert f"SEARCH trials USING INDEX ix_trials_{INDEXES[name]} (" in plan


@pytest.mark.parametrize("current", [True, False, None])
@pytest.mark.parametrize("names", subsets(WINNER_FILTERS))
def test_winners_by_filters_use_an_index(filled: Store, names: tuple[str, ...], current: bool | None):
    where = WinnerFilter(**{name: WINNER_FILTERS[name] for name in names}, current=current)
    plan = plans(filled, lambda: filled.winners(where))[0]
    assert "SEARCH winners USING INDEX " in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


def test_statistics_do_not_make_listings_sort_or_scan(filled: Store):
    """Somebody may run ANALYZE. An index of the filter or the primary key: either gives pages in order."""
    with filled._writing() as connection:
        connection.exec_driver_sql("ANALYZE")
    filled.close()  # connections read the statistics when they open
    calls: list[Callable[[], object]] = [filled.trials, filled.winners, filled.winner_changes]
    calls += [
        lambda n=n: filled.trials(TrialFilter(**{m: TRIAL_FILTERS[m] for m in n})) for n in subsets(TRIAL_FILTERS)
    ]
    calls += [
        lambda n=n: filled.winners(WinnerFilter(**{m: WINNER_FILTERS[m] for m in n})) for n in subsets(WINNER_FILTERS)
    ]
    for call in calls:
        plan = plans(filled, call)[0]
        assert re.match(r"(SEARCH|SCAN) (trials|winners) USING (INDEX|INTEGER PRIMARY KEY)", plan), plan
        assert "TEMP B-TREE" not in plan


def test_the_current_winner_of_a_problem_in_an_environment_under_a_policy_is_one_step(filled: Store):
    where = WinnerFilter(problem_key=SMALL.key, environment_fingerprint=ON_CARD.fingerprint, policy="cuda.eager")
    plan = plans(filled, lambda: filled.winners(where))[0]
    assert "SEARCH winners USING INDEX uq_winners_current (problem_id=? AND environment_id=? AND policy=?" in plan


def test_changes_and_all_current_winners_do_not_pass_by_the_history(filled: Store):
    for call in (lambda: filled.winner_changes(5), filled.winner_changes, filled.winners):
        plan = plans(filled, call)[0]
        assert "SEARCH winners USING INDEX ix_winners_current_id (id>?)" in plan
        assert "TEMP B-TREE" not in plan


def test_single_rows_are_found_by_their_keys(filled: Store):
    run = filled.runs()[0]
    for call in (
        filled.generation,
        lambda: filled.run(run.id),
        lambda: filled.run(run.id[:26]),
        lambda: filled.run_problems(run.id),
        lambda: filled.environment(ON_CARD.fingerprint),
        lambda: filled.is_alive(run),
        lambda: filled.add_trials([new_trial(run.id, 5)]),
        lambda: filled.heartbeat(run.id),
        lambda: filled.add_winners([new_winner(run.id)]),
    ):
        for plan in plans(filled, call):
            assert "SCAN" not in plan.replace("SCAN sqlite_sequence", ""), plan  # that has one row


def test_runs_are_listed_by_their_index(filled: Store):
    (plan,) = plans(filled, lambda: filled.runs(before="7ZZZZZZZZZZZZZZZZZZZZZZZZZ"))
    assert "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (ulid<?)" in plan
    assert "TEMP B-TREE" not in plan


def test_dead_runs_are_looked_for_among_the_running_only(filled: Store):
    plan = next(p for p in plans(filled, lambda: filled.create_run(new_run())) if "ix_runs_running" in p)
    assert "SCAN runs USING INDEX ix_runs_running" in plan
