"""What can be chosen in `triton.native`, and what is a good guess. Needs neither Triton nor a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backend import Config, ConfigValue, Constraint, Parameter, Space, config_key
from ..errors import UnsupportedError
from ..problem import Format, Op, Routing
from .native_plan import SCHEDULES
from .pruning import native_spills, nvfp4_tile_bytes, pipeline_bytes, shared_limit_bytes

if TYPE_CHECKING:
    from ..device import Device
    from ..problem import Problem

MAX_K = 1 << 20
"""Largest K: offsets inside a tile of 256 rows stay below 2^31 bytes."""

MAX_SPLIT_WAVES = 4
"""Split-K may start at most this many programs an SM: more of them only wait, and leave more partial sums behind."""

TENSOR_MEMORY_ROWS = (128, 256)
"""Rows of the left operand that Triton gives to tcgen05's FP4 product. With others it decodes to BF16."""


def native_space(problem: Problem, device: Device) -> Space:
    """The search space of a problem.

    Raises:
        UnsupportedError: the operands are not NVFP4 both, or K is too large.
    """
    if problem.format is not Format.NVFP4:
        raise UnsupportedError(
            f"triton.native multiplies NVFP4 by NVFP4 in FP4 matrix units; {problem.format.value} has no such product."
        )
    if problem.k > MAX_K:
        raise UnsupportedError(f"triton.native takes K up to {MAX_K}, and K is {problem.k}.")
    capability = device.capability
    tensor_memory = capability[0] == 10
    tallest = max(16, 2 * _next_power_of_2(likely_rows(problem)))
    widest = max(32, 2 * _next_power_of_2(problem.n))
    deepest = max(64, _next_power_of_2(problem.k))
    # Eight rows fill an instruction only where tokens are its N, and tcgen05 takes no fewer than 16 there.
    block_m = [v for v in (8, 16, 32, 64, 128, 256) if v <= tallest and not (tensor_memory and v == 8)]
    block_n = [v for v in (32, 64, 128, 256) if v <= widest]
    block_k = [v for v in (64, 128, 256, 512) if v <= deepest]
    swap_ab: tuple[bool, ...] = (False, True)
    if tensor_memory and block_m[-1] < TENSOR_MEMORY_ROWS[0]:
        swap_ab, block_n = (True,), list(TENSOR_MEMORY_ROWS)
    fewest = {"block_m": block_m[-1], "block_n": block_n[-1], "block_k": block_k[0]}
    parameters = (
        Parameter("block_m", tuple(block_m)),
        Parameter("block_n", tuple(block_n)),
        Parameter("block_k", tuple(block_k)),
        Parameter("num_warps", (4, 8) if tensor_memory else (2, 4, 8)),
        Parameter("num_stages", (2, 3, 4, 5)),
        Parameter("group_m", (1, 4, 8) if problem.rows > 32 else (1,)),
        Parameter("loads", ("pointer", "tma") if problem.k % 32 == 0 else ("pointer",)),
        Parameter("scales", ("linear", "swizzled")),
        Parameter("swap_ab", swap_ab),
        Parameter("schedule", SCHEDULES),
        Parameter(
            "parts",
            tuple(v for v in (1, 2, 4, 8, 16) if v <= 2 or _split_is_sensible(problem, device, {**fewest, "parts": v})),
        ),
    )
    limit = shared_limit_bytes(capability)
    constraints = [
        Constraint(
            f"the pipeline's tiles take at most {limit} bytes of shared memory",
            lambda c: shared_bytes(c) <= limit,
        ),
        Constraint(
            "parts is 1 for data_parallel, at least 2 for split_k and at most 4 for stream_k",
            lambda c: {"data_parallel": c["parts"] == 1, "split_k": int(c["parts"]) > 1}.get(
                str(c["schedule"]), int(c["parts"]) <= 4
            ),
        ),
        Constraint(
            f"split_k has a step of K for each part, and no more than {MAX_SPLIT_WAVES} programs an SM",
            lambda c: c["schedule"] != "split_k" or _split_is_sensible(problem, device, c),
        ),
        Constraint("2 warps are for 16 rows or fewer", lambda c: int(c["num_warps"]) > 2 or int(c["block_m"]) <= 16),
        Constraint("8 rows need swap_ab", lambda c: int(c["block_m"]) > 8 or bool(c["swap_ab"])),
    ]
    if tensor_memory:
        constraints.append(
            Constraint("the left operand has 128 or 256 rows", lambda c: c[_left(c)] in TENSOR_MEMORY_ROWS)
        )
    else:
        constraints.append(
            Constraint(
                "the accumulators fit in registers",
                lambda c: (
                    not native_spills(int(c["block_m"]), int(c["block_n"]), int(c["block_k"]), int(c["num_warps"]))
                ),
            )
        )
    return Space(parameters, tuple(constraints))


