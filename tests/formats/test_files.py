"""Files of formats appear whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest
from fp4tune.api.formats import files
from fp4tune.kernels.errors import InvalidInputError


def check(path, *, replace=False):
    files.check_target(path, may_replace=lambda _: replace, hint="--force replaces it")


def test_a_file_is_written_with_the_rights_that_files_have_here(tmp_path):
    path = tmp_path / "a.json"
    check(path)
    files.write_whole(path, "{}\n")
    assert path.read_text() == "{}\n"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_is_refused_before_there_is_something_to_write(tmp_path):
    (tmp_path / "a.json").write_text("theirs")
    for path, says in (
        (tmp_path / "a.json", "is there already: --force replaces it"),
        (tmp_path, "is a directory: name a file"),
        (tmp_path / "none" / "a.json", f"there is no directory {tmp_path / 'none'}"),
        (tmp_path / "a.json" / "b.json", "there is no directory"),
    ):
        with pytest.raises(InvalidInputError, match=r"\.$") as raised:
            check(path)
        assert says in str(raised.value)
    check(tmp_path / "a.json", replace=True)
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "theirs"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInputError, match="Permission denied"):
        check(tmp_path / "a.json")


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left on device"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_a_name_that_is_taken_by_a_directory_meanwhile(tmp_path):
    path = tmp_path / "a.json"
    new = files.beside(path, "new")
    path.mkdir()
    with pytest.raises(InvalidInputError, match="cannot be written"):
        files.put_in_place(new, path)
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
