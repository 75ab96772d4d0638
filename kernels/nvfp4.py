"""NVFP4: quantise, pack, lay out and decode.

The format stores a matrix as E2M1 codes (four bits), one E4M3 scale for 16 neighbours along K, and one FP32
global scale for the whole matrix: value = code · scale / global_scale. The maths is the one that FlashInfer's
reference quantisers and TensorRT-LLM's CUDA quantiser share (`quantization_utils.cuh`): global scale 448·6/amax,
block scale round-to-nearest-even of global_scale·amax16/6 in E4M3, codes round-to-nearest-even with saturation.
The CUDA quantisers divide with `rcp.approx`, so their bytes may differ from these by one step here and there; a
GEMM is therefore always checked on the same bytes that the kernel read, never on a second quantisation.

Everything works on CPU and CUDA tensors, on one matrix [rows, K] or a stack of them [experts, rows, K].
"""

from __future__ import annotations

import torch

from .errors import InvalidInputError
from .operands import Quantized
from .problem import NVFP4_GROUP

E2M1_MAX = 6.0
"""Largest E2M1 magnitude (OCP Microscaling Formats 1.0, section 5.3.3)."""

E4M3_MAX = 448.0
"""Largest finite E4M3 magnitude (OCP 8-bit Floating Point 1.0)."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Value of each code: sign in bit 3, exponent in bits 2 and 1, mantissa in bit 0."""

MAX_GLOBAL_SCALE = 2.0**100
"""Cap on the global scale, so that 1/(scale/global_scale) stays finite in FP32 for the smallest E4M3 scale, 2^-9.
It is reached by matrices whose largest magnitude is below 2688·2^-100 = 2e-27."""

SWIZZLE_ROWS, SWIZZLE_COLS = 128, 4
"""Tile of the 128x4 scale layout that tcgen05 and SM120 block-scaled MMA read (PTX ISA, cuBLAS block scaling)."""

_CHUNK = 1 << 22
"""Elements that are quantised or decoded at a time: the FP32 temporaries of a chunk take some 100 MB."""


def global_scale(x: torch.Tensor) -> torch.Tensor:
    """448·6/amax of each matrix; 1 for a matrix of zeros or without elements.

    Args:
        x: floating point [..., rows, K].

    Returns:
        float32 [1] for one matrix, [experts] for a stack.

    Raises:
        InvalidInputError: an element is NaN or infinite.
    """
    stack = x if x.dim() == 3 else x.unsqueeze(0)
    amax = torch.zeros(stack.shape[0], dtype=torch.float32, device=x.device)
    if x.numel():
        for i, matrix in enumerate(stack):
            amax[i] = torch.maximum(-matrix.amin(), matrix.amax()).float()  # NaN and infinity survive both
        if not bool(torch.isfinite(amax).all()):
            raise InvalidInputError(_not_finite_sentence(x))
    # Divided by a tensor, because torch turns number / tensor into a product with a rounded reciprocal.
    scale = (amax.new_full((1,), E2M1_MAX * E4M3_MAX) / amax).clamp_(max=MAX_GLOBAL_SCALE)
    return torch.where(amax > 0, scale, torch.ones_like(scale))