def shared_bytes(config: Config) -> int:
    """Upper bound of the shared memory of a config."""
    block_k = int(config["block_k"])
    tiles = (nvfp4_tile_bytes(int(config[name]), block_k) for name in ("block_m", "block_n"))
    return pipeline_bytes(int(config["num_stages"]), *tiles)


def likely_rows(problem: Problem) -> int:
    """Rows that one expert may well have: M for dense, else four times the average, and never more than M."""
    if problem.op is Op.DENSE or problem.routing is Routing.ONE_HOT:
        return problem.m
    return min(problem.m, 4 * -(-problem.m * problem.top_k // problem.experts_total))


def native_default(problem: Problem, device: Device) -> dict[str, ConfigValue]:
    """An untuned guess: a tile as tall as the rows, and K split until every SM has work."""
    return _guess(problem, device, block_n=64 if likely_rows(problem) <= 32 else 128)


def native_seeds(problem: Problem, device: Device) -> Sequence[Config]:
    """Variations of the default whose order among each other cannot be told without running them."""
    space, default = native_space(problem, device), native_default(problem, device)
    wide = _guess(problem, device, block_n=128 if likely_rows(problem) <= 32 else 256)
    block_k = int(default["block_k"])
    variants: list[dict[str, ConfigValue]] = [
        {**default, "schedule": "stream_k", "parts": 2},
        {**default, "schedule": "stream_k", "parts": 1},
        wide,
        {**default, "swap_ab": not default["swap_ab"]},
        {**default, "block_k": block_k * 2, "num_stages": 3},
        {**default, "loads": "tma"},
        {**default, "scales": "swizzled"},
        {**default, "num_warps": 8},
        {**default, "schedule": "data_parallel", "parts": 1},
    ]
    keys = {config_key(default)}
    return [v for v in variants if v in space and not (config_key(v) in keys or keys.add(config_key(v)))]  # type: ignore[func-returns-value]


def _guess(problem: Problem, device: Device, *, block_n: int) -> dict[str, ConfigValue]:
    """A config around a width."""
    space = native_space(problem, device)
    values = {p.name: p.values for p in space.parameters}
    tensor_memory = device.capability[0] == 10
    rows = likely_rows(problem)
    few = rows <= 32
    block_m = min(max(16, _next_power_of_2(rows)), 128)
    # tcgen05 has 128 rows on the left: those are weights while there are fewer tokens.
    swap = tensor_memory and block_m < 128
    config: dict[str, ConfigValue] = {
        "block_m": block_m,
        "block_n": 128 if swap else min(block_n, int(values["block_n"][-1])),
        "block_k": min(256 if few else 128, int(values["block_k"][-1])),
        "num_warps": 8 if block_m * block_n > 128 * 128 else 4,
        "num_stages": 4 if few else 3,
        "group_m": values["group_m"][-1],
        "loads": "pointer",
        "scales": "linear",
        "swap_ab": swap,
        "schedule": "data_parallel",
        "parts": 1,
    }
    while shared_bytes(config) > shared_limit_bytes(device.capability):
        config["num_stages"] = int(config["num_stages"]) - 1
    steps = -(-problem.k // int(config["block_k"]))
    for parts in values["parts"]:
        # Two programs an SM keep more loads in flight than one. More of them, or parts of fewer than four steps, write
        # and read partial sums for longer than they shorten the way along K.
        split: dict[str, ConfigValue] = {**config, "schedule": "split_k", "parts": parts}
        if 4 * int(parts) <= steps and _programs(problem, split) <= 2 * device.sms and split in space:
            config = split
    return config


def _split_is_sensible(problem: Problem, device: Device, config: Config) -> bool:
    """Whether every part has a step, and the programs are not too many."""
    steps = -(-problem.k // int(config["block_k"]))
    return int(config["parts"]) <= steps and _programs(problem, config) <= MAX_SPLIT_WAVES * max(1, device.sms)


def _programs(problem: Problem, config: Config) -> int:
    """About how many programs a split config starts; a grouped problem's tiles are counted as if routing were even."""
    block_m = int(config["block_m"])
    if problem.op is Op.DENSE:
        tiles_m = -(-problem.m // block_m)
    else:
        busy = min(problem.experts, max(1, problem.rows))
        tiles_m = busy * -(-max(1, problem.rows // busy) // block_m)
    return tiles_m * -(-problem.n // int(config["block_n"])) * int(config["parts"])


def _left(config: Config) -> str:
    """Which block is the rows of the matrix unit's left operand."""
    return "block_n" if config["swap_ab"] else "block_m"


def _next_power_of_2(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << max(0, value - 1).bit_length()
