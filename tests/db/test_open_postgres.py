"""Opening PostgreSQL: what is not there, not allowed, not ours; one sentence each, and never a password in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from fp4tune.db import Store
from fp4tune.db.schema import HEAD, VERSION_TABLE
from fp4tune.kernels.errors import StoreError
from sqlalchemy.engine import make_url
from store_factory import new_run, new_trial, new_winner

SECRET = "s3cret!"


def changed(url: str, **parts: object) -> str:
    return make_url(url).set(**parts).render_as_string(hide_password=False)


@pytest.fixture
def url(postgres, shared_postgres: str) -> str:
    return str(postgres.url(shared_postgres))


def test_the_url_is_shown_without_the_password(url: str):
    with Store.open(changed(url, password=SECRET)) as store:
        assert "***" in store.url
        assert SECRET not in store.url
    with Store.open(url + f"&password={SECRET}") as store:
        assert SECRET not in store.url


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_all_schemes_mean_psycopg(url: str, scheme: str):
    with Store.open(url.replace("postgresql+psycopg", scheme)) as store:
        store.check()
        assert store.url.startswith("postgresql+psycopg://")


@pytest.mark.parametrize("mode", ["create", "write", "read"])
def test_a_server_that_is_not_there(mode):
    with pytest.raises(
        StoreError, match=r"Cannot reach the database postgresql\+psycopg://u:\*\*\*@127.0.0.1:1/d\?.*: .*refused"
    ) as caught:
        Store.open(f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/d?connect_timeout=2", mode=mode)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_socket_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match="Cannot reach the database"):
        Store.open(f"postgresql://u@/d?host={tmp_path}")


def test_a_database_that_is_not_there(url: str):
    with pytest.raises(StoreError, match='no_such_database.* "no_such_database" does not exist'):
        Store.open(changed(url, database="no_such_database"))


def test_a_user_who_is_not_there(url: str):
    with pytest.raises(StoreError, match='role "nobody_at_all" does not exist'):
        Store.open(changed(url, username="nobody_at_all"))


@pytest.mark.parametrize("mode", ["write", "read"])
def test_an_empty_database_is_filled_only_by_create(postgres, mode):
    url = postgres.new()
    with pytest.raises(StoreError, match="is empty: `fp4tune db upgrade` makes the tables"):
        Store.open(url, mode=mode)
    with Store.open(url) as store:
        assert store.schema().current == HEAD
        assert store.schema().found is None
    with Store.open(url, mode=mode) as store:
        assert store.schema().found == HEAD


@pytest.mark.parametrize("mode", ["create", "write", "read"])
def test_a_database_of_another_program_stays_as_it_is(postgres, mode):
    url = postgres.new()
    database = make_url(url).database
    postgres.execute("CREATE TABLE runs (id integer)", database=database)
    with pytest.raises(StoreError, match="is not an fp4tune database"):
        Store.open(url, mode=mode)
    postgres.execute("DROP TABLE runs", database=database)
    Store.open(url).close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_name(postgres, encoding: str):
    name = f"in_{encoding.lower()}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreError, match=f"stores text as {encoding}, .* create one with ENCODING 'UTF8'"):
            Store.open(postgres.url(name))
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_views_beside_the_tables_are_no_hindrance(postgres):
    """Extensions such as pg_stat_statements put some there."""
    url = postgres.new()
    postgres.execute("CREATE VIEW v AS SELECT 1 AS one", database=make_url(url).database)
    Store.open(url).close()


def test_a_schema_of_its_own_in_a_shared_database(postgres):
    url = postgres.new()
    database = make_url(url).database
    postgres.execute("CREATE TABLE other (id integer)", "CREATE SCHEMA fp4tune", database=database)
    own = url + "&options=-csearch_path%3Dfp4tune"
    with Store.open(own) as store:
        store.create_run(new_run())
    with Store.open(own, mode="read") as store:
        assert len(store.runs()) == 1


@pytest.mark.parametrize("mode", ["create", "write", "read"])
def test_a_newer_schema_is_refused_with_both_named(postgres, mode):
    url = postgres.new()
    Store.open(url).close()
    postgres.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'", database=make_url(url).database)
    with pytest.raises(StoreError, match=f"has schema 9999, and this fp4tune knows schemas up to {HEAD}"):
        Store.open(url, mode=mode)


@pytest.fixture
def reader_url(postgres, url: str) -> Iterator[str]:
    """A user who may read the tables only."""
    postgres.execute(
        "CREATE ROLE reader LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", database="shared"
    )
    yield changed(url, username="reader")
    postgres.execute("DROP OWNED BY reader", "DROP ROLE reader", database="shared")


def test_a_user_who_may_only_read(url: str, reader_url: str):
    with Store.open(url) as store:
        run_id = store.create_run(new_run())
    with Store.open(reader_url, mode="read") as store:
        assert store.runs(limit=1)[0].id == run_id
    with Store.open(reader_url, mode="write") as store:
        with pytest.raises(StoreError, match="does not let this user read or write the tables: grant the rights"):
            store.add_trials([new_trial(run_id)])
        store.check()


def test_a_store_for_reading_refuses_to_write(url: str):
    with Store.open(url) as store:
        run_id = store.create_run(new_run())
    with Store.open(url, mode="read") as store:
        with pytest.raises(StoreError, match="opened for reading only"):
            store.add_winner(new_winner(run_id))
        with store._reading() as connection, pytest.raises(Exception, match="read-only transaction"):
            connection.exec_driver_sql("DELETE FROM winners")


def test_a_server_that_is_read_only(postgres):
    url = postgres.new()
    database = make_url(url).database
    with Store.open(url) as store:
        run_id = store.create_run(new_run())
    postgres.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with Store.open(url) as store, pytest.raises(StoreError, match="is read-only: connect to the primary server"):
        store.heartbeat(run_id)


def test_connections_that_the_server_cut_are_replaced(postgres, url: str):
    with Store.open(url) as store:
        run_id = store.create_run(new_run())
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shared'"
        postgres.execute(cut)
        store.heartbeat(run_id)
        assert cut_under_way(store, postgres, cut).startswith(("The database", "Cannot reach the database"))
        assert store.run(run_id).id == run_id


def cut_under_way(store: Store, postgres, cut: str) -> str:
    """What is said when the server cuts a connection in the middle of a transaction."""
    try:
        with store._reading() as connection:
            postgres.execute(cut)
            connection.exec_driver_sql("SELECT 1")
    except StoreError as error:
        return str(error)
    return ""


def test_a_lock_that_somebody_else_keeps(postgres, url: str):
    import psycopg

    with Store.open(url) as store:
        run_id = store.create_run(new_run())
        with psycopg.connect(postgres.uri, dbname="shared") as other:
            other.execute("UPDATE meta SET value = value")
            with store._engine.connect() as connection:
                connection.exec_driver_sql("SET lock_timeout = '50ms'")
                connection.commit()
            with pytest.raises(StoreError, match="was locked by another process for more than 30 s; try again"):
                store.add_winner(new_winner(run_id))
        store.add_winner(new_winner(run_id))


def test_without_psycopg_the_sentence_names_the_extra():
    code = """
import sys
sys.modules["psycopg"] = None
from fp4tune.db import Store
from fp4tune.kernels.errors import StoreError
try:
    Store.open("postgresql://u@h/d")
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "PostgreSQL needs the package psycopg: pip install 'fp4tune[postgres]'.\n"
