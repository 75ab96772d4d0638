"""From tensor names and headers to modules: what is stored, layer by layer.

100,000 modules are handled by their few dozen name templates and their few hundred (dtype, shape) signatures, so that
a checkpoint of 400,000 tensors takes seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ...kernels.errors import InvalidInputError
from .formats import Stored, index_verdict, stored_verdict
from .model_config import MAX_LAYERS
from .names import Kind, classify, layer_and_expert, split_tensor, template_of
from .safetensors_header import TensorInfo

Tensors = Mapping[str, TensorInfo | None]
"""Tensor name -> what its header says, or None for a name known only from the index."""


Signature = tuple[tuple[str, ...], tuple[int, ...]]
"""Suffixes of a module's tensors and identities of their infos."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Modules of one group that are stored alike.

    Attributes:
        stored: their verdict.
        example: the name of one of them.
        experts: their expert indexes; [-1] for a plain module.
        from_index: True if the verdict rests on names alone.
    """

    stored: Stored
    example: str
    experts: list[int]
    from_index: bool


@dataclass(slots=True)
class Group:
    """The modules of one template in one layer: one linear, or one projection of every expert.

    Attributes:
        kind: what they are. template: their name with indexes replaced.
        layer: index of the layer; -1 outside of the layers.
        mtp: True if they belong to an MTP branch. evidence: what says so.
        variants: how they are stored; more than one means that they differ.
        tensors: how many tensors they have. dtypes: tensors by dtype; empty dtype for names from the index.
        names: their tensor names, kept for MTP modules only.
    """

    kind: Kind
    template: str
    layer: int
    mtp: bool
    evidence: str
    variants: list[Variant] = field(default_factory=list)
    tensors: int = 0
    dtypes: Counter[str] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)

    @property
    def experts(self) -> list[int]:
        """All expert indexes, sorted; empty for a plain module."""
        return sorted(e for variant in self.variants for e in variant.experts if e >= 0)


def group_modules(tensors: Tensors, decoder_layers: int) -> list[Group]:
    """Group a checkpoint's tensors into modules and decide how each is stored.

    Args:
        tensors: every tensor.
        decoder_layers: num_hidden_layers; a layer with a higher index is an MTP layer (DeepSeek, GLM).

    Raises:
        InvalidInputError: a linear stands in a layer that no model has.
    """
    modules: dict[str, dict[str, TensorInfo | None]] = {}
    for name, info in tensors.items():
        module, suffix = split_tensor(name)
        found = modules.get(module)
        if found is None:
            modules[module] = {suffix: info}
        else:
            found[suffix] = info
    groups: dict[tuple[str, int], Group] = {}
    variants: dict[tuple[str, int, Signature], Variant] = {}
    verdicts: dict[Signature, tuple[Stored, bool]] = {}
    parents: dict[str, tuple[str, tuple[int, ...]]] = {}
    for module, parts in modules.items():
        parent, dot, leaf = module.rpartition(".")
        split = parents.get(parent)
        if split is None:  # an expert's three projections share it
            split = parents[parent] = template_of(parent)
        template = f"{split[0]}{dot}{leaf}"
        layer, expert = _positions(template, split[1])
        group = groups.get((template, layer))
        if group is None:
            group = groups[template, layer] = _new_group(template, layer, decoder_layers)
        # Infos are interned, so their identity stands for their value, and hashing it is cheap. Two orders of the
        # same tensors are two signatures with one verdict, which does no harm.
        signature = (tuple(parts), tuple(map(id, parts.values())))
        variant = variants.get((template, layer, signature))
        if variant is None:
            if signature not in verdicts:
                verdicts[signature] = _verdict(parts)
            stored, from_index = verdicts[signature]
            variant = variants[template, layer, signature] = Variant(stored, module, [], from_index)
            group.variants.append(variant)
        variant.experts.append(expert)
        group.tensors += len(parts)
        if group.mtp:  # only there does anybody ask for more
            _remember(group, module, parts, tensors)
    return list(groups.values())


def _verdict(parts: Mapping[str, TensorInfo | None]) -> tuple[Stored, bool]:
    known = {suffix: info for suffix, info in parts.items() if info is not None}
    if len(known) == len(parts):
        return stored_verdict(known), False
    # Some of its tensors are in a file that cannot be read: names give the format, headers the shape.
    guess = index_verdict(parts.keys())
    shape = stored_verdict(known) if known else guess
    return replace(guess, n=shape.n, k=shape.k, stack=shape.stack), True


def _remember(group: Group, module: str, parts: Mapping[str, TensorInfo | None], tensors: Tensors) -> None:
    group.dtypes.update("" if info is None else info.dtype for info in parts.values())
    for suffix in parts:
        spellings = (f"{module}.{suffix}", f"{module}_{suffix}", module)
        group.names.append(next(name for name in spellings if name in tensors))


@lru_cache(maxsize=4096)
def _slots(template: str) -> tuple[int, int]:
    """Which of a template's indexes is the layer's and which the expert's; -1 for none."""
    count = template.count("#")
    return layer_and_expert(template, tuple(range(count)))


def _positions(template: str, indexes: tuple[int, ...]) -> tuple[int, int]:
    layer, expert = _slots(template)
    return (indexes[layer] if layer >= 0 else -1, indexes[expert] if expert >= 0 else -1)


def _new_group(template: str, layer: int, decoder_layers: int) -> Group:
    kind = classify(template)
    if kind.part and layer >= 2 * MAX_LAYERS:
        raise InvalidInputError(
            f"A tensor of the checkpoint stands in layer {layer}; at most {MAX_LAYERS} are accepted."
        )
    beyond = layer >= decoder_layers and kind.why != "vision" and not kind.mtp and "layers.#" in template
    evidence = kind.evidence or (f"layer {layer} of {decoder_layers}" if beyond else "")
    return Group(kind, template, layer, kind.mtp or beyond, evidence)


def differing(group: Group) -> str:
    """How the modules of a group differ, for people; empty if they do not."""
    formats = Counter[str]()
    for variant in group.variants:
        s = variant.stored
        formats[f"{s.format.value} {s.n}x{s.k}" if s.n else s.format.value] += len(variant.experts)
    return ", ".join(f"{count} {text}" for text, count in formats.most_common(4)) if len(formats) > 1 else ""


def missing_indexes(indexes: Iterable[int], total: int) -> list[int]:
    """Which of 0..total-1 are not among `indexes`."""
    return sorted(set(range(total)) - set(indexes))
