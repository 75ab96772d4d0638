"""Safetensors headers: what is read, what is refused, and that nothing takes the process down."""

from __future__ import annotations

import json
import os
import struct

import pytest
from checkpoint_files import bf16, header_of, write_shard
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError
from fp4tune.tuner.inspection.safetensors_header import (
    MAX_HEADER_BYTES,
    ShardState,
    TensorInfo,
    parse_header,
    read_shard,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def raw_file(path, header: bytes, *, length: int | None = None, data: int = 0):
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    os.truncate(path, 8 + len(header) + data)
    return path


def entry(dtype="BF16", shape=(2, 3), offsets=(0, 12)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_header_is_read_and_weights_are_not(tmp_path):
    path = tmp_path / "m.safetensors"
    write_shard(path, {"a.weight": ("BF16", (1 << 20, 1 << 15)), "b": ("F32", ())})  # 64 GiB of hole
    shard = read_shard(path)
    assert shard.state is ShardState.OK
    assert shard.tensors == {"a.weight": TensorInfo("BF16", (1 << 20, 1 << 15)), "b": TensorInfo("F32", ())}


def test_equal_infos_are_one_object(tmp_path):
    write_shard(tmp_path / "m.safetensors", bf16("a", 4, 4) | bf16("b", 4, 4))
    tensors = read_shard(tmp_path / "m.safetensors").tensors
    assert tensors["a.weight"] is tensors["b.weight"]


def test_trailing_spaces_are_allowed(tmp_path):
    path = raw_file(tmp_path / "m.safetensors", json.dumps({"a": entry()}).encode() + b"    ", data=12)
    assert read_shard(path).state is ShardState.OK


def test_missing_file(tmp_path):
    assert read_shard(tmp_path / "gone.safetensors").state is ShardState.MISSING


@pytest.mark.parametrize("size", [0, 1, 7])
def test_file_too_short_for_a_length(tmp_path, size):
    (tmp_path / "m.safetensors").write_bytes(b"\1" * size)
    shard = read_shard(tmp_path / "m.safetensors")
    assert shard.state is ShardState.TRUNCATED
    assert f"{size} bytes" in shard.note


def test_file_that_ends_inside_its_header(tmp_path):
    header = json.dumps({"a": entry()}).encode()
    path = raw_file(tmp_path / "m.safetensors", header[:20], length=len(header))
    shard = read_shard(path)
    assert shard.state is ShardState.TRUNCATED
    assert shard.tensors == {}


def test_file_that_ends_inside_its_data_keeps_its_header(tmp_path):
    path = raw_file(tmp_path / "m.safetensors", json.dumps({"a": entry()}).encode(), data=11)
    shard = read_shard(path)
    assert shard.state is ShardState.TRUNCATED
    assert shard.tensors == {"a": TensorInfo("BF16", (2, 3))}
    assert "Download it again" in shard.note


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 1 << 40, (1 << 64) - 1])
def test_header_too_long(tmp_path, length):
    path = raw_file(tmp_path / "m.safetensors", b"{}", length=length)
    with pytest.raises(InvalidInputError, match=f"{length} bytes long"):
        read_shard(path)


def test_header_of_the_greatest_length_is_refused_by_content_not_by_crash(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES))
    os.truncate(path, 8 + MAX_HEADER_BYTES)  # 100 MB of zeros
    with pytest.raises(InvalidInputError, match="not valid JSON"):
        read_shard(path)


@pytest.mark.parametrize("element", [b"[],", b"0,", b'{"a":', b"[", b'"",'])
def test_header_of_tens_of_millions_of_elements(tmp_path, element):
    header = b'{"a":[' + element * (60_000_000 // len(element))
    path = raw_file(tmp_path / "m.safetensors", header)
    with pytest.raises(InvalidInputError, match="JSON (items|objects), more than"):
        read_shard(path)


def test_header_of_more_tensors_than_any_file_has():
    header = b"{" + b",".join(b'"t%d":{}' % i for i in range(500_001)) + b"}"
    with pytest.raises(InvalidInputError, match="names 500001 tensors; at most 500000"):
        parse_header(header, "m.safetensors")


def test_git_lfs_pointer(tmp_path):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4873923\n"
    (tmp_path / "m.safetensors").write_text(text)
    shard = read_shard(tmp_path / "m.safetensors")
    assert shard.state is ShardState.LFS_POINTER
    assert "git lfs pull" in shard.note


@pytest.mark.parametrize(
    "bad",
    [
        [],
        "text",
        None,
        7,
        {},
        {"dtype": "BF16", "shape": [2, 3]},
        {"dtype": "BF16", "data_offsets": [0, 12]},
        {"shape": [2, 3], "data_offsets": [0, 12]},
        entry(dtype=16),
        entry(dtype=["BF16"]),
        entry(shape=[-2, 3]),
        entry(shape=[2.5, 3]),
        entry(shape=["2", 3]),
        entry(shape=[[2], 3]),
        entry(shape=[1 << 60, 1]),
        entry(shape=[1] * 17),
        {"dtype": "BF16", "shape": 6, "data_offsets": [0, 12]},
        entry(offsets=[12, 0]),
        entry(offsets=[-1, 11]),
        entry(offsets=[0]),
        entry(offsets=[0, 6, 12]),
        entry(offsets=["0", "12"]),
        entry(offsets=[0.0, 12.0]),
    ],
)
def test_malformed_entry(bad):
    with pytest.raises(InvalidInputError, match=r"malformed: tensor 'a\.weight'"):
        parse_header(json.dumps({"a.weight": bad}).encode(), "m.safetensors")


def test_offsets_that_do_not_fit_the_shape():
    with pytest.raises(InvalidInputError, match="takes 12 bytes, and its offsets span 13"):
        parse_header(json.dumps({"a": entry(offsets=[0, 13])}).encode(), "m.safetensors")


def test_unknown_dtype_is_kept_for_the_verdict():
    tensors, _ = parse_header(json.dumps({"a": entry(dtype="Q4_K", offsets=[0, 99])}).encode(), "m.safetensors")
    assert tensors["a"].dtype == "Q4_K"


def test_f4_takes_half_a_byte_an_element():
    tensors, size = parse_header(json.dumps({"a": entry("F4", (4, 16), (0, 32))}).encode(), "m.safetensors")
    assert tensors["a"].shape == (4, 16)
    assert size == 32


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_never_crash(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(raw)
    try:
        read_shard(path)
    except Fp4tuneError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {}, optional={"dtype": st.sampled_from(["BF16", "U8", "F4"]) | JSON, "shape": JSON, "data_offsets": JSON}
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=12), ENTRY | JSON, max_size=4))
def test_random_headers_never_crash(header):
    try:
        parse_header(json.dumps(header).encode(), "m.safetensors")
    except InvalidInputError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test


def test_synthetic_header_is_what_the_format_says():
    raw, size = header_of({"a.weight": ("BF16", (2, 3)), "b": ("F32", ())})
    assert json.loads(raw)["b"] == {"dtype": "F32", "shape": [], "data_offsets": [12, 16]}
    assert size == 16
