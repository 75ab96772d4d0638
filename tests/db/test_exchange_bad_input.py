"""Files that are no exports, or bad ones: one sentence that names the file and the line, and nothing is stored."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exchange_files as files
import pytest
from exchange_files import Line, fill, of_kind, rewrite
from fp4tune.db import Store, exchange
from fp4tune.db.exchange import MAX_LINE
from fp4tune.kernels.errors import InvalidInputError, NotFoundError, StoreError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_factory import Clock


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with something of everything."""
    folder = tmp_path_factory.mktemp("good")
    clock = Clock()
    with Store.open(folder / "a.db", clock=clock) as store:
        fill(store, clock)
        store.export(folder / "good.gz")
    return folder / "good.gz"


@pytest.fixture
def bad(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copy(good, tmp_path / "bad.gz"))


def refused(store: Store, path: Path, sentence: str, error: type[Exception] = InvalidInputError) -> None:
    """The file is refused with one short sentence that names it, and nothing is stored."""
    with pytest.raises(error, match=sentence) as caught:
        store.import_from(path)
    text = str(caught.value)
    assert str(path) in text
    assert len(text) - len(str(path)) < 400
    assert text.endswith(".")
    assert "\n" not in text
    assert store.runs() == store.environments() == store.trials().items == store.static_facts().items == []


def spoil(path: Path, raw: Callable[[bytes], bytes]) -> None:
    path.write_bytes(raw(path.read_bytes()))


def test_the_good_one_is_good(sqlite_store: Store, good: Path):
    assert sqlite_store.import_from(good).added["trial"] == 6


# The file


def test_an_empty_file(sqlite_store: Store, tmp_path: Path):
    (tmp_path / "bad.gz").touch()
    refused(sqlite_store, tmp_path / "bad.gz", "the file is empty")


@pytest.mark.parametrize("raw", [b"x", b"SQLite format 3\0", b'{"format":"fp4tune.export"}\n', b"PK\x03\x04", b"\x1f"])
def test_not_gzip(sqlite_store: Store, tmp_path: Path, raw: bytes):
    (tmp_path / "bad.gz").write_bytes(raw)
    refused(sqlite_store, tmp_path / "bad.gz", "is not compressed with gzip")


def test_no_file(sqlite_store: Store, tmp_path: Path):
    refused(sqlite_store, tmp_path / "no.gz", "There is no file", NotFoundError)


def test_a_directory(sqlite_store: Store, tmp_path: Path):
    refused(sqlite_store, tmp_path, "cannot be read", StoreError)


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.9, 0.995])
def test_truncated_anywhere(sqlite_store: Store, bad: Path, part: float):
    spoil(bad, lambda raw: raw[: int(len(raw) * part)])
    refused(sqlite_store, bad, r"is cut off after line \d+|should have")


def test_every_truncation_is_noticed(good: Path, tmp_path: Path):
    """Also those between the two members of gzip, and in the checksum at the end."""
    raw = good.read_bytes()
    for length in range(1, len(raw)):
        (tmp_path / "cut.gz").write_bytes(raw[:length])
        with pytest.raises(InvalidInputError, match="was not imported"), exchange.Reader(tmp_path / "cut.gz") as reader:
            for _ in reader.lines():
                pass


def test_lines_that_are_missing_at_the_end(sqlite_store: Store, bad: Path):
    text = gzip.decompress(bad.read_bytes()).splitlines(keepends=True)
    bad.write_bytes(gzip.compress(b"".join(text[:-1])))
    refused(sqlite_store, bad, "should have 3 lines of the kind static_facts, and has 2")


def test_a_flipped_bit(sqlite_store: Store, bad: Path):
    spoil(bad, lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :])
    refused(sqlite_store, bad, "damaged|cut off|not JSON|no JSON object|should have|known|line")


def test_what_follows_the_end(sqlite_store: Store, bad: Path):
    spoil(bad, lambda raw: raw + b"and more")
    refused(sqlite_store, bad, "damaged")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=200))
def test_any_bytes_are_refused(sqlite_store: Store, tmp_path: Path, junk: bytes):
    for i, raw in enumerate((junk, b"\x1f\x8b" + junk, gzip.compress(junk))):
        path = tmp_path / f"{i}.gz"
        path.write_bytes(raw)
        with pytest.raises(InvalidInputError, match="was not imported"):
            sqlite_store.import_from(path)


# The header


