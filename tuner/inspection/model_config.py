"""config.json as typed facts: sizes, heads, experts, and what each layer is made of.

Every value is checked when it is read: config.json is other people's data, and a string, a null, a negative or an
absurd number where a size should be must end in a sentence, not in a shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...kernels.errors import InvalidInputError
from ...kernels.problem import MAX_DIM, MAX_EXPERTS
from .notes import clean

MAX_LAYERS = 10_000
"""Most decoder layers accepted; the deepest published models have a few hundred."""

_NEMOTRON_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
"""Letters of Nemotron-H's hybrid_override_pattern."""

_MIXERS = {
    "linear_attention": "linear", "mamba": "mamba", "mamba2": "mamba", "full_attention": "attention",
    "sliding_attention": "sliding", "chunked_attention": "attention", "attention": "attention",
}  # fmt: skip


class Reader:
    """Typed reads from one config object, where null counts as absent and text_config as part of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = config.get("text_config")
        if text is not None and not isinstance(text, Mapping):
            raise InvalidInputError(f"config.json: text_config should be an object and is {str(text)[:60]!r}.")
        self._holders: tuple[Mapping[str, Any], ...] = (text, config) if text else (config,)

    def value(self, *keys: str) -> Any:
        """The first of `keys` that is there and not null, or None."""
        for key in keys:
            for holder in self._holders:
                if holder.get(key) is not None:
                    return holder[key]
        return None

    def size(self, *keys: str, maximum: int = MAX_DIM) -> int:
        """A count or size, 0 if absent. Raises InvalidInputError unless it is an integer in 0..maximum."""
        key = next((k for k in keys if self.value(k) is not None), "")
        value = self.value(key)
        if value is None:
            return 0
        if type(value) is not int or not 0 <= value <= maximum:
            raise InvalidInputError(
                f"config.json: {key} should be an integer from 0 to {maximum} and is {str(value)[:60]!r}."
            )
        return value

    def flag(self, key: str) -> bool:
        """A boolean, False if absent."""
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            raise InvalidInputError(f"config.json: {key} should be true or false and is {str(value)[:60]!r}.")
        return bool(value)

    def text(self, *keys: str) -> str:
        """A string, empty if absent."""
        value = self.value(*keys)
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f"config.json: {keys[0]} should be text and is {str(value)[:60]!r}.")
        return clean(value or "", MAX_LAYERS)

    def items(self, key: str) -> list[Any]:
        """A list, empty if absent."""
        value = self.value(key)
        if value is not None and not isinstance(value, list):
            raise InvalidInputError(f"config.json: {key} should be a list and is {str(value)[:60]!r}.")
        return value or []


@dataclass(frozen=True, slots=True)
class Layer:
    """What one decoder layer is made of.

    Attributes:
        mixer: `attention`, `sliding` (attention with its own head sizes), `linear`, `mamba`, or empty.
        ffn: `dense`, `moe`, `both` side by side, or empty.
    """

    mixer: str
    ffn: str

    @property
    def has_dense(self) -> bool:
        """True if it has a dense feed-forward."""
        return self.ffn in {"dense", "both"}

    @property
    def has_moe(self) -> bool:
        """True if it has routed experts."""
        return self.ffn in {"moe", "both"}


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of the attention layers. All in elements; 0 where the model has no such thing.

    Attributes:
        heads, kv_heads, head_dim: of full attention.
        sliding_kv_heads, sliding_head_dim: of sliding-window layers, where they differ.
        gated: the q projection also makes an output gate, so it is twice as wide.
        k_is_v: full-attention layers have no v projection (Gemma-4).
        q_lora, kv_lora, nope, rope, v_dim: MLA.
        o_groups, o_lora: DeepSeek-V4's grouped low-rank output projection.
        index_heads, index_dim: DSA's indexer.
    """

    heads: int
    kv_heads: int
    head_dim: int
    sliding_kv_heads: int
    sliding_head_dim: int
    gated: bool
    k_is_v: bool
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    o_groups: int
    o_lora: int
    index_heads: int
    index_dim: int

    @property
    def is_mla(self) -> bool:
        """True for multi-head latent attention (DeepSeek-V2/V3, GLM-5, Kimi)."""
        return self.kv_lora > 0

    @property
    def is_v4(self) -> bool:
        """True for DeepSeek-V4's attention: low-rank q, one shared kv head, grouped low-rank output."""
        return self.o_groups > 0 and self.o_lora > 0


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Sizes of linear-attention (gated delta net) and Mamba2 layers; 0 where there are none.

    Attributes:
        key_heads, key_dim, value_heads, value_dim: gated delta net.
        mamba_heads, mamba_dim, groups, state: Mamba2.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    mamba_heads: int
    mamba_dim: int
    groups: int
    state: int


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Sizes of the feed-forward layers; 0 where there are none.

    Attributes:
        dense: intermediate size of dense layers.
        experts, top_k, expert: routed experts, how many a token goes to, their intermediate size.
        shared: intermediate size of all shared experts together.
        latent: width that experts work in, if it is not the hidden size (Nemotron-3-Super).
        gated: False for up-activation-down without a gate (Nemotron's relu2).
    """

    dense: int
    experts: int
    top_k: int
    expert: int
    shared: int
    latent: int
    gated: bool


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """What config.json says about multi-token prediction.

    Attributes:
        layers: MTP layers that it declares; 0 if none.
        keys: the keys that say so, as `key = value`.
        blocks: what each MTP layer is made of, for models that list it; else empty.
    """

    layers: int
    keys: tuple[str, ...]
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The facts of config.json that decide about GEMM shapes.

    Attributes:
        architecture: first entry of `architectures`. model_type: of the text model.
        hidden, vocab: sizes. tied: the LM head shares the embedding.
        layers: one entry a decoder layer.
        unknown_mixers: entries of layer_types that are not known; such layers have no mixer here.
        attention, recurrent, ffn, mtp: sizes.
    """

    architecture: str
    model_type: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    unknown_mixers: tuple[str, ...]
    attention: Attention
    recurrent: Recurrent
    ffn: FeedForward
    mtp: MtpConfig


def read_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read config.json.

    Raises:
        InvalidInputError: a value has the wrong type or is out of range, or hidden_size or the layer count is absent.
    """
    reader = Reader(config)
    hidden = reader.size("hidden_size", "n_embd", "d_model")
    count = reader.size("num_hidden_layers", "n_layer", "num_layers", maximum=MAX_LAYERS)
    blocks = _hybrid_blocks(reader)
    if not count:
        count = len(blocks)
    if not hidden or not count:
        missing = "hidden_size" if not hidden else "num_hidden_layers"
        raise InvalidInputError(f"config.json: {missing} is missing or zero, so no shape can be derived.")
    architectures = reader.items("architectures")
    model_type = reader.text("model_type")[:100]
    ffn = _feed_forward(reader, model_type)
    return ModelConfig(
        architecture=clean(str(architectures[0])) if architectures else "",
        model_type=model_type,
        hidden=hidden,
        vocab=reader.size("vocab_size"),
        tied=reader.flag("tie_word_embeddings"),
        layers=_layers(reader, count, blocks, ffn),
        unknown_mixers=tuple(sorted({clean(str(t), 40) for t in reader.items("layer_types") if not _mixer(t)}))[:8],
        attention=_attention(reader, hidden),
        recurrent=_recurrent(reader),
        ffn=ffn,
        mtp=_mtp(reader),
    )


def _attention(reader: Reader, hidden: int) -> Attention:
    heads = reader.size("num_attention_heads", "n_head")
    kv_heads = reader.size("num_key_value_heads") or heads
    # head_dim is explicit in most configs; hidden / heads is wrong for Qwen3 and Gemma.
    head_dim = reader.size("head_dim") or (hidden // heads if heads else 0)
    rope, nope = reader.size("qk_rope_head_dim"), reader.size("qk_nope_head_dim")
    global_dim, global_kv = reader.size("global_head_dim"), reader.size("num_global_key_value_heads")
    q_lora, o_lora = reader.size("q_lora_rank"), reader.size("o_lora_rank")
    return Attention(
        heads=heads,
        kv_heads=global_kv or kv_heads,
        head_dim=global_dim or head_dim,
        sliding_kv_heads=kv_heads,
        sliding_head_dim=head_dim,
        gated=reader.flag("attn_output_gate") or reader.text("model_type").startswith("qwen3_next"),
        k_is_v=reader.flag("attention_k_eq_v"),
        q_lora=q_lora,
        kv_lora=reader.size("kv_lora_rank"),
        nope=nope,
        rope=rope,
        v_dim=reader.size("v_head_dim") or head_dim,
        o_groups=reader.size("o_groups"),
        o_lora=o_lora,
        index_heads=reader.size("index_n_heads"),
        index_dim=reader.size("index_head_dim"),
    )


def _recurrent(reader: Reader) -> Recurrent:
    return Recurrent(
        key_heads=reader.size("linear_num_key_heads"),
        key_dim=reader.size("linear_key_head_dim"),
        value_heads=reader.size("linear_num_value_heads"),
        value_dim=reader.size("linear_value_head_dim"),
        mamba_heads=reader.size("mamba_num_heads"),
        mamba_dim=reader.size("mamba_head_dim"),
        groups=reader.size("n_groups"),
        state=reader.size("ssm_state_size"),
    )


def _feed_forward(reader: Reader, model_type: str) -> FeedForward:
    experts = reader.size("n_routed_experts", "num_experts", "num_local_experts", maximum=MAX_EXPERTS)
    dense = reader.size("intermediate_size")
    expert = reader.size("moe_intermediate_size", "expert_intermediate_size") or (dense if experts else 0)
    shared = reader.size("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    shared = shared or reader.size("n_shared_experts", maximum=MAX_EXPERTS) * expert
    if reader.value("enable_moe_block") is False:  # Gemma-4 has the keys of both kinds of model
        experts = 0
    return FeedForward(
        dense=dense,
        experts=experts,
        top_k=reader.size("num_experts_per_tok", "top_k_experts", "moe_topk", maximum=MAX_EXPERTS),
        expert=expert,
        shared=shared if experts else 0,
        latent=reader.size("moe_latent_size"),
        gated=not (model_type == "nemotron_h" or reader.text("mlp_hidden_act") == "relu2"),
    )


def _hybrid_blocks(reader: Reader) -> list[str]:
    """Nemotron-H: one block a layer, either a mixer or a feed-forward."""
    blocks = reader.items("layers_block_type")
    if not blocks:
        blocks = [_NEMOTRON_BLOCKS.get(letter, letter) for letter in reader.text("hybrid_override_pattern")]
    if len(blocks) > MAX_LAYERS:
        raise InvalidInputError(f"config.json lists {len(blocks)} layers; at most {MAX_LAYERS} are accepted.")
    return [str(block) for block in blocks]


def _layers(reader: Reader, count: int, blocks: list[str], ffn: FeedForward) -> tuple[Layer, ...]:
    if blocks:
        known = {
            "mamba": Layer("mamba", ""), "attention": Layer("attention", ""), "moe": Layer("", "moe"),
            "mlp": Layer("", "dense"),
        }  # fmt: skip
        unknown = next((b for b in blocks if b not in known), None)
        if unknown is not None or len(blocks) != count:
            what = f"a block {unknown[:40]!r} that is not known" if unknown else f"{len(blocks)} blocks"
            raise InvalidInputError(f"config.json has {count} layers and lists {what}.")
        return tuple(known[block] for block in blocks)
    mixers = _mixers(reader, count)
    ffns = _ffns(reader, count, ffn)
    return tuple(Layer(mixer, kind) for mixer, kind in zip(mixers, ffns, strict=True))


def _mixers(reader: Reader, count: int) -> list[str]:
    types = reader.items("layer_types")
    if types:
        if len(types) != count:
            raise InvalidInputError(f"config.json has {count} layers and {len(types)} layer_types.")
        return [_mixer(kind) for kind in types]
    interval = reader.size("full_attention_interval")
    if interval and reader.size("linear_num_value_heads"):
        return ["attention" if (i + 1) % interval == 0 else "linear" for i in range(count)]
    return ["attention"] * count


def _mixer(kind: object) -> str:
    """The mixer of an entry of layer_types; empty if it is not known. Every kind of attention has the same linears."""
    return _MIXERS.get(str(kind)) or ("attention" if str(kind).endswith("attention") else "")


def _ffns(reader: Reader, count: int, ffn: FeedForward) -> list[str]:
    if not ffn.experts:
        return ["dense"] * count
    types = reader.items("mlp_layer_types")
    if types:
        if len(types) != count:
            raise InvalidInputError(f"config.json has {count} layers and {len(types)} mlp_layer_types.")
        return ["moe" if kind == "sparse" else "dense" for kind in types]
    if isinstance(reader.value("moe_layer_freq"), list):  # one flag a layer (MiMo-V2), not every n-th layer (DeepSeek)
        flags = reader.items("moe_layer_freq")
        if len(flags) != count:
            raise InvalidInputError(f"config.json has {count} layers and {len(flags)} entries in moe_layer_freq.")
        return ["moe" if flag else "dense" for flag in flags]
    first_dense = reader.size("first_k_dense_replace")
    frequency = reader.size("moe_layer_freq")
    step = max(1, reader.size("decoder_sparse_step"))
    # Gemma-4's sparse layers have a dense MLP beside the experts.
    sparse = "both" if reader.value("enable_moe_block") else "moe"
    only_dense = {i for i in reader.items("mlp_only_layers") if isinstance(i, int)}
    return [
        "dense" if i < first_dense or i % max(1, frequency) or i in only_dense or (i + 1) % step else sparse
        for i in range(count)
    ]


def _mtp(reader: Reader) -> MtpConfig:
    keys = []
    layers = 0
    for key in ("mtp_num_hidden_layers", "num_nextn_predict_layers"):
        value = reader.size(key, maximum=MAX_LAYERS)
        if reader.value(key) is not None:
            keys.append(f"{key} = {value}")
        layers = max(layers, value)
    modules = reader.size("num_mtp_modules", maximum=MAX_LAYERS)
    if reader.value("num_mtp_modules") is not None:
        each = reader.size("mtp_transformer_layers", maximum=MAX_LAYERS) or 1
        keys.append(f"num_mtp_modules = {modules} x mtp_transformer_layers = {each}")
        layers = max(layers, modules * each)
    if reader.value("use_mtp") is not None:
        keys.append(f"use_mtp = {str(reader.flag('use_mtp')).lower()}")
        if not reader.flag("use_mtp"):
            layers = 0
        elif layers == 0:
            layers = 1
    blocks = reader.items("mtp_layers_block_type")
    if not blocks:
        blocks = [_NEMOTRON_BLOCKS.get(letter, letter) for letter in reader.text("mtp_hybrid_override_pattern")]
    if blocks:
        keys.append(f"mtp blocks = {clean('+'.join(str(b)[:20] for b in blocks[:8]))}")
    return MtpConfig(layers, tuple(keys), tuple(str(b) for b in blocks[:64]))
