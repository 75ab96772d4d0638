"""What failed: counts, the newest trials that failed, and their reasons, without reading trials that ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard_stores import ODD_WHOLE_NUMBERS, analyze, hostile, million, odd, orphans
from fp4tune.db import Store
from fp4tune.db.dashboard.failures import Endings, EndingsOf, FailedTrials, ReasonsOf, first_line
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from query_plans import plans
from store_factory import GROUPED, ON_CARD, ON_CPU, SMALL, failed_trial, new_run, new_trial

CRASHED = ("triton.native", "crashed")


def test_an_empty_store_has_none(store: Store):
    assert store.ask(EndingsOf()) == Endings([], {})
    assert store.ask(FailedTrials(*CRASHED)) == store.ask(ReasonsOf(*CRASHED)) == []


def test_an_environment_that_is_not_stored_is_not_found(store: Store):
    for question in (EndingsOf("0" * 16), FailedTrials(*CRASHED, "0" * 16), ReasonsOf(*CRASHED, "0" * 16)):
        with pytest.raises(NotFoundError, match="no environment '0000000000000000'"):
            store.ask(question)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_that_cannot_be_is_refused(store: Store, limit: int):
    with pytest.raises(InvalidInputError, match="limit"):
        store.ask(FailedTrials(*CRASHED, limit=limit))


@pytest.mark.parametrize("text", ["x\x00", "x" * 300, "\ud800"])
def test_a_backend_that_cannot_be_stored_is_refused(store: Store, text: str):
    with pytest.raises(InvalidInputError):
        store.ask(FailedTrials(text, "crashed"))


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), ("\n \n", ""), ("\n  a b \nc", "a b"), ("one", "one"), ("a\u2028b", "a"), ("a\r\nb", "a")],
)
def test_the_first_line_that_says_anything(text: str, line: str):
    assert first_line(text) == line


def filled(store: Store) -> str:
    run_id = store.create_run(new_run())
    trials = [new_trial(run_id, n) for n in range(4)]
    trials += [failed_trial(run_id, 4 + n, error=f"needs {n} bytes\nmore") for n in range(3)]
    trials += [failed_trial(run_id, 7, TrialStatus.TIMEOUT, error="")]
    trials += [failed_trial(run_id, n, problem=GROUPED, environment=ON_CPU, error="late") for n in range(2)]
    store.add_trials(trials)
    return run_id


def test_endings_are_counted_with_the_newest_of_each(store: Store):
    run_id = filled(store)
    found = store.ask(EndingsOf())
    assert [(e.backend, e.status, e.n, e.n_problems) for e in found.failed] == [
        ("triton.native", "crashed", 5, 2),
        ("triton.native", "timeout", 1, 1),
    ]
    assert found.totals == {"triton.native": 10}
    crashed, timeout = (e.latest for e in found.failed)
    assert (crashed.reason, crashed.problem_key, crashed.run_id) == ("late", GROUPED.key, run_id)
    assert (timeout.reason, timeout.problem_key) == ("", SMALL.key)
    there = store.ask(EndingsOf(ON_CPU.fingerprint))
    assert ([(e.n, e.n_problems) for e in there.failed], there.totals) == ([(2, 1)], {"triton.native": 2})


def test_of_one_run_only(store: Store):
    one = filled(store)
    other = store.create_run(new_run())
    store.add_trials([failed_trial(other, error="of the other")])
    third = store.create_run(new_run())
    assert [e.n for e in store.ask(EndingsOf(run=other)).failed] == [1]
    assert store.ask(EndingsOf(run=one)).totals == {"triton.native": 10}
    assert [t.reason for t in store.ask(FailedTrials(*CRASHED, run=other))] == ["of the other"]
    assert len(store.ask(ReasonsOf(*CRASHED, run=one))) == 5
    assert store.ask(EndingsOf(run=one.lower())).totals == {"triton.native": 10}
    assert store.ask(FailedTrials(*CRASHED, run=third)) == store.ask(EndingsOf(run=third)).failed == []
    with pytest.raises(NotFoundError):
        store.ask(FailedTrials(*CRASHED, run="01ARZ3NDEKTSV4RRFFQ69G5FAV"))


def test_the_newest_failed_trials_come_in_pages(store: Store):
    filled(store)
    first = store.ask(FailedTrials(*CRASHED, limit=2))
    second = store.ask(FailedTrials(*CRASHED, before=first[-1].id, limit=9))
    assert [t.reason for t in (*first, *second)] == ["late", "late", "needs 2 bytes", "needs 1 bytes", "needs 0 bytes"]
    assert [t.id for t in (*first, *second)] == sorted((t.id for t in (*first, *second)), reverse=True)
    assert {t.problem_key for t in store.ask(FailedTrials(*CRASHED, ON_CARD.fingerprint))} == {SMALL.key}
    assert store.ask(FailedTrials("triton.native", "wrong")) == []
    reasons = store.ask(ReasonsOf(*CRASHED, limit=3))
    assert [r.text for r in reasons] == ["late", "late", "needs 2 bytes"]


def test_long_texts_are_not_read_whole(store: Store):
    run_id = store.create_run(new_run())
    store.add_trials([failed_trial(run_id, error="x" * 16_000, config={"a": "y" * 100_000})])
    (trial,) = store.ask(FailedTrials(*CRASHED))
    assert len(trial.reason) <= 600
    assert len(trial.config) <= 2000


@pytest.mark.parametrize("table", ["problems", "runs", "environments", "devices"])
def test_what_is_lost_is_none(tmp_path: Path, table: str):
    orphans(tmp_path / "a.db", table)
    with Store.open(tmp_path / "a.db", mode="read") as lost:
        endings = lost.ask(EndingsOf()).failed
        assert endings
        for ending in endings:
            for trial in lost.ask(FailedTrials(ending.backend, ending.status)):
                assert (trial.problem_key is None) == (table == "problems")
                assert (trial.run_id is None) == (table == "runs")


@pytest.mark.parametrize("number", ODD_WHOLE_NUMBERS.values())
def test_counts_that_nobody_has_are_summed(tmp_path: Path, number: int):
    odd(tmp_path / "a.db", number)
    with Store.open(tmp_path / "a.db", mode="read") as strange:
        assert strange.ask(EndingsOf()).failed


def test_hostile_names_come_back_as_they_are(tmp_path: Path):
    text = "'; DROP TABLE trials; --\" % _ \\"
    hostile(tmp_path / "a.db", text)
    with Store.open(tmp_path / "a.db", mode="read") as strange:
        failed = [e for e in strange.ask(EndingsOf()).failed if e.backend == text]
        assert sum(e.n for e in failed) == sum(len(strange.ask(FailedTrials(text, e.status))) for e in failed) > 0


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory):
    return million(tmp_path_factory.mktemp("big") / "a.db", 20_000)


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_question_reads_trials_that_did_not_fail(big, analyzed: bool):
    if analyzed:
        analyze(big.path)
    environment = big.main.fingerprint
    with Store.open(big.path, mode="read") as store:
        *_, totals, failed, latest = plans(store, lambda: store.ask(EndingsOf(environment)))
        for sums in (totals, failed):
            assert "trial_counts" in sums
            assert "trials" not in sums
        assert "SEARCH trials USING INTEGER PRIMARY KEY" in latest
        most = store.ask(EndingsOf()).failed[0]
        which = (most.backend, most.status)
        run = store.ask(FailedTrials(*which)).pop().run_id
        for question in (
            FailedTrials(*which), FailedTrials(*which, environment), FailedTrials(*which, environment, before=9000),
            ReasonsOf(*which), ReasonsOf(*which, environment), FailedTrials(*which, run=run), ReasonsOf(*which, run=run),
        ):  # fmt: skip
            assert store.ask(question)
            plan = plans(store, lambda question=question: store.ask(question))[-1]
            assert "SEARCH trials USING INDEX ix_trials_failed (backend=? AND status=?" in plan
            assert "TEMP B-TREE" not in plan
            assert "SCAN" not in plan
