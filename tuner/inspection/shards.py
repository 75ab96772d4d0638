"""All safetensors files of a directory, reconciled with its index.

The index never vetoes: it is united with the headers of every `*.safetensors` file that is there, because
published checkpoints lack their MTP file in the index (SGLang PR #17166). The other way round, engines load only
what the index names, so what it does not name is reported apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...kernels.errors import InvalidInputError
from .json_file import INDEX_MAX_BYTES, INDEX_MAX_ITEMS, read_optional
from .notes import is_clean_name
from .safetensors_header import Interned, Shard, ShardState, TensorInfo, read_shard

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

MAX_SHARDS = 10_000
"""Most safetensors files in a directory; the largest published checkpoints have a few hundred."""

MAX_TENSORS = 1_000_000
"""Most tensors in a checkpoint; the largest published ones have 300,000, the largest aimed at 400,000."""

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})\.safetensors", re.ASCII)
_DUPLICATE = re.compile(r"consolidated.*\.safetensors", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """What a directory holds of a model's tensors.

    Attributes:
        shards: every file that counts, in name order; also those that are missing or unreadable.
        index: tensor name -> file name, as model.safetensors.index.json has it; None if there is none.
        ignored: files that were left out, with the reason.
        notes: one sentence for every file that is missing, truncated or a pointer.
    """

    shards: tuple[Shard, ...]
    index: Mapping[str, str] | None
    ignored: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def has_headers(self) -> bool:
        """True if at least one header could be read."""
        return any(shard.tensors for shard in self.shards)

    def tensors(self) -> dict[str, TensorInfo]:
        """Every tensor of every header. A name in two files counts once, from the file that the index names."""
        found: dict[str, TensorInfo] = {}
        for shard in self.shards:
            if not found:
                found = dict(shard.tensors)
                continue
            clash = found.keys() & shard.tensors.keys()
            kept = {name: found[name] for name in clash if (self.index or {}).get(name) != shard.file}
            found.update(shard.tensors)
            found.update(kept)
        return found


def scan(directory: Path) -> ShardSet:
    """Read the index and every header of a directory.

    Raises:
        InvalidInputError: a file is no safetensors file, the index is malformed, or there is too much of either.
    """
    index = _read_index(directory / INDEX_FILE)
    try:
        names = sorted(p.name for p in directory.iterdir() if p.name.endswith(".safetensors"))
    except OSError as error:
        raise InvalidInputError(f"{directory} cannot be listed: {error.strerror or error}.") from error
    if len(names) > MAX_SHARDS:
        raise InvalidInputError(f"{directory} holds {len(names)} safetensors files; at most {MAX_SHARDS} are accepted.")
    odd = next((name for name in names if not is_clean_name(name)), None)
    if odd is not None:
        raise InvalidInputError(f"{directory} holds a safetensors file {odd[:100]!r}, which is no name of a shard.")
    ignored = _ignored(names, index)
    interned: Interned = {}
    shards = []
    count = 0
    for name in names:
        if name in ignored:
            continue
        shard = read_shard(directory / name, interned)
        shards.append(shard)
        count += len(shard.tensors)
        if count > MAX_TENSORS:
            raise InvalidInputError(f"{directory} holds more than {MAX_TENSORS} tensors, which is not accepted.")
    present = {shard.file for shard in shards} | set(ignored)
    absent = _missing_siblings(names, ignored)
    if index is not None and SINGLE_FILE not in present:
        absent |= set(index.values()) - present
    shards += [Shard(n, ShardState.MISSING, {}, f"{n} is not there.") for n in sorted(absent - present)]
    shards.sort(key=lambda shard: shard.file)
    return ShardSet(tuple(shards), index, ignored, tuple(_notes(shards)))


def _read_index(path: Path) -> dict[str, str] | None:
    index = read_optional(path, max_bytes=INDEX_MAX_BYTES, max_items=INDEX_MAX_ITEMS)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise InvalidInputError(f"{path} has no weight_map object, so it is no safetensors index.")
    for name, file in weight_map.items():
        if not is_clean_name(name):
            raise InvalidInputError(f"{path} names a tensor {name[:100]!r}..., which no model has.")
        if not isinstance(file, str) or "/" in file or not file or not is_clean_name(file):
            raise InvalidInputError(f"{path} names {str(file)[:100]!r} as the file of {name[:200]!r}, not a file name.")
    files = len(set(weight_map.values()))
    if len(weight_map) > MAX_TENSORS or files > MAX_SHARDS:
        raise InvalidInputError(
            f"{path} names {len(weight_map)} tensors in {files} files; at most {MAX_TENSORS} in {MAX_SHARDS} are "
            "accepted."
        )
    return weight_map


def _ignored(names: list[str], index: Mapping[str, str] | None) -> dict[str, str]:
    """Duplicates of the model in another layout. Counting them would double every tensor."""
    others = [name for name in names if not _DUPLICATE.fullmatch(name)]
    ignored = {}
    if others:
        why = "a second copy of the weights under other names; engines load the other files"
        ignored = {name: why for name in names if _DUPLICATE.fullmatch(name)}
    if SINGLE_FILE in names and index is not None:
        # Loaders prefer the single file (compressed_tensors says so where it reads MTP weights).
        shadowed = set(index.values()) - {SINGLE_FILE}
        why = f"shadowed by {SINGLE_FILE}, which loaders prefer to the shards that the index names"
        ignored |= {name: why for name in others if name in shadowed}
    return ignored


def _missing_siblings(names: Iterable[str], ignored: Mapping[str, str]) -> set[str]:
    """Files that `x-00003-of-00011` says must exist and that do not."""
    missing: set[str] = set()
    seen: set[tuple[str, str]] = set()
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None or name in ignored or (match["stem"], match["total"]) in seen:
            continue
        seen.add((match["stem"], match["total"]))
        total = int(match["total"])
        if total <= MAX_SHARDS:
            missing |= {f"{match['stem']}-{i:05d}-of-{total:05d}.safetensors" for i in range(1, total + 1)}
        if len(missing) > 2 * MAX_SHARDS:
            raise InvalidInputError(
                f"The names of the safetensors files, such as {name!r}, imply more than {MAX_SHARDS} of them."
            )
    return missing - set(names)


def _notes(shards: list[Shard]) -> list[str]:
    """One sentence a kind of trouble; a checkpoint of 200 LFS pointers gets one sentence, not 200."""
    notes = []
    for state, what in (
        (ShardState.LFS_POINTER, "Git LFS pointers instead of weights (run `git lfs pull`)"),
        (ShardState.MISSING, "missing (download again)"),
    ):
        files = [shard.file for shard in shards if shard.state is state]
        if files:
            shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
            notes.append(f"{len(files)} of {len(shards)} safetensors files are {what}: {shown}.")
    return notes + [shard.note for shard in shards if shard.state is ShardState.TRUNCATED]
