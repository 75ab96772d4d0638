"""What can be told of a tile before it is compiled: its shared memory, and whether it will spill.

The rules were fitted to kernels of this package compiled with Triton 3.9.0, and are checked against freshly compiled
ones in `tests/kernels/triton/test_pruning.py`. They are for leaving out what cannot run or surely spills; what is near
a limit is compiled and then judged by its stack (`facts.refuse_unfit`).
"""

from __future__ import annotations

NATIVE_MAX_ACCUMULATORS = 128
"""FP32 accumulators a thread of a native FP4 GEMM. Of 189 tiles compiled for sm_120a, none of those with at most 32 and
none that fits in shared memory with 64 and BLOCK_K below 512 spilled, 9 of 23 with 128, and all 13 with more."""

NATIVE_MAX_ACCUMULATORS_LONG_K = 32
"""The same with BLOCK_K of 512 or more, whose operand fragments take the registers."""

SMALL_STACK_BYTES = 100
"""Stack a thread that is still worth timing: a few registers saved outside the main loop, as CUTLASS's own 256x128
tiles for SM120 have (64 to 80 bytes), and not an accumulator that lives in memory (hundreds to thousands)."""

_SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (11, 0): 227}
_SHARED_KIB_OF_MAJOR = {8: 99, 9: 227, 10: 227, 12: 99}


def shared_limit_bytes(capability: tuple[int, int]) -> int:
    """Shared memory that one block can have at most (CUDA C++ Programming Guide, technical specifications).

    Args:
        capability: compute capability, (9, 0). One that is not in the table gets the least of its generation, 99 KiB
            for one that is not known at all.
    """
    kib = _SHARED_KIB.get(capability) or _SHARED_KIB_OF_MAJOR.get(capability[0], 99)
    return kib << 10


def pipeline_bytes(num_stages: int, *tile_bytes: int) -> int:
    """Shared memory of a pipelined loop: `num_stages` - 1 copies of each operand's tile.

    Triton keeps one stage in flight in registers, so a pipeline of depth s holds s - 1 tiles. Of 189 native tiles for
    sm_120a none was judged wrongly against the limit by this. What it leaves out is small beside a limit: barriers of
    TMA and scratch for turning scales, at most a tile of scales; and an epilogue's scratch, which takes the place of
    the pipeline and exceeds it in tiles with few stages. `facts.refuse_unfit` has the exact figure.

    Args:
        num_stages: as handed to the compiler; 1 is no pipeline, one tile may still pass through shared memory.
        tile_bytes: bytes of one tile of each operand, scales included.
    """
    return max(1, num_stages - 1) * sum(tile_bytes)


def nvfp4_tile_bytes(rows: int, block_k: int) -> int:
    """Bytes of a tile of NVFP4: half a byte a code, and a byte for every 16 of them."""
    return rows * (block_k // 2 + block_k // 16)


def accumulators_per_thread(block_m: int, block_n: int, num_warps: int) -> int:
    """FP32 accumulators that every thread holds: the registers that decide whether a tile spills."""
    return block_m * block_n // (32 * num_warps)


def native_spills(block_m: int, block_n: int, block_k: int, num_warps: int) -> bool:
    """Whether a native FP4 tile is bound to spill on SM12x, where accumulators live in registers."""
    limit = NATIVE_MAX_ACCUMULATORS_LONG_K if block_k >= 512 else NATIVE_MAX_ACCUMULATORS
    return accumulators_per_thread(block_m, block_n, num_warps) > limit
