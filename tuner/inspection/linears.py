"""The linears of a checkpoint with both verdicts, from headers and index where there are any, else from the config."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from .architecture import Expected
from .declare import Declared, declare
from .formats import Stored, WeightFormat
from .model_config import ModelConfig
from .modules import Group, differing, missing_indexes
from .notes import SHOWN_MODULES, Warn
from .patterns import is_literal
from .quant_config import QuantConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear layer, or one projection of all experts of a layer.

    Attributes:
        part: what it is (roles.PARTS).
        mtp: True in an MTP branch.
        layer: index of its layer; -1 outside of the layers.
        name: its name in the checkpoint (its first expert's).
        n, k: output and input features of one expert or of the whole; 0 if unknown.
        experts: routed experts; 0 for a plain linear.
        declared: what the configuration says.
        stored: what headers (or, less surely, names in the index) say; None without either.
        from_index: True if `stored` rests on names alone.
    """

    part: str
    mtp: bool
    layer: int
    name: str
    n: int
    k: int
    experts: int
    declared: Declared
    stored: Stored | None
    from_index: bool = False

    @property
    def format(self) -> WeightFormat:
        """The verdict: stored wins over declared."""
        return self.declared.format if self.stored is None else self.stored.format


class Declarer:
    """Declared verdicts of a checkpoint's modules.

    Single experts are looked up only where a list names single experts, so that the work grows with the lists and not
    with layers times experts.
    """

    def __init__(self, quant: QuantConfig, model: ModelConfig) -> None:
        self._quant = quant
        self.tied = model.tied
        self._named: dict[str, set[int]] = {}
        for entry in quant.rules.listed_names():
            head, _, tail = entry.partition(".experts.")
            expert = tail.partition(".")[0]
            if expert.isdecimal() and expert.isascii() and len(expert) < 9:
                where = head if is_literal(head) and not head.startswith("re:") else _ANYWHERE
                self._named.setdefault(where, set()).add(int(expert))

    def one(self, name: str, part: str) -> Declared:
        """The verdict of one module."""
        return declare(self._quant, name, part, tied=self.tied and part == "lm_head")

    def experts(self, name: str, part: str, indexes: Collection[int]) -> tuple[Declared, int]:
        """The verdict of a layer's experts, and how many of them the lists declare otherwise than the first.

        Args:
            name: the name of one of them.
            part: what they are.
            indexes: the experts there are.
        """
        verdict = self.one(name, part)
        head, _, tail = name.partition(".experts.")
        named = {e for where in (head, _ANYWHERE) for e in self._named.get(where, ()) if e in indexes}
        if not named:
            return verdict, 0
        leaf = tail.partition(".")[2]
        formats = {e: self._quant.ruling(f"{head}.experts.{e}.{leaf}").format for e in named}
        unnamed = next((e for e in indexes if e not in named), None)
        if unnamed is None:
            return verdict, sum(fmt is not verdict.by_list for fmt in formats.values())
        rest = self.one(f"{head}.experts.{unnamed}.{leaf}", part)
        odd = sum(fmt is not rest.by_list for fmt in formats.values())
        return rest, odd


_ANYWHERE = ""
"""Key of experts that an entry names in whatever layer a wildcard stands for."""


def from_config(expected: list[Expected], declarer: Declarer, warnings: list[Warn]) -> list[Linear]:
    """The linears that the config implies, with declared verdicts alone."""
    return [_declared_linear(entry, layer, declarer, warnings) for entry in expected for layer in entry.layers]


def _declared_linear(entry: Expected, layer: int, declarer: Declarer, warnings: list[Warn]) -> Linear:
    name = entry.name(layer)
    if entry.experts:
        declared, odd = declarer.experts(name, entry.part, range(entry.experts))
        _warn_experts(odd, name, warnings)
    else:
        declared = declarer.one(name, entry.part)
    return Linear(entry.part, entry.mtp, layer, name, entry.n, entry.k, entry.experts, declared, None)


def _warn_experts(odd: int, name: str, warnings: list[Warn]) -> None:
    if odd:
        message = f"The lists declare {odd} experts of {name} differently from the others."
        warnings.append(Warn("experts-declared-differ", message, (name,)))


