"""A config of ours and Humming's tuning dictionary for it: two spellings of one schedule. Needs no Humming."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backend import Config, ConfigValue
from ..errors import UnsupportedError

_LOADS = {(False, False): "async", (False, True): "async_ws", (True, False): "tma", (True, True): "tma_ws"}
"""(use_tma, use_warp_spec) by one name: how tiles come into shared memory, and whether by warps of their own."""

KNOBS: dict[str, tuple[str, ConfigValue]] = {
    "store": ("use_tma_c", "auto"),
    "raster_m": ("raster_group_m", 1),
    "reuse": ("smem_reuse_mode", "all_stages"),
    "evict_weights_first": ("evict_weights_first", False),
    "multicast_a": ("multi_cast_size_a", 1),
    "producer_unroll": ("producer_stage_unroll", 0),
    "consumer_unroll": ("consumer_stage_unroll", 0),
    "producer_registers": ("producer_registers", 0),
    "chunk_rows": ("output_chunk_rows", 0),
    "pdl": ("use_pdl", False),
    "max_sms": ("num_sms", 0),
    "cta_group": ("umma_cta_group_size", 1),
    "dequant_warpgroups": ("umma_num_dequant_warpgroups", 1),
}
"""Parameter -> (Humming's field, what leaving the field out means). A parameter is in a space only if it is searched
there, or if Humming's heuristic sets its field to something else."""

_NONE = {"producer_unroll": 0, "consumer_unroll": 0, "producer_registers": 0}
"""Parameters whose value here stands for Humming's None."""

LAST_STAGE_ONLY = "reduce_overlap_last_stage_only"
"""How 0.1.12 says `reuse`: True is `last_stage`, False `all_stages`."""

_UNUSED: dict[str, object] = {
    "multi_cast_size_b": 1,
    "wgmma_use_late_as": False,
    "umma_split_async_loads": False,
    "use_f16_accum": False,
    "use_cp_async": True,
    "num_write_splits": 1,
}
"""Fields that no NVFP4 schedule from SM80 on sets to anything else."""

_SPLIT = "wgmma_split"
"""Warp group instructions whose issue and wait stand apart; a name of ours, Humming has a switch for it."""

_CHILDREN = ("use_tma_a", "use_tma_b", "use_tma_as", "use_tma_as2", "use_tma_bs", "use_tma_bs2", "use_tma_bzp",
             "use_tma_bias")  # fmt: skip


def absent(knob: str, mma: str) -> ConfigValue | None:
    """What a schedule without this knob has; None for a parameter that every schedule has."""
    return "none" if knob == "reuse" and mma == "umma" else KNOBS.get(knob, ("", None))[1]


def has_knob(knob: str, fields: frozenset[str]) -> bool:
    """Whether a release can do what a parameter of KNOBS says.

    Args:
        knob: the parameter.
        fields: what the release's TuningConfig has.
    """
    return KNOBS[knob][0] in {*fields, "num_sms"} or (knob == "reuse" and LAST_STAGE_ONLY in fields)


def gemm_type_of(config: Config) -> str:
    """Humming's kind of GEMM; a dense config does not say it."""
    return str(config.get("gemm_type", "dense"))


def instruction_of(config: Config) -> str:
    """The matrix instruction by Humming's name."""
    return "wgmma" if config["mma"] == _SPLIT else str(config["mma"])


def block(config: Config) -> tuple[int, int, int]:
    """The tile of a thread block."""
    m, n, k = warp(config)
    return m * int(config["m_warps"]), n * int(config["n_warps"]), k * int(config["k_warps"])


def warp(config: Config) -> tuple[int, int, int]:
    """The tile of a warp."""
    return int(config["warp_m"]), int(config["warp_n"]), int(config["warp_k"])


def math_warps(config: Config) -> int:
    """Warps of a block that multiply; those that only load come on top with warp specialisation."""
    return int(config["m_warps"]) * int(config["n_warps"]) * int(config["k_warps"])


def threads(config: Config) -> int:
    """Threads of a block; Humming gives a loading warp group 128."""
    return 32 * math_warps(config) + (128 if str(config["load"]).endswith("_ws") else 0)


def stores_by_tma(config: Config) -> bool:
    """Whether D is written by TMA: with TMA loads, as Humming does it, unless rows are indexed or `store` is direct."""
    by_tma = str(config["load"]).startswith("tma") and gemm_type_of(config) != "indexed"
    return by_tma and config.get("store", "auto") == "auto"


def stream_k_locks(config: Config, sms: int) -> int:
    """Locks that a stream-K launch needs (csrc/launcher/tensor.h, check_tensor_locks); 0 without stream-K."""
    if not config["stream_k"]:
        return 0
    ctas = int(config["ctas_per_sm"]) * (int(config.get("max_sms", 0)) or sms)
    cluster = int(config.get("multicast_a", 1)) * int(config.get("cta_group", 1))
    groups = ctas // cluster
    per_tile = 1
    if instruction_of(config) == "wgmma":
        per_tile = max(1, int(config["m_warps"]) * int(config["n_warps"]) // 4)
    return (groups + groups // 10) * cluster * per_tile


def decode(tuning: Mapping[str, Any], gemm_type: str, *, mma: str, sms: int) -> dict[str, ConfigValue]:
    """Humming's tuning dictionary by our names: all that it says, every knob, whether or not it is searched.

    Args:
        tuning: block_shape, warp_shape and what else Humming's heuristic sets.
        gemm_type: `dense`, `indexed`, `grouped_contiguous`.
        mma: what it multiplies with if it does not say.
        sms: multiprocessors, which is what it means by an equal num_sms.

    Raises:
        UnsupportedError: it says something that has no name here.
    """
    left = {name: value for name, value in tuning.items() if value is not None}
    block_m, block_n, block_k = left.pop("block_shape")
    warp_m, warp_n, warp_k = left.pop("warp_shape")
    mma = str(left.pop("mma_type", mma))
    tma = bool(left.pop("use_tma", False))
    specialised = bool(left.pop("use_warp_spec", False)) or mma == "umma"
    tma_c = bool(left.pop("use_tma_c", tma)) and gemm_type != "indexed"
    for child in _CHILDREN:
        if child in left and left[child] == _child(child, gemm_type, tma=tma):
            del left[child]
    if left.get("use_mbarrier") == (tma or specialised):  # what 0.1.12 makes of it if nobody sets it
        del left["use_mbarrier"]
    if LAST_STAGE_ONLY in left:
        left["smem_reuse_mode"] = "last_stage" if left.pop(LAST_STAGE_ONLY) else "all_stages"
    if left.get("num_sms", sms) >= sms:
        left.pop("num_sms", None)
    config: dict[str, ConfigValue] = {} if gemm_type == "dense" else {"gemm_type": gemm_type}
    config |= {
        "mma": _SPLIT if left.pop("wgmma_split_issue_wait", False) and mma == "wgmma" else mma,
        "warp_m": warp_m,
        "m_warps": block_m // warp_m,
        "warp_n": warp_n,
        "n_warps": block_n // warp_n,
        "warp_k": warp_k,
        "k_warps": block_k // warp_k,
        "stages": left.pop("num_stages", 2),
        "ctas_per_sm": left.pop("num_ctas_per_sm", 1),
        "stream_k": bool(left.pop("use_stream_k", True)),
        "load": _LOADS[tma, specialised],
        "store": "auto" if tma_c == (tma and gemm_type != "indexed") else "direct",
    }
    config |= {knob: left.pop(field, absent(knob, mma)) for knob, (field, _) in KNOBS.items() if knob != "store"}
    strange = {name: value for name, value in left.items() if name not in _UNUSED or value != _UNUSED[name]}
    if strange:
        said = ", ".join(f"{name}={value}" for name, value in sorted(strange.items()))
        raise UnsupportedError(f"Humming's heuristic sets {said}, which fp4tune has no name for.")
    return config


def encode(config: Config, *, fields: frozenset[str]) -> dict[str, Any]:
    """The tuning dictionary that Humming takes for a config.

    Args:
        config: of our space.
        fields: what the installed TuningConfig has. num_sms is a key of the dictionary and none of them; mma_type is
            one from 0.1.19 on, and the layer's before.

    Raises:
        UnsupportedError: the config needs a field that the installed version does not have.
    """
    gemm_type, mma, load = gemm_type_of(config), instruction_of(config), str(config["load"])
    tma, specialised = next(pair for pair, name in _LOADS.items() if name == load)
    tuning: dict[str, Any] = {
        "block_shape": list(block(config)),
        "warp_shape": list(warp(config)),
        "num_stages": config["stages"],
        "num_ctas_per_sm": config["ctas_per_sm"],
        "use_stream_k": config["stream_k"],
        "use_tma": tma,
        "use_warp_spec": specialised,
        "use_tma_c": stores_by_tma(config),
    }
    if config["mma"] == _SPLIT:
        tuning["wgmma_split_issue_wait"] = True
    if "mma_type" in fields:
        tuning["mma_type"] = mma
    if gemm_type == "indexed":
        tuning |= {child: False for child in ("use_tma_a", "use_tma_as", "use_tma_as2") if child in fields}
    for knob in KNOBS:
        tuning |= _said(knob, config.get(knob, absent(knob, mma)), mma, fields)
    return tuning


def _said(knob: str, value: ConfigValue | None, mma: str, fields: frozenset[str]) -> dict[str, Any]:
    """The entry of the tuning dictionary for one parameter of KNOBS, if it needs one."""
    field = KNOBS[knob][0]
    if knob == "store" or (knob == "max_sms" and not value):
        return {}
    if knob == "reuse" and LAST_STAGE_ONLY in fields:
        return {LAST_STAGE_ONLY: value == "last_stage"}
    if has_knob(knob, fields):
        return {field: None if knob in _NONE and value == _NONE[knob] else value}
    if value != absent(knob, mma):
        raise UnsupportedError(f"The installed Humming has no {field}, which {knob}={value} needs.")
    return {}


def _child(name: str, gemm_type: str, *, tma: bool) -> bool:
    """What a TMA switch of one operand is if nobody sets it."""
    if name == "use_tma_as" or (gemm_type == "indexed" and name in {"use_tma_a", "use_tma_as2"}):
        return False
    return tma
