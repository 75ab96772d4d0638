"""What a module is, from its name in the checkpoint.

Checkpoints of one family agree on the last parts of a name and differ in its prefix, so the classification goes by
the parts after the layer's index. Names are grouped into templates (every index replaced by `#`); a checkpoint of
100,000 modules has a few dozen templates, and only those are classified.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .formats import SUFFIXES

_INDEX = re.compile(r"(?<=\.)[0-9]+(?=\.|$)", re.ASCII)
_MAX_INDEX_DIGITS = 9
_MTP_SEGMENT = re.compile(r"mtp($|_)|nextn|.*_mtp$")
_MTP_LEAVES = frozenset({"eh_proj", "enorm", "hnorm", "shared_head", "mtp_block", "e_proj", "h_proj"})
_OTHER_MODALITY = re.compile(r"visual|vision|mm_projector|multi_modal_projector|audio|embed_(vision|audio)|image_")
_EMBEDDINGS = frozenset({"embed_tokens", "embeddings", "word_embeddings", "wte", "embed"})
_LM_HEADS = frozenset({"lm_head", "head", "output"})
_SHARED = frozenset({"shared_expert", "shared_experts", "shared_mlp"})
_EXPERTS = frozenset({"experts", "switch_mlp", "local_experts"})
_ROUTERS = frozenset({"gate", "router"})
_LINEAR_ATTENTION = frozenset({"linear_attn", "linear_attention"})
_SPARSE_ATTENTION = frozenset({"wq_b", "wk", "weights_proj", "wkv", "wgate"})
"""Linears of DeepSeek's indexer and compressor."""
_MTP_INPUTS = {"fc": "mtp.fc", "eh_proj": "mtp.fc", "e_proj": "mtp.e_proj", "h_proj": "mtp.h_proj"}
"""What joins the embedding and the hidden state; DeepSeek-V4 has one linear for each instead of one for both."""
_MAMBA = {"in_proj": "in", "out_proj": "out"}

_FFN = {
    "gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down",
    "gate_up_proj": "gate_up", "w13": "gate_up", "fc1": "up", "fc2": "down",
}  # fmt: skip
_GDN = {
    "in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_qkvz": "qkvz", "in_proj_a": "a", "in_proj_b": "b",
    "in_proj_ba": "ba", "out_proj": "out",
}  # fmt: skip
_ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "qkv_proj": "qkv"}
_MLA = {
    "q_a_proj": "q_a", "wq_a": "q_a", "q_b_proj": "q_b", "wq_b": "q_b", "kv_a_proj_with_mqa": "kv_a", "wkv": "kv_a",
    "kv_b_proj": "kv_b", "fused_qkv_a_proj_with_mqa": "qkv_a", "fused_wqa_wkv": "qkv_a", "wo_a": "o_a", "wo_b": "o_b",
}  # fmt: skip
_LATENT = {"fc1_latent_proj": "fc1", "fc2_latent_proj": "fc2"}


@dataclass(frozen=True, slots=True)
class Kind:
    """What all modules of one template are.

    Attributes:
        part: the linear it is: `moe.gate`, `attn.q`, `mtp.fc`, ...; empty if it is no GEMM (norms, embeddings,
            conv1d, other modalities).
        mtp: True if the name alone says that it belongs to an MTP layer.
        why: what it is instead, if `part` is empty: `vision`, `embedding`, `other`.
        evidence: the part of the name that says MTP; empty otherwise.
    """

    part: str
    mtp: bool = False
    why: str = ""
    evidence: str = ""


def split_tensor(name: str) -> tuple[str, str]:
    """A tensor's module and suffix: `a.b.weight_scale` -> (`a.b`, `weight_scale`).

    Stacked experts have no dot before the suffix, and none at all for the weight: `experts.gate_up_proj` is
    (`experts.gate_up_proj`, `weight`), `experts.gate_up_proj_weight_scale` is (…, `weight_scale`).
    """
    module, _, last = name.rpartition(".")
    if last in _SUFFIX_SET:
        return module, last
    for suffix in SUFFIXES:
        if last.endswith("_" + suffix) and last[: -len(suffix) - 1] in _FFN:
            return f"{module}.{last[: -len(suffix) - 1]}", suffix
    if last in _FFN:
        return name, "weight"
    return module, last


_SUFFIX_SET = frozenset(SUFFIXES)


def template_of(module: str) -> tuple[str, tuple[int, ...]]:
    """A module's template, with every index replaced by `#`, and the indexes.

    `layers.3.mlp.experts.7.up_proj` gives (`layers.#.mlp.experts.#.up_proj`, (3, 7)).
    """
    found = _INDEX.findall(module)
    if not found:
        return module, ()
    if any(len(digits) > _MAX_INDEX_DIGITS for digits in found):  # no layer has such an index; do not parse it
        return module, ()
    return _INDEX.sub("#", module), tuple(map(int, found))


@lru_cache(maxsize=4096)
def classify(template: str) -> Kind:
    """What the modules of a template are."""
    segments = template.split(".")
    if any(_OTHER_MODALITY.match(segment) for segment in segments):
        return Kind("", why="vision")
    evidence = next((s for s in segments if _MTP_SEGMENT.match(s) or s in _MTP_LEAVES), "")
    mtp = bool(evidence)
    leaf = segments[-1]
    if leaf in _EMBEDDINGS:
        return Kind("", mtp, "embedding", evidence)
    part = _part(segments, leaf, mtp=mtp)
    return Kind(part, mtp, "" if part else "other", evidence)


def layer_and_expert(template: str, indexes: tuple[int, ...]) -> tuple[int, int]:
    """The layer's and the expert's index of a module; -1 where it has none."""
    layer = expert = -1
    position = 0
    previous = ""
    for segment in template.split("."):
        if segment == "#" and position < len(indexes):
            if previous in _EXPERTS:
                expert = indexes[position]
            elif layer < 0:
                layer = indexes[position]
            position += 1
        previous = segment
    return layer, expert


def _part(segments: list[str], leaf: str, *, mtp: bool) -> str:
    parents = segments[:-1]
    parent = next((s for s in reversed(parents) if s != "#"), "")
    for owner, names in (("moe", _EXPERTS), ("shared", _SHARED)):
        if names.intersection(parents):
            return f"{owner}.{_FFN[leaf]}" if leaf in _FFN else ""
    for owner in ("indexer", "compressor"):
        if owner in parents:
            return f"mla.{owner}.{leaf}" if leaf in _SPARSE_ATTENTION else ""
    if parent in _LINEAR_ATTENTION:
        return f"gdn.{_GDN[leaf]}" if leaf in _GDN else ""
    return _special_part(parent, leaf, mtp=mtp) or _BY_LEAF.get(leaf, "")


def _special_part(parent: str, leaf: str, *, mtp: bool) -> str:
    """Parts whose last name alone would not tell them."""
    if leaf in _ROUTERS or (parent == "router" and leaf in {"proj", "classifier"}):
        return "router"
    if leaf in _MAMBA and parent in {"mixer", "mamba"}:
        return f"mamba.{_MAMBA[leaf]}"
    return _MTP_INPUTS.get(leaf, "") if mtp else ""


_BY_LEAF = {
    "shared_expert_gate": "shared.expert_gate",
    **{leaf: f"latent.{part}" for leaf, part in _LATENT.items()},
    **{leaf: f"mla.{part}" for leaf, part in _MLA.items()},
    **{leaf: f"attn.{part}" for leaf, part in _ATTENTION.items()},
    **{leaf: f"mlp.{part}" for leaf, part in _FFN.items()},
    **dict.fromkeys(_LM_HEADS, "lm_head"),
}
