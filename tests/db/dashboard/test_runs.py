"""Runs, newest first: who lives, who failed, and none of it by reading trials."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from dashboard_stores import analyze, killed, million, orphans, running
from fp4tune.db import Store
from fp4tune.db.dashboard.run import RunNowOf, RunProblemsOf
from fp4tune.db.dashboard.runs import RunOf, RunsSeen
from fp4tune.db.records import RunStatus, TrialStatus
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from query_plans import plans
from store_factory import (
    CARD,
    CPU,
    GROUPED,
    ON_CPU,
    SMALL,
    START,
    Clock,
    choice,
    failed_trial,
    new_run,
    new_trial,
    new_winner,
)

HERE = socket.gethostname()
LATER = START + timedelta(hours=1)


def test_an_empty_store_has_no_runs(store: Store):
    assert store.ask(RunsSeen(HERE, LATER)) == []
    for name in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "ABCDEF"):
        with pytest.raises(NotFoundError, match="no run"):
            store.ask(RunOf(name, HERE, LATER))
    with pytest.raises(InvalidInputError, match="at least 6"):
        store.ask(RunOf("01ARZ", HERE, LATER))
    for question in (RunProblemsOf("01ARZ3NDEKTSV4RRFFQ69G5FAV"), RunNowOf("01ARZ3NDEKTSV4RRFFQ69G5FAV")):
        with pytest.raises(NotFoundError):
            store.ask(question)


def test_pages_and_filters(store: Store, clock: Clock):
    ids = []
    for n in range(5):
        ids.append(store.create_run(new_run(environment=ON_CPU) if n % 2 else new_run()))
        clock.advance(1)
    store.finish_run(ids[0], RunStatus.FINISHED)
    store.finish_run(ids[1], RunStatus.FAILED, "no disk")
    first = store.ask(RunsSeen(HERE, LATER, limit=3))
    second = store.ask(RunsSeen(HERE, LATER, before=first[-1].run.id, limit=3))
    assert [one.run.id for one in (*first, *second)] == ids[::-1]
    assert [one.run.id for one in store.ask(RunsSeen(HERE, LATER, device=CPU.fingerprint))] == [ids[3], ids[1]]
    assert [one.run.id for one in store.ask(RunsSeen(HERE, LATER, status="failed"))] == [ids[1]]
    assert [one.run.id for one in store.ask(RunsSeen(HERE, LATER, "failed", CARD.fingerprint))] == []
    assert store.ask(RunsSeen(HERE, LATER, device="0" * 16)) == []


def test_failures_are_counted_and_what_is_not_supported_is_none(store: Store):
    run_id = store.create_run(new_run())
    other = store.create_run(new_run())
    store.add_trials([new_trial(run_id, n) for n in range(3)])
    store.add_trials([failed_trial(run_id, 3 + n, status) for n, status in enumerate(list(TrialStatus)[1:])])
    seen = {one.run.id: one for one in store.ask(RunsSeen(HERE, LATER))}
    assert (seen[run_id].n_failed, seen[run_id].n_unsupported, seen[run_id].run.n_trials) == (4, 1, 8)
    assert (seen[other].n_failed, seen[other].n_unsupported) == (0, 0)


def test_a_run_that_was_killed_is_told_from_one_that_lives(tmp_path: Path):
    dead = killed(tmp_path / "a.db")
    alive = running(tmp_path / "b.db")
    with Store.open(tmp_path / "a.db", mode="read") as store:
        seen = store.ask(RunOf(dead, HERE, LATER))
        assert (seen.is_alive, seen.was_killed) == (False, True)
        assert seen.seconds(LATER) == (seen.run.heartbeat_at - seen.run.started_at).total_seconds()
    with Store.open(tmp_path / "b.db", mode="read") as store:
        seen = store.ask(RunOf(alive[:10].lower(), HERE, LATER))
        assert (seen.is_alive, seen.was_killed) == (True, False)


def test_a_run_of_another_host_is_alive_while_its_heart_beats(store: Store, clock: Clock):
    run_id = store.create_run(new_run(host="elsewhere"))
    assert store.ask(RunOf(run_id, HERE, clock.now)).is_alive
    assert store.ask(RunOf(run_id, HERE, clock.now + timedelta(minutes=2))).was_killed


def test_problems_of_a_run(store: Store):
    run_id = store.create_run(new_run(pid=os.getpid()))
    store.add_trials([new_trial(run_id, n) for n in range(4)] + [failed_trial(run_id, 4)])
    store.add_trials([failed_trial(run_id, 0, TrialStatus.UNSUPPORTED, problem=GROUPED)])
    store.add_winners([new_winner(run_id), new_winner(run_id, choice=choice(8.0, "cutlass"), default=choice(12.0))])
    store.finish_problem(run_id, 0, "1.50x as fast as the default")
    first, second = store.ask(RunProblemsOf(run_id))
    assert (first.position, first.key, first.role, first.phases) == (0, SMALL.key, "attn.qkv", ("decode", "verify"))
    assert (first.done, first.outcome) == (True, "1.50x as fast as the default")
    assert (first.n_trials, first.n_failed, first.n_unsupported) == (5, 1, 0)
    assert (first.winner.backend, first.winner.time_us, first.winner.default_time_us) == ("cutlass", 8.0, 12.0)
    assert first.winner.is_served
    assert (second.key, second.done, second.winner) == (GROUPED.key, False, None)
    assert (second.n_trials, second.n_failed, second.n_unsupported) == (1, 0, 1)
    assert store.ask(RunProblemsOf(run_id, after=0)) == [second]
    assert store.ask(RunProblemsOf(run_id, after=1)) == []
    later = store.create_run(new_run())
    store.add_winner(new_winner(later))
    assert not store.ask(RunProblemsOf(run_id, limit=1))[0].winner.is_served


def test_what_a_run_does_now(store: Store):
    run_id = store.create_run(new_run())
    now = store.ask(RunNowOf(run_id))
    assert (now.position, now.key, now.role, now.last_problem, now.last_started_at) == (
        0,
        SMALL.key,
        "attn.qkv",
        None,
        None,
    )
    store.add_trials([new_trial(run_id), failed_trial(run_id, 1)])
    store.finish_problem(run_id, 0, "")
    now = store.ask(RunNowOf(run_id))
    assert (now.position, now.key, now.last_problem, now.last_status, now.last_time_us) == (
        1, GROUPED.key, SMALL.key, "crashed", None,
    )  # fmt: skip
    store.finish_problem(run_id, 1, "")
    assert store.ask(RunNowOf(run_id)).position is None


@pytest.mark.parametrize("table", ["problems", "environments", "devices"])
def test_what_is_lost_is_none(tmp_path: Path, table: str):
    run_id, _ = orphans(tmp_path / "a.db", table)
    with Store.open(tmp_path / "a.db", mode="read") as store:
        seen = store.ask(RunOf(run_id, HERE, LATER))
        assert (seen.run.device_name is None) == (table != "problems")
        problems = store.ask(RunProblemsOf(run_id))
        assert {one.key is None for one in problems} == {table == "problems"}
        assert sum(one.n_trials for one in problems) == seen.run.n_trials


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_question_scans_trials(tmp_path: Path, analyzed: bool):
    big = million(tmp_path / "a.db", 20_000)
    if analyzed:
        analyze(big.path)
    with Store.open(big.path, mode="read") as store:
        device = big.main.device.fingerprint
        for question in (
            RunsSeen(HERE, LATER), RunsSeen(HERE, LATER, "finished", device, big.deep_run), RunOf(big.deep_run, HERE, LATER),
            RunProblemsOf(big.deep_run), RunNowOf(big.deep_run),
        ):  # fmt: skip
            assert store.ask(question)
            for plan in plans(store, lambda question=question: store.ask(question)):
                assert "SCAN trials" not in plan, plan
                assert "SCAN trial_counts" not in plan, plan
                if "trials USING" in plan:
                    assert "TEMP B-TREE" not in plan, plan


def test_a_run_of_many_problems_is_read_a_page_at_a_time(store: Store):
    problems = tuple(replace(new_run().problems[0], problem=replace(SMALL, m=m)) for m in range(1, 2001))
    run_id = store.create_run(new_run(problems=problems))
    assert [one.position for one in store.ask(RunProblemsOf(run_id, after=99, limit=3))] == [100, 101, 102]
