"""The search space of `triton.dequant`, its default and its launch plans. Needs neither torch nor Triton."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..backend import Constraint, Parameter, Space
from ..errors import UnsupportedError
from ..problem import Format, Op
from ..routing import max_rows
from .grouping import max_tiles
from .pruning import accumulators_per_thread, nvfp4_tile_bytes, pipeline_bytes, shared_limit_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..backend import Config, ConfigValue
    from ..problem import Problem

FRAGMENT_ROWS = 32
"""Rows that share a weight up to which the fragment kernel is searched; above, the tile kernel is."""

_FRAGMENT_BLOCKS_M = (8, 16, 32)
_TILE_BLOCKS_M = (16, 32, 64, 128)

_MAX_GRID_Y = 65535
"""Of CUDA; row tiles are the grid's second dimension."""

_MAX_MATRIX_BYTES = 1 << 31
"""Places within one matrix of weights are 32-bit numbers in the kernels."""

_MAX_SPLIT = 8
_MAX_UNROLLED = 8
_FRAGMENT_REGISTERS = 64
"""Registers a thread that one operand's bytes may take before they are decoded, which makes four times as many."""

_MAX_PARTIAL_BYTES = 256 << 20
"""Device memory for partial sums: what `operands.required_bytes` sets aside for a backend, and far more than is worth
writing and reading again."""

_MAX_SHARED_A = 64 << 10
"""Shared memory a block for decoded activations, so that three blocks fit on an SM90, and one where 99 KiB are all."""

_LEAST_K_BYTES = 64
"""Bytes of a row that a warp takes in a step at least: eight threads' vectors of eight bytes."""

_MAX_STEPS = 3
"""Steps from what a rule of thumb wants that are tried with the width of its vectors kept."""

