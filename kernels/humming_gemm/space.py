"""The search space of one problem: which combinations of values.py's values are legal, cheap rules first.

Humming's check of one schedule takes 90 to 220 microseconds, and a flat product of its values is 4 to 14 % legal. Here
tiles are counts of warps, which makes most of them nest by construction, rules that need only arithmetic go first, and
what Humming must be asked (registers, shared memory) is asked once for the parameters that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..backend import Config, ConfigValue, Constraint, Parameter, Space
from .figures import figures_of
from .schedule import (
    KNOBS,
    absent,
    block,
    gemm_type_of,
    has_knob,
    instruction_of,
    math_warps,
    stream_k_locks,
    threads,
    warp,
)
from .values import Ground, values_of, with_own

if TYPE_CHECKING:
    from types import SimpleNamespace

    from .seam import Library

MAX_LOCKS = 1024
"""Stream-K locks that every engine has: SGLang 0.5.23 keeps 1024, a HummingLayer 2048, vLLM 0.33 eight an SM."""

_RESERVED_SHARED = 1024
"""Shared memory that CUDA keeps of every block (CUDA C++ Programming Guide, compute capability 8.x on)."""


def build_space(ground: Ground, humming: Library) -> Space:
    """The space around Humming's default; within `seen_as`.

    Args:
        ground: what it is for.
        humming: asked for registers and shared memory when configs are tested.
    """
    view = humming.view(ground.plan)
    default, fields = ground.default, humming.fields
    parameters = []
    for name, found in values_of(ground).items():
        if name in KNOBS and name != "store" and not has_knob(name, fields):
            continue
        merged = with_own(name, found, ground)
        if merged != (absent(name, instruction_of(default)),):
            parameters.append(Parameter(name, merged))
    kept = {p.name for p in parameters}
    known = {name: value for name, value in default.items() if name in kept}
    rules = [*_geometry(ground), *_usage(ground, humming), *_resources(ground, humming, view)]
    return Space(
        tuple(parameters),
        tuple(Constraint(sentence, _or_default(holds, known)) for sentence, holds in rules),
    )


def restrict(default: Mapping[str, ConfigValue], space: Space) -> dict[str, ConfigValue]:
    """A decoded schedule with the parameters of a space only; the others mean what leaving them out means."""
    return {p.name: default[p.name] for p in space.parameters}


_Rule = tuple[str, Callable[[Config], bool]]


def _or_default(holds: Callable[[Config], bool], default: Mapping[str, ConfigValue]) -> Callable[[Config], bool]:
    """A rule that the default need not obey: it is what Humming does."""

    def rule(config: Config) -> bool:
        return holds(config) or config == default

    return rule


def _geometry(ground: Ground) -> list[_Rule]:
    """Rules of tiles and warps: HummingKernel.check_shape and check_config, and candidate.py's _analyze_geometry."""
    plan = ground.plan

    def divides(config: Config) -> bool:
        _, n, k = block(config)
        cluster = int(config.get("multicast_a", 1)) * int(config.get("cta_group", 1))
        return plan.padded_n % (n * cluster) == 0 and plan.padded_k % k == 0

    def sized(config: Config) -> bool:
        m, n, _ = block(config)
        return m <= 256 and 64 <= n <= 512

    def not_idle(config: Config) -> bool:
        m = block(config)[0]
        return m <= 16 or m < 2 * ground.most_rows

    def instruction(config: Config) -> bool:
        mma, warp_m, warp_k = instruction_of(config), int(config["warp_m"]), int(config["warp_k"])
        if warp_m not in ground.warp_rows(mma):
            return False
        if mma == "wgmma":
            return int(config["n_warps"]) % 4 == 0 and warp_k <= (64 if block(config)[2] >= 64 else 32)
        if mma == "umma":
            return config["m_warps"] == config["k_warps"] == 1 and config["warp_n"] == 32 and warp_k >= 64
        return True

    def few_threads(config: Config) -> bool:
        return config["mma"] == "umma" or (math_warps(config) >= 2 and threads(config) <= 1024)

    return [
        ("block_n (times the cluster) divides the padded N and block_k the padded K", divides),
        ("a block has at most 256 rows, and 64 to 512 columns", sized),
        ("a block has fewer rows than twice those that there are", not_idle),
        ("the tile fits the matrix instruction", instruction),
        ("a block has 64 to 1024 threads", few_threads),
    ]


