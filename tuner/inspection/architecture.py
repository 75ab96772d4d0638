"""Which linears a model must have, by its config: name in the checkpoint, N, K, layers, experts.

Without headers this is what gets inspected; with headers it is the cross-check. Shapes are stated once per part and
come from the model's published code (Qwen3.5, DeepSeek-V3 and V4, GLM-5, Nemotron-H, Gemma-4, MiniMax-M2); any other
decoder with the usual keys is read as a generic one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .model_config import Layer, ModelConfig


@dataclass(frozen=True, slots=True)
class Naming:
    """How a family spells its modules. The prefix stands before `layers.N`.

    Attributes:
        prefix, head: `model.`, `lm_head`.
        attention, linear, mamba, mlp, moe, shared, router: the blocks inside a layer; an empty `moe` means that experts
            and router stand in the layer itself (Gemma-4).
        gate, up, down: the projections of a feed-forward.
        expert_gate, expert_up, expert_down: those of an expert, where they differ.
        mtp: `mtp.layers.` for a branch of its own, or empty if MTP layers follow the decoder's layers.
        fused_gdn: True if in_proj_qkvz and in_proj_ba are stored fused (Qwen3-Next).
    """

    prefix: str = "model."
    head: str = "lm_head"
    attention: str = "self_attn"
    linear: str = "linear_attn"
    mamba: str = "mixer"
    mlp: str = "mlp"
    moe: str = "mlp"
    shared: str = "shared_expert"
    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    mtp: str = ""
    fused_gdn: bool = False


_NAMING = {
    "qwen3_5": Naming(prefix="model.language_model.", mtp="mtp.layers."),
    "qwen3_next": Naming(mtp="mtp.layers.", fused_gdn=True),
    "deepseek_v4": Naming(prefix="", head="head", attention="attn", mlp="ffn", moe="ffn", shared="shared_experts",
                          mtp="mtp.", gate="w1", up="w3", down="w2"),
    "deepseek": Naming(shared="shared_experts"),
    "glm": Naming(shared="shared_experts"),
    "kimi": Naming(prefix="language_model.model.", head="language_model.lm_head", shared="shared_experts"),
    "minimax": Naming(moe="block_sparse_moe", gate="w1", up="w3", down="w2"),
    "mixtral": Naming(moe="block_sparse_moe", gate="w1", up="w3", down="w2"),
    "nemotron_h": Naming(prefix="backbone.", attention="mixer", mlp="mixer", moe="mixer", shared="shared_experts",
                         mtp="mtp.layers."),
    "gemma4": Naming(prefix="model.language_model.", moe="", router="router.proj"),
    "gpt_oss": Naming(router="router"),
}  # fmt: skip
"""By the start of model_type; the longest that fits."""

_PREFIX = re.compile(r"^(.{0,200}?)layers\.[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Expected:
    """One linear that the config implies, over all layers that have it.

    Attributes:
        template: its name, with `{layer}` and `{expert}`.
        part: what it is (see roles.PARTS).
        n, k: output and input features; 0 if config.json does not tell.
        layers: indexes of the layers that have it; (-1,) for one outside of them.
        experts: how many there are a layer; 0 for a plain linear.
        mtp: True if it belongs to the MTP branch.
    """

    template: str
    part: str
    n: int
    k: int
    layers: tuple[int, ...]
    experts: int = 0
    mtp: bool = False

    @property
    def is_sized(self) -> bool:
        """False if config.json lacks a size that N or K needs; then one of them is 0."""
        return self.n > 0 and self.k > 0

    def name(self, layer: int, expert: int = 0) -> str:
        """The module's name in the checkpoint."""
        return self.template.replace("{layer}", str(layer)).replace("{expert}", str(expert))


def naming_of(model: ModelConfig, wrapper_type: str, listed: Iterable[str]) -> Naming:
    """How this checkpoint spells its modules.

    Args:
        model: the config's facts.
        wrapper_type: model_type of the outermost config (`kimi_k25` wraps a `deepseek_v3`).
        listed: entries of the quantisation lists; they are written in the checkpoint's spelling, so the prefix that
            most of them share is believed over the family's.
    """
    naming = Naming()
    for kind in (model.model_type, wrapper_type):  # the wrapper decides last: it adds the outer prefix
        fitting = [key for key in _NAMING if kind.startswith(key)]
        if fitting:
            naming = _NAMING[max(fitting, key=len)]
    prefixes = Counter(match[1] for entry in listed if (match := _PREFIX.match(entry)) and "*" not in match[1])
    prefixes = Counter({p: n for p, n in prefixes.items() if not p.startswith(("mtp", "re:"))})
    if not prefixes:
        return naming
    prefix = prefixes.most_common(1)[0][0]
    return naming if prefix == naming.prefix else _with_prefix(naming, prefix)


