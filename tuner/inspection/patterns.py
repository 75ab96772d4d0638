"""Matching module names against the lists of a quantisation config.

ModelOpt writes globs over the full checkpoint name (`fnmatch` semantics); compressed-tensors writes exact names, class
names, and `re:` regular expressions that `re.match` decides. Patterns are other people's text: a regular expression
that could run for minutes is refused, not tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

from ...kernels.errors import InvalidInputError

MAX_PATTERNS = 1_000_000
MAX_REGEX_CHARS = 1_000
MAX_REGEX_REPEATS = 12
"""Most unbounded repeats in one expression."""
MAX_HARD_REPEATS = 4
"""Most repeats that can take each other's characters (`.*`, `[^.]+`; not `[0-9]+`). Matching a name of length L costs
up to L to the power of their number; published expressions have two or three."""
MAX_REGEX_NAME = 256
"""Longest name that expressions are tried on; real names have about 100 characters."""

_DIGITS_REPEAT = re.compile(r"(?:\\d|\[0-9-]+\])\+")
_FIXED_PIECE = re.compile(r"(?:[A-Za-z0-9_-]|\\[._-]|\.(?![*+?{]))+")
_ATOMIC = re.compile(r"\(\?>[^()]*\)")
_NESTED_REPEAT = re.compile(r"\((?:[^()\\]|\\.)*[*+}](?:[^()\\]|\\.)*\)[*+{]")
_ADJACENT_REPEATS = re.compile(r"(?:\.[*+]){3,}")
_REPEAT = re.compile(r"(?<!\\)[*+]|(?<!\\)\{[0-9]*,[0-9]*\}")
_GLOB_CHARS = re.compile(r"[*?\[]")


class Globs:
    """A list of globs; which of them is the first to match a name, in time that hardly depends on their number.

    Literals are a set, `prefix*` is a set per prefix length, and only the rest is tried one by one.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._literals: set[str] = set()
        self._prefixes: dict[str, str] = {}
        self._others: list[tuple[re.Pattern[str], str]] = []
        for pattern in self.patterns:
            if not _GLOB_CHARS.search(pattern):
                self._literals.add(pattern)
            elif pattern.endswith("*") and not _GLOB_CHARS.search(pattern[:-1]):
                self._prefixes.setdefault(pattern[:-1], pattern)
            else:
                self._others.append((re.compile(translate(pattern)), pattern))
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    def match(self, name: str) -> str | None:
        """A pattern that matches the whole of `name`, or None."""
        if name in self._literals:
            return name
        for length in self._lengths:
            if length > len(name):
                break
            found = self._prefixes.get(name[:length])
            if found is not None:
                return found
        for regex, pattern in self._others:
            if regex.match(name):
                return pattern
        return None


class Targets:
    """A compressed-tensors list (`targets` or `ignore`) of exact names, class names, and `re:` expressions."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = tuple(entries)
        self._exact = {entry for entry in self.entries if not entry.startswith("re:")}
        self._regexes = [(compile_regex(e[3:]), e) for e in self.entries if e.startswith("re:")]

    def match(self, name: str, class_name: str = "Linear") -> str | None:
        """The entry that names `name` or its class, or None. An exact name beats an expression beats a class."""
        if name in self._exact:
            return name
        if len(name) <= MAX_REGEX_NAME:
            for regex, entry in self._regexes:
                if regex.match(name):
                    return entry
        return class_name if class_name in self._exact else None


def compile_regex(text: str) -> re.Pattern[str]:
    """Compile an expression out of a config file.

    Raises:
        InvalidInputError: it is no regular expression, or one whose matching time could explode.
    """
    shown = text if len(text) <= 80 else text[:77] + "..."
    if len(text) > MAX_REGEX_CHARS or len(_REPEAT.findall(text)) > MAX_REGEX_REPEATS:
        raise InvalidInputError(f"The expression 're:{shown}' of the quantisation config is too long to be tried.")
    linear = _without_backtracking(text)
    hard = len(_REPEAT.findall(_DIGITS_REPEAT.sub("", _ATOMIC.sub("", linear))))
    if _NESTED_REPEAT.search(text) or _ADJACENT_REPEATS.search(text) or hard > MAX_HARD_REPEATS:
        raise InvalidInputError(
            f"The expression 're:{shown}' of the quantisation config has repeats that could match for ever."
        )
    try:
        re.compile(text)
        return re.compile(linear)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidInputError(
            f"'re:{shown}' of the quantisation config is no regular expression: {error}."
        ) from error


def _without_backtracking(text: str) -> str:
    """The same expression with every `.*` before text of fixed length made atomic, except the last one.

    For a chain of `.*`, the leftmost place of each fixed piece is as good as any other, so never trying another
    changes no answer (`fnmatch.translate` does the same) and makes `.*a.*b.*c.*d` linear instead of quartic.
    """
    first, *pieces = text.split(".*")
    if len(pieces) < 3 or any(piece.endswith("\\") for piece in (first, *pieces)):
        return text
    middle = [f"(?>.*?{piece})" if _FIXED_PIECE.fullmatch(piece) else f".*{piece}" for piece in pieces[:-1]]
    return f"{first}{''.join(middle)}.*{pieces[-1]}"


def is_literal(pattern: str) -> bool:
    """True if a glob has no wildcard."""
    return not _GLOB_CHARS.search(pattern)