def with_header(path: Path, **fields: Any) -> None:
    lines = files.read(path)
    rewrite(path, lines)
    lines = files.read(path)
    lines[0] = {name: value for name, value in (lines[0] | fields).items() if value is not ...}
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(line).encode() for line in lines)))


def test_another_format(sqlite_store: Store, bad: Path):
    for name in ("somebody.elses", 5, None, ...):
        with_header(bad, format=name)
        refused(sqlite_store, bad, 'first line does not say "format":"fp4tune.export"')


def test_a_newer_version_names_both(sqlite_store: Store, bad: Path):
    with_header(bad, version=2, fp4tune="7.8.9", counts={"dreams": 5})
    refused(sqlite_store, bad, r"has version 2 of the format \(fp4tune 7.8.9 made it\), .* fp4tune \S+ reads version 1")


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None, ..., 10**400])
def test_no_version(sqlite_store: Store, bad: Path, version: object):
    with_header(bad, version=version)
    refused(sqlite_store, bad, "version")


@pytest.mark.parametrize("counts", [{}, None, ..., [], {"trial": 6}, dict.fromkeys(exchange.KINDS, "6")])
def test_counts_that_count_nothing(sqlite_store: Store, bad: Path, counts: object):
    with_header(bad, counts=counts)
    refused(sqlite_store, bad, "counts|count the lines")


def test_counts_that_are_wrong(sqlite_store: Store, bad: Path):
    with_header(bad, counts=dict.fromkeys(exchange.KINDS, 1))
    refused(sqlite_store, bad, "should have 1 lines of the kind environment, and has 2")


# Lines


def with_line(path: Path, raw: bytes) -> None:
    """The export with a line more, at the end."""
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text + raw + b"\n"))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1]", "is no JSON object"),
        (b"null", "is no JSON object"),
        (b'{"kind":"trial","x":NaN}', "NaN is no number of JSON"),
        (b'{"kind":"trial","x":-Infinity}', "-Infinity is no number of JSON"),
        (b'{"kind":"trial","x":' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"kind":"dream"}', "'dream' is not one of environment, run,"),
        (b'{"kind":' + b'"x' + b"x" * 5000 + b'"}', "is not one of"),
        (b'{"kind":5}', "kind must be a text, and is 5"),
        (b"{}", "has no kind"),
    ],
)
def test_a_line_that_is_none(sqlite_store: Store, bad: Path, raw: bytes, sentence: str):
    with_line(bad, raw)
    refused(sqlite_store, bad, f"line 25: .*{sentence}")


def test_a_line_that_never_ends_takes_no_memory_to_refuse(sqlite_store: Store, tmp_path: Path):
    """A gigabyte of the letter x, a megabyte on disk; no more of it than MAX_LINE is looked at."""
    path = tmp_path / "bad.gz"
    packer = zlib.compressobj(wbits=31)
    block = b"x" * (1 << 20)
    header = exchange.encode(
        {"format": exchange.FORMAT, "version": 1, "fp4tune": "0", "counts": dict.fromkeys(exchange.KINDS, 0)}
    )
    with path.open("wb") as file:
        file.write(packer.compress(header + b'{"kind":"run","host":"'))
        for _ in range(1024):
            file.write(packer.compress(block))
        file.write(packer.flush())
    seen: list[int] = []
    loads = json.loads

    class Watched:
        JSONDecodeError = json.JSONDecodeError

        @staticmethod
        def loads(text, **options):
            seen.append(len(text))
            return loads(text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "json", Watched)
        refused(sqlite_store, path, f"line 2: it is longer than {MAX_LINE >> 20} MiB")
    assert max(seen) < 1000


def changing(kind: str, **fields: Any) -> Callable[[list[Line]], None]:
    """Changes the first line of a kind; `...` takes a field out."""

    def change(lines: list[Line]) -> None:
        line = of_kind(lines, kind)[0]
        for name, value in fields.items():
            if value is ...:
                del line[name]
            else:
                line[name] = value

    return change


def inside(kind: str, name: str, **fields: Any) -> Callable[[list[Line]], None]:
    """Changes an object in the first line of a kind."""

    def change(lines: list[Line]) -> None:
        line = of_kind(lines, kind)[0]
        line[name] = {**line[name], **fields}

    return change


HUGE = "x" * 1_000_000

