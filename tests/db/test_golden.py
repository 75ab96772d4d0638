"""The database of every released schema still opens, upgrades, and says what it said.

`tools/make_golden_db.py` made them; what is expected is written out here and not computed by what is tested.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from fp4tune.db import Store, schema
from fp4tune.db.records import (
    Choice,
    Conditions,
    LatencyModel,
    ReferenceRow,
    Roofs,
    RunStatus,
    TrialFilter,
    TrialStatus,
    WinnerFilter,
)
from fp4tune.kernels.backend import StaticFacts
from fp4tune.kernels.errors import StoreError
from fp4tune.kernels.problem import parse_key
from store_factory import new_trial, new_winner

GOLDEN = Path(__file__).parent / "golden"
START = datetime(2026, 11, 1, 8, 30, 0, 125_000, tzinfo=UTC)
DENSE = "dense:16x2048x4096:uniform:nvfp4:bf16"
GROUPED = "grouped:e64of512k10:32x256x4096:power_law:nvfp4_w4a16:fp32"


@pytest.fixture(params=schema.REVISIONS)
def revision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def copy(revision: str, tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN / f"{revision}.db", tmp_path / "copy.db"))


def test_there_is_one_for_each_released_schema_and_it_is_small():
    files = {path.stem: path.stat().st_size for path in GOLDEN.glob("*.db")}
    assert files.keys() == set(schema.REVISIONS)
    assert max(files.values()) < 400_000


def test_it_is_at_its_revision_and_whole(revision: str, copy: Path):
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}").fetchall() == [(revision,)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_the_newest_is_what_its_migration_makes_today(tmp_path: Path):
    """A migration that is released is not edited: databases that it made would not be what later ones expect."""
    Store.open(tmp_path / "today.db").close()
    assert tables(GOLDEN / f"{schema.HEAD}.db") == tables(tmp_path / "today.db")


def tables(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: re.sub(r"\s+", " ", sql) for name, sql in found}


def test_an_older_one_is_not_opened_without_an_upgrade(revision: str, copy: Path):
    if revision == schema.HEAD:
        Store.open(copy, mode="read").close()
        return
    with pytest.raises(StoreError, match=f"has schema {revision}, and this fp4tune needs {schema.HEAD}"):
        Store.open(copy, mode="read")


def test_upgraded_it_says_what_it_said(revision: str, copy: Path):
    with Store.open(copy) as store:
        assert store.schema().found == revision
        assert store.schema().current == schema.HEAD
        # Since 0004 was made, published measurements that are imported also move the generation.
        assert_golden(store, generation=3 if revision >= "0004" else 2)
        (assert_0001 if revision == "0001" else assert_0002)(store)
        (assert_0003 if revision >= "0003" else assert_nothing_published)(store)
        assert_0004(store)


def test_a_0001_of_postgresql_is_upgraded_and_says_the_same(postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The rows of the golden database, put into a PostgreSQL database that the migration 0001 made."""
    url = postgres.new()
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__", "000[2-9]*"))
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", folder)
        patch.setattr(schema, "REVISIONS", ("0001",))
        patch.setattr(schema, "HEAD", "0001")
        with Store.open(url) as old, old._writer.begin() as to:
            pour(GOLDEN / "0001.db", to)
    with Store.open(url) as store:
        assert store.schema().found == "0001"
        assert store.schema().current == schema.HEAD
        assert_golden(store)
        assert_0001(store)
        assert_0004(store)
        assert store.add_winner(new_winner(store.runs()[0].id)) > 3


