"""Which values of the parameters are worth trying for a problem; space.py says which of their combinations are legal.

Lists are short where a value has nothing to give, so that at least 15 % of the product is legal and a search proposes
little in vain. What Humming's heuristic does is always among them, here and for neighbouring M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..backend import ConfigValue
from .schedule import KNOBS, instruction_of

if TYPE_CHECKING:
    from ..device import Device
    from .plan import Plan

WARP_M = {
    "mma": (8, 16, 32, 48, 64, 80, 96, 112, 128),
    "mxmma": (16, 32, 48, 64, 80, 96, 112, 128),
    "wgmma": (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 176),
    "umma": (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256),
}
"""Rows of a warp's tile: those of Humming's heuristics, thinned out."""

FEW, MANY = 16, 64
"""Rows up to which, and from which on, lists differ. The heuristics of 0.1.20 (dense, nine shapes, every M of their
lists) hold one or two blocks a multiprocessor from 17 rows on; on Hopper, from 64 on, they multiply by warp groups, do
not split K over the warps of a block, and load by warps of their own."""

_BUSIEST = 8
"""Rows of the busiest expert over the average, up to which tiles are offered."""

_TIGHT_BYTES = 100 << 10
"""Shared memory of a block below which a fifth stage seldom fits: SM86, SM89, SM12x."""

_Values = dict[str, tuple[ConfigValue, ...]]


@dataclass(frozen=True, slots=True)
class Ground:
    """What values and rules depend on.

    Attributes:
        plan: the problem. device: the card.
        max_shared: bytes that one block may have.
        mma_rows: rows of a warp's tile are a multiple of this for `mma`.
        mmas: matrix instructions to choose from.
        default: what Humming's heuristic does, decoded; legal whatever the rules say.
        others: what it does nearby.
    """

    plan: Plan
    device: Device
    max_shared: int
    mma_rows: int
    mmas: tuple[str, ...]
    default: Mapping[str, ConfigValue]
    others: tuple[Mapping[str, ConfigValue], ...] = ()

    @property
    def rows(self) -> int:
        """Rows of one GEMM; of an average expert for grouped."""
        return -(-self.plan.rows // self.plan.experts) if self.plan.experts else self.plan.m

    @property
    def most_rows(self) -> int:
        """Rows that tiles are offered for, a multiple of 16."""
        most = min(self.plan.m, _BUSIEST * self.rows) if self.plan.experts else self.plan.m
        return max(16, -(-most // 16) * 16)

    def warp_rows(self, kind: str) -> tuple[int, ...]:
        """Rows that a warp's tile may have."""
        step = self.mma_rows if kind == "mma" else 1
        return tuple(m for m in WARP_M[kind] if m <= self.most_rows and m % step == 0)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The instructions by Humming's names."""
        return tuple(dict.fromkeys(instruction_of({"mma": mma}) for mma in self.mmas))


def mma_choices(plan: Plan, default: str, *, tuned: bool) -> tuple[str, ...]:
    """The matrix instructions that can run a plan, the usual one first.

    Hopper runs W4A16 on warp groups or on warps. Neither is always faster for few rows; for many a warp group is.

    Args:
        plan: the problem.
        default: what Humming's heuristic takes.
        tuned: whether a tuning dictionary may say another.
    """
    if not tuned or plan.sm != 90:
        return (default,)
    rows = plan.rows // max(1, plan.experts)
    return ("wgmma", "wgmma_split") if rows >= MANY and default != "mma" else ("wgmma", "wgmma_split", "mma")


