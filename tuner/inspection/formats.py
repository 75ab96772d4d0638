"""What a weight is stored as, read off the dtypes and shapes of the tensors that belong to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ...kernels.problem import NVFP4_GROUP, Format
from .safetensors_header import TensorInfo

MX_GROUP = 32
"""Elements that share one E8M0 scale in the OCP microscaling formats (MXFP4, MXFP8)."""


class WeightFormat(StrEnum):
    """How a linear layer's weight is stored."""

    NVFP4 = "nvfp4"
    """E2M1 with one E4M3 scale per 16 elements, activations quantised too (W4A4)."""
    NVFP4_W4A16 = "nvfp4_w4a16"
    NVFP4_W4A8 = "nvfp4_w4a8"
    """NVFP4 weights, FP8 activations: not what an NVFP4 GEMM runs."""
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    UNKNOWN = "unknown"

    @property
    def is_nvfp4(self) -> bool:
        """True for NVFP4 weights, whatever the activations are."""
        return self in {WeightFormat.NVFP4, WeightFormat.NVFP4_W4A16, WeightFormat.NVFP4_W4A8}

    @property
    def is_unquantised(self) -> bool:
        """True for plain floating point."""
        return self in {WeightFormat.BF16, WeightFormat.FP16, WeightFormat.FP32}

    @property
    def problem_format(self) -> Format | None:
        """The operand format of a GEMM with such a weight; None if fp4tune does not tune it."""
        return _PROBLEM_FORMAT.get(self)


_PROBLEM_FORMAT = {
    WeightFormat.NVFP4: Format.NVFP4,
    WeightFormat.NVFP4_W4A16: Format.NVFP4_W4A16,
    WeightFormat.BF16: Format.BF16,
}
_PLAIN = {"BF16": WeightFormat.BF16, "F16": WeightFormat.FP16, "F32": WeightFormat.FP32}

SUFFIXES = (
    "weight_scale_inv", "weight_scale_2", "weight_scale", "weight_packed", "weight_global_scale", "weight_shape",
    "input_global_scale", "input_scale", "weight", "blocks", "scales", "scale", "bias",
    "k_scale", "v_scale", "pre_quant_scale", "e_score_correction_bias",
)  # fmt: skip
"""Last parts of tensor names that belong to a linear module."""

_PACKED = frozenset({"U8", "I8", "F4"})
"""Dtypes of packed FP4. DeepSeek-V4 stores its MXFP4 as I8."""
_E8M0 = frozenset({"U8", "F8_E8M0"})
"""Dtypes of E8M0 scales: their own, and the bytes that libraries without it write."""
_BLOCK_SCALE = ("weight_scale", "scale", "scales")


@dataclass(frozen=True, slots=True)
class Stored:
    """The verdict about one weight from headers (or, with less confidence, from names alone).

    Attributes:
        format: what it is.
        n: output features; 0 if the shape is not known.
        k: input features, in elements (two a byte for packed FP4); 0 if the shape is not known.
        stack: experts stacked in the first dimension of a 3-D weight; 0 for a plain matrix.
        flavour: `modelopt`, `compressed-tensors`, or empty.
        reason: why the format is unknown; else empty.
    """

    format: WeightFormat
    n: int = 0
    k: int = 0
    stack: int = 0
    flavour: str = ""
    reason: str = ""


def stored_verdict(tensors: Mapping[str, TensorInfo]) -> Stored:
    """Decide from the tensors of one module. The weight's dtype decides first, then its scales must fit.

    Args:
        tensors: suffix (see SUFFIXES) -> dtype and shape.
    """
    if "weight_packed" in tensors:
        scale = tensors.get("weight_scale")
        if scale is not None and scale.dtype in _E8M0 and "weight_global_scale" not in tensors:
            return _packed_mxfp4(tensors, "weight_packed")
        return _packed_fp4(tensors, "weight_packed", "weight_global_scale", "input_global_scale", "compressed-tensors")
    if "blocks" in tensors:
        return _mx_blocks(tensors)
    weight = tensors.get("weight")
    if weight is None:
        return Stored(WeightFormat.UNKNOWN, reason=f"there is no weight among its tensors ({_listed(tensors)})")
    if len(weight.shape) not in {2, 3}:
        return Stored(WeightFormat.UNKNOWN, reason=f"its weight has the shape {list(weight.shape)}")
    if weight.dtype in _PACKED:
        modelopt = "weight_scale_2" in tensors
        return _packed_fp4(tensors, *_MODELOPT) if modelopt else _packed_mxfp4(tensors, "weight")
    return _fp8(tensors) if weight.dtype == "F8_E4M3" else _plain(tensors)


_MODELOPT = ("weight", "weight_scale_2", "input_scale", "modelopt")


def _plain(tensors: Mapping[str, TensorInfo]) -> Stored:
    weight = tensors["weight"]
    n, k, stack = _dims(weight)
    if weight.dtype not in _PLAIN:
        return Stored(WeightFormat.UNKNOWN, n, k, stack, reason=f"its weight has the dtype {weight.dtype}")
    scales = [s for s in ("weight_scale", "weight_scale_2", "weight_scale_inv") if s in tensors]
    if scales:
        reason = f"its weight is {weight.dtype} but it has a {scales[0]}"
        return Stored(WeightFormat.UNKNOWN, n, k, stack, reason=reason)
    return Stored(_PLAIN[weight.dtype], n, k, stack)


