"""Warnings as data: a stable code for programs, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN_MODULES = 8
"""How many module names a warning carries; the sentence says how many there are."""


MAX_NAME_CHARS = 1_000
"""Longest name of a tensor, a pattern or a file accepted; real ones have about 100 characters."""


def is_clean_name(name: str) -> bool:
    """True if a name out of somebody's file can be shown: not absurdly long, no control characters, no surrogates."""
    return len(name) <= MAX_NAME_CHARS and name.isprintable()


def clean(text: str, limit: int = 100) -> str:
    """Text out of somebody's file, fit to be shown."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


@dataclass(frozen=True, slots=True)
class Warn:
    """Something a user should know about a checkpoint or a workload.

    Attributes:
        code: stable, kebab-case: `declared-stored-differ`, `mtp-absent`, ...
        message: one sentence or two.
        modules: some of the modules it is about, in the checkpoint's spelling; empty if it is about no module.
    """

    code: str
    message: str
    modules: tuple[str, ...] = ()