def _with_prefix(naming: Naming, prefix: str) -> Naming:
    values = {name: getattr(naming, name) for name in naming.__slots__}
    return Naming(**{**values, "prefix": prefix})


def expected_modules(model: ModelConfig, naming: Naming, *, mtp_layers: int) -> list[Expected]:
    """Every linear of the decoder, the LM head and the MTP branch that the config implies.

    Args:
        model: facts of config.json.
        naming: how the checkpoint spells its modules.
        mtp_layers: MTP layers, as declared or, where config.json has no key for them, as found.
    """
    builder = _Builder(model, naming)
    for index, layer in enumerate(model.layers):
        builder.add_layer(f"{naming.prefix}layers.{{layer}}.", index, layer)
    if model.vocab:
        builder.add(naming.head, "lm_head", model.vocab, model.hidden, -1)
    _add_mtp(builder, model, naming, mtp_layers)
    return builder.modules()


@dataclass
class _Builder:
    """Collects linears; those that differ in their layer alone become one Expected."""

    model: ModelConfig
    naming: Naming
    mtp: bool = False
    _found: dict[tuple[str, str, int, int, int, bool], list[int]] = field(default_factory=dict)

    def add(self, template: str, part: str, n: int, k: int, layer: int, experts: int = 0) -> None:
        self._found.setdefault((template, part, n, k, experts, self.mtp), []).append(layer)

    def modules(self) -> list[Expected]:
        return [
            Expected(template, part, n, k, tuple(layers), experts, mtp)
            for (template, part, n, k, experts, mtp), layers in self._found.items()
        ]

    def add_layer(self, prefix: str, index: int, layer: Layer) -> None:
        if layer.mixer in {"attention", "sliding"}:
            for leaf, part, n, k in _attention(self.model, sliding=layer.mixer == "sliding"):
                self.add(f"{prefix}{self.naming.attention}.{leaf}", part, n, k, index)
        elif layer.mixer == "linear":
            for leaf, part, n, k in _linear(self.model, fused=self.naming.fused_gdn):
                self.add(f"{prefix}{self.naming.linear}.{leaf}", part, n, k, index)
        elif layer.mixer == "mamba":
            for leaf, part, n, k in _mamba(self.model):
                self.add(f"{prefix}{self.naming.mamba}.{leaf}", part, n, k, index)
        if layer.has_dense:
            self._ffn(f"{prefix}{self.naming.mlp}.", "mlp", self.model.ffn.dense, self.model.hidden, index)
        if layer.has_moe:
            self._moe(f"{prefix}{self.naming.moe}." if self.naming.moe else prefix, index)

    def _moe(self, prefix: str, index: int) -> None:
        model, ffn = self.model, self.model.ffn
        self.add(f"{prefix}{self.naming.router}", "router", ffn.experts, model.hidden, index)
        width = ffn.latent or model.hidden
        self._ffn(f"{prefix}experts.{{expert}}.", "moe", ffn.expert, width, index, ffn.experts)
        if ffn.latent:
            self.add(f"{prefix}fc1_latent_proj", "latent.fc1", ffn.latent, model.hidden, index)
            self.add(f"{prefix}fc2_latent_proj", "latent.fc2", model.hidden, ffn.latent, index)
        if ffn.shared:
            self._ffn(f"{prefix}{self.naming.shared}.", "shared", ffn.shared, model.hidden, index)
            if self.naming.shared == "shared_expert":  # only Qwen gates its shared expert
                self.add(f"{prefix}shared_expert_gate", "shared.expert_gate", 1, model.hidden, index)

    def _ffn(self, prefix: str, kind: str, inner: int, width: int, index: int, experts: int = 0) -> None:
        names = self.naming
        if self.model.ffn.gated:
            self.add(prefix + names.gate, f"{kind}.gate", inner, width, index, experts)
        self.add(prefix + names.up, f"{kind}.up", inner, width, index, experts)
        self.add(prefix + names.down, f"{kind}.down", width, inner, index, experts)


