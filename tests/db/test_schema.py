"""Migrations: what they make is what the models say, once, whoever comes at the same time, and nothing is lost."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from fp4tune.db import Store, schema
from fp4tune.db.models import Base
from fp4tune.db.records import SchemaState
from fp4tune.kernels.errors import StoreError
from store_factory import new_run, new_trial
from store_workers import all_at_once, migrate_and_write

NOW = schema.HEAD
NEXT = f"{int(NOW) + 1:04}"
"""The revision that a later fp4tune would have."""

MIGRATION = '''
"""A migration for tests: a column more, in tables that SQLite copies, also one that others refer to."""

import time

import sqlalchemy as sa
from alembic import op

revision = "{next}"
down_revision = "{now}"


def upgrade():
    for name in ("trials", "runs"):
        with op.batch_alter_table(name, recreate="auto" if op.get_bind().dialect.name != "sqlite" else "always") as table:
            table.add_column(sa.Column("extra", sa.Text(), nullable=False, server_default="none"))
    {then}
'''


@pytest.fixture
def with_next(tmp_path: Path):
    """Makes a folder of migrations that has one more."""

    def make(then: str = "time.sleep(0.2)") -> Path:
        folder = tmp_path / "migrations%d"  # a per cent sign, which Alembic's configuration would interpolate
        shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / f"{NEXT}_test.py").write_text(MIGRATION.format(then=then, next=NEXT, now=NOW))
        return folder

    return make


def be_newer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Be an fp4tune with one more migration."""
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, NEXT))
    monkeypatch.setattr(schema, "HEAD", NEXT)


def filled(url: str) -> str:
    with Store.open(url) as store:
        run_id = store.create_run(new_run())
        store.add_trials([new_trial(run_id, n) for n in range(100)])
    return run_id


def test_the_listed_revisions_are_the_files(monkeypatch: pytest.MonkeyPatch):
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [schema.HEAD]
    assert tuple(r.revision for r in script.walk_revisions())[::-1] == schema.REVISIONS
    files = sorted(path.name for path in (schema.MIGRATIONS / "versions").glob("[0-9]*.py"))
    assert [re.match(r"(\d{4})_\w+\.py", name)[1] for name in files] == list(schema.REVISIONS)


def test_what_migrations_make_is_what_the_models_say(empty_url: str):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with Store.open(empty_url) as store, store._reading() as connection:
        options = {"compare_type": True, "version_table": schema.VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_sqlite_has_exactly_the_tables_that_the_models_would_make(tmp_path: Path):
    """Also what Alembic does not compare: checks, partial indexes, AUTOINCREMENT, names of constraints."""

    models = sa.create_engine(f"sqlite:///{tmp_path / 'models.db'}")
    Base.metadata.create_all(models)
    with Store.open(tmp_path / "migrated.db") as store:
        migrated = definitions(store._engine)
    del migrated[schema.VERSION_TABLE]
    assert migrated == definitions(models)
    assert len(migrated) > 20
    models.dispose()


def definitions(engine: sa.Engine) -> dict[str, list[str]]:
    """The parts of every CREATE statement of an SQLite database, sorted, by what it makes."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").all()
    made = {}
    for name, sql in found:
        head, _, rest = re.sub(r"\s+", " ", sql).partition("(")
        body, _, tail = rest.rpartition(")")
        # At commas outside of parentheses.
        parts = [part.strip() for part in re.split(r",(?![^()]*\))", body)]
        made[name] = sorted([head.strip(), tail.strip(), *parts])
    return made


def test_a_new_database_is_at_head(empty_url: str):
    with Store.open(empty_url) as store:
        assert store.schema() == SchemaState(schema.HEAD, schema.HEAD, None)
        assert store.upgrade() == SchemaState(schema.HEAD, schema.HEAD, None)
    with Store.open(empty_url) as store:
        assert store.schema() == SchemaState(schema.HEAD, schema.HEAD, schema.HEAD)


def test_an_older_schema_is_upgraded_only_by_create(empty_url: str, with_next, monkeypatch: pytest.MonkeyPatch):
    run_id = filled(empty_url)
    be_newer(monkeypatch, with_next(""))
    for mode in ("write", "read"):
        with pytest.raises(
            StoreError, match=f"has schema {NOW}, and this fp4tune needs {NEXT}: run `fp4tune db upgrade`"
        ):
            Store.open(empty_url, mode=mode)
    with Store.open(empty_url) as store:
        assert store.schema() == SchemaState(NEXT, NEXT, NOW)
        assert len(store.trials(limit=1000).items) == store.run(run_id).n_trials == 100
        with store._reading() as connection:
            assert connection.exec_driver_sql("SELECT DISTINCT extra FROM trials").scalar_one() == "none"
    monkeypatch.undo()
    with pytest.raises(StoreError, match=f"has schema {NEXT}, and this fp4tune knows schemas up to {NOW}"):
        Store.open(empty_url)


def test_a_migration_that_fails_changes_nothing(empty_url: str, with_next, monkeypatch: pytest.MonkeyPatch):
    filled(empty_url)
    with monkeypatch.context() as newer:
        be_newer(newer, with_next('op.execute("UPDATE no_such_table SET x = 1")'))
        with pytest.raises(StoreError, match="no_such_table"):
            Store.open(empty_url)
    with Store.open(empty_url) as store:
        assert store.schema().current == NOW
        assert len(store.trials(limit=1000).items) == 100
        with store._reading() as connection:
            assert "extra" not in {c["name"] for c in sa.inspect(connection).get_columns("trials")}


def test_a_migration_that_leaves_a_row_without_what_it_refers_to_is_undone(
    tmp_path: Path, with_next, monkeypatch: pytest.MonkeyPatch
):
    """Foreign keys are not enforced while SQLite's tables are copied, so they are checked afterwards."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    filled(url)
    with monkeypatch.context() as newer:
        be_newer(newer, with_next('op.execute("DELETE FROM problems")'))
        with pytest.raises(StoreError, match="was undone, because rows would refer to what is not there"):
            Store.open(url)
    with Store.open(url) as store, store._reading() as connection:
        assert len(store.trials(limit=1000).items) == 100
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_eight_processes_upgrade_the_same_database_at_once(empty_url: str, with_next):
    filled(empty_url)
    states = all_at_once(8, migrate_and_write, empty_url, with_next())
    assert {(state.current, state.head) for state in states} == {(NEXT, NEXT)}
    assert NOW in {state.found for state in states}


def test_readers_go_on_while_a_migration_is_under_way(tmp_path: Path, with_next, monkeypatch: pytest.MonkeyPatch):
    """A reader of the old version, in the middle of the transaction that migrates."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    filled(url)
    seen = []
    with Store.open(url, mode="read") as old:
        be_newer(monkeypatch, with_next("time.sleep(0)"))
        monkeypatch.setattr("time.sleep", lambda seconds: seen.append(len(old.trials(limit=1000).items)))
        Store.open(url).close()
    assert seen == [100]
