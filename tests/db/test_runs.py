"""Runs: from start to end, names, and who may take over; on both databases."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import sqlalchemy as sa
from fp4tune.db import Store
from fp4tune.db.models import RunRow
from fp4tune.db.records import Run, RunProblem, RunStatus
from fp4tune.kernels.errors import BusyError, InvalidInputError, NotFoundError
from store_factory import CARD, GROUPED, HOST, ON_CARD, SMALL, START, Clock, new_run

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
HERE = {"host": socket.gethostname(), "pid": os.getpid()}


def dead_pid() -> int:
    """The pid of a process that was here and is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_run_comes_back_as_it_was(store: Store):
    new = new_run()
    id_ = store.create_run(new)
    assert store.run(id_) == Run(
        id_, RunStatus.RUNNING, new.checkpoint, new.settings, new.seed, new.host, new.pid, new.version,
        ON_CARD.fingerprint, CARD.fingerprint, CARD.name, START, START, None, 2, 0, 0, "",
    )  # fmt: skip


def test_its_problems_come_back_in_order_and_get_done(store: Store, clock: Clock):
    items = [RunProblem(SMALL, "a", ("decode",), 2), RunProblem(GROUPED), RunProblem(SMALL, "b", ("verify", "draft"))]
    id_ = store.create_run(new_run(problems=items))
    now = clock.advance(5)
    store.finish_problem(id_, 1, "no backend can run it")
    assert [(s.position, s.item, s.done, s.outcome) for s in store.run_problems(id_)] == [
        (0, items[0], False, ""),
        (1, items[1], True, "no backend can run it"),
        (2, items[2], False, ""),
    ]
    run = store.run(id_)
    assert (run.n_problems, run.n_done, run.heartbeat_at) == (3, 1, now)


def test_a_problem_that_is_done_twice_counts_once(store: Store):
    id_ = store.create_run(new_run())
    store.finish_problem(id_, 0, "first")
    store.finish_problem(id_, 0, "second")
    assert store.run(id_).n_done == 1
    assert store.run_problems(id_)[0].outcome == "second"


def test_a_run_without_problems(store: Store):
    id_ = store.create_run(new_run(problems=[]))
    assert store.run_problems(id_) == []


def test_a_heartbeat_is_noted(store: Store, clock: Clock):
    id_ = store.create_run(new_run())
    now = clock.advance(30)
    store.heartbeat(id_)
    assert store.run(id_).heartbeat_at == now


@pytest.mark.parametrize("status", [RunStatus.FINISHED, RunStatus.INTERRUPTED, RunStatus.FAILED])
def test_a_run_ends(store: Store, clock: Clock, status: RunStatus):
    id_ = store.create_run(new_run())
    now = clock.advance(60)
    store.finish_run(id_, status, "why")
    run = store.run(id_)
    assert (run.status, run.error, run.finished_at) == (status, "why", now)
    assert not store.is_alive(run)


def test_a_run_cannot_end_running(store: Store):
    id_ = store.create_run(new_run())
    with pytest.raises(InvalidInputError, match="not running"):
        store.finish_run(id_, RunStatus.RUNNING)


def test_an_unknown_run_is_not_found_anywhere(store: Store):
    calls = [
        lambda: store.run(UNKNOWN),
        lambda: store.run_problems(UNKNOWN),
        lambda: store.heartbeat(UNKNOWN),
        lambda: store.finish_problem(UNKNOWN, 0, ""),
        lambda: store.finish_run(UNKNOWN, RunStatus.FINISHED),
        lambda: store.take_over_run(UNKNOWN, **HERE),
    ]
    for call in calls:
        with pytest.raises(NotFoundError, match=f"no run '{UNKNOWN}'"):
            call()


def test_a_problem_that_the_run_does_not_have_is_not_found(store: Store):
    id_ = store.create_run(new_run())
    for position in (2, -1, 1 << 40):
        with pytest.raises(NotFoundError, match=f"no problem {position}"):
            store.finish_problem(id_, position, "")


def test_ids_sort_by_start(store: Store, clock: Clock):
    ids = []
    for seconds in (0, 0, 0.001, 5, -3600, 0):
        clock.advance(seconds)
        ids.append(store.create_run(new_run()))
    assert ids == sorted(set(ids))
    assert {len(id_) for id_ in ids} == {26}


def test_newest_first_in_pages(store: Store, clock: Clock):
    ids = []
    for _ in range(5):
        clock.advance(1)
        ids.append(store.create_run(new_run()))
    newest = ids[::-1]
    assert [run.id for run in store.runs()] == newest
    assert [run.id for run in store.runs(limit=2)] == newest[:2]
    assert [run.id for run in store.runs(limit=2, before=newest[1])] == newest[2:4]
    assert store.runs(before=ids[0]) == []
    with pytest.raises(InvalidInputError):
        store.runs(limit=0)


def test_a_prefix_names_a_run_if_it_is_unique(store: Store, clock: Clock):
    first = store.create_run(new_run())
    clock.advance(30 * 24 * 3600)
    second = store.create_run(new_run())
    assert first[:6] != second[:6]
    assert store.run(second[:6]).id == second
    assert store.run(first[:20].lower()).id == first
    assert store.run(first).id == first


def test_a_prefix_of_several_runs_names_them(store: Store):
    first, second = store.create_run(new_run()), store.create_run(new_run())
    with pytest.raises(InvalidInputError, match=rf"'{first[:10]}' \({first}, {second}, \.\.\.\)"):
        store.run(first[:10])


@pytest.mark.parametrize("name", ["", "01ARZ", "-"])
def test_too_short_a_prefix_is_refused(store: Store, name: str):
    with pytest.raises(InvalidInputError, match="at least 6 characters"):
        store.run(name)


