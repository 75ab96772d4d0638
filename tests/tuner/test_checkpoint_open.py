"""What a user may type for a checkpoint, and what is said when it is wrong."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from checkpoint_files import bf16, write_checkpoint
from fp4tune.kernels.errors import InvalidInputError, NotFoundError
from fp4tune.tuner.checkpoint import open_checkpoint

CONFIG = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 1}


@pytest.fixture
def directory(tmp_path):
    return write_checkpoint(tmp_path / "model", CONFIG, {"model.safetensors": bf16("lm_head", 8, 64)}, index=False)


@pytest.mark.parametrize("ref", ["", "   ", "\t"])
def test_empty_reference(ref):
    with pytest.raises(InvalidInputError, match="empty"):
        open_checkpoint(ref)


@pytest.mark.parametrize(
    "ref", ["no-such-model", "/no/such/dir", "./nope", "a\0b", "x" * 5000, "nvidia/", "../../no-such-place"]
)
def test_unknown_reference_lists_the_presets(ref):
    with pytest.raises(NotFoundError, match=r"no preset .*nvidia/Qwen3\.5-397B-A17B-NVFP4") as error:
        open_checkpoint(ref)
    assert len(str(error.value)) < 1500


def test_unknown_reference_names_close_presets_first():
    with pytest.raises(NotFoundError, match=r"did you mean nvidia/Qwen3\.5-397B-A17B-NVFP4"):
        open_checkpoint("qwen3.5-397b-nvfp4")


@pytest.mark.parametrize(
    "ref", ["nvidia/Qwen3.5-397B-A17B-NVFP4", "qwen3.5-397b-a17b-nvfp4", " NVIDIA/QWEN3.5-397B-A17B-NVFP4 "]
)
def test_preset_by_name(ref):
    checkpoint = open_checkpoint(ref)
    assert checkpoint.is_preset
    assert checkpoint.name == "nvidia/Qwen3.5-397B-A17B-NVFP4"
    assert checkpoint.config["text_config"]["hidden_size"] == 4096
    assert checkpoint.published["mtp_tensors"].value == 1553
    assert not checkpoint.shards.has_headers


def test_directory(directory):
    checkpoint = open_checkpoint(str(directory))
    assert not checkpoint.is_preset
    assert checkpoint.config == CONFIG
    assert checkpoint.hf_quant_config is None
    assert set(checkpoint.shards.tensors()) == {"lm_head.weight"}


def test_home_directory_is_expanded(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    assert open_checkpoint("~/model").config == CONFIG


def test_file_instead_of_directory(directory):
    with pytest.raises(InvalidInputError, match="is a file"):
        open_checkpoint(str(directory / "config.json"))


def test_directory_without_config(tmp_path):
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1, 2]", "an array"),
        ('"text"', "a string"),
        ("3", "a number"),
        ("null", "holds null"),
        ("{'a': 1}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ("\ud800".encode("utf-16", "surrogatepass").decode("latin-1"), "not valid JSON"),
    ],
)
def test_broken_config(directory, text, sentence):
    (directory / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInputError, match=sentence):
        open_checkpoint(str(directory))


@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json", "model.safetensors.index.json"])
def test_file_of_millions_of_elements_is_not_parsed(directory, file):
    (directory / file).write_text('{"weight_map": [' + "[]," * 4_000_000 + "[]]}")
    with pytest.raises(InvalidInputError, match="JSON items"):
        open_checkpoint(str(directory))


def test_huge_file_is_not_read(directory):
    with (directory / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidInputError, match="larger than"):
        open_checkpoint(str(directory))


def test_config_is_a_directory(directory):
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be read"):
        open_checkpoint(str(directory))


@pytest.fixture
def hub(tmp_path):
    """A hub cache: blobs, and snapshots of symbolic links to them."""
    root = tmp_path / "models--org--name"
    for commit, hidden in (("aaa111", 64), ("bbb222", 128)):
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        blob = root / "blobs" / f"config-{commit}"
        blob.parent.mkdir(exist_ok=True)
        blob.write_text(json.dumps({**CONFIG, "hidden_size": hidden}))
        (snapshot / "config.json").symlink_to(blob)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("bbb222\n")
    return root


def test_hub_cache_by_refs_main(hub):
    assert open_checkpoint(str(hub)).config["hidden_size"] == 128


def test_hub_cache_snapshot(hub):
    assert open_checkpoint(str(hub / "snapshots" / "aaa111")).config["hidden_size"] == 64


def test_hub_cache_whose_ref_is_gone(hub):
    (hub / "refs" / "main").write_text("ccc333")
    with pytest.raises(NotFoundError, match="ccc333"):
        open_checkpoint(str(hub))


@pytest.mark.parametrize("content", ["../../../../etc", "", "a b", "/etc"])
def test_hub_cache_whose_ref_is_no_commit(hub, content):
    (hub / "refs" / "main").write_text(content)
    with pytest.raises(InvalidInputError, match="should name a snapshot"):
        open_checkpoint(str(hub))


def test_hub_cache_without_ref(hub):
    (hub / "refs" / "main").unlink()
    with pytest.raises(InvalidInputError, match="2 snapshots"):
        open_checkpoint(str(hub))


def test_hub_cache_without_ref_but_with_one_snapshot(hub):
    (hub / "refs" / "main").unlink()
    (hub / "snapshots" / "aaa111" / "config.json").unlink()
    (hub / "snapshots" / "aaa111").rmdir()
    assert open_checkpoint(str(hub)).config["hidden_size"] == 128


def test_hub_cache_whose_ref_is_a_directory(hub):
    (hub / "refs" / "main").unlink()
    (hub / "refs" / "main").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be read"):
        open_checkpoint(str(hub))


def test_hub_cache_without_snapshots(tmp_path):
    (tmp_path / "models--o--n" / "snapshots").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="never downloaded"):
        open_checkpoint(str(tmp_path / "models--o--n"))


def test_hub_cache_with_a_missing_blob(hub):
    (hub / "snapshots" / "bbb222" / "model.safetensors").symlink_to(hub / "blobs" / "gone")
    checkpoint = open_checkpoint(str(hub))
    assert any("missing" in note for note in checkpoint.shards.notes)


def test_snapshots_directory_of_a_hub_cache(hub):
    assert open_checkpoint(str(hub / "snapshots")).config["hidden_size"] == 128


def test_hub_cache_whose_ref_leads_nowhere_is_one_without(hub):
    (hub / "refs" / "main").unlink()
    (hub / "refs" / "main").symlink_to(hub / "gone")
    with pytest.raises(InvalidInputError, match="2 snapshots"):
        open_checkpoint(str(hub))


FILES = ["config.json", "hf_quant_config.json", "model.safetensors.index.json", "model.safetensors"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("file", FILES)
def test_fifo_is_refused_and_not_waited_for(directory, file):
    (directory / file).unlink(missing_ok=True)
    os.mkfifo(directory / file)
    with pytest.raises(InvalidInputError, match=rf"{file} cannot be read: it is no regular file\."):
        open_checkpoint(str(directory))


@pytest.mark.timeout(20)
def test_refs_main_that_never_ends_is_refused(hub):
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (hub / "refs" / "main").unlink()
        make(hub / "refs" / "main")
        with pytest.raises(InvalidInputError, match=r"refs/main cannot be read"):
            open_checkpoint(str(hub))


@pytest.mark.parametrize("file", FILES[:3])
def test_link_that_leads_nowhere_is_no_absent_file(directory, file):
    """A hub download that was cut off: without hf_quant_config.json the model would be declared unquantised."""
    (directory / file).unlink(missing_ok=True)
    (directory / file).symlink_to(directory / "gone")
    with pytest.raises(InvalidInputError, match=rf"{file} is a link to a file that is not there: download it again\."):
        open_checkpoint(str(directory))


@pytest.mark.parametrize("file", FILES)
def test_link_to_itself(directory, file):
    (directory / file).unlink(missing_ok=True)
    (directory / file).symlink_to(directory / file)
    with pytest.raises(InvalidInputError, match="cannot be read: Too many levels of symbolic links"):
        open_checkpoint(str(directory))


@pytest.mark.parametrize("file", FILES[:3])
def test_json_that_is_a_git_lfs_pointer(directory, file):
    (directory / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(InvalidInputError, match=rf"{file} is a Git LFS pointer"):
        open_checkpoint(str(directory))


def test_path_that_leaves_no_room_for_a_file_name(tmp_path, monkeypatch):
    """PATH_MAX is 4096: the directory can be named, config.json in it cannot."""
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path)
    while len(path) < 4086:
        part = "d" * min(200, 4086 - len(path) - 1)
        Path(part).mkdir()
        os.chdir(part)
        path += f"/{part}"
    with pytest.raises(InvalidInputError, match="cannot be read: File name too long"):
        open_checkpoint(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("closed", "mode"), [("", 0o700), ("config.json", 0o600), ("model.safetensors", 0o600)])
def test_checkpoint_of_somebody_else(closed, mode):
    with tempfile.TemporaryDirectory() as name:  # tmp_path is below a directory that others cannot enter
        directory = write_checkpoint(Path(name), CONFIG, {"model.safetensors": bf16("lm_head", 8, 64)}, index=False)
        directory.chmod(0o755)
        (directory / closed).chmod(mode)
        os.seteuid(65534)
        try:
            with pytest.raises(InvalidInputError, match="cannot be read: Permission denied"):
                open_checkpoint(name)
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["directory", "file"])
def test_path_that_hides_a_preset_says_so(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "qwen3-32b-nvfp4")
    with pytest.raises((NotFoundError, InvalidInputError), match=r"It hides the preset nvidia/Qwen3-32B-NVFP4"):
        open_checkpoint("qwen3-32b-nvfp4")


def test_name_is_fit_to_be_shown(tmp_path):
    path = tmp_path / "a\n\x1b[31mb"
    write_checkpoint(path, CONFIG, {})
    assert open_checkpoint(str(path)).name == f"{tmp_path}/a??[31mb"
