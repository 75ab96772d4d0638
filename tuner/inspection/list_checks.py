"""Checks of the quantisation lists themselves: entries that match too much, too little, or differently by engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .linears import Linear
from .model_config import ModelConfig
from .notes import SHOWN_MODULES, Warn
from .patterns import Globs, is_literal
from .quant_config import QuantConfig
from .quant_rules import CompressedTensorsRules

_EXPERT = re.compile(r"\.experts\.[0-9]+(?=\.|$)", re.ASCII)
"""Experts are represented by one of them, so an entry about any of them is about that one."""
_OPEN_INDEX = re.compile(r"layers\.(?P<index>[0-9]{1,6})\*", re.ASCII)
_MAX_PAIRS = 5_000_000
"""Most (entry, module) pairs tried one by one: 400 entries by 1,500 modules are 600,000. Beyond it, a check is left
out for the entries that need it."""


def check_lists(quant: QuantConfig, model: ModelConfig, linears: Sequence[Linear], names: Iterable[str]) -> list[Warn]:
    """Warnings about a checkpoint's lists.

    Args:
        quant: the quantisation section.
        model: facts of config.json.
        linears: the linears; one expert a layer stands for all.
        names: every module name that is really in the checkpoint; empty if only the config is known, and then
            entries that match nothing are not reported.
    """
    if isinstance(quant.rules, CompressedTensorsRules):
        return []
    entries = [entry for entry in quant.rules.listed_names() if len(entry) <= 500]
    found = _open_indexes(entries, len(model.layers))
    found += _substrings(quant.rules.excluded_names(), linears)
    return found + _matchless(entries, list(names))


def _open_indexes(entries: Sequence[str], layers: int) -> list[Warn]:
    """`layers.7*` is layer 7 to a reader and layers 7, 70, ..., 79 to fnmatch; ModelOpt writes `layers.7.*` then."""
    found = []
    for entry in entries:
        match = _OPEN_INDEX.search(entry)
        if match is None or int(match["index"]) == 0:
            continue
        first = int(match["index"]) * 10
        if first < layers:
            last = min(first + 9, layers - 1)
            message = f"The pattern {entry!r} matches layer {match['index']} and also layers {first} to {last}."
            found.append(Warn("pattern-ambiguous", message))
    return found


def _substrings(entries: Sequence[str], linears: Sequence[Linear]) -> list[Warn]:
    """Literal entries that vLLM would also match by substring, so that `...layers.1` hits layer 10."""
    literals = [entry for entry in entries if is_literal(entry)]
    if not literals or len(literals) * len(linears) > _MAX_PAIRS:
        return []
    found = []
    exact = set(literals)
    joined = "\n".join(linear.name for linear in linears if linear.name not in exact)
    for entry in literals:
        position = joined.find(entry)
        if position >= 0:
            start, end = joined.rfind("\n", 0, position) + 1, joined.find("\n", position)
            found.append((entry, joined[start : end if end >= 0 else None]))
    if not found:
        return []
    entry, name = found[0]
    message = (
        f"{len(found)} listed names are also part of longer module names, such as {entry!r} in {name!r}: vLLM matches "
        "by substring and treats both alike, ModelOpt and this verdict do not."
    )
    return [Warn("pattern-substring", message, tuple(entry for entry, _ in found[:SHOWN_MODULES]))]


def _matchless(entries: Sequence[str], names: Sequence[str]) -> list[Warn]:
    """Entries that name nothing in the checkpoint: usually written with another prefix (SGLang PR #38781)."""
    if not names:
        return []
    known = {_EXPERT.sub(".experts.#", name) for name in names}
    for name in tuple(known):
        parent = name
        while parent:
            parent = parent.rpartition(".")[0]
            if parent in known:
                break
            known.add(parent)
    wild = sum(not is_literal(entry) for entry in entries)
    if wild * len(known) > _MAX_PAIRS:
        entries = [entry for entry in entries if is_literal(entry)]
    idle = [entry for entry in entries if not _names_something(entry, known)]
    if not idle:
        return []
    hint = _prefix_hint(idle[0], known)
    message = (
        f"{len(idle)} entries of the quantisation lists match no module of the checkpoint, such as {idle[0]!r}{hint}."
    )
    return [Warn("pattern-matches-nothing", message, tuple(idle[:SHOWN_MODULES]))]


def _names_something(entry: str, known: set[str]) -> bool:
    entry = _EXPERT.sub(".experts.#", entry)
    if entry in known:
        return True
    if is_literal(entry):
        return False
    prefix = re.split(r"[*?\[]", entry, maxsplit=1)[0].rstrip(".")
    if prefix and entry.endswith("*") and is_literal(entry[:-1]) and prefix in known:
        return True
    globs = Globs((entry,))
    return any(globs.match(name) for name in known)


def _prefix_hint(entry: str, known: set[str]) -> str:
    """`; modules are called 'model.layers...', not 'model.language_model.layers...'` if that is the reason."""
    match = re.match(r"^(.{0,200}?)(layers\.[0-9]+)", entry)
    if match is None:
        return ""
    for name in known:
        at = name.find(match[2])
        if at >= 0 and name[:at] != match[1] and name[at:].startswith(match[2]):
            return f": it is written for {match[1]!r} and the modules are called {name[:at]!r}"
    return ""