def quantize(x: torch.Tensor, *, scale: torch.Tensor | None = None) -> Quantized:
    """Quantise to NVFP4.

    Args:
        x: float32, bfloat16 or float16 [rows, K] or [experts, rows, K]; K a multiple of 16.
        scale: a global scale to use instead of 448·6/amax, as a calibrated checkpoint brings one: float32 [1] or
            [experts], positive and finite. Blocks that it makes too large saturate.

    Raises:
        InvalidInputError: the shape or the dtype is not one of the above, or a value is NaN or infinite.
    """
    if x.dim() not in {2, 3} or x.shape[-1] % NVFP4_GROUP or x.shape[-1] == 0:
        raise InvalidInputError(
            f"NVFP4 needs [rows, K] or [experts, rows, K] with K a positive multiple of {NVFP4_GROUP}, "
            f"not a tensor of shape {list(x.shape)}."
        )
    if x.dtype not in {torch.float32, torch.bfloat16, torch.float16}:
        raise InvalidInputError(f"NVFP4 is quantised from float32, bfloat16 or float16, not from {x.dtype}.")
    own = global_scale(x)  # also finds NaN and infinity
    gs = own if scale is None else _checked_scale(scale, own)
    *stack, rows, k = x.shape
    packed = torch.empty(*stack, rows, k // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(*stack, rows, k // NVFP4_GROUP, dtype=torch.float8_e4m3fn, device=x.device)
    matrices = (x, packed, scales) if stack else (x.unsqueeze(0), packed.unsqueeze(0), scales.unsqueeze(0))
    step = max(1, _CHUNK // k)
    for i, (values, codes_out, scales_out) in enumerate(zip(*matrices, strict=True)):
        for r in range(0, rows, step):
            codes, sf = quantize_rows(values[r : r + step], gs[i])
            codes_out[r : r + step] = pack(codes)
            scales_out[r : r + step] = sf
    return Quantized(packed, scales, swizzle_128x4(scales), gs)


def quantize_rows(x: torch.Tensor, gs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise without a check and without waiting for a device.

    Args:
        x: floating point [rows, K], finite.
        gs: the global scale, a scalar tensor, or one for each row, [rows, 1].

    Returns:
        Codes, uint8 [rows, K], and block scales, float8_e4m3fn [rows, K/16].
    """
    groups = x.float().reshape(x.shape[0], -1, NVFP4_GROUP)
    amax = groups.abs().amax(dim=-1)
    sf = (gs * (amax * (1 / E2M1_MAX))).clamp_(max=E4M3_MAX).to(torch.float8_e4m3fn)
    decoded = sf.float()
    inverse = torch.where(decoded > 0, 1 / (decoded * (1 / gs)), torch.zeros_like(decoded))
    return round_e2m1(groups * inverse.unsqueeze(-1)).view(x.shape), sf


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """The nearest E2M1 code of each element, ties to the even code, magnitudes above 6 to 6.

    The sign of zero is kept, as `cvt.rn.satfinite.e2m1x2` keeps it.

    Args:
        x: floating point, no NaN.

    Returns:
        uint8 codes 0..15 of the same shape.
    """
    magnitude = x.abs()
    codes = torch.signbit(x).to(torch.uint8) << 3
    # Halfway points between neighbours; those whose even neighbour is the upper one round up on a tie.
    for tie in (0.25, 1.25, 2.5, 5.0):
        codes += magnitude > tie
    for tie in (0.75, 1.75, 3.5):
        codes += magnitude >= tie
    return codes


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte: uint8 [..., K] to uint8 [..., K/2], the even k in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack`: uint8 [..., K/2] to codes uint8 [..., K]."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def swizzled_bytes(rows: int, cols: int) -> int:
    """Bytes of [rows, cols] scales in the 128x4 layout, padding included."""
    return -(-rows // SWIZZLE_ROWS) * SWIZZLE_ROWS * (-(-cols // SWIZZLE_COLS) * SWIZZLE_COLS)


def swizzle_128x4(scale: torch.Tensor) -> torch.Tensor:
    """Block scales in the 128x4 layout, padding zero.

    The scale of row r and group c lies at byte
    (r//128)·(C//4)·512 + (c//4)·512 + (r%32)·16 + ((r%128)//32)·4 + (c%4), with C = cols rounded up to 4.

    Args:
        scale: E4M3 or uint8 [..., rows, cols], cols = K/16.

    Returns:
        uint8 [..., padded_rows · padded_cols].
    """
    *stack, rows, cols = scale.shape
    row_tiles, col_tiles = -(-rows // SWIZZLE_ROWS), -(-cols // SWIZZLE_COLS)
    padded = torch.zeros(
        *stack, row_tiles * SWIZZLE_ROWS, col_tiles * SWIZZLE_COLS, dtype=torch.uint8, device=scale.device
    )
    padded[..., :rows, :cols] = scale.view(torch.uint8)
    tiles = padded.view(*stack, row_tiles, 4, 32, col_tiles, 4)
    return tiles.movedim(-2, -4).transpose(-2, -3).reshape(*stack, swizzled_bytes(rows, cols))


def unswizzle_128x4(swizzled: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of `swizzle_128x4`, padding dropped.

    Args:
        swizzled: uint8 [..., padded_rows · padded_cols].
        rows: rows of the linear scales.
        cols: columns of them, K/16.

    Returns:
        uint8 [..., rows, cols].

    Raises:
        InvalidInputError: the last dimension is not the size of such a layout.
    """
    if swizzled.shape[-1] != swizzled_bytes(rows, cols):
        raise InvalidInputError(
            f"{rows}x{cols} scales take {swizzled_bytes(rows, cols)} bytes in the 128x4 layout, "
            f"and there are {swizzled.shape[-1]}."
        )
    stack = swizzled.shape[:-1]
    row_tiles, col_tiles = -(-rows // SWIZZLE_ROWS), -(-cols // SWIZZLE_COLS)
    tiles = swizzled.view(*stack, row_tiles, col_tiles, 32, 4, 4)
    linear = tiles.transpose(-2, -3).movedim(-4, -2)
    return linear.reshape(*stack, row_tiles * SWIZZLE_ROWS, col_tiles * SWIZZLE_COLS)[..., :rows, :cols].contiguous()


def decode(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Decode to code · scale, without the global scale: [..., rows, K] of `dtype`.

    Exact in float32, bfloat16 and float64: a code has two significant bits and an E4M3 scale four, so a product has
    at most six, and bfloat16 holds eight. That is why the global scales are applied after the accumulation.
    """
    values = torch.tensor(E2M1_VALUES, dtype=dtype, device=packed.device)
    codes = unpack(packed).int()
    out = values.index_select(0, codes.view(-1)).view(*scale.shape, NVFP4_GROUP)
    return (out * scale.to(dtype).unsqueeze(-1)).view(codes.shape)


def dequantize(q: Quantized, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values that `q` stands for: code · scale / global_scale, [..., rows, K], computed in float32."""
    gs = q.global_scale.view(-1, *[1] * (q.packed.dim() - 1)) if q.packed.dim() == 3 else q.global_scale
    return (decode(q.packed, q.scale) / gs).to(dtype)


def _checked_scale(scale: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """`scale` as float32 beside `own`, the scale that the data itself would have."""
    if scale.shape != own.shape or not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise InvalidInputError(
            f"The global scale must be {own.numel()} positive finite numbers (one a matrix), and is "
            f"{scale.tolist() if scale.numel() <= 8 else list(scale.shape)}."
        )
    return scale.to(device=own.device, dtype=torch.float32).clamp(max=MAX_GLOBAL_SCALE)


def _not_finite_sentence(x: torch.Tensor) -> str:
    """Which elements of `x` are NaN or infinite, for people."""
    bad = ~torch.isfinite(x)
    first = tuple(int(i) for i in bad.nonzero()[0])
    return (
        f"NVFP4 cannot hold NaN or infinity, and {int(bad.sum())} of {x.numel()} values are: "
        f"the first is {float(x[first])} at {list(first)}."
    )
