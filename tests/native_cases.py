"""Small problems and configs of `triton.native` that between them take every way through its kernel."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "block_m": 16,
    "block_n": 64,
    "block_k": 64,
    "num_warps": 4,
    "num_stages": 2,
    "group_m": 1,
    "loads": "pointer",
    "scales": "linear",
    "swap_ab": False,
    "schedule": "data_parallel",
    "parts": 1,
}
# 17 rows: a tile of one row. 80 columns: a tile of 16. K = 208: a step of 16, and 13 groups, which four do not divide.
RAGGED = "dense:17x80x208:uniform:nvfp4:bf16"
WORDS = "dense:5x48x320:uniform:nvfp4:bf16"  # scales by words of four, a last step of half a block
GROUPED = "grouped:e6k2:9x80x208:power_law:nvfp4:bf16"  # 18 rows, an expert without any

CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "one program a tile": (RAGGED, {}, 3),
    "grouped row tiles": (RAGGED, {"group_m": 4}, 3),
    "split-K": (RAGGED, {"schedule": "split_k", "parts": 2}, 3),
    "split-K, a part a step": (RAGGED, {"schedule": "split_k", "parts": 4, "swap_ab": True}, 3),
    "stream-K, tiles straddle programs": (RAGGED, {"schedule": "stream_k", "parts": 1, "group_m": 4}, 3),
    "stream-K, more programs than steps": (RAGGED, {"schedule": "stream_k", "parts": 4}, 10),
    "stream-K, whole tiles only": (RAGGED, {"schedule": "stream_k", "parts": 2}, 1),
    "TMA, FP32 out": ("dense:17x80x224:uniform:nvfp4:fp32", {"loads": "tma"}, 3),
    "TMA, swapped, split-K": (
        "dense:9x80x224:uniform:nvfp4:fp16",
        {"loads": "tma", "swap_ab": True, "block_m": 8, "schedule": "split_k", "parts": 2},
        3,
    ),
    "swizzled scales": (RAGGED, {"scales": "swizzled", "block_n": 32}, 3),
    "swizzled scales, more than 128 rows": (
        "dense:260x300x80:uniform:nvfp4:bf16",
        {"scales": "swizzled", "block_m": 256, "block_n": 256, "num_warps": 8},
        3,
    ),
    "swizzled scales, parts of 128 rows": (
        "dense:130x70x80:uniform:nvfp4:bf16",
        {"scales": "swizzled", "block_m": 64, "block_n": 128, "block_k": 128},
        3,
    ),
    "scales by words": (WORDS, {"block_k": 128}, 3),
    "swizzled scales by words": (WORDS, {"block_k": 128, "scales": "swizzled", "schedule": "split_k", "parts": 2}, 3),
    "experts": (GROUPED, {"group_m": 4}, 3),
    "experts, split-K, swizzled": (GROUPED, {"schedule": "split_k", "parts": 2, "scales": "swizzled"}, 3),
    "experts, stream-K": (GROUPED, {"schedule": "stream_k", "parts": 2}, 3),
    "experts, TMA, swapped, stream-K": (
        "grouped:e4k2:20x48x128:one_hot:nvfp4:bf16",
        {"loads": "tma", "swap_ab": True, "schedule": "stream_k", "parts": 1},
        2,
    ),
    # The host starts programs for four row tiles, and there are two: more programs than steps, which only the table says.
    "experts, stream-K, more programs than steps": (
        "grouped:e4k2:2x48x128:one_hot:nvfp4:bf16",
        {"schedule": "stream_k", "parts": 4},
        3,
    ),
    "experts of another rank": ("grouped:e3of64k2:6x48x128:uniform:nvfp4:bf16", {}, 3),
    "no rows at all": ("grouped:e1of64k1:1x48x128:uniform:nvfp4:bf16", {}, 3),
}
"""Name -> problem's key, what differs from BASE, streaming multiprocessors."""


def case(name: str) -> tuple[str, dict[str, Any], int]:
    """(problem's key, whole config, streaming multiprocessors) of a case."""
    key, changes, sms = CASES[name]
    return key, {**BASE, **changes}, sms