def _usage(ground: Ground, humming: Library) -> list[_Rule]:
    """Rules of what goes with what; a switch that does nothing has one value, so that no schedule is there twice."""
    plan, sms = ground.plan, ground.device.sms

    def loads(config: Config) -> bool:
        load = str(config["load"])
        if load.endswith("_ws"):
            # Wrong results, silently (inclusionAI/humming#50): warp specialisation of indexed W4A16 on SM12x.
            if plan.sm // 10 == 12 and gemm_type_of(config) == "indexed" and plan.scheme == "w4a16":
                return False
            return config["mma"] == "umma" or math_warps(config) % 4 == 0
        return config.get("multicast_a", 1) == 1

    def own_switches(config: Config) -> bool:
        mma = instruction_of(config)
        if mma == "umma":
            paired = config.get("cta_group", 1) == 2
            return not paired or (config["ctas_per_sm"] == 1 and block(config)[0] % 16 == 0)
        return mma == "wgmma" or config.get("multicast_a", 1) == 1

    def staged(config: Config) -> bool:
        return instruction_of(config) != "wgmma" or int(config["stages"]) >= 3

    def reuses(config: Config) -> bool:
        indexed = gemm_type_of(config) == "indexed"
        return humming.indexed_reuses_last_stage or not indexed or config.get("reuse") != "last_stage"

    def rasters(config: Config) -> bool:
        return config.get("raster_m", 1) == 1 or block(config)[0] < plan.m

    def locks(config: Config) -> bool:
        return stream_k_locks(config, sms) <= MAX_LOCKS

    return [
        ("loading by warps of their own takes math warps in fours, and is left out where Humming gets it wrong", loads),
        (
            "switches of one matrix instruction are off for others, and pairs of blocks have a multiprocessor each",
            own_switches,
        ),
        ("warp group instructions take three stages", staged),
        (
            "the epilogue of an indexed GEMM reuses the shared memory of all stages, where Humming knows no other",
            reuses,
        ),
        ("rasters of several rows of tiles need several", rasters),
        (f"stream-K needs at most {MAX_LOCKS} locks, which every engine has", locks),
    ]


def _resources(ground: Ground, humming: Library, view: SimpleNamespace) -> list[_Rule]:
    """Registers and shared memory, as Humming counts them."""
    figures = figures_of(ground.device)
    errors: dict[tuple[Any, ...], bool] = {}
    sizes: dict[tuple[Any, ...], int] = {}

    def registers(config: Config) -> bool:
        specialised = str(config["load"]).endswith("_ws")
        key = (config["mma"], block(config), warp(config), config["ctas_per_sm"], specialised)
        if key not in errors:
            errors[key] = not humming.register_error(view, config)
        return errors[key]

    def shared(config: Config) -> bool:
        key = (
            gemm_type_of(config), config["mma"], block(config), warp(config), config["stages"], config["load"],
            config.get("store"), config.get("reuse"), int(config.get("raster_m", 1)) > 1, config.get("chunk_rows", 0),
            config.get("cta_group", 1),
        )  # fmt: skip
        if key not in sizes:
            sizes[key] = humming.shared_bytes(view, config)
        size, ctas = sizes[key], int(config["ctas_per_sm"])
        return size <= ground.max_shared and ctas * (size + _RESERVED_SHARED) <= figures.smem_per_sm

    def resident(config: Config) -> bool:
        return config["mma"] == "umma" or threads(config) * int(config["ctas_per_sm"]) <= figures.max_threads_per_sm

    def tensor_memory(config: Config) -> bool:
        if config["mma"] != "umma":
            return True
        # One accumulator and two operand buffers of 32-bit columns for each 128 columns of a block
        # (sm100.py, _get_tmem_columns); a multiprocessor has 512, given out in powers of two.
        m, n, k = block(config)
        columns = n // 128 * (2 * (k // 2) + m)
        return (1 << (columns - 1).bit_length()) * int(config["ctas_per_sm"]) <= 512

    return [
        ("the blocks of a multiprocessor have its threads at most", resident),
        ("tensor memory holds the accumulators and operands of the blocks", tensor_memory),
        ("the registers suffice", registers),
        ("shared memory holds the stages of the blocks", shared),
    ]
