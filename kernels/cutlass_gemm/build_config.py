"""What of a config is decided when the kernel is compiled. Everything else of it is passed at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..problem import OutDtype

if TYPE_CHECKING:
    from ..backend import Config

SCHEDULES = ("cooperative", "pingpong")
"""How two groups of warps share the work: one tile together, or a tile each. In the order of FP4TUNE_PINGPONG."""

SCHEDULERS = ("persistent", "stream_k")
"""How tiles come to blocks: one by one, fetched by cluster launch control, or cut along K. In the order of
FP4TUNE_STREAM_K."""

_OUT = (OutDtype.BF16, OutDtype.FP16, OutDtype.FP32)
"""In the order of FP4TUNE_OUT."""


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """One shared object.

    Attributes:
        tile: of the kernel, `128x64x256`: its M, N and K. With `swap_ab` its M runs over the problem's N.
        schedule: one of SCHEDULES.
        scheduler: one of SCHEDULERS.
        swap_ab: the kernel computes the transpose, B · Aᵀ, so that tokens lie on the narrower side of the tile.
        out_dtype: of D.
        target: `sm_120a` or `sm_121a`.
    """

    tile: str
    schedule: str
    scheduler: str
    swap_ab: bool
    out_dtype: OutDtype
    target: str

    @classmethod
    def of(cls, config: Config, out_dtype: OutDtype, target: str) -> BuildConfig:
        """The part of a config of the space that is compiled in."""
        return cls(
            tile=str(config["tile"]),
            schedule=str(config["schedule"]),
            scheduler=str(config["scheduler"]),
            swap_ab=bool(config["swap_ab"]),
            out_dtype=out_dtype,
            target=target,
        )

    @property
    def definitions(self) -> tuple[str, ...]:
        """What nvcc is told: integers, because it splits the value of a definition at commas."""
        m, n, k = self.tile.split("x")
        values = {
            "TILE_M": m,
            "TILE_N": n,
            "TILE_K": k,
            "PINGPONG": SCHEDULES.index(self.schedule),
            "STREAM_K": SCHEDULERS.index(self.scheduler),
            "SWAP_AB": int(self.swap_ab),
            "OUT": _OUT.index(self.out_dtype),
        }
        return tuple(f"-DFP4TUNE_{name}={value}" for name, value in values.items())

    def __str__(self) -> str:
        swapped = " swap_ab" if self.swap_ab else ""
        return f"{self.tile} {self.schedule} {self.scheduler}{swapped} {self.out_dtype.value} for {self.target}"
