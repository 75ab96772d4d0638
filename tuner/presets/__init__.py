"""Configurations of published checkpoints, so that they can be inspected and tuned by name.

Each preset is one `<org>--<name>.json.gz`, made by `tools/make_presets.py`; ATTRIBUTION.md says where each came
from. They hold config files only, no headers: verdicts about a preset are *declared*.
"""

from __future__ import annotations

import difflib
import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ...kernels.errors import InvalidInputError
from ..inspection.json_file import CONFIG_MAX_BYTES, CONFIG_MAX_ITEMS, parse_object

_SUFFIX = ".json.gz"


@dataclass(frozen=True, slots=True)
class Published:
    """A figure that somebody published about weights that are not here.

    Attributes:
        value: the figure.
        source: where it was published.
    """

    value: int
    source: str


@dataclass(frozen=True, slots=True)
class Preset:
    """One preset.

    Attributes:
        name: `org/name`, as the hub spells it.
        config: config.json.
        hf_quant_config: hf_quant_config.json; None if the checkpoint has none.
        source: where the files were obtained.
        published: published facts about its weights, by name (`mtp_tensors`).
    """

    name: str
    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None
    source: str
    published: Mapping[str, Published]


def names() -> list[str]:
    """The names of all presets, `org/name`, sorted without regard to case."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    found = [f.removesuffix(_SUFFIX).replace("--", "/", 1) for f in files if f.endswith(_SUFFIX)]
    return sorted(found, key=str.lower)


def find(name: str) -> Preset | None:
    """The preset called `name`, in any case, with or without `org/`; None if there is none.

    Raises:
        InvalidInputError: two organisations have a preset of that name, and none was given.
    """
    wanted = name.strip().lower()
    known = names()
    matches = [n for n in known if wanted == n.lower()] or [n for n in known if wanted == n.lower().partition("/")[2]]
    if len(matches) > 1:
        raise InvalidInputError(f"{name!r} names {len(matches)} presets; give one of {', '.join(matches)}.")
    return load(matches[0]) if matches else None


def close_names(name: str, limit: int = 3) -> list[str]:
    """Presets whose names look like `name`, closest first."""
    wanted = name.strip().lower()[:200]
    by_short = {n.lower().partition("/")[2]: n for n in names()}
    by_full = {n.lower(): n for n in names()}
    close = difflib.get_close_matches(wanted, [*by_full, *by_short], n=2 * limit, cutoff=0.6)
    found = dict.fromkeys(by_full.get(c) or by_short[c] for c in close)
    return list(found)[:limit]


def load(name: str) -> Preset:
    """Read the preset whose exact name is `name`."""
    entry = resources.files(__name__) / (name.replace("/", "--", 1) + _SUFFIX)
    try:
        raw = gzip.decompress(entry.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(f"The preset {name} is damaged ({error}): install fp4tune again.") from error
    data = parse_object(raw[:CONFIG_MAX_BYTES], f"the preset {name}", max_items=CONFIG_MAX_ITEMS)
    published = {key: Published(fact["value"], fact["source"]) for key, fact in data["published"].items()}
    return Preset(data["name"], data["config"], data["hf_quant_config"], data["source"], published)
