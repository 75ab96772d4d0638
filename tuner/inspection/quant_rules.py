"""What a quantisation config declares about a module, by its checkpoint name: one class a dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from .formats import WeightFormat
from .patterns import Globs, Targets


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the lists say about one module.

    Attributes:
        format: the format they give it. For an excluded module this is what is assumed: a list says only that a
            module is *not* quantised by it, never what it is instead.
        excluded: True if an exclude list names it.
        rule: the entry that decided, for people.
    """

    format: WeightFormat
    excluded: bool
    rule: str


class Rules(Protocol):
    """A dialect."""

    def ruling(self, name: str) -> Ruling:
        """What is declared for the module called `name` in the checkpoint."""
        ...

    def listed_names(self) -> Sequence[str]:
        """Every entry of the lists, for checks of their spelling."""
        ...

    def excluded_names(self) -> Sequence[str]:
        """The entries of exclude lists alone."""
        ...


@dataclass(frozen=True)
class ModelOptRules:
    """ModelOpt: a default for every linear, minus globs; for MIXED_PRECISION, formats by longest dotted prefix.

    Attributes:
        default: the format of a linear that no list names.
        excluded_as: what an excluded linear is assumed to be.
        exclude: globs over full names.
        layers: dotted prefix -> format.
    """

    default: WeightFormat
    excluded_as: WeightFormat
    exclude: tuple[str, ...] = ()
    layers: Mapping[str, WeightFormat] = field(default_factory=dict)

    @cached_property
    def _globs(self) -> Globs:
        return Globs(self.exclude)

    def ruling(self, name: str) -> Ruling:
        """Exclusion first, then the longest prefix, then the default."""
        pattern = self._globs.match(name)
        if pattern is not None:
            return Ruling(self.excluded_as, excluded=True, rule=f"excluded by {pattern!r}")
        if self.layers:
            prefix = name
            while prefix:
                if prefix in self.layers:
                    return Ruling(self.layers[prefix], excluded=False, rule=f"quantized_layers[{prefix!r}]")
                prefix = prefix.rpartition(".")[0]
            return Ruling(self.default, excluded=False, rule="not in quantized_layers")
        return Ruling(self.default, excluded=False, rule="the default of the quantisation config")

    def listed_names(self) -> Sequence[str]:
        """Exclude globs and quantised prefixes."""
        return (*self.exclude, *self.layers)

    def excluded_names(self) -> Sequence[str]:
        """Exclude globs."""
        return self.exclude


@dataclass(frozen=True)
class HybridFp8Rules:
    """`quant_method: fp8` with `moe_quant_algo: NVFP4`: an FP8 model whose routed experts became NVFP4.

    Here an exclude list says what is not NVFP4; such modules keep the format of the FP8 base, not BF16
    (TensorRT-LLM #16196: attention excluded, assumed BF16, stored FP8).

    Attributes:
        inner: exclusions and quantised layers.
        experts: the format of routed experts.
        base: the format of every other linear.
        base_experts: the format of routed experts that are excluded (the MTP layer's).
    """

    inner: ModelOptRules
    experts: WeightFormat
    base: WeightFormat
    base_experts: WeightFormat

    def ruling(self, name: str) -> Ruling:
        """Routed experts that are not excluded have the experts' format, the rest the base's."""
        ruling = self.inner.ruling(name)
        is_expert = ".experts." in f".{name}."
        if ruling.excluded:
            base = self.base_experts if is_expert else self.base
            return Ruling(base, excluded=True, rule=f"{ruling.rule}; keeps the base's format")
        if ruling.rule.startswith("quantized_layers"):
            return ruling
        if is_expert and not self.inner.layers:
            return Ruling(self.experts, excluded=False, rule="moe_quant_algo")
        return Ruling(self.base, excluded=False, rule="the FP8 base")

    def listed_names(self) -> Sequence[str]:
        """As the inner rules."""
        return self.inner.listed_names()

    def excluded_names(self) -> Sequence[str]:
        """As the inner rules."""
        return self.inner.excluded_names()


@dataclass(frozen=True)
class TargetGroup:
    """One entry of compressed-tensors' config_groups.

    Attributes:
        name: its key. format: what its members become. targets: who they are.
    """

    name: str
    format: WeightFormat
    targets: Targets


@dataclass(frozen=True)
class CompressedTensorsRules:
    """compressed-tensors: groups with targets, minus one ignore list.

    Attributes:
        groups: who becomes what. ignore: who is left alone. plain: the dtype of what is left alone.
    """

    groups: tuple[TargetGroup, ...]
    ignore: Targets
    plain: WeightFormat

    def ruling(self, name: str) -> Ruling:
        """Ignored first; then the group whose target is the most specific: a name, an expression, a class."""
        entry = self.ignore.match(name, class_name="")
        if entry is not None:
            return Ruling(self.plain, excluded=True, rule=f"ignored by {entry!r}")
        by_class: Ruling | None = None
        for group in self.groups:
            entry = group.targets.match(name)
            if entry is None:
                continue
            ruling = Ruling(group.format, excluded=False, rule=f"{group.name}, target {entry!r}")
            if entry != "Linear":
                return ruling
            by_class = by_class or ruling
        return by_class or Ruling(self.plain, excluded=False, rule="no group targets it")

    def listed_names(self) -> Sequence[str]:
        """Ignored entries and targets that are not class names."""
        targets = (entry for group in self.groups for entry in group.targets.entries if entry != "Linear")
        return (*self.ignore.entries, *targets)

    def excluded_names(self) -> Sequence[str]:
        """Ignored entries."""
        return self.ignore.entries


@dataclass(frozen=True)
class PlainRules:
    """No quantisation config, or one that fp4tune only recognises.

    Attributes:
        format: of every linear. exclude: globs of modules that are not converted. rule: what to call it.
        experts_only: True if only routed experts have `format` (gpt-oss's MXFP4).
    """

    format: WeightFormat
    rule: str
    exclude: tuple[str, ...] = ()
    experts_only: bool = False

    @cached_property
    def _globs(self) -> Globs:
        return Globs(self.exclude + tuple(p + ".*" for p in self.exclude))

    def ruling(self, name: str) -> Ruling:
        """Excluded (a parent's name excludes its children), else the one format."""
        pattern = self._globs.match(name)
        if pattern is not None:
            return Ruling(WeightFormat.BF16, excluded=True, rule=f"excluded by {pattern.removesuffix('.*')!r}")
        if self.experts_only and ".experts." not in f".{name}.":
            return Ruling(WeightFormat.BF16, excluded=False, rule="only routed experts are converted")
        return Ruling(self.format, excluded=False, rule=self.rule)

    def listed_names(self) -> Sequence[str]:
        """The exclude list."""
        return self.exclude

    def excluded_names(self) -> Sequence[str]:
        """The exclude list."""
        return self.exclude
