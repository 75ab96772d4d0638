"""Find a checkpoint by what a user types, and read everything about it except its weights."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernels.errors import InvalidInputError, NotFoundError
from . import presets
from .inspection.json_file import open_regular, read_optional
from .inspection.notes import clean
from .inspection.shards import ShardSet, scan

_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}", re.ASCII)
_NAME_CHARS = 4096
"""PATH_MAX of Linux."""
_NO_SHARDS = ShardSet((), None, {}, ())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as its files describe it.

    Attributes:
        name: what to call it: the preset's name, or the path as the user gave it.
        path: its directory; None for a preset.
        config: config.json.
        hf_quant_config: hf_quant_config.json; None if there is none.
        shards: headers and index; empty for a preset.
        published: facts published about a preset's weights, which are not here to be read: name -> value and
            source. Never presented as read from headers.
    """

    name: str
    path: Path | None
    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None
    shards: ShardSet
    published: Mapping[str, presets.Published]

    @property
    def is_preset(self) -> bool:
        """True if the files come from the package and not from a directory."""
        return self.path is None


def open_checkpoint(ref: str) -> Checkpoint:
    """Open a checkpoint. No weight is read: of every safetensors file only its header.

    Args:
        ref: a directory with a config.json; a hub cache directory `models--org--name`, or a snapshot in it; or
            the name of a preset, in any case, with or without `org/`.

    Raises:
        NotFoundError: no such directory and no such preset (the sentence lists the presets, close names first);
            or a directory without a config.json.
        InvalidInputError: a file of it is malformed, or too large to be one.
    """
    if not ref.strip():
        raise InvalidInputError("The checkpoint is empty: give a directory or the name of a preset.")
    path = Path(os.path.expanduser(ref)) if "\0" not in ref else None  # noqa: PTH111 - Path.expanduser raises
    if path is not None and _exists(ref, path):
        try:
            return _open_directory(ref, path)
        except OSError as error:
            raise _unreadable(ref, error) from error
    preset = presets.find(ref)
    if preset is None:
        raise NotFoundError(_unknown(ref))
    return Checkpoint(preset.name, None, preset.config, preset.hf_quant_config, _NO_SHARDS, preset.published)


def _exists(ref: str, path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # then it is no path, and the sentence about names is the better one
            return False
        raise _unreadable(ref, error) from error


def _unreadable(ref: str, error: OSError) -> InvalidInputError:
    return InvalidInputError(f"{ref} cannot be read: {error.strerror or error}.")


def _open_directory(ref: str, path: Path) -> Checkpoint:
    if not path.is_dir():
        raise InvalidInputError(f"{ref} is a file; give the directory that holds config.json.{_hidden_preset(ref)}")
    directory = _snapshot(path)
    config = read_optional(directory / "config.json")
    if config is None:
        raise NotFoundError(
            f"{directory} has no config.json; give a model's directory, a hub cache directory (models--org--name) "
            f"or a snapshot in it.{_hidden_preset(ref)}"
        )
    quant = read_optional(directory / "hf_quant_config.json")
    return Checkpoint(clean(ref, _NAME_CHARS), directory, config, quant, scan(directory), {})


def _hidden_preset(ref: str) -> str:
    """A second sentence for a path that is no checkpoint and stands before a preset of its name."""
    preset = presets.find(ref)
    return "" if preset is None else f" It hides the preset {preset.name}: rename it, or run this elsewhere."


def _snapshot(path: Path) -> Path:
    """The snapshot of a hub cache directory (or its `snapshots/`), by refs/main; any other directory itself."""
    if (path / "config.json").exists():
        return path
    if path.name == "snapshots":
        path = path.parent
    snapshots = path / "snapshots"
    if not snapshots.is_dir():
        return path
    ref = path / "refs" / "main"
    commit = _commit(ref)
    if commit is not None:
        if not _COMMIT.fullmatch(commit):
            raise InvalidInputError(f"{ref} should name a snapshot and says {commit[:60]!r}.")
        if not (snapshots / commit).is_dir():
            raise NotFoundError(f"{ref} names the snapshot {commit}, which is not in {snapshots}: download it again.")
        return snapshots / commit
    found = sorted(p for p in snapshots.iterdir() if p.is_dir())
    if not found:
        raise NotFoundError(f"{snapshots} is empty: the model was never downloaded completely.")
    if len(found) > 1:
        raise InvalidInputError(
            f"{path} has no refs/main and {len(found)} snapshots; give one of them: {', '.join(map(str, found[:5]))}."
        )
    return found[0]


def _commit(ref: Path) -> str | None:
    """What refs/main says; None if there is none."""
    try:
        with open_regular(ref) as file:
            return file.read(200).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInputError(f"{ref} cannot be read: {error.strerror or error}.") from error


def _unknown(ref: str) -> str:
    shown = ref if len(ref) <= 100 else ref[:97] + "..."
    close = presets.close_names(ref)
    others = [name for name in presets.names() if name not in close]
    hint = f"; did you mean {' or '.join(close)}?" if close else "."
    return (
        f"There is no directory and no preset {shown!r}{hint} Presets: {', '.join(close + others)}."
        if close
        else f"There is no directory and no preset {shown!r}. Presets: {', '.join(others)}."
    )
