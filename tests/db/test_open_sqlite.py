"""Opening files that are no database of ours, or that may not be written: one sentence each, and nothing touched."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fp4tune.db import Store
from fp4tune.db.engine import Mode
from fp4tune.db.schema import HEAD, VERSION_TABLE
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError, NotFoundError, StoreError, UnsupportedError
from store_factory import new_run, new_trial, new_winner

MODES: list[Mode] = ["create", "write", "read"]
NOBODY = 65534


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template")
    with Store.open(directory / "filled.db") as store:
        run_id = store.create_run(new_run())
        store.add_trials([new_trial(run_id, n) for n in range(300)])
        store.add_winner(new_winner(run_id))
    assert [p.name for p in directory.iterdir()] == ["filled.db"], "closing leaves one file"
    return directory / "filled.db"


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Path:
    """A database with some pages of data, in one file."""
    return Path(shutil.copy(template, tmp_path / "filled.db"))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# What a path or a URL may be


def test_all_forms_of_the_same_file(filled: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(filled.parent)
    for form in (
        filled,
        str(filled),
        f"sqlite:///{filled}",
        f"sqlite+pysqlite:///{filled}",
        "filled.db",
        Path("filled.db"),
    ):
        with Store.open(form, mode="write") as store:
            assert len(store.runs()) == 1
            assert store.url.startswith("sqlite:///")


@pytest.mark.parametrize(
    "name", ["a b.db", "100%.db", "a?b#c.db", "ü 🚀.db", "a:b@c.db", "file:x.db", "'quoted\".db", "-x.db"]
)
def test_odd_file_names(tmp_path: Path, name: str):
    with Store.open(tmp_path / name) as store:
        store.create_run(new_run())
    with Store.open(str(tmp_path / name), mode="read") as store:
        assert len(store.runs()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_name_that_is_no_text(tmp_path: Path):
    path = tmp_path / os.fsdecode(b"\xff.db")
    with Store.open(path) as store:
        store.create_run(new_run())
        assert store.url.endswith("/\\udcff.db")
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"\xff.db"]


@pytest.mark.parametrize(
    "url", ["", "a\x00b", "://", "sqlite://", "sqlite:///:memory:", "sqlite:///a?mode=memory", "http:///:x:y"]
)
def test_what_names_no_database_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidInputError, UnsupportedError)):
        Store.open(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "sqlite+aiosqlite:///x", "postgresql+asyncpg://u:secret@h/d", "ftp://x"]
)
def test_other_databases_are_not_supported(url: str):
    with pytest.raises(UnsupportedError, match="give a path, sqlite:///path or postgresql") as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


def test_a_url_that_cannot_be_read_is_not_shown_for_it_may_hold_a_password():
    with pytest.raises(InvalidInputError, match="database URL cannot be read") as caught:
        Store.open("postgresql://user:secret@[::1/db")
    assert "secret" not in str(caught.value)


# Files that are not there, or not ours


def test_a_missing_file_is_made_only_by_create(tmp_path: Path):
    path = tmp_path / "no.db"
    for mode in ("write", "read"):
        with pytest.raises(NotFoundError, match=f"no database at {path}"):
            Store.open(path, mode=mode)
        assert not path.exists()
    Store.open(path).close()
    Store.open(path, mode="write").close()


def test_a_missing_directory(tmp_path: Path, mode: Mode):
    with pytest.raises(NotFoundError, match="directory .*/no of the database .* does not exist"):
        Store.open(tmp_path / "no" / "a.db", mode=mode)


def test_a_directory(tmp_path: Path, mode: Mode):
    with pytest.raises(StoreError, match="is a directory"):
        Store.open(tmp_path, mode=mode)


def test_paths_that_lead_nowhere(tmp_path: Path, mode: Mode):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (
        tmp_path / ("x" * 300),
        tmp_path / ("x" * 300) / "a.db",
        tmp_path / "loop",
        tmp_path / "loop" / "a.db",
    ):
        with pytest.raises((StoreError, NotFoundError)):
            Store.open(path, mode=mode)


def test_what_is_no_file(tmp_path: Path, mode: Mode):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(StoreError, match=f"{path} is no regular file"):
            Store.open(path, mode=mode)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path, mode: Mode):
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match="does not exist"):
        Store.open(tmp_path / "file" / "a.db", mode=mode)


def test_an_empty_file_becomes_a_database_only_by_create(tmp_path: Path):
    """It may be what is left of a process that was killed while it made the database."""
    path = tmp_path / "empty.db"
    path.touch()
    for mode in ("write", "read"):
        with pytest.raises(StoreError, match="empty file"):
            Store.open(path, mode=mode)
        assert contents(tmp_path) == {"empty.db": b""}
    Store.open(path).close()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"SQLite format 3",
        b"\x00" * 100,
        b"\x00" * 9000,
        b"not a database\n" * 1000,
        random.Random(0).randbytes(20_000),
    ],
)
def test_another_file_is_no_database_and_stays_as_it_is(tmp_path: Path, mode: Mode, data: bytes):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(StoreError, match=r"file is (not an SQLite database|damaged)"):
        Store.open(tmp_path / "file", mode=mode)
    assert contents(tmp_path) == {"file": data}


@pytest.mark.parametrize(
    "make", ["CREATE TABLE runs (id)", "CREATE TABLE alembic_version (version_num)", "CREATE VIEW v AS SELECT 1"]
)
def test_a_database_of_another_program_stays_as_it_is(tmp_path: Path, mode: Mode, make: str):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(make)
        connection.commit()
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="is not an fp4tune database"):
        Store.open(path, mode=mode)
    assert contents(tmp_path) == before


def test_a_newer_schema_is_refused_with_both_named(filled: Path, mode: Mode):
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.commit()
    before = contents(filled.parent)
    with pytest.raises(StoreError, match=f"has schema 9999, and this fp4tune knows schemas up to {HEAD}"):
        Store.open(filled, mode=mode)
    assert contents(filled.parent) == before


@pytest.mark.parametrize("damage", [f"DELETE FROM {VERSION_TABLE}", f"INSERT INTO {VERSION_TABLE} VALUES ('x')"])
def test_a_database_that_does_not_say_its_schema(filled: Path, mode: Mode, damage: str):
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute(damage)
        connection.commit()
    with pytest.raises(StoreError, match="does not say which schema"):
        Store.open(filled, mode=mode)


# Damage


def read_everything(path: Path, mode: Mode) -> None:
    with Store.open(path, mode=mode) as store:
        store.check()
        for run in store.runs():
            store.run_problems(run.id)
        store.trials(limit=10_000)
        store.winners()
        store.winner_changes()
        store.environments()
        store.devices()
        store.misses()


@pytest.mark.parametrize("keep", [20, 100, 1000, 4096, 10_000, 100_000])
def test_a_truncated_file_is_damaged(filled: Path, mode: Mode, keep: int):
    assert keep < filled.stat().st_size
    os.truncate(filled, keep)
    with pytest.raises(StoreError, match=r"is damaged|not an SQLite database"):
        read_everything(filled, mode)


def test_flipped_pages_give_a_sentence_or_the_right_answer(filled: Path):
    """Whatever byte is wrong, what is raised is ours; a page without a checksum may also go unnoticed."""
    draw = random.Random(0)
    good = filled.read_bytes()
    raised = 0
    for _ in range(60):
        bad = bytearray(good)
        page = draw.randrange(len(good) // 4096)
        for _ in range(200):
            bad[page * 4096 + draw.randrange(4096)] ^= 1 << draw.randrange(8)
        filled.write_bytes(bad)
        try:
            read_everything(filled, "read")
        except StoreError:
            raised += 1
        for rest in filled.parent.glob("filled.db-*"):
            rest.unlink()
    assert raised > 10


def test_a_row_that_makes_no_sense_is_damage_and_not_bad_input(filled: Path):
    for damage in (
        "UPDATE trials SET config = 'x'",
        "UPDATE trials SET config = '{}', origin = 'x'",
        "UPDATE trials SET origin = 'seed', samples = x'00'",
        "UPDATE problems SET k = 17",
        "UPDATE winners SET tie_set = '[1]'",
        "UPDATE devices SET name = CAST(x'ff' AS TEXT)",
    ):
        shutil.copy(filled, filled.with_name("copy.db"))
        with closing(sqlite3.connect(filled.with_name("copy.db"))) as connection:
            connection.execute(damage)
            connection.commit()
        with pytest.raises(StoreError, match="restore a backup"):
            read_everything(filled.with_name("copy.db"), "read")


def test_a_file_that_is_removed_while_it_is_open_is_noticed_and_not_made_anew(filled: Path):
    with Store.open(filled) as store:
        store.check()
        filled.unlink()
        with pytest.raises(StoreError, match="was removed while it was open"):
            store.check()
    assert not filled.exists()


# Read-only


def test_a_store_for_reading_refuses_to_write(filled: Path):
    with Store.open(filled, mode="read") as store:
        (run,) = store.runs()
        for write in (
            lambda: store.create_run(new_run()),
            lambda: store.heartbeat(run.id),
            lambda: store.add_trials([new_trial(run.id, 999)]),
            lambda: store.add_winner(new_winner(run.id)),
            lambda: store.forget_misses([], device_fingerprint=""),
            store.upgrade,
        ):
            with pytest.raises(StoreError, match="opened for reading only"):
                write()
        with store._reading() as connection, pytest.raises(Exception, match="readonly"):
            connection.exec_driver_sql("DELETE FROM winners")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody may read: pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="fp4tune"))
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


def as_nobody(function: Callable[[], str]) -> str:
    """What a function returns, called without root's right to write everywhere."""
    if os.geteuid() != 0:
        return function()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            result = function()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(send, result.encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        result = pipe.read().decode()
    os.waitpid(child, 0)
    return result


def opened(path: Path, mode: Mode) -> str:
    try:
        with Store.open(path, mode=mode) as store:
            runs = store.runs()
            if mode != "read":
                store.heartbeat(runs[0].id)
            return f"{len(runs)} run, {len(store.trials(limit=1000).items)} trials"
    except Fp4tuneError as error:
        return f"{type(error).__name__}: {error}"


def read_only(filled: Path, public: Path, *, directory: bool) -> Path:
    path = public / "fp4tune.db"
    shutil.copy(filled, path)
    path.chmod(0o444)
    public.chmod(0o555 if directory else 0o777)
    return path


@pytest.mark.parametrize("directory", [True, False])
def test_a_read_only_file_can_be_read(filled: Path, public: Path, directory: bool):
    path = read_only(filled, public, directory=directory)
    assert as_nobody(lambda: opened(path, "read")) == "1 run, 300 trials"


@pytest.mark.parametrize("directory", [True, False])
@pytest.mark.parametrize("mode", ["create", "write"])
def test_a_read_only_file_cannot_be_written(filled: Path, public: Path, directory: bool, mode: Mode):
    path = read_only(filled, public, directory=directory)
    said = as_nobody(lambda: opened(path, mode))
    assert said.startswith(f"StoreError: The database {path} ")
    assert "read-only" in said or "cannot be opened: check that this user may" in said
    assert path.read_bytes() == filled.read_bytes()


def test_nothing_can_be_made_in_a_read_only_directory(public: Path):
    public.chmod(0o555)
    said = as_nobody(lambda: opened(public / "new.db", "create"))
    assert (
        said
        == f"StoreError: The database {public / 'new.db'} cannot be made: its directory is read-only for this user."
    )


def test_a_directory_that_may_not_be_entered(filled: Path, public: Path):
    path = read_only(filled, public, directory=False)
    public.chmod(0o000)
    for mode in MODES:
        said = as_nobody(lambda mode=mode: opened(path, mode))
        assert said.startswith(f"StoreError: The database {path} cannot be opened: ")


def test_a_file_that_may_not_be_read(filled: Path, public: Path):
    path = read_only(filled, public, directory=False)
    path.chmod(0o000)
    for mode in MODES:
        said = as_nobody(lambda mode=mode: opened(path, mode))
        assert said.startswith(f"StoreError: The database {path} cannot be opened: check that this user may read it")


def test_a_read_only_directory_is_read_while_somebody_writes_to_it(filled: Path, public: Path):
    """A volume that one container writes and another one may only read."""
    path = public / "fp4tune.db"
    shutil.copy(filled, path)
    with Store.open(path) as writer:
        (run,) = writer.runs()
        writer.add_trials([new_trial(run.id, 1000)])
        assert as_nobody(lambda: opened(path, "read")) == "1 run, 301 trials"
