"""From a problem and a config of `triton.native` to a kernel to compile and a call of it. Needs Triton only to call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from ..operands import Quantized
from ..problem import Op, OutDtype
from .grouping import max_tiles, tile_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..backend import Config
    from ..operands import Operands
    from ..problem import Problem
    from .compiler import Grid

SCHEDULES = ("data_parallel", "split_k", "stream_k")
"""In the order of the kernel's constants DATA_PARALLEL, SPLIT_K and STREAM_K."""

_OUT_TYPES = {OutDtype.BF16: "*bf16", OutDtype.FP16: "*fp16", OutDtype.FP32: "*fp32"}


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """A config of `triton.native`, typed.

    Attributes:
        block_m, block_n, block_k: the tile of D, and the K of a step.
        num_warps, num_stages: as the compiler takes them.
        group_m: row tiles that pass over the columns together.
        loads: `pointer` or `tma`, for the codes of A and B.
        scales: `linear` or `swizzled` (128x4), for B and, where the problem is dense, for A.
        swap_ab: the tile is taken as the transpose of B · Aᵀ.
        schedule: one of SCHEDULES.
        parts: programs a tile for `split_k`, programs an SM for `stream_k`, else 1.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group_m: int
    loads: str
    scales: str
    swap_ab: bool
    schedule: str
    parts: int

    @classmethod
    def of(cls, config: Config) -> NativeConfig:
        """The typed form of a config that is in the space."""
        return cls(**config)  # type: ignore[arg-type]  # the space holds the types


@dataclass(frozen=True, slots=True)
class Build:
    """What the compiler is given for a config; the same for every M and every device of a target.

    Attributes:
        signature: parameter -> type of what is passed at launch.
        constexprs: parameter -> constant.
    """

    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]

    @property
    def aligned(self) -> tuple[str, ...]:
        """The pointers, which are all multiples of 16 bytes (`call_of` checks it)."""
        return tuple(name for name, kind in self.signature.items() if kind.startswith("*"))


@dataclass(frozen=True, slots=True)
class Call:
    """A launch.

    Attributes:
        grid: programs in x, y and z.
        arguments: parameter -> what is passed, for every parameter that is no constant, in the kernel's order.
    """

    grid: Grid
    arguments: Mapping[str, Any]


def build_of(problem: Problem, config: NativeConfig, *, emulate: bool = False) -> Build:
    """What to compile for a config.

    Args:
        problem: M decides nothing here.
        config: a config of the problem's space.
        emulate: decode in the kernel instead of `dot_scaled`, for Triton's CPU interpreter.
    """
    codes = "tensordesc<u8[{}, {}]>" if config.loads == "tma" else "*u8"
    grouped, partial = problem.op is Op.GROUPED, config.schedule != "data_parallel"
    swizzled = config.scales == "swizzled"
    optional = {
        **dict.fromkeys(("table_expert", "table_row", "table_rows", "table_count"), "*i32" if grouped else ""),
        "scratch": "*fp32" if partial else "",
        "counters": "*i32" if partial else "",
    }
    signature = {
        "a": codes.format(config.block_m, config.block_k // 2),
        "b": codes.format(config.block_n, config.block_k // 2),
        "a_scale": "*fp8e4nv",  # never bytes: Triton 3.9 would read those as powers of two, without a word
        "b_scale": "*fp8e4nv",
        "out": _OUT_TYPES[problem.out_dtype],
        "alpha": "*fp32",
        **{name: kind for name, kind in optional.items() if kind},
        "m": "i32",
    }
    constexprs = {
        **{name: None for name, kind in optional.items() if not kind},
        "N": problem.n,
        "K": problem.k,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "SCHEDULE": SCHEDULES.index(config.schedule),
        "SPLITS": config.parts if config.schedule == "split_k" else 1,
        "GROUPED": grouped,
        "TMA": config.loads == "tma",
        "SWIZZLED_A": swizzled and not grouped,
        "SWIZZLED_B": swizzled,
        "WORDS_A": _by_words(config.block_m, config, problem.k, swizzled=swizzled and not grouped),
        "WORDS_B": _by_words(config.block_n, config, problem.k, swizzled=swizzled),
        "SWAP_AB": config.swap_ab,
        "EMULATE": emulate,
    }
    return Build(signature, constexprs)


def _by_words(rows: int, config: NativeConfig, k: int, *, swizzled: bool) -> bool:
    """Whether a tile's scales are read four at a time, because one a thread and byte would be less than four bytes.

    The 128x4 layout pads to four scales, the linear one has them only where K is a multiple of 64.
    """
    return rows * config.block_k // 16 < 4 * 32 * config.num_warps and (swizzled or k % 64 == 0)


def call_of(operands: Operands, config: NativeConfig, *, sms: int) -> Call | None:
    """How to launch a config on operands; None if there are no rows, and nothing to do.

    Allocates the partial sums and counters that split-K and stream-K need, and for a grouped problem the table of its
    tiles, as a server's routing would have made it.

    Args:
        operands: of an NVFP4 problem.
        config: a config of the problem's space.
        sms: streaming multiprocessors, which stream-K fills.

    Raises:
        UnsupportedError: the operands are no NVFP4, or one is not aligned to 16 bytes.
    """
    import torch

    problem, a, b = operands.problem, operands.a, operands.b
    if not (isinstance(a, Quantized) and isinstance(b, Quantized)):
        raise UnsupportedError(f"triton.native multiplies NVFP4 by NVFP4, and {problem.key} is not that.")
    rows, device = operands.out.shape[0], operands.out.device
    if not rows:
        return None
    swizzled = config.scales == "swizzled"
    grouped = operands.offsets is not None
    tiles_m = -(-rows // config.block_m)
    table = {}
    if operands.offsets is not None:
        tiles_m = max_tiles(rows, problem.experts, config.block_m)
        made = tile_table(operands.offsets, rows, config.block_m, device)
        table = {
            "table_expert": made.expert,
            "table_row": made.first_row,
            "table_rows": made.rows,
            "table_count": made.count,
        }
    tiles = tiles_m * -(-problem.n // config.block_n)
    programs, slots = _programs(tiles, -(-problem.k // config.block_k), config, sms)
    partial = {}
    if config.schedule != "data_parallel":
        partial = {
            "scratch": torch.empty(slots * config.block_m * config.block_n, dtype=torch.float32, device=device),
            "counters": torch.zeros(tiles, dtype=torch.int32, device=device),
        }
    tensors = {
        "a": a.packed,
        "b": b.packed.view(-1, b.packed.shape[-1]),
        "a_scale": a.scale_128x4.view(torch.float8_e4m3fn) if swizzled and not grouped else a.scale,
        "b_scale": b.scale_128x4.view(torch.float8_e4m3fn) if swizzled else b.scale,
        "out": operands.out,
        "alpha": operands.alpha,
    }
    for name, tensor in tensors.items():
        if tensor.data_ptr() % 16 or not tensor.is_contiguous():
            raise UnsupportedError(f"triton.native needs {name} contiguous and aligned to 16 bytes, and it is not.")
    arguments: dict[str, Any] = {**tensors, **table, **partial, "m": tiles_m if grouped else rows}
    if config.loads == "tma":
        for name, block in (("a", config.block_m), ("b", config.block_n)):
            arguments[name] = _descriptor(tensors[name], block, config.block_k)
    return Call((programs, 1, 1), arguments)


def _programs(tiles: int, steps: int, config: NativeConfig, sms: int) -> tuple[int, int]:
    """(programs, slots for partial sums) of a launch."""
    if config.schedule == "split_k":
        return tiles * config.parts, tiles * config.parts
    if config.schedule == "stream_k":
        programs = min(sms * config.parts, tiles * steps)
        return programs, 2 * programs
    return tiles, 0


def _descriptor(codes: Any, block: int, block_k: int) -> Any:
    """A TMA descriptor of [rows, K/2] codes in blocks of [block, block_k/2]; what lies outside reads as 0."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(codes, list(codes.shape), list(codes.stride()), [block, block_k // 2])