@pytest.mark.parametrize(
    "name", [UNKNOWN + "0", "%%%%%%", "______", "UUUUUU", "\x00" * 6, "\ud800" * 6, "é" * 6, "x" * 9999]
)
def test_what_cannot_be_an_id_is_not_found(store: Store, name: str):
    store.create_run(new_run())
    with pytest.raises(NotFoundError):
        store.run(name)


# Life and death


def test_a_run_of_this_process_is_alive(store: Store):
    run = store.run(store.create_run(new_run(**HERE)))
    assert store.is_alive(run)


def test_a_run_whose_process_is_gone_is_dead_at_once(store: Store):
    run = store.run(store.create_run(new_run(host=HERE["host"], pid=dead_pid())))
    assert run.status is RunStatus.RUNNING
    assert not store.is_alive(run)


def test_a_run_elsewhere_lives_while_its_heart_beats(store: Store, clock: Clock):
    run = store.run(store.create_run(new_run(host="elsewhere")))
    clock.advance(59)
    assert store.is_alive(run)
    clock.advance(1)
    assert not store.is_alive(run)
    store.heartbeat(run.id)
    assert store.is_alive(run)


def test_a_process_with_the_same_pid_that_was_born_later_is_another_one(store: Store):
    run_id = store.create_run(new_run(**HERE))
    with store._writing() as connection:
        connection.execute(sa.update(RunRow).values(process_birth=RunRow.process_birth - 1))
    assert not store.is_alive(store.run(run_id))
    assert store.take_over_run(run_id, **HERE).id == run_id


def test_a_pid_of_another_boot_or_container_is_not_looked_up(store: Store, clock: Clock):
    run_id = store.create_run(new_run(host=HERE["host"], pid=dead_pid()))
    with store._writing() as connection:
        connection.execute(sa.update(RunRow).values(process_scope="another boot pid:[1]"))
    clock.advance(59)
    assert store.is_alive(store.run(run_id)), "its heartbeat is all there is to know"
    clock.advance(1)
    assert not store.is_alive(store.run(run_id))


def test_a_dead_run_is_taken_over(store: Store, clock: Clock):
    id_ = store.create_run(new_run(host=HERE["host"], pid=dead_pid()))
    now = clock.advance(3)
    run = store.take_over_run(id_, **HERE)
    assert (run.status, run.host, run.pid) == (RunStatus.RUNNING, HERE["host"], HERE["pid"])
    assert (run.heartbeat_at, run.finished_at, run.started_at) == (now, None, START)
    assert run == store.run(id_)
    assert store.is_alive(run)


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.FAILED, RunStatus.FINISHED])
def test_a_run_that_ended_is_taken_over_and_its_end_forgotten(store: Store, status: RunStatus):
    id_ = store.create_run(new_run())
    store.finish_run(id_, status, "why")
    run = store.take_over_run(id_, **HERE)
    assert (run.status, run.error, run.finished_at) == (RunStatus.RUNNING, "", None)


def test_a_living_run_is_not_taken_over(store: Store):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        id_ = store.create_run(new_run(host=HERE["host"], pid=other.pid))
        with pytest.raises(BusyError, match=rf"{id_} is still running as process {other.pid} on {HERE['host']}: stop "):
            store.take_over_run(id_, **HERE)
        other.communicate(b"\n")
    assert store.take_over_run(id_, **HERE).pid == HERE["pid"]


def test_a_living_run_elsewhere_is_not_taken_over(store: Store, clock: Clock):
    id_ = store.create_run(new_run(host="elsewhere", pid=77))
    with pytest.raises(BusyError, match="process 77 on elsewhere: stop that process first, or wait a minute"):
        store.take_over_run(id_, **HERE)
    clock.advance(60)
    assert store.take_over_run(id_, **HERE).host == HERE["host"]


def test_a_process_may_take_over_its_own_run(store: Store):
    id_ = store.create_run(new_run(**HERE))
    assert store.take_over_run(id_, **HERE).id == id_


@pytest.mark.parametrize("by", ["create_run", "take_over_run"])
def test_whoever_starts_marks_the_dead_of_this_host_interrupted(store: Store, clock: Clock, by: str):
    dead = store.create_run(new_run(host=HOST, pid=dead_pid()))
    finished = store.create_run(new_run(host=HOST, pid=dead_pid()))
    store.finish_run(finished, RunStatus.FINISHED)
    mine = store.create_run(new_run(host=HOST, pid=os.getpid()))
    elsewhere = store.create_run(new_run(host="elsewhere", pid=dead_pid()))
    assert store.run(dead).status is RunStatus.INTERRUPTED, "the third run of this host marked it"
    dead = store.create_run(new_run(host="elsewhere", pid=dead_pid()))
    clock.advance(7)
    if by == "create_run":
        store.create_run(new_run(host="elsewhere", pid=os.getpid()))
    else:
        store.take_over_run(finished, host="elsewhere", pid=os.getpid())
    run = store.run(dead)
    assert run.status is RunStatus.INTERRUPTED
    assert run.finished_at == run.heartbeat_at == START, "it ended, as far as anybody knows, at its last heartbeat"
    assert store.run(elsewhere).status is RunStatus.INTERRUPTED
    assert store.run(mine).status is RunStatus.RUNNING


def test_the_dead_of_other_hosts_are_left_alone(store: Store, clock: Clock):
    id_ = store.create_run(new_run(host="elsewhere", pid=dead_pid()))
    clock.advance(3600)
    store.create_run(new_run(host=HOST, pid=os.getpid()))
    assert store.run(id_).status is RunStatus.RUNNING