CASES: dict[str, tuple[Callable[[list[Line]], None], str]] = {
    # figures
    "a time that is infinite": (changing("trial", time_us=1e999), "is not JSON|timing"),
    "a time that is negative": (changing("trial", time_us=-1.0), "timing of a trial needs 0 < low"),
    "a time outside of its interval": (changing("trial", time_us=99.0), "timing of a trial needs 0 < low"),
    "a time beyond all floats": (changing("trial", time_us=10**400), "time_us is too large|not JSON"),
    "a time that is a text": (changing("trial", time_us="10"), "time_us must be a number, and is '10'"),
    "a time that is true": (changing("trial", time_us=True), "time_us must be a number, and is True"),
    "half an interval": (changing("trial", time_us_low=None), "all of its times and samples or none"),
    "a sample that is negative infinity": (changing("trial", samples_us=[-1e999]), "JSON|finite|samples"),
    "a sample beyond float32": (changing("trial", samples_us=[1e39], n_samples=1, conditions=None), "sample must be a finite"),
    "a sample that is a text": (changing("trial", samples_us=["1"]), "samples_us must be a list of numbers"),
    "more samples than there were": (changing("trial", n_samples=1), "30 samples out of n_samples = 1"),
    "a negative wall time": (changing("trial", compile_s=-1), "compile time of a trial must be at least 0"),
    "a share that is negative": (changing("trial", roof_share=-0.5), "share of the roof"),
    "a number below 0": (changing("trial", number=-1), "number of a trial"),
    "a seed of 65 bits": (changing("trial", seed=1 << 64), "seed must be an integer"),
    "a throttled sample that is none": (inside("trial", "conditions", throttled_samples=[30]), "indices below 30"),
    "registers below 0": (inside("trial", "facts", registers=-1), "registers"),
    "a clock of three": (inside("trial", "conditions", sm_clock_mhz=[1, 2, 3]), "SM clock"),
    "a choice that takes no time": (inside("winner", "choice", time_us_low=0), "choice of a winner needs 0 < low"),
    "a tie that is negative": (
        lambda lines: of_kind(lines, "winner")[0]["tie_set"][0].update(time_us_low=-1.0), "choice of the tie set",
    ),
    "roofs of 0": (changing("roofs", copy_bytes_per_s=0), "Roofs must be above 0"),
    "a compile time below 0": (changing("static_facts", compile_s=-1), "compile time must be at least 0"),
    # agreement
    "a timing without success": (changing("trial", status="crashed"), "status crashed has a timing"),
    "success without a timing": (
        changing("trial", time_us=None, time_us_low=None, time_us_high=None, samples_us=[], n_samples=0),
        "status ok has no timing",
    ),
    "facts of another target": (inside("static_facts", "facts", target="sm_90a"), "of another target"),
    "success without facts": (changing("static_facts", facts=None), "have none"),
    "a run that runs": (changing("run", status="running"), "still running cannot be imported"),
    "a fingerprint of something else": (changing("environment", fingerprint="0" * 16), "has the fingerprint"),
    "a trial twice": (
        lambda lines: lines.insert(lines.index(of_kind(lines, "winner")[0]), of_kind(lines, "trial")[0]),
        "trial 0 of .* is there twice",
    ),
    # references
    "a trial of no run": (changing("trial", run="01ARZ3NDEKTSV4RRFFQ69G5FAV"), "belongs to the run '01ARZ.*does not follow it"),
    "a winner of no run": (changing("winner", run=""), "belongs to the run '', and does not follow it"),
    "a trial in front of all runs": (
        lambda lines: lines.insert(1, of_kind(lines, "trial")[0]), "it belongs to the run",
    ),
    "a trial in an environment that is not there": (
        changing("trial", environment="f" * 16), "refers to the environment 'f{16}', which is not in the file before it",
    ),
    "a run in an environment that is not there": (changing("run", environment=HUGE), "refers to the environment"),
    "roofs of an environment that comes later": (
        lambda lines: lines.insert(1, of_kind(lines, "roofs")[0]), "it refers to the environment",
    ),
    "an environment less": (lambda lines: lines.remove(of_kind(lines, "environment")[0]), "refers to the environment"),
    "a run less": (lambda lines: lines.remove(of_kind(lines, "run")[0]), "belongs to the run"),
    # words
    "a status of its own": (changing("trial", status="perfect"), "status must be one of ok, .*'perfect'"),
    "an origin of its own": (changing("trial", origin="heaven"), "origin must be one of"),
    "a problem that is none": (changing("trial", problem="dense:0x1x1"), "problem|key|shape"),
    "a problem of huge length": (changing("run_problem", problem=HUGE), "is not the key of a problem"),
    "an id that is none": (changing("run", id="../../etc/passwd"), "id of a run"),
    "a time without a zone": (changing("run", started_at="2026-11-02T12:00:00"), "started_at must be a time with its zone"),
    "a time before all times": (changing("winner", created_at="0001-01-01T00:00:00+14:00"), "created_at must be a time"),
    "a time that is a number": (changing("trial", started_at=0), "started_at must be a text"),
    # texts
    "a huge backend": (changing("trial", backend=HUGE), "backend must have at most 255 characters, and has 1000000"),
    "a huge host": (changing("run", host=HUGE), "host must have at most 255"),
    "a huge checkpoint": (changing("run", checkpoint=HUGE), "checkpoint must have at most 4096"),
    "a huge config": (changing("trial", config={"x": HUGE * 2}), "config must have at most 1048576"),
    "a huge version": (inside("environment", "versions", torch=HUGE), "fingerprint|version"),
    "a huge target": (inside("trial", "facts", target=HUGE), "target must have at most 255"),
    "a huge field name": (changing("winner", **{HUGE: 1}), "has a field 'xxx"),
    "a NUL": (changing("trial", policy="a\0b"), "NUL"),
    "a lone surrogate": (changing("winner", policy="\ud800"), "surrogate"),
    "settings that are a list": (changing("run", settings=[]), "settings must be an object"),
    "a config with a list": (changing("trial", config={"x": [1]}), "config must map names"),
    # fields
    "a field less": (changing("trial", wall_s=...), "has no wall_s"),
    "a field more": (changing("run", mood="good"), "has a field 'mood', which this fp4tune does not know"),
    "a field more deep inside": (inside("trial", "conditions", fan_rpm=1), "'fan_rpm'"),
    "conditions that are a text": (changing("trial", conditions="fine"), "conditions must be an object"),
    "a tie set of texts": (changing("winner", tie_set=["x"]), "tie_set must be an object"),
    "done that is 1": (changing("run_problem", done=1), "done must be true or false"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_line_that_says_what_cannot_be(sqlite_store: Store, bad: Path, name: str):
    change, sentence = CASES[name]
    lines = files.read(bad)
    change(lines)
    rewrite(bad, lines)
    refused(sqlite_store, bad, f"line \\d+: .*({sentence})")


@pytest.mark.parametrize("name", ["a huge backend", "a trial of no run", "facts of another target", "a trial twice"])
def test_on_postgresql_nothing_is_stored_either(store: Store, bad: Path, name: str):
    change, sentence = CASES[name]
    lines = files.read(bad)
    change(lines)
    rewrite(bad, lines)
    refused(store, bad, sentence)


def test_an_error_of_any_length_is_shortened_as_always(sqlite_store: Store, bad: Path):
    lines = files.read(bad)
    changing("run", error=HUGE)(lines)
    rewrite(bad, lines)
    sqlite_store.import_from(bad)
    (run,) = [run for run in sqlite_store.runs() if run.error.startswith("xxx")]
    assert "characters left out" in run.error


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_taken_or_refused(sqlite_template: Path, good: Path, data: st.DataObject):
    """Never a traceback, never a part: whatever is changed, the import says so in a sentence or stores all."""
    lines = files.read(good)
    line = data.draw(st.sampled_from(lines[1:]))
    target, name = line, data.draw(st.sampled_from(sorted(line)))
    while isinstance(target[name], dict) and target[name] and data.draw(st.booleans()):
        target = target[name]
        name = data.draw(st.sampled_from(sorted(target)))
    values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    target[name] = data.draw(
        values | st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=3), values, max_size=2)
    )
    path = good.parent / "changed.gz"
    rewrite(path, lines)
    database = Path(shutil.copy(sqlite_template, good.parent / "changed.db"))
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    with Store.open(database) as store:
        try:
            store.import_from(path)
        except InvalidInputError as error:
            sentence = str(error)
        else:
            sentence = ""
        if sentence:
            assert str(path) in sentence
            assert store.runs() == store.environments() == []
        else:
            assert len(store.runs()) == 2
            assert len(store.trials().items) == 6
            assert len(store.winners().items) >= 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(sqlite_store: Store, bad: Path):
    bad.chmod(0)
    refused(sqlite_store, bad, "cannot be read", StoreError)