def values_of(ground: Ground) -> _Values:
    """Parameter -> values, of every parameter that there is; the default's own are added by `with_own`."""
    plan, default, kinds = ground.plan, ground.default, ground.kinds
    is_umma, is_many = kinds == ("umma",), ground.rows >= MANY
    values: _Values = {"gemm_type": plan.gemm_types} if plan.experts else {}
    values["mma"] = ground.mmas
    values["warp_m"] = tuple(sorted({m for kind in kinds for m in ground.warp_rows(kind)}))
    # On Hopper a block's warp groups lie along N: 832 of 832 entries of the heuristic's lists.
    values["m_warps"] = (1,) if ground.most_rows <= 16 or is_umma or ("wgmma" in kinds and not is_many) else (1, 2)
    for kind in kinds:
        for name, found in _tile_values(kind, ground).items():
            values[name] = tuple(dict.fromkeys((*values.get(name, ()), *found)))
    values["stream_k"] = (True, False)
    values["load"] = _loads(ground)
    if "wgmma" in kinds and is_many and not plan.experts:
        values["multicast_a"] = (1, 2)
    if ground.rows > MANY:
        values["raster_m"] = (1, 4, 8)
    values["reuse"] = ("none",) if is_umma else ("all_stages", "last_stage")
    values["evict_weights_first"] = (False, True)
    values["max_sms"] = (0,)
    values["store"] = ("auto",)
    for name in KNOBS:  # what the heuristic sets and nobody searches is fixed at what it sets
        values.setdefault(name, (default[name],))
    return {name: _fitting(name, found, values, plan) for name, found in values.items()}


def with_own(name: str, found: tuple[ConfigValue, ...], ground: Ground) -> tuple[ConfigValue, ...]:
    """`found` with the default's value, and the tiles of neighbouring defaults; numbers ascending."""
    own = [ground.default.get(name, found[0])]
    if name not in KNOBS and name != "mma":
        own += [other[name] for other in ground.others if other["mma"] in ground.mmas and _is_small(other, ground)]
    merged = tuple(dict.fromkeys((*found, *own)))
    if all(isinstance(value, int) and not isinstance(value, bool) for value in merged):
        return tuple(sorted(merged))
    return merged


def _is_small(config: Mapping[str, ConfigValue], ground: Ground) -> bool:
    """Whether a block has no more rows than there are."""
    return int(config["warp_m"]) * int(config["m_warps"]) <= ground.most_rows


def _tile_values(kind: str, ground: Ground) -> _Values:
    """Values of tiles, stages and blocks for a matrix instruction, for the rows that there are."""
    is_few, is_many = ground.rows <= FEW, ground.rows >= MANY
    is_tight = ground.max_shared < _TIGHT_BYTES
    if kind == "umma":
        return {"warp_n": (32,), "n_warps": (4, 8), "warp_k": (64, 128), "k_warps": (1,), "stages": (2, 3, 4, 6, 8),
                "ctas_per_sm": (1, 2), "chunk_rows": (0, 32), "cta_group": (1, 2)}  # fmt: skip
    if kind == "wgmma":
        return {"warp_n": (32, 64), "n_warps": (4, 8), "warp_k": (32, 64), "k_warps": (1, 2) if is_many else (1, 2, 4),
                "stages": (3, 4, 5, 6), "ctas_per_sm": (1, 2) if is_many else (1, 2, 3)}  # fmt: skip
    if kind == "mxmma":
        return {"warp_n": (16, 32) if is_many else (16, 32, 64), "n_warps": (2, 4, 8), "warp_k": (128, 256, 512),
                "k_warps": (1, 2), "stages": (2, 3, 4), "ctas_per_sm": (1, 2)}  # fmt: skip
    return {"warp_n": (32, 64), "n_warps": (1, 2, 4, 8), "warp_k": (32, 64, 128),
            "k_warps": (1, 2, 4), "stages": (2, 3, 4) if is_tight else (2, 3, 4, 5),
            "ctas_per_sm": (1, 2, 3, 4) if is_few else (1, 2)}  # fmt: skip


def _loads(ground: Ground) -> tuple[str, ...]:
    """Ways that tiles come in, where the card has them."""
    if ground.kinds == ("umma",):
        return ("tma_ws",)
    if ground.plan.sm < 90:
        return ("async",)
    if ground.kinds == ("wgmma",) and ground.rows >= MANY:
        return ("tma", "tma_ws")
    return ("async", "tma", "tma_ws")


def _fitting(name: str, found: tuple[ConfigValue, ...], values: _Values, plan: Plan) -> tuple[ConfigValue, ...]:
    """Without what divides the padded N or K with no value of the other parameter that makes up the tile."""
    for side, whole in (("n", plan.padded_n), ("k", plan.padded_k)):
        pair = (f"warp_{side}", f"{side}_warps")
        if name in pair:
            least = min(int(v) for v in values[pair[1 - pair.index(name)]])
            return tuple(v for v in found if whole % (int(v) * least) == 0) or found
    return found