def _attention(model: ModelConfig, *, sliding: bool) -> Iterator[tuple[str, str, int, int]]:
    a, hidden = model.attention, model.hidden
    if a.is_v4:
        yield "wq_a", "mla.q_a", a.q_lora, hidden
        yield "wkv", "mla.kv_a", a.head_dim, hidden
        yield "wq_b", "mla.q_b", a.heads * a.head_dim, a.q_lora
        yield "wo_a", "mla.o_a", a.o_groups * a.o_lora, a.heads * a.head_dim // a.o_groups
        yield "wo_b", "mla.o_b", hidden, a.o_groups * a.o_lora
        return
    if a.is_mla:
        yield from _mla(model)
        return
    head_dim = a.sliding_head_dim if sliding else a.head_dim
    kv_heads = a.sliding_kv_heads if sliding else a.kv_heads
    yield "q_proj", "attn.q", a.heads * head_dim * (2 if a.gated else 1), hidden
    yield "k_proj", "attn.k", kv_heads * head_dim, hidden
    if sliding or not a.k_is_v:
        yield "v_proj", "attn.v", kv_heads * head_dim, hidden
    yield "o_proj", "attn.o", hidden, a.heads * head_dim


def _mla(model: ModelConfig) -> Iterator[tuple[str, str, int, int]]:
    a, hidden = model.attention, model.hidden
    qk = a.nope + a.rope
    if a.q_lora:
        yield "q_a_proj", "mla.q_a", a.q_lora, hidden
        yield "q_b_proj", "mla.q_b", a.heads * qk, a.q_lora
    else:
        yield "q_proj", "mla.q", a.heads * qk, hidden
    yield "kv_a_proj_with_mqa", "mla.kv_a", a.kv_lora + a.rope, hidden
    yield "kv_b_proj", "mla.kv_b", a.heads * (a.nope + a.v_dim), a.kv_lora
    yield "o_proj", "mla.o", hidden, a.heads * a.v_dim
    if a.index_heads and a.index_dim:
        yield "indexer.wq_b", "mla.indexer.wq_b", a.index_heads * a.index_dim, a.q_lora
        yield "indexer.wk", "mla.indexer.wk", a.index_dim, hidden
        yield "indexer.weights_proj", "mla.indexer.weights_proj", a.index_heads, hidden


def _linear(model: ModelConfig, *, fused: bool) -> Iterator[tuple[str, str, int, int]]:
    r, hidden = model.recurrent, model.hidden
    keys, values = r.key_heads * r.key_dim, r.value_heads * r.value_dim
    if fused:
        yield "in_proj_qkvz", "gdn.qkvz", 2 * keys + 2 * values, hidden
        yield "in_proj_ba", "gdn.ba", 2 * r.value_heads, hidden
    else:
        yield "in_proj_qkv", "gdn.qkv", 2 * keys + values, hidden
        yield "in_proj_z", "gdn.z", values, hidden
        yield "in_proj_b", "gdn.b", r.value_heads, hidden
        yield "in_proj_a", "gdn.a", r.value_heads, hidden
    yield "out_proj", "gdn.out", hidden, values


def _mamba(model: ModelConfig) -> Iterator[tuple[str, str, int, int]]:
    r, hidden = model.recurrent, model.hidden
    inner = r.mamba_heads * r.mamba_dim
    yield "in_proj", "mamba.in", 2 * inner + 2 * r.groups * r.state + r.mamba_heads, hidden
    yield "out_proj", "mamba.out", hidden, inner


def _add_mtp(builder: _Builder, model: ModelConfig, naming: Naming, layers: int) -> None:
    """The linears of the MTP branch. MTP layers use full attention and the model's own feed-forward."""
    builder.mtp = True
    kind = "moe" if model.ffn.experts else "dense"
    if not layers or model.model_type.startswith("minimax"):
        return  # no MTP weights were ever published for MiniMax, so there is no layout to expect
    if model.attention.is_v4:
        for index in range(layers):
            for leaf in ("e_proj", "h_proj"):
                builder.add(f"{naming.mtp}{{layer}}.{leaf}", f"mtp.{leaf}", model.hidden, model.hidden, index)
            builder.add_layer(f"{naming.mtp}{{layer}}.", index, Layer("attention", kind))
        return
    if model.model_type == "nemotron_h":
        builder.add(f"{naming.mtp}0.eh_proj", "mtp.fc", model.hidden, 2 * model.hidden, 0)
        for index, block in enumerate(model.mtp.blocks):
            mixer, ffn = ("attention", "") if block == "attention" else ("", "moe" if block == "moe" else "")
            builder.add_layer(f"{naming.mtp}{{layer}}.", index, Layer(mixer, ffn))
        return
    if naming.mtp:
        builder.add("mtp.fc", "mtp.fc", model.hidden, 2 * model.hidden, -1)
        for index in range(layers):
            builder.add_layer(f"{naming.mtp}{{layer}}.", index, Layer("attention", kind))
        return
    for index in range(len(model.layers), len(model.layers) + layers):
        prefix = f"{naming.prefix}layers.{{layer}}."
        builder.add(f"{prefix}eh_proj", "mtp.fc", model.hidden, 2 * model.hidden, index)
        builder.add_layer(prefix, index, Layer("attention", kind))
