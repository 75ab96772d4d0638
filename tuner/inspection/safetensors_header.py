"""The header of a safetensors file: which tensors it holds, of which dtype and shape. Weights are never read.

Format (https://github.com/huggingface/safetensors#format): a little-endian u64 n, then n bytes of JSON
`{name: {"dtype", "shape", "data_offsets": [begin, end]}}` with an optional `__metadata__`, then the data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...kernels.errors import InvalidInputError
from .json_file import LFS_MAGIC, open_regular, parse_object
from .notes import is_clean_name

MAX_HEADER_BYTES = 100_000_000
"""The safetensors library's own limit; it refuses longer headers with "header too large"."""

MAX_TENSORS = 500_000
"""Most tensors in one file. The largest checkpoint aimed at has 400,000 in all. With the bounds below, the worst of
four hostile headers that pass them (4,990,000 short strings, one of them not ASCII, 90 MB) peaked at 0.8 GB."""

_ITEMS_PER_TENSOR = 10
"""Upper bound on `{`, `[` and `,` of one entry: 8 for a matrix, one more for every further dimension."""

_SPARE_OBJECTS = 10_000
"""`{` beyond one a tensor: the header's own, `__metadata__`, and JSON inside metadata strings."""

_LFS_MAX_BYTES = 1024
"""A Git LFS pointer is a text of about 130 bytes."""

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says about one tensor. Interned: tensors of one dtype and shape share an object.

    Attributes:
        dtype: as the header spells it: `BF16`, `U8`, `F8_E4M3`, `F4`, ...
        shape: as the header has it. For `F4` the last dimension counts elements; for FP4 packed in `U8` it
            counts bytes of two elements.
    """

    dtype: str
    shape: tuple[int, ...]


class ShardState(StrEnum):
    """What was found where a shard should be."""

    OK = "ok"
    TRUNCATED = "truncated"
    """The file ends before its data does (then its header is still good) or inside its header."""
    LFS_POINTER = "lfs_pointer"
    MISSING = "missing"
    """Named by the index or by its numbered siblings, and not there."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file.

    Attributes:
        file: file name inside the checkpoint.
        state: whether it could be read.
        tensors: name -> dtype and shape; empty if the header could not be read.
        note: one sentence if the state is not ok; else empty.
    """

    file: str
    state: ShardState
    tensors: Mapping[str, TensorInfo]
    note: str = ""


Interned = dict[tuple[str, tuple[int, ...]], tuple[TensorInfo, int | None]]
"""Dtype and shape -> the one TensorInfo of that kind, and its bytes if the dtype is known."""


def read_shard(path: Path, interned: Interned | None = None) -> Shard:
    """Read one file's header: 8 + n bytes of it, whatever its size.

    Args:
        path: the file.
        interned: shared between the files of a checkpoint, so that equal infos are one object.

    Raises:
        InvalidInputError: it is no safetensors file: header too long, no JSON, or JSON of another form.
    """
    interned = {} if interned is None else interned
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if size <= _LFS_MAX_BYTES and (prefix + file.read(len(LFS_MAGIC) - 8)).startswith(LFS_MAGIC):
                note = f"{path.name} is a Git LFS pointer, not the weights: run `git lfs pull`."
                return Shard(path.name, ShardState.LFS_POINTER, {}, note)
            if len(prefix) < 8:
                return _truncated(path, f"{size} bytes, too short for a header")
            length = int.from_bytes(prefix, "little")
            if length > MAX_HEADER_BYTES:
                raise InvalidInputError(
                    f"{path} is no safetensors file: its header would be {length} bytes long, "
                    f"and the format allows {MAX_HEADER_BYTES}."
                )
            if 8 + length > size:
                return _truncated(path, f"{size} bytes, but its header alone takes {8 + length}")
            file.seek(8)
            raw = file.read(length)
    except FileNotFoundError:
        return Shard(path.name, ShardState.MISSING, {}, f"{path.name} is not there.")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(raw) < length:
        return _truncated(path, f"{8 + len(raw)} bytes, but its header alone takes {8 + length}")
    tensors, data_bytes = parse_header(raw, str(path), interned)
    if 8 + length + data_bytes > size:
        note = (
            f"{path.name} is truncated: {size} bytes of {8 + length + data_bytes}; its header is complete. "
            "Download it again before serving."
        )
        return Shard(path.name, ShardState.TRUNCATED, tensors, note)
    return Shard(path.name, ShardState.OK, tensors)


def parse_header(raw: bytes, what: str, interned: Interned | None = None) -> tuple[dict[str, TensorInfo], int]:
    """Parse the JSON of a header.

    Args:
        raw: the n bytes after the length.
        what: how to call the file in an error.
        interned: see read_shard.

    Returns:
        Name -> info, and how many bytes of data the offsets need.

    Raises:
        InvalidInputError: too many items, no JSON, or an entry that is not dtype, shape and offsets that agree.
    """
    interned = {} if interned is None else interned
    header = parse_object(
        raw,
        f"the header of {what}",
        max_items=_ITEMS_PER_TENSOR * MAX_TENSORS,
        max_objects=MAX_TENSORS + _SPARE_OBJECTS,
    )
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise InvalidInputError(f"{what} names {len(header)} tensors; at most {MAX_TENSORS} a file are accepted.")
    tensors: dict[str, TensorInfo] = {}
    data_bytes = 0
    for name, entry in header.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            known = interned.get((dtype, shape))
        except (TypeError, KeyError, ValueError):
            raise _bad_entry(what, name, entry) from None
        if known is None:
            fresh = _checked_info(what, name, dtype, shape, entry)
            known = interned[dtype, shape] = (fresh, _nbytes(fresh))
        if not is_clean_name(name):
            raise InvalidInputError(f"The header of {what} names a tensor {name[:100]!r}..., which no model has.")
        info, expected = known
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
            raise _bad_entry(what, name, entry)
        if expected is not None and end - begin != expected:
            raise InvalidInputError(
                f"The header of {what} is inconsistent: tensor {name[:200]!r} of dtype {dtype} and shape "
                f"{list(shape)} takes {expected} bytes, and its offsets span {end - begin}."
            )
        data_bytes = max(data_bytes, end)
        tensors[name] = info
    return tensors, data_bytes


def _checked_info(what: str, name: str, dtype: object, shape: tuple[Any, ...], entry: object) -> TensorInfo:
    if not isinstance(dtype, str) or not dtype.isascii() or len(dtype) > 20 or len(shape) > 16:
        raise _bad_entry(what, name, entry)
    if any(type(d) is not int or not 0 <= d < 1 << 48 for d in shape):
        raise _bad_entry(what, name, entry)
    return TensorInfo(dtype, shape)


def _nbytes(info: TensorInfo) -> int | None:
    """Bytes of a tensor; None if its dtype is not known here."""
    bits = _BITS.get(info.dtype)
    return None if bits is None else math.prod(info.shape) * bits // 8


def _bad_entry(what: str, name: str, entry: object) -> InvalidInputError:
    shown = repr(entry)[:120] if isinstance(entry, (str, int, float, type(None))) else type(entry).__name__
    return InvalidInputError(
        f"The header of {what} is malformed: tensor {name[:200]!r} needs a dtype, a shape and two data offsets, "
        f"and has {_entry_text(entry, shown)}."
    )


def _entry_text(entry: object, shown: str) -> str:
    if isinstance(entry, dict):
        return f"{{{', '.join(f'{str(k)[:20]}: {str(v)[:40]}' for k, v in list(entry.items())[:4])}}}"
    return shown


def _truncated(path: Path, why: str) -> Shard:
    return Shard(path.name, ShardState.TRUNCATED, {}, f"{path.name} is truncated ({why}): download it again.")
