"""Files of other people, opened without waiting, and their JSON, read with bounded memory.

A checkpoint directory is untrusted input: a 100 MB file of `[[],[],...]` parses into gigabytes of Python
objects. The bytes are therefore counted before they are parsed: every container and every element of one costs
at least one of `{`, `[` or `,`, so their number bounds the number of objects, whatever the text says.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ...kernels.errors import InvalidInputError, NotFoundError

CONFIG_MAX_BYTES = 64 << 20
"""Largest config.json or hf_quant_config.json read. The largest seen lists 22,422 layers in about 4 MB."""

CONFIG_MAX_ITEMS = 2_000_000
"""Most JSON items in a config file; 22,422 listed layers are about 70,000. At some 100 bytes an object this
keeps the parsed form below a few hundred megabytes."""

INDEX_MAX_BYTES = 512 << 20
"""Largest model.safetensors.index.json read; 400,000 tensors take about 50 MB."""

INDEX_MAX_ITEMS = 1_010_000
"""Most JSON items in an index: one a tensor, for shards.MAX_TENSORS of them, and some of metadata."""

LFS_MAGIC = b"version https://git-lfs"
"""How a Git LFS pointer begins, which stands for a large file where `git lfs pull` was not run."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    A FIFO would wait for its writer for ever, and a device such as /dev/zero has no end.

    Raises:
        InvalidInputError: it is something else than a regular file.
        OSError: it cannot be opened; FileNotFoundError if it is not there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInputError(f"{path} cannot be read: it is no regular file.")
    return os.fdopen(descriptor, "rb")


def read_object(path: Path, *, max_bytes: int = CONFIG_MAX_BYTES, max_items: int = CONFIG_MAX_ITEMS) -> dict[str, Any]:
    """Read a file that must hold one JSON object.

    Args:
        path: the file.
        max_bytes: refuse a larger file without reading it.
        max_items: refuse a text with more containers and commas than this without parsing it.

    Raises:
        NotFoundError: there is no such file.
        InvalidInputError: the file cannot be read, is too large, is no JSON, or is JSON but no object; or it is a link
            that leads nowhere, as a download that was cut off leaves in a hub cache.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(max_bytes + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise InvalidInputError(f"{path} is a link to a file that is not there: download it again.") from None
        raise NotFoundError(f"There is no file {path}.") from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.") from error
    if raw.startswith(LFS_MAGIC):
        raise InvalidInputError(f"{path} is a Git LFS pointer, not the file: run `git lfs pull`.")
    if len(raw) > max_bytes:
        raise InvalidInputError(f"{path} is larger than {max_bytes} bytes, which no such file of a model is.")
    return parse_object(raw, str(path), max_items=max_items)


def read_optional(
    path: Path, *, max_bytes: int = CONFIG_MAX_BYTES, max_items: int = CONFIG_MAX_ITEMS
) -> dict[str, Any] | None:
    """As read_object; None if there is no such file."""
    try:
        return read_object(path, max_bytes=max_bytes, max_items=max_items)
    except NotFoundError:
        return None


def parse_object(raw: bytes, what: str, *, max_items: int, max_objects: int | None = None) -> dict[str, Any]:
    """Parse bytes that must be one JSON object of at most `max_items` items.

    Args:
        raw: UTF-8 text.
        what: how to call it in an error.
        max_items: most containers and commas.
        max_objects: most `{`, whose dictionaries take the most memory; None for no limit of their own.

    Raises:
        InvalidInputError: too many items, no JSON, or JSON but no object.
    """
    objects = raw.count(b"{")
    items = raw.count(b",") + objects + raw.count(b"[")
    if max_objects is not None and objects > max_objects:
        raise InvalidInputError(f"{what} holds {objects} JSON objects, more than the {max_objects} that are accepted.")
    if items > max_items:
        raise InvalidInputError(f"{what} holds {items} JSON items, more than the {max_items} that are accepted.")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise InvalidInputError(f"{what} is nested too deeply to be parsed.") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, an integer of more digits than Python reads
        raise InvalidInputError(f"{what} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{what} must hold a JSON object and holds {_kind(value)}.")
    return value


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return names.get(type(value), "null")
