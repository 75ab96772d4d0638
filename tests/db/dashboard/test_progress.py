"""How a search went: exact where it must be, thinned where it is long, and by the index that a trial is unique by."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import tracemalloc
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, analyze, hostile, odd
from fp4tune.db import Store
from fp4tune.db.dashboard import progress
from fp4tune.db.dashboard.progress import BackendsOf, Found, FoundBy, NewestRunWith, ProgressOf, TriedOf
from fp4tune.db.records import Origin, TrialStatus
from fp4tune.kernels.errors import NotFoundError
from query_plans import plans
from store_factory import GROUPED, LARGE, SMALL, choice, failed_trial, new_run, new_trial, new_winner, timing

LONG = 100_000


def of(run_id: str, *baselines: str) -> ProgressOf:
    return ProgressOf(run_id, SMALL.key, baselines)


def test_a_run_that_is_not_stored_is_not_found(store: Store):
    for question in (
        of("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        BackendsOf("01ARZ3NDEKTSV4RRFFQ69G5FAV", SMALL.key),
        TriedOf("01ARZ3NDEKTSV4RRFFQ69G5FAV", SMALL.key, "triton.native"),
        FoundBy("01ARZ3NDEKTSV4RRFFQ69G5FAV", SMALL.key),
    ):
        with pytest.raises(NotFoundError, match="no run"):
            store.ask(question)


@pytest.mark.parametrize("key", [SMALL.key, "nonsense", "'; DROP TABLE trials; --"])
def test_of_a_problem_that_nobody_tried_there_is_nothing(store: Store, key: str):
    run_id = store.create_run(new_run())
    found = store.ask(ProgressOf(run_id, key))
    assert (found.n_draws, found.n_ran, found.drawn, list(found.times_us), found.finals) == (0, 0, (), [], ())
    assert (found.backends, found.first_at, found.last_at) == ({}, None, None)
    assert store.ask(TriedOf(run_id, key, "triton.native")) == []
    assert store.ask(NewestRunWith(key)) is store.ask(FoundBy(run_id, key)) is None


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_strings_come_back_as_they_are(tmp_path: Path, text: str):
    first, _ = hostile(tmp_path / "x.db", text)
    with Store.open(tmp_path / "x.db") as store:
        for state in store.run_problems(first):
            key = state.item.problem.key
            found = store.ask(ProgressOf(first, key))
            for name in found.backends:
                store.ask(TriedOf(first, key, name))
        assert text in found.backends or "flashinfer.b12x" in found.backends or found.backends


@pytest.mark.parametrize("number", ODD_NUMBERS.values(), ids=ODD_NUMBERS.keys())
def test_times_that_are_none_count_as_not_run(tmp_path: Path, number: float):
    first, _ = odd(tmp_path / "x.db", number)
    with Store.open(tmp_path / "x.db") as store:
        key = store.run_problems(first)[0].item.problem.key
        found = store.ask(ProgressOf(first, key, ("torch.bf16",)))
        assert found.n_ran == len(found.times_us)
        assert all(0 < time_us < math.inf for time_us in found.times_us)
        assert bool(found.times_us) == (0 < number < 1e300)


def search(store: Store, run_id: str) -> None:
    """Refused, default, baseline, failure, and five of a sampler, in turns, then finals of three."""
    store.add_trials(
        [
            failed_trial(run_id, 0, TrialStatus.UNSUPPORTED, backend="humming", config={}, origin=Origin.DEFAULT),
            new_trial(run_id, 1, timing=timing(20.0), origin=Origin.DEFAULT),
            new_trial(run_id, 2, timing=timing(5.0), backend="torch.bf16", origin=Origin.DEFAULT),
            failed_trial(run_id, 3),
            new_trial(run_id, 4, timing=timing(25.0)),
            new_trial(run_id, 5, timing=timing(15.0)),
            new_trial(run_id, 6, timing=timing(15.0)),
            new_trial(run_id, 7, timing=timing(14.0), origin=Origin.ENUMERATED),
            new_trial(run_id, 8, timing=timing(16.0)),
            *[new_trial(run_id, 9 + i, timing=timing(13.0 + i), origin=Origin.FINAL) for i in range(3)],
        ]
    )


def test_draws_are_numbered_without_refusals_and_finals(store: Store):
    run_id = store.create_run(new_run())
    search(store, run_id)
    found = store.ask(of(run_id, "torch.bf16"))
    assert [(one.draw, one.number, one.time_us, one.best_us, one.improved) for one in found.drawn] == [
        (1, 1, 20.0, 20.0, True),
        (2, 2, 5.0, 20.0, False),  # a baseline can never be served
        (3, 3, None, 20.0, False),
        (4, 4, 25.0, 20.0, False),
        (5, 5, 15.0, 15.0, True),
        (6, 6, 15.0, 15.0, False),  # no better
        (7, 7, 14.0, 14.0, True),
        (8, 8, 16.0, 14.0, False),
    ]
    assert (found.n_draws, found.n_ran, found.n_baselines) == (8, 6, 1)
    assert (found.n_sampled, found.n_enumerated) == (5, 1)
    assert list(found.times_us) == [20.0, 25.0, 15.0, 15.0, 14.0, 16.0]
    assert [(one.number, one.time_us) for one in found.finals] == [(9, 13.0), (10, 14.0), (11, 15.0)]
    assert found.backends == {"humming": (0, 1), "torch.bf16": (1, 1), "triton.native": (9, 10)}


def test_without_baselines_everything_counts(store: Store):
    run_id = store.create_run(new_run())
    search(store, run_id)
    found = store.ask(of(run_id))
    assert (found.n_ran, found.n_baselines) == (7, 0)
    assert found.drawn[-1].best_us == 5.0


def test_other_runs_and_problems_are_left_out(store: Store):
    run_id, other = store.create_run(new_run()), store.create_run(new_run())
    search(store, run_id)
    store.add_trials([new_trial(other, 0, timing=timing(1.0)), new_trial(run_id, 0, problem=LARGE, timing=timing(1.0))])
    assert store.ask(of(run_id, "torch.bf16")).drawn[-1].best_us == 14.0
    assert store.ask(of(other)).n_draws == 1
    assert store.ask(NewestRunWith(SMALL.key)) == other
    assert store.ask(NewestRunWith(LARGE.key)) == run_id
    assert store.ask(NewestRunWith(GROUPED.key)) is None


def test_the_last_that_a_run_served(store: Store):
    run_id, other = store.create_run(new_run()), store.create_run(new_run())
    assert store.ask(FoundBy(run_id, SMALL.key)) is None
    store.add_winners(
        [new_winner(run_id), new_winner(run_id, choice=choice(9.0, block_m=256), tie_set=(choice(),) * 3)]
    )
    store.add_winners([new_winner(other)])
    assert store.ask(FoundBy(run_id, SMALL.key)) == Found("triton.native", {"block_m": 256, "stages": 3}, 3)
    assert store.ask(FoundBy(other, LARGE.key)) is None


def test_tried_are_configs_that_ran_finals_apart(store: Store):
    run_id = store.create_run(new_run())
    search(store, run_id)
    found = store.ask(TriedOf(run_id, SMALL.key, "triton.native"))
    assert [time_us for _, time_us in found] == [20.0, 25.0, 15.0, 15.0, 14.0, 16.0]
    assert found[0][0] == {"block_m": 64, "num_stages": 1, "split_k": False, "schedule": "persistent"}
    assert store.ask(TriedOf(run_id, SMALL.key, "x'; DROP TABLE trials; --")) == []


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[tuple[str, str, str, float | None]]]:
    """A run of 100,000 trials of one problem, every fourth of another backend; (database, run, what was written)."""
    path = tmp_path_factory.mktemp("long") / "long.db"
    generator = random.Random(5)
    with Store.open(path) as store:
        run_id = store.create_run(new_run())
        store.add_trials([new_trial(run_id, 0, timing=timing(90.0, 40), origin=Origin.DEFAULT)])
        first_id = store.trials().items[0].id
        for _ in range(50):  # with one run alone a scan would be all that is asked for
            other = store.create_run(new_run())
            store.add_trials([new_trial(other, n, problem=problem) for n in range(3) for problem in (SMALL, LARGE)])
    written: list[tuple[str, str, str, float | None]] = [("triton.native", "default", "ok", 90.0)]
    for number in range(1, LONG + 8):
        if number >= LONG:
            written.append(("triton.native", "final", "ok", 30.0 + number - LONG))
        elif number % 10 == 7:
            written.append(("triton.native", "sampler", "crashed", None))
        else:
            backend = "humming" if number % 4 == 1 else "triton.native"
            written.append((backend, "sampler", "ok", 30.0 + generator.lognormvariate(3, 1)))
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(trials)")]
        first = dict(
            zip(names, connection.execute("SELECT * FROM trials WHERE id = ?", (first_id,)).fetchone(), strict=True)
        )
        config = json.loads(first["config"])

        def row(number: int) -> dict[str, object]:
            backend, origin, status, time_us = written[number]
            high = None if time_us is None else 1.01 * time_us
            return {
                **first, "id": 1_000_000 + number, "number": number, "backend": backend, "origin": origin,
                "status": status, "time_us": time_us, "time_us_low": time_us, "time_us_high": high,
                "config": json.dumps({**config, "num_stages": number % 97}, sort_keys=True, separators=(",", ":")),
                "samples": b"" if time_us is None else first["samples"],
            }  # fmt: skip

        places = ", ".join(f":{name}" for name in names)
        connection.executemany(f"INSERT INTO trials VALUES ({places})", map(row, range(1, len(written))))
        connection.execute("DELETE FROM trial_counts")
        connection.execute(
            "INSERT INTO trial_counts (run_id, problem_id, backend, status, environment_id, n, last_trial_id) "
            "SELECT run_id, problem_id, backend, status, environment_id, count(*), max(id) FROM trials GROUP BY 1, 2, 3, 4, 5"
        )
    return path, run_id, written


def test_a_long_run_is_thinned_and_its_best_so_far_is_exact(long):
    path, run_id, written = long
    with Store.open(path, mode="read") as store:
        found = store.ask(of(run_id, "humming"))
    best, improved = math.inf, []
    for number, (backend, origin, _, time_us) in enumerate(written):
        if origin != "final" and backend != "humming" and time_us is not None and time_us < best:
            best = time_us
            improved.append((number, time_us))
    assert [(one.number, one.time_us) for one in found.drawn if one.improved] == improved
    assert found.drawn[-1].best_us == best == min(found.times_us)
    assert (found.n_draws, found.are_all) == (LONG, True)
    assert (
        found.n_ran
        == len(found.times_us)
        == sum(w[0] != "humming" and w[1] != "final" and w[2] == "ok" for w in written)
    )
    assert len(found.finals) == 8
    assert abs(len(found.drawn) - len(improved) - progress.MOST) < 20


def test_what_is_drawn_of_a_long_run_keeps_step_with_no_period(long):
    """Every fourth trial is another backend's, every tenth failed: both are drawn as often as they are."""
    path, run_id, written = long
    with Store.open(path, mode="read") as store:
        found = store.ask(of(run_id, "humming"))
    drawn = Counter((one.backend, one.time_us is None) for one in found.drawn if not one.improved)
    there = Counter((w[0], w[3] is None) for w in written[:LONG])
    for kind, n in there.items():
        assert drawn[kind] == pytest.approx(n * progress.MOST / LONG, rel=0.1)
    eighths = Counter(8 * (one.draw - 1) // LONG for one in found.drawn if not one.improved)
    assert all(n == pytest.approx(progress.MOST / 8, abs=4) for n in eighths.values())


def test_configs_of_a_long_run_are_thinned(long):
    path, run_id, _ = long
    with Store.open(path, mode="read") as store:
        found = store.ask(TriedOf(run_id, SMALL.key, "humming"))
        assert abs(len(found) - progress.MAX_TRIED) < 10
        assert len({config["num_stages"] for config, _ in found}) > 60, "spread over the run"


def test_a_long_run_is_not_read_into_memory(long):
    """8 bytes a trial, and what is drawn: 100,000 rows with their samples take 60 MB, and without them still 20."""
    path, run_id, _ = long
    with Store.open(path, mode="read") as store:
        store.ask(of(run_id, "humming"))
        tracemalloc.start()
        try:
            store.ask(of(run_id, "humming"))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 4e6


def test_of_more_trials_than_are_read_an_even_choice_is_looked_at(long, monkeypatch: pytest.MonkeyPatch):
    path, run_id, written = long
    monkeypatch.setattr(progress, "MAX_READ", 10_000)
    with Store.open(path, mode="read") as store:
        found = store.ask(of(run_id, "humming"))
        tried = store.ask(TriedOf(run_id, SMALL.key, "triton.native"))
    assert not found.are_all
    assert found.n_draws == pytest.approx(10_000, abs=20)
    assert found.n_baselines == pytest.approx(2_000, rel=0.02)
    assert found.n_ran == len(found.times_us) == pytest.approx(7_000, rel=0.02)
    assert found.drawn[-1].best_us == min(found.times_us) >= min(w[3] for w in written if w[3] is not None)
    assert len(tried) == pytest.approx(progress.MAX_TRIED, rel=0.1)


@pytest.mark.parametrize("analyzed", [False, True])
def test_trials_are_found_by_the_index_that_they_are_unique_by(long, tmp_path: Path, analyzed: bool):
    path, run_id, _ = long
    if analyzed:
        copy = tmp_path / "analyzed.db"
        copy.write_bytes(path.read_bytes())
        path = copy
        analyze(path)
    with Store.open(path, mode="read") as store:
        for question in (
            of(run_id, "humming"),
            TriedOf(run_id, SMALL.key, "humming"),
            BackendsOf(run_id, SMALL.key),
            FoundBy(run_id, SMALL.key),
            NewestRunWith(SMALL.key),
        ):
            for plan in plans(store, lambda question=question: store.ask(question)):
                assert "SCAN trials" not in plan, plan
                assert "SCAN winners" not in plan, plan
                assert "TEMP B-TREE" not in plan, plan
                if "SEARCH trials" in plan:
                    assert "SEARCH trials USING INDEX sqlite_autoindex_trials_1 (run_id=? AND problem_id=?" in plan


def test_samples_are_never_read(long):
    path, run_id, _ = long
    with Store.open(path, mode="read") as store:
        sent: list[str] = []
        import sqlalchemy as sa

        sa.event.listen(store._engine, "before_cursor_execute", lambda c, cursor, text, *rest: sent.append(text))
        store.ask(of(run_id))
        store.ask(TriedOf(run_id, SMALL.key, "humming"))
    assert sent
    assert not [text for text in sent if "samples" in text]