def pour(golden: Path, to: sa.Connection) -> None:
    """Copy every row of an SQLite database."""
    source = sa.create_engine(f"sqlite:///{golden}")
    tables = sa.MetaData()
    tables.reflect(source)
    target = sa.MetaData()
    target.reflect(to)
    with source.connect() as connection:
        for table in tables.sorted_tables:
            if table.name in (schema.VERSION_TABLE, "meta"):
                continue
            rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for row in rows:
                # SQLite has no zones: the times are UTC.
                row |= {k: v.replace(tzinfo=UTC) for k, v in row.items() if isinstance(v, datetime)}
            to.execute(sa.insert(target.tables[table.name]), rows)
            if "id" in table.c:
                to.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), (SELECT max(id) FROM {table.name}))"
                )
    to.exec_driver_sql("UPDATE meta SET value = 2 WHERE key = 'generation'")
    source.dispose()


def assert_0001(store: Store) -> None:
    """What 0001 could not hold is as if it had not been there."""
    trials = store.trials().items
    assert {(t.compile_s, t.conditions, t.roof_share, t.facts) for t in trials} == {(0.0, None, None, None)}
    assert [w.policy for w in store.winners().items] == ["cuda.graph"] * 2
    assert {store.roofs(stored.environment) for stored in store.environments()} == {None}
    assert store.static_facts().items == []


def assert_0002(store: Store) -> None:
    """What came with 0002."""
    conditions = Conditions((1755, 1980), None, 61, 512.25, ("hw_thermal_slowdown", "sw_power_cap"), (0, 2))
    facts = StaticFacts("sm_120a", 168, 16, 98_304, {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 64})
    trials = store.trials().items
    (full,) = [t for t in trials if t.conditions is not None]
    assert (full.number, full.compile_s, full.conditions, full.roof_share, full.facts) == (
        1,
        2.5,
        conditions,
        0.625,
        facts,
    )
    assert {(t.compile_s, t.facts) for t in trials if t is not full} == {(0.0, None)}
    eager = store.winners(WinnerFilter(policy="cuda.eager")).items[0]
    assert (eager.problem.key, eager.choice.time_us, eager.superseded_at) == (DENSE, 13.0, None)
    assert (eager.conditions, eager.facts, eager.roof_share, eager.compile_s) == (conditions, facts, 0.625, 2.5)
    card, cpu = store.environments()
    assert store.roofs(card.environment) == Roofs(3.9e12, 7.5e14, START)
    assert store.roofs(cpu.environment) is None
    one, other = sorted(store.static_facts().items, key=lambda entry: entry.target)
    assert (one.problem.key, one.backend, one.config, one.target, one.versions) == (
        DENSE, "triton.native", {"block_m": 64}, "sm_120a", {"triton": "3.9.0"},
    )  # fmt: skip
    assert (one.status, one.facts, one.compile_s, one.error, one.source) == ("ok", facts, 1.5, "", "compiled")
    assert one.created_at == START + timedelta(minutes=2)
    assert (other.target, other.status, other.facts, other.error) == (
        "sm_90a",
        "unsupported",
        None,
        "no FP4 instruction",
    )


def assert_nothing_published(store: Store) -> None:
    """Older databases have no published measurements, and can take some."""
    assert store.reference_sources() == store.latency_models() == []
    assert store.reference_systems("NVIDIA RTX PRO 6000 Blackwell Server Edition") == []


def assert_0003(store: Store) -> None:
    """What came with 0003."""
    (source,) = store.reference_sources()
    assert (source.package, source.package_version, source.file) == (
        "golden-measurements", "0.12.0", "golden/gemm.parquet",
    )  # fmt: skip
    assert (source.system, source.framework, source.framework_version) == ("rtx_pro_6000_server", "sglang", "0.5.14")
    assert (source.sha256, source.attribution) == ("0f" * 32, "Copyright (c) Golden")
    assert (source.imported_at, source.n_rows) == (START + timedelta(minutes=2), 3)
    assert source.device == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert store.reference_systems(source.device) == ["rtx_pro_6000_server"]
    dense = ("dense", "nvfp4", "golden_kernel")
    assert store.reference_rows(["rtx_pro_6000_server"], "dense", 2048, 4096) == [
        (source, ReferenceRow(*dense, 1, 2048, 4096, 0, 0, 0, 1, 1, "", 18.25, True, True, "")),
        (source, ReferenceRow(*dense, 16, 2048, 4096, 0, 0, 0, 1, 1, "", 90.5, True, False, "slow: ü")),
    ]
    ((_, moe),) = store.reference_rows(["rtx_pro_6000_server"], "moe", 256, 4096, 64, 512, 10)
    assert moe == ReferenceRow(
        "moe", "bfloat16", "golden_moe", 32, 256, 4096, 64, 512, 10, 4, 8, "balanced", 39.0625, False, False
    )  # fmt: skip
    key = (store.environments()[0].environment.device.fingerprint, "dense", "nvfp4")
    assert store.latency_models() == [
        LatencyModel(*key, "cuda.eager", 8.5, None, 1.0e15, None, 16, 16, 5, 0.125, 0.5, START),
        LatencyModel(*key, "cuda.graph", 4.25, 1.25e12, 1.125e15, 3.5, 1, 4096, 12, 0.0625, 0.25, START),
    ]