def index_verdict(suffixes: Collection[str]) -> Stored:
    """Guess from tensor names alone, as an index has them: no dtype, no shape, so no N, no K, no cross-check."""
    if "weight_scale_2" in suffixes or {"weight_packed", "weight_global_scale"} <= set(suffixes):
        flavour = "modelopt" if "weight_scale_2" in suffixes else "compressed-tensors"
        w4a4 = "input_scale" in suffixes or "input_global_scale" in suffixes
        return Stored(WeightFormat.NVFP4 if w4a4 else WeightFormat.NVFP4_W4A16, flavour=flavour)
    if "blocks" in suffixes and "scales" in suffixes:
        return Stored(WeightFormat.MXFP4)
    if "weight" in suffixes and "scale" not in suffixes:
        for scale, fmt in (("weight_scale_inv", WeightFormat.FP8_BLOCK), ("weight_scale", WeightFormat.FP8)):
            if scale in suffixes:
                return Stored(fmt)
        return Stored(WeightFormat.BF16)
    return Stored(WeightFormat.UNKNOWN, reason=f"its tensor names ({_listed(suffixes)}) fit no format")


def _packed_fp4(
    tensors: Mapping[str, TensorInfo], weight_key: str, tensor_scale: str, input_scale: str, flavour: str
) -> Stored:
    weight, scale = tensors[weight_key], tensors.get("weight_scale")
    if weight.dtype not in _PACKED or len(weight.shape) not in {2, 3}:
        return Stored(WeightFormat.UNKNOWN, reason=f"its {weight_key} is {weight.dtype} {list(weight.shape)}")
    n, k, stack = _fp4_dims(weight)
    missing = [name for name in ("weight_scale", tensor_scale) if name not in tensors]
    if scale is None or missing:
        reason = f"its weight is packed FP4 but it has no {missing[0]}"
        return Stored(WeightFormat.UNKNOWN, n, k, stack, reason=reason)
    if scale.dtype != "F8_E4M3":
        reason = f"its weight_scale is {scale.dtype}, and NVFP4 needs F8_E4M3"
        return Stored(WeightFormat.UNKNOWN, n, k, stack, reason=reason)
    if scale.shape != (*weight.shape[:-1], k // NVFP4_GROUP) or k % NVFP4_GROUP:
        reason = (
            f"its weight says K = {k}, so weight_scale should be {[*weight.shape[:-1], k // NVFP4_GROUP]} "
            f"and is {list(scale.shape)}"
        )
        return Stored(WeightFormat.UNKNOWN, n, k, stack, reason=reason)
    wanted = WeightFormat.NVFP4 if input_scale in tensors else WeightFormat.NVFP4_W4A16
    return Stored(wanted, n, k, stack, flavour)


def _packed_mxfp4(tensors: Mapping[str, TensorInfo], weight_key: str) -> Stored:
    weight = tensors[weight_key]
    if weight.dtype not in _PACKED or len(weight.shape) not in {2, 3}:
        return Stored(WeightFormat.UNKNOWN, reason=f"its {weight_key} is {weight.dtype} {list(weight.shape)}")
    n, k, stack = _fp4_dims(weight)
    scale = next((tensors[s] for s in _BLOCK_SCALE if s in tensors), None)
    if scale is not None and scale.dtype in _E8M0 and scale.shape and k == MX_GROUP * scale.shape[-1]:
        return Stored(WeightFormat.MXFP4, n, k, stack)
    has = "no scale" if scale is None else f"a scale of {scale.dtype} {list(scale.shape)} and no weight_scale_2"
    reason = f"its weight is {weight.dtype} with {has}, which is neither NVFP4 nor MXFP4"
    return Stored(WeightFormat.UNKNOWN, n, k, stack, reason=reason)


def _mx_blocks(tensors: Mapping[str, TensorInfo]) -> Stored:
    """gpt-oss: blocks [E, N, K/32, 16] U8 and scales [E, N, K/32] U8."""
    blocks, scales = tensors["blocks"], tensors.get("scales")
    if scales is None or blocks.shape[:-1] != scales.shape or blocks.shape[-1:] != (MX_GROUP // 2,):
        return Stored(WeightFormat.UNKNOWN, reason=f"its blocks are {list(blocks.shape)} without scales that fit")
    if len(scales.shape) not in {2, 3}:
        return Stored(WeightFormat.UNKNOWN, reason=f"its scales have the shape {list(scales.shape)}")
    stack = scales.shape[0] if len(scales.shape) == 3 else 0
    return Stored(WeightFormat.MXFP4, scales.shape[-2], scales.shape[-1] * MX_GROUP, stack)


def _fp8(tensors: Mapping[str, TensorInfo]) -> Stored:
    n, k, stack = _dims(tensors["weight"])
    if "weight_scale_inv" in tensors:
        return Stored(WeightFormat.FP8_BLOCK, n, k, stack)
    scale = next((tensors[s] for s in _BLOCK_SCALE if s in tensors), None)
    if scale is None:
        return Stored(WeightFormat.UNKNOWN, n, k, stack, reason="its weight is F8_E4M3 without a scale")
    if scale.dtype in _E8M0 and scale.shape[:-1] == tensors["weight"].shape[:-1]:
        return Stored(WeightFormat.MXFP8, n, k, stack)
    blocks = len(scale.shape) >= 2 and scale.shape[-1] > 1
    return Stored(WeightFormat.FP8_BLOCK if blocks else WeightFormat.FP8, n, k, stack)


def _dims(weight: TensorInfo) -> tuple[int, int, int]:
    stack = weight.shape[0] if len(weight.shape) == 3 else 0
    return weight.shape[-2], weight.shape[-1], stack


def _fp4_dims(weight: TensorInfo) -> tuple[int, int, int]:
    """N, K in elements, and the stack. Dtype F4 counts elements in its shape, U8 counts bytes of two."""
    n, columns, stack = _dims(weight)
    return n, columns if weight.dtype == "F4" else 2 * columns, stack


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:6])
