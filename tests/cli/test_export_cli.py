"""`fp4tune export` without FlashInfer: what is wrong is said in one sentence, and nothing is lost.

With FlashInfer: tests/kernels/flashinfer/test_export_real.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from export_store import Ran, Tuned, environment, make
from fp4tune.api.cli.app import run
from fp4tune.api.formats import flashinfer
from fp4tune.api.formats.flashinfer_child import Entry, Looked, Reloaded, Wanted
from fp4tune.db.store import Store
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.errors import Fp4tuneError
from fp4tune.kernels.flashinfer_gemm import versions
from fp4tune.kernels.flashinfer_gemm.backends import B12x, Cutlass
from fp4tune.kernels.problem import parse_shape

FORMAT = ["export", "--format", "flashinfer"]
WON = Ran("flashinfer.b12x", {"tile_m": 64, "pad_m": 0}, 8.0)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to be in, with backends of FlashInfer, whichever are registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flashinfer, "load_backends", lambda: {b.name: b() for b in (B12x, Cutlass)})
    return tmp_path


@pytest.fixture
def database(here):
    make(here / "fp4tune.db", [Tuned("16x2048x4096", WON)])
    return here / "fp4tune.db"


def refused(capsys, code, *arguments):
    """The sentence on standard error."""
    assert run([*FORMAT, *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fp4tune: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_an_unknown_format_names_those_there_are(database, capsys):
    assert run(["export", "--format", "tensorrt"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "fp4tune: There is no format 'tensorrt' to export to; there is flashinfer (FlashInfer's autotuner cache (v1 "
        "JSON)).\n"
    )


def test_a_format_must_be_named(capsys):
    assert run(["export"]) == 2
    assert "--format" in capsys.readouterr().err


def test_no_database(here, capsys):
    assert "There is no database 'fp4tune.db'" in refused(capsys, 3)
    assert not list(here.iterdir())


def test_an_empty_database(here, capsys):
    Store.open(here / "fp4tune.db").close()
    assert "There is nothing to export" in refused(capsys, 3)


def test_two_environments_and_none_named(database, capsys):
    other = environment(CARDS["rtx-5090"])
    make(database, [Tuned("16x2048x4096", WON)], other)
    said = refused(capsys, 2)
    assert "never mixed" in said
    assert other.fingerprint in said
    assert environment().fingerprint in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--environment", "zz"], 3, "There is no environment 'zz'"),
        (["--run", "01JBNOSUCHRUN0000000000000"], 3, "01JBNOSUCHRUN0000000000000"),
        (["--model", "no-such-model"], 3, "No run tuned a checkpoint called 'no-such-model'; runs tuned: none."),
        (["--backend", "triton.native"], 2, "it may have those of flashinfer.b12x, flashinfer.cutlass."),
        (["--out", "none/file.json"], 2, "there is no directory none"),
        (["--out", "."], 2, "is a directory"),
        (["--metadata", "loose"], 2, "--metadata"),
    ],
)
def test_one_sentence_about_what_is_asked(database, capsys, arguments, code, says):
    assert says in refused(capsys, code, *arguments)
    assert [path.name for path in database.parent.iterdir()] == ["fp4tune.db"]


def test_runs_of_two_environments(database, capsys):
    first = make(database, [Tuned("16x2048x4096", WON)])
    second = make(database, [Tuned("16x2048x4096", WON)], environment(CARDS["rtx-5090"]))
    said = refused(capsys, 2, "--run", first, "--run", second)
    assert "These runs are of 2 environments" in said


def test_a_file_that_is_there_is_not_replaced(database, capsys):
    theirs = database.with_name("theirs.json")
    theirs.write_text("theirs")
    said = refused(capsys, 2, "--out", "theirs.json")
    assert said == "fp4tune: theirs.json is there already: --force replaces it.\n"
    assert theirs.read_text() == "theirs"


def test_without_flashinfer_one_sentence_says_what_to_install(database, capsys, monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda *_: "")
    assert refused(capsys, 4) == (
        "fp4tune: Nothing can be exported for FlashInfer here. FlashInfer is not installed; install "
        f"flashinfer-python=={versions.NEWEST}.\n"
    )
    assert [path.name for path in database.parent.iterdir()] == ["fp4tune.db"]


def test_winners_that_were_measured_without_flashinfer(here, capsys, monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda *_: "")
    make(here / "fp4tune.db", [Tuned("16x2048x4096", Ran("triton.native", {}, 8.0))], environment(flashinfer=""))
    assert refused(capsys, 4) == (
        f"fp4tune: The winners of {environment().device.name} were measured without FlashInfer, so its cache can hold "
        "none of them: tune where `fp4tune doctor` lists a backend of FlashInfer as available.\n"
    )


def test_that_there_is_nothing_to_export_is_said_before_flashinfer_is_asked_for(here, capsys, monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda *_: "")
    make(here / "fp4tune.db", [Tuned("16x2048x4096", Ran("triton.native", {}, 8.0))])
    assert "There is nothing to export. 16x2048x4096: triton.native won with 8.0 µs, and no config of" in refused(
        capsys, 3
    )


def test_of_a_release_that_is_not_known_nothing_is_exported(database, capsys, monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda *_: "0.9.0")
    assert "and 0.9.0 is installed" in refused(capsys, 4)


# --- the answers of FlashInfer, as it might give them -------------------------------------------------------------------


WANTED = Wanted(parse_shape("16x2048x4096"), "flashinfer.b12x", WON.config)
ENTRY = Entry(WANTED, "fp4_gemm", (1,), "key", "B12xFp4GemmRunner", ((64, 128), None), ())
FOUND = Looked("key", hit=True, hit_while_tuning=True, tactic=((64, 128), None))


@pytest.mark.parametrize(
    ("loaded", "looked", "says"),
    [
        (False, [], "FlashInfer ignored the exported file, comparing it with {'gpu': 'another'}"),
        (True, [replace(FOUND, hit=False, tactic=-1)], "found no entry for 16x2048x4096 on B12xFp4GemmRunner"),
        (True, [replace(FOUND, tactic=((64, 64), None))], "found the tactic ((64, 64), None) for 16x2048x4096"),
        (
            True,
            [replace(FOUND, hit_while_tuning=False)],
            "would tune 16x2048x4096 on B12xFp4GemmRunner (fp4_gemm) again",
        ),
    ],
)
def test_a_file_that_flashinfer_does_not_give_back_is_no_export(loaded, looked, says):
    with pytest.raises(Fp4tuneError) as raised:
        flashinfer.verify(Reloaded(loaded, {"gpu": "another"}, looked), [ENTRY])
    assert says in str(raised.value)
    assert str(raised.value).endswith("; nothing was replaced.")


def test_what_flashinfer_gives_back_is_an_export():
    flashinfer.verify(Reloaded(True, {}, [FOUND]), [ENTRY])
    flashinfer.verify(Reloaded(True, {}, [replace(FOUND, tactic=[[64, 128], None])]), [ENTRY])


def test_the_file_has_an_entry_a_line_and_the_same_bytes_each_time():
    other = replace(ENTRY, key="a key", tactic=7)
    text = flashinfer.text_of({"gpu": "a card"}, [ENTRY, other])
    assert text == flashinfer.text_of({"gpu": "a card"}, [other, ENTRY])
    assert text == (
        '{\n  "_metadata": {"gpu": "a card"},\n  "a key": ["B12xFp4GemmRunner", 7, []],\n'
        '  "key": ["B12xFp4GemmRunner", [[64, 128], null], []]\n}\n'
    )


def test_a_wildcard_is_accepted_by_anybody_and_nothing_else():
    here = {"gpu": "a card", "cuda_version": "13.0"}
    assert flashinfer.accepts({"gpu": "a card", "cuda_version": "*"}, here)
    assert not flashinfer.accepts({"gpu": "a card"}, here)
    assert not flashinfer.accepts({"gpu": "unknown", "cuda_version": "*"}, here)
    assert flashinfer.as_if_on({"gpu": "a card", "cuda_version": "*"}) == {"gpu": "a card", "cuda_version": "any"}