_MAX_WASTE = 1.3
"""Slices of K may reach beyond its end by this factor: what is beyond is masked, and still costs instructions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a config is compiled and launched.

    Attributes:
        kernel: `fragment` or `tile`.
        constexprs: the kernel's constants, but those that the problem decides.
        num_warps: warps a block.
        num_stages: depth of the software pipeline.
        block_m: rows of a tile of A.
        block_n: rows of B that a block covers.
        split_k: blocks that share a tile of D.
    """

    kernel: str
    constexprs: Mapping[str, ConfigValue]
    num_warps: int
    num_stages: int
    block_m: int
    block_n: int
    split_k: int

    def grid(self, problem: Problem, tiles: int) -> tuple[int, int, int]:
        """Program ids for `tiles` row tiles."""
        return -(-problem.n // self.block_n), tiles, self.split_k

    def counters(self, problem: Problem, tiles: int) -> int:
        """Counters that the kernel needs: one a tile of D whose sum is shared."""
        return tiles * -(-problem.n // self.block_n) if self.split_k > 1 else 0

    def partial_sums(self, problem: Problem, tiles: int) -> int:
        """float32 elements of scratch that the kernel needs: a tile of D for every block that shares its sum."""
        return self.counters(problem, tiles) * self.split_k * self.block_m * self.block_n


def shared_rows(problem: Problem) -> int:
    """Rows of A that meet in one expert's weights, as many as an even routing gives, rounded up; M for dense."""
    if problem.op is Op.DENSE:
        return problem.m
    return max(1, -(-problem.m * problem.top_k // problem.experts_total))


def row_tiles(problem: Problem, rows: int, block_m: int) -> int:
    """Row tiles that are launched for `rows` rows; for grouped, the most that any routing of so many rows needs."""
    if problem.op is Op.DENSE:
        return -(-rows // block_m)
    return max_tiles(rows, problem.experts, block_m)


def uses_fragments(problem: Problem) -> bool:
    """Whether the fragment kernel is the one for this problem, or else the tile kernel."""
    return shared_rows(problem) <= FRAGMENT_ROWS


def check_problem(name: str, problem: Problem) -> None:
    """Refuse what no config can run.

    Raises:
        UnsupportedError: the weights are not NVFP4, a matrix of them has 2 GiB, or more row tiles may be needed than a
            grid has.
    """
    if problem.format is Format.BF16:
        raise UnsupportedError(f"{name} multiplies NVFP4 weights, and the problem is bf16.")
    matrix_bytes = problem.n * problem.k // 2
    if matrix_bytes >= _MAX_MATRIX_BYTES:
        raise UnsupportedError(
            f"{name} takes weights of less than 2 GiB a matrix, and {problem.shape} has {matrix_bytes / 2**30:.1f} GiB."
        )
    block_m = _FRAGMENT_BLOCKS_M[-1] if uses_fragments(problem) else _TILE_BLOCKS_M[-1]
    tiles = row_tiles(problem, max_rows(problem), block_m)
    if tiles > _MAX_GRID_Y:
        raise UnsupportedError(
            f"{name} launches at most {_MAX_GRID_Y} row tiles, and {problem.shape} can need {tiles} of {block_m} rows."
        )


def space_of(problem: Problem, capability: tuple[int, int]) -> Space:
    """Every config worth compiling."""
    return _fragment_space(problem) if uses_fragments(problem) else _tile_space(problem, capability)


def default_of(problem: Problem, capability: tuple[int, int], sms: int) -> dict[str, ConfigValue]:
    """What a rule of thumb says: the tile that did well on most shapes, K split until every SM has enough warps.

    Enough is 32 a SM with 64 bytes in flight a thread (64 KiB a SM; Little's law asks for 30 KiB at 4.3 TB/s and a
    microsecond over 132 SMs, and not all are in flight at once), 36 where they wait for each other, 8 where tiles are
    pipelined.
    Chosen on an H200.

    Args:
        problem: what is to be computed.
        capability: compute capability, (9, 0).
        sms: streaming multiprocessors.
    """
    space = space_of(problem, capability)
    guess: dict[str, ConfigValue]
    if uses_fragments(problem) and problem.op is Op.GROUPED and shared_rows(problem) <= 8:
        return _nearest(space, _grouped_guess(problem, sms))
    if uses_fragments(problem):
        few = shared_rows(problem) <= 8
        block_m, busy = (8, 32) if few else (16, 36)
        guess = {
            "block_m": block_m, "warp_rows": 16, "n_warps": 2 if few else 4, "k_warps": 1, "vector_bytes": 16,
            "chunks": 1, "shared_steps": 0 if few else 2, "unroll": few,
        }  # fmt: skip
        warps = -(-problem.n // 16) * row_tiles(problem, problem.rows, block_m)
    else:
        guess, busy = {"block_m": 64, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 3}, 8
        warps = 4 * -(-problem.n // 64) * row_tiles(problem, problem.rows, 64)
    split = 1
    while split < _MAX_SPLIT and 2 * split * warps <= busy * sms:
        split *= 2
    return _nearest(space, {**guess, "split_k": split})


def _grouped_guess(problem: Problem, sms: int) -> dict[str, ConfigValue]:
    """Few rows an expert: four warps along N share what is decoded of A, up to 512 bytes of each row at a time.

    The tile that won 15 of 20 grouped problems of Qwen3.5-397B on an H200 (docs/results/h200.md). A long K is split in
    two even where there are blocks enough: experts of many rows end sooner.
    """
    row_bytes = problem.k // 2
    warps = -(-problem.n // 16) * row_tiles(problem, problem.rows, 8)
    split = 2 if row_bytes >= 2048 else 1
    while split < _MAX_SPLIT and 2 * split * warps <= 32 * sms:
        split *= 2
    steps = max(1, row_bytes // (128 * split))
    one_step = row_bytes <= 64
    return {
        "block_m": 8, "warp_rows": 32 if one_step and problem.m > 4 else 16, "n_warps": 4, "k_warps": 1,
        "vector_bytes": 8 if one_step else 16, "chunks": 1, "shared_steps": min(4, max(1, steps // 2)),
        "split_k": split, "unroll": False,
    }  # fmt: skip


def seeds_of(problem: Problem, capability: tuple[int, int], sms: int) -> Sequence[Config]:
    """Configs that were among the best somewhere (H200, eight shapes), or their nearest legal neighbours.

    The default and repetitions are left out, so there may be fewer than listed here. Arguments as in `default_of`.
    """
    space, default = space_of(problem, capability), default_of(problem, capability, sms)
    if uses_fragments(problem):
        changes: tuple[dict[str, ConfigValue], ...] = (
            {"warp_rows": 16, "n_warps": 1, "k_warps": 4, "vector_bytes": 8, "shared_steps": 0, "unroll": True},
            {"warp_rows": 32, "n_warps": 2, "k_warps": 2, "vector_bytes": 8, "shared_steps": 0, "unroll": True},
            {"warp_rows": 16, "n_warps": 2, "k_warps": 4, "shared_steps": 0, "split_k": 1, "unroll": True},
            {"warp_rows": 16, "n_warps": 4, "shared_steps": 2, "unroll": False},
            {"warp_rows": 16, "n_warps": 4, "shared_steps": 2, "chunks": 2, "unroll": False},
            {"warp_rows": 32, "n_warps": 4, "shared_steps": 1, "unroll": False},
            {"warp_rows": 16, "n_warps": 2, "shared_steps": 0, "unroll": False},
            {"warp_rows": 32, "n_warps": 4, "shared_steps": 2, "split_k": 8, "unroll": False},
            {"block_m": 16, "warp_rows": 16, "n_warps": 4, "shared_steps": 4, "unroll": False},
            {"block_m": 16, "warp_rows": 32, "n_warps": 4, "shared_steps": 4, "split_k": 4, "unroll": False},
            {"block_m": 16, "warp_rows": 16, "n_warps": 8, "shared_steps": 2, "split_k": 4, "unroll": False},
            {"block_m": 16, "warp_rows": 16, "n_warps": 8, "shared_steps": 4, "split_k": 1, "unroll": False},
        )
    else:
        changes = (
            {"block_m": 128, "block_n": 128, "num_warps": 8},
            {"block_n": 128, "num_stages": 4},
            {"block_m": 32, "split_k": 4},
            {"block_k": 64, "num_stages": 4},
        )
    found: list[Config] = []
    for change in changes:
        config = _nearest(space, {**default, **change})
        if config != default and config not in found:
            found.append(config)
    return found


def plan_of(config: Config) -> Plan:
    """The plan of a config of the space."""
    if "warp_rows" in config:
        n_warps, k_warps = int(config["n_warps"]), int(config["k_warps"])
        return Plan(
            "fragment", dict(config), n_warps * k_warps, 1, int(config["block_m"]),
            int(config["warp_rows"]) * n_warps, int(config["split_k"]),
        )  # fmt: skip
    constexprs = {k: v for k, v in config.items() if k not in ("num_warps", "num_stages")}
    stages = int(config["num_stages"])
    return Plan(
        "tile", {**constexprs, "stages": stages}, int(config["num_warps"]), stages, int(config["block_m"]),
        int(config["block_n"]), int(config["split_k"]),
    )  # fmt: skip


def _fragment_space(problem: Problem) -> Space:
    row_bytes = problem.k // 2
    four_bit_a = problem.format is Format.NVFP4
    most = 1 << (shared_rows(problem) - 1).bit_length()
    blocks_m = tuple(m for m in _FRAGMENT_BLOCKS_M if m <= max(8, 2 * most) and _tiles_fit(problem, m))

    def reach(unit: int) -> int:
        return unit * math.ceil(row_bytes / unit)

    def useful(*values: int) -> tuple[int, ...]:
        """Without those with which K is passed too far even where every other factor is the least."""
        return tuple(v for v in values if v == values[0] or reach(_LEAST_K_BYTES * v) <= _MAX_WASTE * row_bytes)

    parameters = (
        Parameter("block_m", blocks_m or _FRAGMENT_BLOCKS_M[-1:]),
        Parameter("warp_rows", (16, 32, 64)),
        Parameter("n_warps", (1, 2, 4, 8)),
        Parameter("k_warps", useful(1, 2, 4, 8, 16)),
        Parameter("vector_bytes", tuple(8 * v for v in useful(1, 2))),
        Parameter("chunks", useful(1, 2, 4)),
        Parameter("split_k", useful(1, 2, 4, 8)),
        Parameter("shared_steps", (0, *useful(1, 2, 4))),
        Parameter("unroll", (False, True) if row_bytes > _LEAST_K_BYTES else (False,)),
    )

    def warps(c: Config) -> int:
        return int(c["n_warps"]) * int(c["k_warps"])

    def k_bytes(c: Config) -> int:
        return 8 * int(c["vector_bytes"]) * int(c["chunks"])

    def round_bytes(c: Config) -> int:
        return k_bytes(c) * int(c["k_warps"]) * int(c["split_k"]) * max(1, int(c["shared_steps"]))

    def steps(c: Config) -> int:
        return reach(round_bytes(c)) // (k_bytes(c) * int(c["k_warps"]) * int(c["split_k"]))

    def covers_little_more(c: Config) -> bool:
        return reach(round_bytes(c)) <= _MAX_WASTE * row_bytes or round_bytes(c) == _LEAST_K_BYTES

    def operands_fit(c: Config) -> bool:
        words_w = int(c["warp_rows"]) * k_bytes(c) // 128
        packed = four_bit_a and not c["shared_steps"]
        words_x = int(c["block_m"]) * k_bytes(c) // (128 if packed else 32)
        return max(words_w, words_x) <= _FRAGMENT_REGISTERS

    def shared_fits(c: Config) -> bool:
        slices = int(c["shared_steps"]) * int(c["k_warps"])
        return 4 * int(c["block_m"]) * k_bytes(c) * slices <= _MAX_SHARED_A

    return Space(
        parameters,
        (
            Constraint("a block has 2 to 16 warps", lambda c: 2 <= warps(c) <= 16),
            Constraint(
                "a thread accumulates at most 32 elements",
                lambda c: int(c["warp_rows"]) * int(c["block_m"]) // 32 <= 32,
            ),
            Constraint(f"an operand takes at most {_FRAGMENT_REGISTERS} registers before it is decoded", operands_fit),
            Constraint(f"slices of K reach at most {_MAX_WASTE:g} times as far as K", covers_little_more),
            Constraint(
                f"at most {_MAX_UNROLLED} steps are unrolled",
                lambda c: not c["unroll"] or (1 < steps(c) <= _MAX_UNROLLED and not c["shared_steps"]),
            ),
            Constraint(
                "only warps along N share what is decoded of A",
                lambda c: not c["shared_steps"] or int(c["n_warps"]) > 1,
            ),
            Constraint(f"the shared part of A takes at most {_MAX_SHARED_A >> 10} KiB", shared_fits),
            _partial_sums_fit(problem),
        ),
    )


def _tile_space(problem: Problem, capability: tuple[int, int]) -> Space:
    limit = shared_limit_bytes(capability)
    four_bit_a = problem.format is Format.NVFP4
    parameters = (
        Parameter("block_m", tuple(m for m in _TILE_BLOCKS_M if _tiles_fit(problem, m))),
        Parameter("block_n", (32, 64, 128, 256)),
        Parameter("block_k", (64, 128, 256)),
        Parameter("num_warps", (4, 8)),
        Parameter("num_stages", (2, 3, 4, 5)),
        Parameter("split_k", (1, 2, 4, 8)),
    )

    def fits(c: Config) -> bool:
        m, n, k = int(c["block_m"]), int(c["block_n"]), int(c["block_k"])
        a_bytes = nvfp4_tile_bytes(m, k) if four_bit_a else m * k * 2
        packed = pipeline_bytes(int(c["num_stages"]), a_bytes, nvfp4_tile_bytes(n, k))
        return packed + (m + n) * k * 2 <= limit  # the decoded tiles pass through shared memory, too

    def light(c: Config) -> bool:
        return accumulators_per_thread(int(c["block_m"]), int(c["block_n"]), int(c["num_warps"])) <= 64

    def decodes_little(c: Config) -> bool:
        values = (int(c["block_m"]) + int(c["block_n"])) * int(c["block_k"])
        return values // (32 * int(c["num_warps"])) <= 256

    return Space(
        parameters,
        (
            Constraint("the tiles in flight and the decoded ones fit in shared memory", fits),
            Constraint("a thread accumulates at most 64 elements", light),
            Constraint("a thread decodes at most 256 elements a step", decodes_little),
            Constraint(
                "blocks that share a tile have K to share",
                lambda c: int(c["split_k"]) == 1 or int(c["split_k"]) * int(c["block_k"]) <= problem.k,
            ),
            _partial_sums_fit(problem),
        ),
    )


def _tiles_fit(problem: Problem, block_m: int) -> bool:
    return row_tiles(problem, max_rows(problem), block_m) <= _MAX_GRID_Y


def _partial_sums_fit(problem: Problem) -> Constraint:
    rows = max_rows(problem)

    def holds(config: Config) -> bool:
        plan = plan_of(config)
        return 4 * plan.partial_sums(problem, row_tiles(problem, rows, plan.block_m)) <= _MAX_PARTIAL_BYTES

    return Constraint(f"partial sums take at most {_MAX_PARTIAL_BYTES >> 20} MiB", holds)


def _nearest(space: Space, wanted: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The legal config that differs from `wanted` in as few steps as possible.

    Values that the space does not have are replaced by the nearest it has; then steps are taken, fewest first, until
    every constraint holds. Narrower vectors are the last resort, since they halve what is in flight. Every space has a
    legal config, which the tests check over the shapes of all presets.
    """
    start: dict[str, ConfigValue] = {}
    for p in space.parameters:
        value = wanted[p.name]
        start[p.name] = value if p.allows(value) else min(p.values, key=lambda v: abs(float(v) - float(value)))
    found = _few_steps_away(space, start, [p for p in space.parameters if p.name != "vector_bytes"], _MAX_STEPS)
    found = found or _few_steps_away(space, start, space.parameters, sum(len(p.values) for p in space.parameters))
    if found is None:
        raise UnsupportedError("No config of triton.dequant is legal for this problem.")
    return found


def _few_steps_away(
    space: Space, start: dict[str, ConfigValue], movable: Sequence[Parameter], most: int
) -> dict[str, ConfigValue] | None:
    """The first legal config at most so many steps from `start`, each to the next value of a movable parameter."""
    frontier, seen = [start], {tuple(start.values())}
    for _ in range(most + 1):
        for config in frontier:
            if all(c.holds(config) for c in space.constraints):
                return config
        following: list[dict[str, ConfigValue]] = []
        for config in frontier:
            for p in movable:
                at = p.values.index(config[p.name])
                for to in (at - 1, at + 1):
                    if 0 <= to < len(p.values):
                        moved = {**config, p.name: p.values[to]}
                        if tuple(moved.values()) not in seen:
                            seen.add(tuple(moved.values()))
                            following.append(moved)
        frontier = following
    return None