def assert_0004(store: Store) -> None:
    """What came with 0004, which counts what is there in an older one."""
    with store._reading() as connection:
        rows = connection.exec_driver_sql(
            "SELECT p.key, c.backend, c.status, c.n, c.last_trial_id, t.number, e.versions FROM trial_counts c "
            "JOIN problems p ON p.id = c.problem_id JOIN environments e ON e.id = c.environment_id "
            "JOIN runs r ON r.id = c.run_id JOIN trials t ON t.id = c.last_trial_id AND t.run_id = c.run_id"
        ).all()
    card = '{"cuda":"13.0","driver":"580.95","torch":"2.11.0"}'
    assert sorted(map(tuple, rows)) == [
        (DENSE, "triton.native", "compile_failed", 1, 4, 3, card),
        (DENSE, "triton.native", "crashed", 1, 6, 5, card),
        (DENSE, "triton.native", "ok", 2, 2, 1, card),
        (DENSE, "triton.native", "timeout", 1, 7, 6, card),
        (DENSE, "triton.native", "unsupported", 1, 3, 2, card),
        (DENSE, "triton.native", "wrong", 1, 5, 4, card),
    ]


def assert_golden(store: Store, *, generation: int = 2) -> None:
    """What every golden database says."""
    failed, run = store.runs()
    assert (run.status, run.checkpoint, run.seed) == (RunStatus.FINISHED, "Golden-Model-NVFP4", 42)
    assert (run.host, run.pid, run.version, run.error) == ("golden", 1, "0.1.0", "")
    assert run.settings == {"budget_s": 2.5, "backends": ["triton.native"], "trials": None}
    assert (run.started_at, run.finished_at) == (START, START + timedelta(minutes=2))
    assert (run.n_problems, run.n_done, run.n_trials) == (2, 1, 7)
    assert (failed.status, failed.error) == (RunStatus.FAILED, "the disk was full")
    assert (failed.device_name, failed.checkpoint, failed.settings) == ("Golden CPU", "", {})

    first, second = store.run_problems(run.id)
    assert (first.item.problem, first.item.role, first.item.phases) == (
        parse_key(DENSE),
        "attn.qkv",
        ("decode", "verify"),
    )
    assert (first.item.layers, first.done, first.outcome) == (60, True, "tuned")
    assert (second.item.problem, second.done, second.outcome) == (parse_key(GROUPED), False, "")

    trials = store.trials(TrialFilter(run_id=run.id)).items
    assert [t.status for t in trials] == [
        TrialStatus.OK, TrialStatus.OK, TrialStatus.UNSUPPORTED, TrialStatus.COMPILE_FAILED, TrialStatus.WRONG,
        TrialStatus.CRASHED, TrialStatus.TIMEOUT,
    ]  # fmt: skip
    assert trials[0].config == {"block_m": 64, "split_k": False, "swizzle": "xor", "alpha": 0.1}
    assert (trials[0].time_us, trials[0].time_us_low, trials[0].time_us_high) == (10.0, 9.5, 10.5)
    assert (trials[0].samples_us, trials[0].n_samples) == ((10.0, 10.25, 9.75), 300)
    assert [t.origin for t in trials[:5]] == ["default", "seed", "sampler", "enumerated", "final"]
    assert {(t.backend, t.seed, t.optimizer, t.optimizer_version) for t in trials} == {
        ("triton.native", -7, "optuna.tpe", "5.0.0")
    }
    assert {(t.rel_error, t.wall_s, t.policy, t.source) for t in trials} == {
        (0.0009765625, 0.25, "cuda.graph", "measured")
    }
    assert [t.started_at for t in trials] == [START + timedelta(seconds=n) for n in range(7)]
    assert trials[6].error == "timeout: ü 🚀"
    assert trials[6].time_us is None

    graph = WinnerFilter(policy="cuda.graph")
    grouped, dense = store.winners(graph).items
    (old,) = store.winners(WinnerFilter(current=False)).items
    assert [w.problem.key for w in (grouped, dense, old)] == [GROUPED, DENSE, DENSE]
    assert [w.choice.time_us for w in (grouped, dense, old)] == [15.0, 11.0, 12.0]
    assert dense.choice == Choice("triton.native", {"block_m": 64, "stages": 3}, 11.0, 11.0 * 0.98, 11.0 * 1.02)
    assert dense.default == Choice("triton.native", {"block_m": 128, "stages": 2}, 20.0, 20.0 * 0.98, 20.0 * 1.02)
    assert [tie.config for tie in dense.tie_set] == [{"block_m": 64, "stages": 3}, {"block_m": 32, "stages": 4}]
    assert (dense.depends_on, dense.n_trials, dense.policy, dense.run_id) == (
        ("cuda", "torch"),
        6,
        "cuda.graph",
        run.id,
    )
    assert (dense.created_at, old.superseded_at) == (START + timedelta(minutes=2),) * 2
    changes = [entry.id for entry in store.winner_changes() if entry.policy == "cuda.graph"]
    assert changes == [grouped.id, dense.id]
    assert store.generation() == generation

    card, cpu = store.environments()
    assert (card.environment.versions, card.n_trials) == (
        {"cuda": "13.0", "driver": "580.95", "torch": "2.11.0"},
        7,
    )
    assert card.n_winners == len(store.winners().items)
    assert (cpu.environment.versions, cpu.n_trials, cpu.n_winners) == ({"torch": "2.13.0"}, 0, 0)
    assert card.environment.fingerprint == dense.environment.fingerprint == trials[0].environment_fingerprint
    assert (card.environment.device.name, card.environment.device.sms) == ("Golden Card", 188)
    assert (card.environment.device.memory_bytes, card.environment.device.power_limit_w) == (96 << 30, 600.0)

    one, other = store.misses()
    assert (one.problem.key, one.device_fingerprint, one.count) == (GROUPED, card.environment.device.fingerprint, 3)
    assert (one.first_at, one.last_at) == (START, START + timedelta(minutes=3))
    assert (other.problem.key, other.device_fingerprint, other.count) == (DENSE, "", 1)


def test_upgraded_it_can_be_written(copy: Path):
    with Store.open(copy) as store:
        (run,) = [run for run in store.runs() if run.status is RunStatus.FINISHED]
        assert store.take_over_run(run.id, host="golden", pid=1).status is RunStatus.RUNNING
        last = store.winner_changes()[-1].id
        store.finish_problem(run.id, 1, "nothing ran")
        assert store.run(run.id).n_done == 2
        assert store.winner_changes(last) == []
        store.add_trials([new_trial(run.id, n, problem=parse_key(DENSE)) for n in range(9)])  # 7 are there
        assert sorted(e.n_trials for e in store.environments()) == [0, 2, 7]
        with store._reading() as connection:
            assert connection.exec_driver_sql("SELECT sum(n) FROM trial_counts").scalar_one() == 9
