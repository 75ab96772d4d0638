"""Files against index: missing, unindexed, doubled, shadowed."""

from __future__ import annotations

import json

import pytest
from checkpoint_files import bf16, nvfp4, write_checkpoint, write_shard
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.tuner.inspection import shards
from fp4tune.tuner.inspection.safetensors_header import ShardState
from fp4tune.tuner.inspection.shards import scan

CONFIG = {"hidden_size": 64, "num_hidden_layers": 1}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def directory(tmp_path):
    return write_checkpoint(tmp_path, CONFIG, {ONE: bf16("a", 4, 4), TWO: bf16("b", 4, 4)})


def test_complete(directory):
    found = scan(directory)
    assert set(found.tensors()) == {"a.weight", "b.weight"}
    assert found.index == {"a.weight": ONE, "b.weight": TWO}
    assert found.notes == ()


def test_shard_that_the_index_names_is_missing(directory):
    (directory / TWO).unlink()
    found = scan(directory)
    assert [(s.file, s.state) for s in found.shards] == [(ONE, ShardState.OK), (TWO, ShardState.MISSING)]
    assert found.notes == (f"1 of 2 safetensors files are missing (download again): {TWO}.",)
    assert set(found.tensors()) == {"a.weight"}


def test_shard_that_its_siblings_name_is_missing_without_an_index(directory):
    (directory / TWO).unlink()
    (directory / "model.safetensors.index.json").unlink()
    assert scan(directory).shards[1].state is ShardState.MISSING


def test_all_shards_are_lfs_pointers(directory):
    for file in (ONE, TWO):
        (directory / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    found = scan(directory)
    assert not found.has_headers
    assert len(found.notes) == 1
    assert "2 of 2 safetensors files are Git LFS pointers" in found.notes[0]


def test_unindexed_file_counts(directory):
    write_shard(directory / "mtp.safetensors", bf16("mtp.fc", 4, 8))
    found = scan(directory)
    assert "mtp.fc.weight" in found.tensors()
    assert "mtp.fc.weight" not in found.index


def test_consolidated_copy_is_ignored(directory):
    write_shard(directory / "consolidated.safetensors", bf16("layers.0.wq", 4, 4))
    write_shard(directory / "consolidated-00001-of-00001.safetensors", bf16("layers.0.wk", 4, 4))
    found = scan(directory)
    assert set(found.tensors()) == {"a.weight", "b.weight"}
    assert set(found.ignored) == {"consolidated.safetensors", "consolidated-00001-of-00001.safetensors"}


def test_consolidated_alone_counts(tmp_path):
    write_checkpoint(tmp_path, CONFIG, {"consolidated.safetensors": bf16("layers.0.wq", 4, 4)}, index=False)
    assert set(scan(tmp_path).tensors()) == {"layers.0.wq.weight"}


def test_single_file_shadows_the_shards_of_an_index(directory):
    write_shard(directory / "model.safetensors", nvfp4("a", 32, 32))
    found = scan(directory)
    assert set(found.tensors()) == set(nvfp4("a", 32, 32))
    assert set(found.ignored) == {ONE, TWO}
    assert all("shadowed" in why for why in found.ignored.values())


def test_tensor_in_two_files_counts_once_from_the_indexed_one(directory):
    write_shard(directory / "extra.safetensors", {"a.weight": ("F32", (9, 9))})
    assert scan(directory).tensors()["a.weight"].dtype == "BF16"
    write_shard(directory / "z.safetensors", {"b.weight": ("F32", (9, 9))})
    assert scan(directory).tensors()["b.weight"].dtype == "BF16"


@pytest.mark.parametrize(
    "index",
    [
        {"weight_map": []},
        {"metadata": {}},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": None}},
        {"weight_map": {"a": "../outside.safetensors"}},
        {"weight_map": {"a": ""}},
        {"weight_map": {"a": "x\x1b[2J.safetensors"}},
        {"weight_map": {"a\nb": "x.safetensors"}},
        {"weight_map": {"a" * 2000: "x.safetensors"}},
    ],
)
def test_malformed_index(directory, index):
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidInputError, match=r"index\.json"):
        scan(directory)


def test_numbers_that_promise_millions_of_files_are_not_believed(tmp_path):
    write_shard(tmp_path / "model-00001-of-99999.safetensors", bf16("a", 4, 4))
    assert len(scan(tmp_path).shards) == 1


def test_directory_named_like_a_shard(directory):
    (directory / "x.safetensors").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be read"):
        scan(directory)


def test_more_files_or_tensors_than_any_model_has(directory, monkeypatch):
    (directory / "model.safetensors.index.json").unlink()
    monkeypatch.setattr(shards, "MAX_TENSORS", 1)
    with pytest.raises(InvalidInputError, match="more than 1 tensors"):
        scan(directory)
    monkeypatch.setattr(shards, "MAX_SHARDS", 1)
    with pytest.raises(InvalidInputError, match="holds 2 safetensors files"):
        scan(directory)


def test_index_of_more_files_than_any_model_has(directory):
    weight_map = {f"a{i}.weight": f"f{i}.safetensors" for i in range(10_001)}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InvalidInputError, match="names 10001 tensors in 10001 files"):
        scan(directory)


def test_index_of_more_tensors_than_any_model_has(directory, monkeypatch):
    monkeypatch.setattr(shards, "MAX_TENSORS", 1)
    with pytest.raises(InvalidInputError, match="names 2 tensors in 2 files; at most 1 in"):
        scan(directory)


def test_many_numbers_that_promise_thousands_of_files_each(tmp_path):
    for i in range(4):
        (tmp_path / f"s{i}-00001-of-09999.safetensors").touch()
    with pytest.raises(InvalidInputError, match="imply more than 10000"):
        scan(tmp_path)


@pytest.mark.parametrize("name", ["a\x1b[31m.safetensors", "a\nb.safetensors", "a\udcff.safetensors"])
def test_file_name_that_cannot_be_shown(directory, name):
    (directory / name).touch()
    with pytest.raises(InvalidInputError, match="which is no name of a shard"):
        scan(directory)
