"""The search space of `cutlass`: which build configs there are, and what can be chosen at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend import Config, ConfigValue, Constraint, Parameter, Space
from ..errors import OtherKindError, UnsupportedError
from ..padding import pad_values
from ..problem import Format, Op, OutDtype
from .build_config import SCHEDULERS, SCHEDULES
from .library import RASTERS
from .toolchain import NARROW_CUTLASS

if TYPE_CHECKING:
    from ..problem import Problem

VARIANTS: dict[str, tuple[str, ...]] = {
    "128x32x256": ("cooperative persistent", "cooperative stream_k"),
    "128x64x128": ("pingpong persistent", "cooperative stream_k"),
    "128x128x64": ("cooperative persistent",),
    "128x128x128": ("cooperative persistent", "pingpong persistent", "cooperative stream_k"),
    "128x128x256": ("pingpong persistent",),
    "128x256x128": ("cooperative persistent",),
    "256x128x128": ("cooperative persistent",),
}
"""Tile -> schedule and scheduler that compiled for sm_120a (CUTLASS 4.5.0, nvcc 13.0.88) with at most MAX_STACK_BYTES.

Not here, because they do not compile: M other than 128 and 256, N other than 32, 64, 128 and 256 (the layout of the
scales); what has no room for two stages (256x128x256, 128x256x256, 128x128x512); stream-K with ping-pong, which CUTLASS
has not. 256x256x128 compiles and spills 1280 bytes a thread."""

MAX_STACK_BYTES = 100
"""Stack a thread that a kernel may have: registers saved outside the main loop, as tiles of 256x128 have (64 to 96)."""

K_MULTIPLE = 32
"""K of a problem that CUTLASS takes: TMA moves 16 bytes at least, 32 codes."""

ROW_BYTES = 16
"""A row of D must be a multiple of so many bytes, for the same reason."""

_OUT_BYTES = {OutDtype.BF16: 2, OutDtype.FP16: 2, OutDtype.FP32: 4}

MOST_SWAPPED_M = 256
"""M up to which the transpose is searched. Beyond, both sides of the tiles are full either way."""

LEAST_TILE_M, LEAST_TILE_N = 128, 32
"""Narrowest sides of tiles that compile."""

SWIZZLES = (1, 2, 4, 8)
SPLITS = (1, 2, 4, 8)

_LEAST_SPLIT_TILES = 2
"""Tiles of K that every part of a split-K product must have."""


def check_problem(problem: Problem) -> None:
    """Refuse what the kernel does not compute.

    Raises:
        UnsupportedError: it is not dense NVFP4, or K or N is not a multiple of what TMA moves.
    """
    if problem.op is not Op.DENSE or problem.format is not Format.NVFP4:
        raise OtherKindError(f"cutlass computes dense NVFP4 products, and {problem.key} is not one.")
    if problem.k % K_MULTIPLE:
        raise UnsupportedError(f"cutlass needs K to be a multiple of {K_MULTIPLE}, and it is {problem.k}.")
    multiple = ROW_BYTES // _OUT_BYTES[problem.out_dtype]
    if problem.n % multiple:
        raise UnsupportedError(
            f"cutlass needs N to be a multiple of {multiple} for D in {problem.out_dtype.value}, and it is {problem.n}."
        )


def build_space(problem: Problem, cutlass: tuple[int, ...]) -> Space:
    """The search space of a problem.

    Args:
        problem: one that `check_problem` lets pass.
        cutlass: release of the headers: narrow tiles need a newer one.
    """
    tiles = tuple(tile for tile in VARIANTS if tile_sides(tile)[1] >= 128 or cutlass >= NARROW_CUTLASS)
    many, swappable = problem.m > LEAST_TILE_M, problem.m <= MOST_SWAPPED_M
    return Space(
        parameters=(
            Parameter("tile", tiles),
            Parameter("schedule", SCHEDULES),
            Parameter("scheduler", SCHEDULERS),
            Parameter("swap_ab", (False, True) if swappable else (False,)),
            Parameter("splits", SPLITS),
            # With one row of tiles there are no two ways to walk it.
            Parameter("max_swizzle", SWIZZLES if many else (1,)),
            Parameter("raster", RASTERS if many else ("auto",)),
            Parameter("pad_m", pad_values(problem, (LEAST_TILE_N, LEAST_TILE_M) if swappable else (LEAST_TILE_M,))),
        ),
        constraints=(
            Constraint("the tile, the schedule and the scheduler go together", _compiles),
            Constraint("only stream-K splits K, into parts of two tiles at least", lambda c: _splits_fit(problem, c)),
            Constraint("no tile is twice as wide as the tokens on its side", lambda c: _no_wider(problem, c)),
            Constraint("pad_m is a multiple of the tokens of a tile", _padded_to_tile),
        ),
    )


def default_config() -> dict[str, ConfigValue]:
    """What CUTLASS's builder does when no schedule is named, and the tile of its own example of this product."""
    return {
        "tile": "128x128x128",
        "schedule": "cooperative",
        "scheduler": "persistent",
        "swap_ab": False,
        "splits": 1,
        "max_swizzle": 1,
        "raster": "auto",
        "pad_m": 0,
    }


def seed_configs(problem: Problem, space: Space) -> list[dict[str, ConfigValue]]:
    """Configs worth trying first after the default: few tokens on the narrow side, K cut up; many, larger tiles.

    Every one is another shared object, so there are few.
    """
    changes: list[dict[str, ConfigValue]]
    if problem.m <= LEAST_TILE_N:
        changes = [{"tile": "128x32x256", "swap_ab": True}, {"scheduler": "stream_k"}, {"schedule": "pingpong"}]
    elif problem.m <= LEAST_TILE_M:
        changes = [{"tile": "128x64x128", "schedule": "pingpong", "swap_ab": True}, {"scheduler": "stream_k"},
                   {"schedule": "pingpong"}]  # fmt: skip
    else:
        changes = [{"schedule": "pingpong"}, {"tile": "256x128x128"}, {"tile": "128x256x128"}]
    seeds = [{**default_config(), **change} for change in changes]
    return [seed for seed in seeds if seed in space]


def tile_sides(tile: str) -> tuple[int, int, int]:
    """`128x32x256` as (128, 32, 256): M, N and K of the kernel's tile."""
    m, n, k = tile.split("x")
    return int(m), int(n), int(k)


def token_tile(config: Config) -> int:
    """Tokens of a tile: its N if A and B are swapped, else its M."""
    return tile_sides(str(config["tile"]))[1 if config["swap_ab"] else 0]


def _compiles(config: Config) -> bool:
    return f"{config['schedule']} {config['scheduler']}" in VARIANTS[str(config["tile"])]


def _splits_fit(problem: Problem, config: Config) -> bool:
    splits = int(config["splits"])
    if splits == 1:
        return True
    tiles = -(-problem.k // tile_sides(str(config["tile"]))[2])
    return config["scheduler"] == "stream_k" and tiles >= splits * _LEAST_SPLIT_TILES


def _no_wider(problem: Problem, config: Config) -> bool:
    """Of tiles that hold all tokens the narrowest is enough."""
    return token_tile(config) < 2 * max(problem.m, LEAST_TILE_N if config["swap_ab"] else LEAST_TILE_M)


def _padded_to_tile(config: Config) -> bool:
    return int(config["pad_m"]) % token_tile(config) == 0
