"""Every question of the dashboard, by the plan of every statement that it sends: nothing grows with the whole store."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fp4tune.db.dashboard
import pytest
import sqlalchemy as sa
from dashboard_stores import analyze, million
from fp4tune.db import Store
from fp4tune.db.dashboard import (
    backends,
    compare,
    failures,
    gains,
    history,
    places,
    problem,
    progress,
    roof,
    run,
    runs,
    scopes,
    search,
    trust,
)
from fp4tune.db.dashboard.question import Question
from fp4tune.db.models import RunRow, TrialRow, WinnerRow
from fp4tune.kernels.problem import parse_key
from query_plans import plans
from sqlalchemy.orm import aliased

GROWING = ("trials", "winners", "trial_counts", "runs", "run_problems")
"""Tables that grow with every run."""

SCAN = re.compile(rf"\bSCAN ({'|'.join(GROWING)})(?:_\d+)?(?: USING (?:COVERING )?INDEX (\S+?))?(?:;|$)")
"""A step that may pass by a whole table: which, and by what index."""

ONE_TRIAL = re.compile(r"\((rowid=\?|run_id=\? AND problem_id=\? AND number=\?)\)$")
"""A trial is looked up by its whole key: what is sorted then is as many rows as ask for one."""

_CURRENT = (("winners", "ix_winners_current_place"), "the index of what is served, without rows: 30,000 take 6 ms")
_RUNS_BY_ID = (("runs", "sqlite_autoindex_runs_1"), "in the order of ids, and left at the LIMIT")
_LAST_RUNS = (("runs", "ix_runs_environment_id_ulid"), "an index without rows, of a few thousand runs")
_SUMS = (("trial_counts", ""), "sums, so that no trial is read: 200,000 trials have 38,000, which take 20 ms")

ALLOWED: dict[type, dict[tuple[str, str], str]] = {
    failures.EndingsOf: dict([_SUMS]),
    gains.NewestRuns: dict([_RUNS_BY_ID]),
    history.PlacesOf: dict([_CURRENT]),
    places.DevicesSeen: dict([_CURRENT, _LAST_RUNS, _SUMS]),
    places.EnvironmentsSeen: dict([_CURRENT, _LAST_RUNS, _SUMS]),
    runs.RunsSeen: dict([_RUNS_BY_ID]),
    scopes.ScopesOf: dict([_CURRENT]),
    search.SearchFor: {
        ("runs", ""): "by id from the newest, and left at MAX_RUNS",
        ("run_problems", "sqlite_autoindex_run_problems_1"): "in its order from the newest run, and left at MAX_ROLES",
        **dict([_SUMS]),
    },
}
"""What may be passed by as a whole, by question, table and index (none: the table itself); why that is bounded."""


@dataclass(frozen=True)
class Names:
    """What is in the store of this test, to ask for."""

    run: str
    deep_run: str
    environment: str
    other: str
    device: str
    policy: str
    problem: str
    backend: str


HOST, NOW = "tuner-1", datetime(2026, 12, 1, tzinfo=UTC)

SAMPLES: dict[type, Callable[[Names], Sequence[Any]]] = {
    backends.WinsOf: lambda n: [backends.WinsOf(n.environment, n.policy)],
    backends.CandidatesOf: lambda n: [backends.CandidatesOf(n.environment, n.policy, n.problem)],
    backends.CandidatesIn: lambda n: [
        backends.CandidatesIn(n.environment, n.policy, limit=5),
        backends.CandidatesIn(n.environment, n.policy, before=10_000, limit=5),
    ],
    compare.ComparisonOf: lambda n: [compare.ComparisonOf(n.environment, n.other, n.policy)],
    compare.ServedOnlyIn: lambda n: [compare.ServedOnlyIn(n.environment, n.other, n.policy)],
    failures.EndingsOf: lambda n: [
        failures.EndingsOf(), failures.EndingsOf(n.environment), failures.EndingsOf(run=n.deep_run),
        failures.EndingsOf(n.environment, n.deep_run),
    ],
    failures.FailedTrials: lambda n: [
        failures.FailedTrials(n.backend, "crashed", environment, run_id, before)
        for environment in ("", n.environment) for run_id in ("", n.deep_run) for before in (0, 10_000_000)
    ],
    failures.ReasonsOf: lambda n: [
        failures.ReasonsOf(n.backend, "crashed", environment, run_id)
        for environment in ("", n.environment) for run_id in ("", n.deep_run)
    ],
    gains.NewestRuns: lambda n: [gains.NewestRuns()],
    gains.ItemsOf: lambda n: [gains.ItemsOf((n.run, n.deep_run))],
    gains.ServedFor: lambda n: [gains.ServedFor(n.environment, n.policy, (n.problem,))],
    history.PlacesOf: lambda n: [history.PlacesOf(), history.PlacesOf(n.problem)],
    history.ChangesOf: lambda n: [
        history.ChangesOf(n.device, n.policy), history.ChangesOf(n.device, n.policy, newest_id=10_000),
    ],
    history.HistoryOf: lambda n: [
        history.HistoryOf(n.problem, n.device, n.policy, 5),
        history.HistoryOf(n.problem, n.device, n.policy, 5, before_id=1_000_000),
    ],
    places.DevicesSeen: lambda n: [places.DevicesSeen()],
    places.EnvironmentsSeen: lambda n: [
        places.EnvironmentsSeen(), places.EnvironmentsSeen(device=n.device), places.EnvironmentsSeen("", n.environment),
    ],
    places.DeviceNames: lambda n: [places.DeviceNames(), places.DeviceNames(n.device, limit=1)],
    places.EnvironmentNames: lambda n: [places.EnvironmentNames(), places.EnvironmentNames(n.environment, limit=1)],
    problem.EvidenceOf: lambda n: [problem.EvidenceOf(n.deep_run, parse_key(n.problem), n.environment)],
    problem.AttemptsAt: lambda n: [
        problem.AttemptsAt(parse_key(n.problem)), problem.AttemptsAt(parse_key(n.problem), n.environment),
    ],
    problem.PlacesOf: lambda n: [problem.PlacesOf(parse_key(n.problem))],
    problem.OtherTokens: lambda n: [problem.OtherTokens(parse_key(n.problem), n.environment, n.policy)],
    progress.NewestRunWith: lambda n: [progress.NewestRunWith(n.problem)],
    progress.FoundBy: lambda n: [progress.FoundBy(n.deep_run, n.problem)],
    progress.BackendsOf: lambda n: [progress.BackendsOf(n.deep_run, n.problem)],
    progress.ProgressOf: lambda n: [progress.ProgressOf(n.deep_run, n.problem)],
    progress.TriedOf: lambda n: [progress.TriedOf(n.deep_run, n.problem, n.backend)],
    roof.ServedIn: lambda n: [
        roof.ServedIn(n.environment, n.policy), roof.ServedIn(n.environment, n.policy, n.deep_run),
    ],
    roof.WorkloadsOf: lambda n: [roof.WorkloadsOf(n.environment)],
    run.RunProblemsOf: lambda n: [run.RunProblemsOf(n.run), run.RunProblemsOf(n.run, after=0)],
    run.RunNowOf: lambda n: [run.RunNowOf(n.deep_run)],
    runs.RunsSeen: lambda n: [
        runs.RunsSeen(HOST, NOW, status, device, before)
        for status in ("", "finished") for device in ("", n.device) for before in ("", "7" + "Z" * 25)
    ],
    runs.RunOf: lambda n: [runs.RunOf(n.run, HOST, NOW), runs.RunOf(n.run[:20], HOST, NOW)],
    scopes.ScopesOf: lambda n: [scopes.ScopesOf()],
    search.SearchFor: lambda n: [
        search.SearchFor(text) for text in ("attn.qkv", "4096", n.problem, n.run, "triton", "torch 2.11")
    ],
    trust.EvidenceOf: lambda n: [trust.EvidenceOf(n.problem, n.environment, n.policy)],
    trust.ServedOf: lambda n: [trust.ServedOf(n.environment, n.policy)],
}  # fmt: skip
"""Every kind of question, with its parameters in every combination that changes a statement."""


def questions() -> list[type]:
    """Every class of db/dashboard that can answer."""
    found = []
    for module in pkgutil.iter_modules(fp4tune.db.dashboard.__path__, "fp4tune.db.dashboard."):
        classes = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        found += [one for _, one in classes if hasattr(one, "answer") and one.__module__ == module.name]
    return [one for one in found if one is not Question]


@pytest.fixture(scope="module", params=["before ANALYZE", "after ANALYZE"])
def store(request: pytest.FixtureRequest, made: tuple[Path, Names], tmp_path_factory) -> Iterator[Store]:
    path = Path(shutil.copy(made[0], tmp_path_factory.mktemp("every") / "copy.db"))
    if request.param == "after ANALYZE":
        analyze(path)
    with Store.open(path, mode="read") as opened:
        yield opened


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Names]:
    """20,000 trials and some thousand winners, most of which were superseded."""
    big = million(tmp_path_factory.mktemp("every") / "big.db", 20_000)
    with closing(sqlite3.connect(big.path)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(winners)") if row[1] != "id"]
        copied = ", ".join("coalesce(superseded_at, created_at)" if c == "superseded_at" else c for c in columns)
        for _ in range(8):
            connection.execute(
                f"INSERT INTO winners ({', '.join(columns)}) SELECT {copied} FROM winners WHERE id <= 1000"
            )
        (n_winners,) = connection.execute("SELECT count(*) FROM winners").fetchone()
        assert n_winners > 3000
        # Another environment of the same device in which something is served by the same policy.
        (device, other) = connection.execute(
            "SELECT d.fingerprint, e.fingerprint FROM winners w JOIN environments e ON e.id = w.environment_id"
            " JOIN devices d ON d.id = w.device_id WHERE w.policy = 'cuda.graph' AND e.device_id ="
            " (SELECT device_id FROM environments WHERE fingerprint = ?) AND e.fingerprint <> ?",
            (big.main.fingerprint,) * 2,
        ).fetchone()
        (run_id,) = connection.execute(
            "SELECT ulid FROM runs WHERE status = 'finished' AND n_problems > 1 ORDER BY id DESC"
        ).fetchone()
    names = Names(
        run_id, big.deep_run, big.main.fingerprint, other, device, "cuda.graph", big.deep_problem, "triton.native"
    )
    return big.path, names


def test_every_question_has_a_sample():
    assert {one.__qualname__ for one in questions()} - {one.__qualname__ for one in SAMPLES} == set()
    assert set(questions()) == set(SAMPLES)


def faults(store: Store, question: Any, allowed: Any = ()) -> list[str]:
    """Plans of a question that pass by a table that grows with every run, or sort trials."""
    found = []
    for plan in plans(store, lambda: store.ask(question)):
        read = re.findall(r"SEARCH trials\S* USING .*?\)(?=;| LEFT-JOIN|$)", plan)
        sorts_trials = "TEMP B-TREE" in plan and not all(ONE_TRIAL.search(step) for step in read)
        if not set(SCAN.findall(plan)) <= set(allowed) or sorts_trials:
            found.append(plan)
    return found


@pytest.mark.parametrize("kind", questions(), ids=lambda one: f"{one.__module__.rsplit('.', 1)[-1]}.{one.__name__}")
def test_no_question_reads_a_table_that_grows_with_every_run(kind: type, store: Store, made: tuple[Path, Names]):
    for question in SAMPLES[kind](made[1]):
        assert store.ask(question), f"{question} finds nothing, and so tests nothing"
        assert faults(store, question, ALLOWED.get(kind, ())) == [], question


@dataclass(frozen=True)
class Bad:
    """A question that no page may ask."""

    select: Any

    def answer(self, connection: sa.Connection) -> list[Any]:
        return list(connection.execute(self.select))


@pytest.mark.parametrize(
    "select",
    [
        sa.select(sa.func.count()).select_from(TrialRow).where(TrialRow.wall_s > 0),
        sa.select(aliased(WinnerRow).policy).distinct(),
        sa.select(RunRow.id).where(RunRow.checkpoint != ""),
        sa.select(TrialRow.id).where(TrialRow.problem_id == 1).order_by(TrialRow.time_us).limit(3),
    ],
    ids=["scan", "scan by another index", "scan of runs", "sort of trials"],
)
def test_a_question_that_does_is_seen(select: Any, store: Store):
    assert faults(store, Bad(select), ALLOWED[scopes.ScopesOf])
