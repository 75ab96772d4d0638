"""Matching module names against the lists of a quantisation config.

ModelOpt writes globs over the full checkpoint name (`fnmatch` semantics); compressed-tensors writes exact names, class
names, and `re:` regular expressions that `re.match` decides. Patterns are other people's text: an expression whose
time could explode is refused, not tried, and so are lists that would take minutes to be tried on all modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

from ...kernels.errors import InvalidInputError
from .regex_cost import Cost, cost_of

MAX_PATTERNS = 1_000_000
MAX_EXPRESSIONS = 5_000
"""Most entries of a list that have to be tried one by one, not looked up; compiling one takes about 0.3 ms. Published
lists have a few dozen."""
MAX_STEPS = 1_000_000_000
"""Most steps that the entries of a list may take over all modules. A step took 1 to 7 ns (CPython 3.11, names of 256
characters made to backtrack). A dozen expressions like `.*layers.[0-9]+.mlp.(gate|up|down)_proj` on 2,000 names of 80
characters are charged 240,000,000 and take far less, because they stop at the first character that does not fit."""
MAX_REGEX_CHARS = 1_000
MAX_REGEX_NAME = 256
"""Longest name that expressions are tried on; real names have about 100 characters."""

_CALL = 50
"""What one call of a compiled expression costs, in steps."""
_FIXED_PIECE = re.compile(r"(?:[A-Za-z0-9_-]|\\[._-]|\.(?![*+?{]))+")
_GLOB_CHARS = re.compile(r"[*?\[]")


class _Work:
    """How much a list may still be tried."""

    def __init__(self, entries: int) -> None:
        if entries > MAX_EXPRESSIONS:
            raise InvalidInputError(
                f"A list of the quantisation config has {entries} wildcard expressions; at most {MAX_EXPRESSIONS} are "
                "tried."
            )
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Account for work before it is done."""
        self._left -= steps + _CALL
        if self._left < 0:
            raise InvalidInputError(
                "The wildcard expressions of the quantisation config would take minutes to be tried on all modules."
            )


class Globs:
    """A list of globs; which of them is the first to match a name, in time that hardly depends on their number.

    Literals are a set, `prefix*` and `*suffix` are one per length, and only the rest is tried one by one.

    Raises:
        InvalidInputError: too many entries of the rest, or too much work in trying them.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._literals: set[str] = set()
        self._prefixes: dict[str, str] = {}
        self._suffixes: dict[str, str] = {}
        others: list[str] = []
        for pattern in self.patterns:
            if not _GLOB_CHARS.search(pattern):
                self._literals.add(pattern)
            elif pattern.endswith("*") and not _GLOB_CHARS.search(pattern[:-1]):
                self._prefixes.setdefault(pattern[:-1], pattern)
            elif pattern.startswith("*") and not _GLOB_CHARS.search(pattern[1:]):
                self._suffixes.setdefault(pattern[1:], pattern)
            else:
                others.append(pattern)
        self._work = _Work(len(others))
        self._others = [(re.compile(translate(pattern)), pattern) for pattern in others]
        self._starts = sorted({len(prefix) for prefix in self._prefixes})
        self._ends = sorted({len(suffix) for suffix in self._suffixes})

    def match(self, name: str) -> str | None:
        """A pattern that matches the whole of `name`, or None."""
        if name in self._literals:
            return name
        for length in self._starts:
            if length > len(name):
                break
            found = self._prefixes.get(name[:length])
            if found is not None:
                return found
        for length in self._ends:
            found = self._suffixes.get(name[len(name) - length :]) if length <= len(name) else None
            if found is not None:
                return found
        for regex, pattern in self._others:
            self._work.spend(len(name))
            if regex.match(name):
                return pattern
        return None


class Targets:
    """A compressed-tensors list (`targets` or `ignore`) of exact names, class names, and `re:` expressions.

    Raises:
        InvalidInputError: an expression is none or could run for ever, or too much work in trying them all.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = tuple(entries)
        self._exact = {entry for entry in self.entries if not entry.startswith("re:")}
        expressions = [entry for entry in self.entries if entry.startswith("re:")]
        self._work = _Work(len(expressions))
        self._regexes = [(*compile_regex(entry[3:]), entry) for entry in expressions]

    def match(self, name: str, class_name: str = "Linear") -> str | None:
        """The entry that names `name` or its class, or None. An exact name beats an expression beats a class."""
        if name in self._exact:
            return name
        if len(name) <= MAX_REGEX_NAME:
            for regex, cost, entry in self._regexes:
                self._work.spend(cost.steps(len(name)))
                if regex.match(name):
                    return entry
        return class_name if class_name in self._exact else None


def compile_regex(text: str) -> tuple[re.Pattern[str], Cost]:
    """Compile an expression out of a config file, and bound the work of a match.

    Raises:
        InvalidInputError: it is no regular expression, or one whose matching time could explode.
    """
    shown = text if len(text) <= 80 else text[:77] + "..."
    if len(text) > MAX_REGEX_CHARS:
        raise InvalidInputError(f"The expression 're:{shown}' of the quantisation config is too long to be tried.")
    linear = _without_backtracking(text)
    try:
        re.compile(text)
        regex = re.compile(linear)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidInputError(
            f"'re:{shown}' of the quantisation config is no regular expression: {error}."
        ) from error
    cost = cost_of(linear)
    if cost is None:
        raise InvalidInputError(
            f"The expression 're:{shown}' of the quantisation config could take for ever to be matched."
        )
    return regex, cost


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
