"""How much work an expression out of a config file can be, known before it is tried on anything.

Python's `re` backtracks and cannot be interrupted: `(?:.|.)*!` on a name of 60 letters outlives its reader. So only
expressions whose work has a bound are taken: repeats of single characters or classes, few of them, and no repeats of
groups. Every published expression is of this kind.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_HARD_REPEATS = 3
"""Most repeats that can take each other's characters (`.*`, `[a-z]+`; not `[0-9]+` before a dot). Matching a name of
length L tries up to (L + r over r) divisions of it among r of them; published expressions have one or two."""

MAX_WAYS = 10_000
"""Most combinations of alternatives and optional pieces. `layers.(0|1|...|60).mlp.(gate|up|down)_proj` has 183."""

_TOKEN = re.compile(
    r"""(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\])
      | (?P<skip>\(\?\#[^)]*\) | \(\?[aiLmsu-]+\) | \(\?P=\w+\))
      | (?P<open>\((?:\?(?:P<\w+>|\([^)]*\)|<[=!]|[aiLmsu-]*:|[=!>]))?)
      | (?P<close>\))
      | (?P<bar>\|)
      | (?P<repeat>(?:[*+?]|\{[0-9]*(?:,[0-9]*)?\})[?+]?)
      | (?P<char>\\.|.)""",
    re.VERBOSE | re.DOTALL,
)
_ATOMIC = re.compile(r"\(\?>\.\*\?[^()]*\)")
_DIGITS = frozenset({r"\d", "[0-9]"})
_EXACTLY = re.compile(r"\{[0-9]+\}")


@dataclass(frozen=True, slots=True)
class Cost:
    """A bound on the work of one match.

    Attributes:
        repeats: repeats that can take each other's characters; those that cannot count as one together, because
            each of them reads on from wherever the others stop.
        ways: combinations of alternatives and optional pieces.
        scans: atomic searches, each of which reads the name once.
    """

    repeats: int
    ways: int
    scans: int

    def steps(self, length: int) -> int:
        """Most characters looked at when a name of this length is matched."""
        return self.ways * math.comb(length + self.repeats, self.repeats) + self.scans * length


def cost_of(expression: str) -> Cost | None:
    """The cost of an expression that compiles; None if no bound is known or it is too high."""
    rest = _ATOMIC.sub("", expression)
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(rest)]
    repeats = [_repeat(tokens, at) for at, (kind, _) in enumerate(tokens) if kind == "repeat"]
    hard = repeats.count("hard")
    ways = _alternatives(tokens) * 2 ** repeats.count("optional")
    if "unbounded" in repeats or hard > MAX_HARD_REPEATS or ways > MAX_WAYS:
        return None
    return Cost(hard + ("decided" in repeats), ways, len(_ATOMIC.findall(expression)))


def _alternatives(tokens: list[tuple[str, str]]) -> int:
    """The product of the numbers of alternatives of all groups."""
    ways = 1
    open_groups = [1]
    for kind, _ in tokens:
        if kind == "open":
            open_groups.append(1)
        elif kind == "bar":
            open_groups[-1] += 1
        elif kind == "close" and len(open_groups) > 1:
            ways *= open_groups.pop()
    return ways * open_groups[0]


def _repeat(tokens: list[tuple[str, str]], at: int) -> str:
    """What the repeat at `at` costs: `exact`, `optional`, `decided`, `hard`, or `unbounded` (of a group)."""
    text = tokens[at][1]
    before = tokens[at - 1][0] if at else ""
    if before not in {"class", "char", "close"} or (before == "close" and text[0] != "?"):
        return "unbounded"
    if text[0] == "?":
        return "optional"
    if _EXACTLY.match(text):
        return "exact"
    return "decided" if _is_decided(tokens, at) else "hard"


def _is_decided(tokens: list[tuple[str, str]], at: int) -> bool:
    """True if the repeat at `at` can end in one place only, because what follows is none of what it repeats."""
    repeated = tokens[at - 1][1]
    following = next((token for token in tokens[at + 1 :] if token[0] != "close"), ("char", "$"))
    if following[0] != "char":
        return False
    if repeated in _DIGITS:
        return following[1] in {"$", "_", "-", r"\."} or following[1].isalpha()
    return repeated == "[^.]" and following[1] in {"$", r"\."}