def from_groups(
    groups: list[Group],
    expected: list[Expected],
    declarer: Declarer,
    warnings: list[Warn],
    *,
    rename: Mapping[str, str],
) -> list[Linear]:
    """The linears whose tensors are there, with both verdicts, cross-checked with what the config implies.

    Args:
        groups: the checkpoint's modules.
        expected: what the config implies.
        declarer: declared verdicts.
        warnings: where to put what does not fit.
        rename: parts that are called otherwise in this kind of model.
    """
    shapes = {(e.part, e.mtp, layer): e for e in expected if e.is_sized for layer in e.layers}
    linears = [_stored_linear(group, rename, declarer, warnings) for group in groups if group.kind.part]
    checked = []
    mismatched: dict[str, list[str]] = {}
    for linear in linears:
        entry = shapes.get((linear.part, linear.mtp, linear.layer))
        fixed = _oriented(linear, entry)
        checked.append(fixed if fixed.n else _sized(fixed, entry))
        _check_shape(fixed, entry, mismatched)
    for text, names in mismatched.items():
        where = f"{len(names)} modules" if len(names) > 1 else names[0]
        warnings.append(Warn("shape-mismatch", f"{text}: {where}. The headers win.", tuple(names[:SHOWN_MODULES])))
    return checked


def _stored_linear(group: Group, rename: Mapping[str, str], declarer: Declarer, warnings: list[Warn]) -> Linear:
    part = rename.get(group.kind.part, group.kind.part)
    first = min(group.variants, key=lambda variant: min(variant.experts))
    stored, name = first.stored, first.example
    experts = group.experts
    count = stored.stack
    odd = differing(group)
    if odd:
        warnings.append(Warn("experts-differ", f"The modules of {name} are not stored alike: {odd}.", (name,)))
        stored = Stored(WeightFormat.UNKNOWN, stored.n, stored.k, reason=f"its experts differ: {odd}")
    if experts:
        count = len(experts)
        absent = missing_indexes(experts, max(experts) + 1) if experts[-1] < 1 << 16 else experts[:1]
        if absent:
            shown = ", ".join(map(str, absent[:5]))
            message = f"{len(absent)} experts of {name} are missing below index {experts[-1]}: {shown}."
            warnings.append(Warn("experts-missing", message, (name,)))
        declared, differ = declarer.experts(name, part, set(experts))
        _warn_experts(differ, name, warnings)
    else:
        declared = declarer.one(name, part)
    return Linear(
        part, group.mtp, group.layer, name, stored.n, stored.k, count, declared, stored,
        any(variant.from_index for variant in group.variants),
    )  # fmt: skip


def _sized(linear: Linear, entry: Expected | None) -> Linear:
    """Give a linear known from the index alone the shape that the config implies."""
    if entry is None:
        return linear
    return replace(linear, n=entry.n, k=entry.k, experts=linear.experts or entry.experts)


def _oriented(linear: Linear, entry: Expected | None) -> Linear:
    """Stacked plain experts are stored [E, N, K] by some models and [E, K, N] by others; the config tells which."""
    if entry is None or linear.stored is None or not linear.stored.stack or not linear.format.is_unquantised:
        return linear
    n = 2 * entry.n if linear.part.endswith("gate_up") else entry.n
    if (linear.n, linear.k) == (entry.k, n) != (n, entry.k):
        return replace(linear, n=linear.k, k=linear.n)
    return linear


def _check_shape(linear: Linear, entry: Expected | None, mismatched: dict[str, list[str]]) -> None:
    if entry is None or not linear.n:
        return
    have, want = (linear.n, linear.k, linear.experts), (entry.n, entry.k, entry.experts)
    if have != want:
        text = f"{linear.part} is {_shape(*have)} in the headers and {_shape(*want)} by config.json"
        mismatched.setdefault(text, []).append(linear.name)


def _shape(n: int, k: int, experts: int) -> str:
    return f"{experts} x {n}x{k}" if experts else f"{n}x{k}"
