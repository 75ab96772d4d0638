"""Which tactics FlashInfer's CUTLASS fused MoE has on SM12x for NVFP4, read from its sources, and what each says.

A tactic is an absolute index into the list of its first product followed by that of its second. The lists are built in
C++ (`cutlass_heuristic.cpp`: tiles; `moe_gemm_template_dispatch.h`: the epilogues, then the same again with A and B
swapped), and the module takes most of an hour to build, so they are derived from the installed sources. Sources that
say something else than they did are refused; on the card the counts are compared with the module's own.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from ..backend import Config, ConfigValue, config_key
from ..errors import UnsupportedError
from .tactics import DEFAULT

FINALIZE = "finalize"
"""Parameter: `fused` adds a token's experts up in the second product's epilogue, with atomic additions, so that results
differ from run to run; `separate` in a kernel of its own, always alike."""

PARAMETERS = ("gemm1_tile", "gemm1_swap_ab", "gemm2_tile", "gemm2_swap_ab", FINALIZE)
"""A tile is MxNxK in elements, `128x128x256`."""

_HEURISTIC = "data/csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels/cutlass_heuristic.cpp"
_DISPATCH = "data/csrc/nv_internal/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_gemm_template_dispatch.h"

_FUNCTION = re.compile(r"get_candidate_configs_sm120\(.*?\n\}", re.DOTALL)
_TILES = re.compile(r"all_tiles\[\]\s*=\s*\{(.*?)\};", re.DOTALL)
_NEVER = re.compile(r"switch \(c\.tile_config_sm120\) \{(.*?)return true;", re.DOTALL)
_ONE_EACH = re.compile(
    r"for \(auto tile : all_tiles\) \{\s*result\.push_back\(CutlassGemmConfig\{tile, MainloopScheduleType::AUTO, "
    r"EpilogueScheduleType::AUTO,\s*ClusterShape::ClusterShape_1x1x1\}\);\s*\}"
)
_NAME = re.compile(r"CtaShape(\d+)x(\d+)x(\d+)B")
_CONFIGS = re.compile(r"::getTmaWarpSpecializedConfigs\(int sm,.*?\n\}", re.DOTALL)
_DOUBLED = re.compile(
    r"if \(supports_finalize_fusion\) \{.*?auto finalize_configs = tma_ws_configs;.*?"
    r"back_inserter\(tma_ws_configs\).*?EpilogueFusionType::FINALIZE;.*?"
    r"auto swap_ab_configs = tma_ws_configs;.*?back_inserter\(tma_ws_configs\).*?config\.swap_ab = true;",
    re.DOTALL,
)


@dataclass(frozen=True)
class MoeTactics:
    """The tactics of one release.

    Attributes:
        tiles: MxNxK in elements, in the order of a list.
    """

    tiles: tuple[str, ...]

    @property
    def n_gemm1(self) -> int:
        """Tactics of the first product: every tile, then every tile swapped."""
        return 2 * len(self.tiles)

    def n_gemm2(self, *, fused: bool) -> int:
        """Tactics of the second: as many; twice that where the finalize may be fused."""
        return (4 if fused else 2) * len(self.tiles)

    def encode(self, config: Config) -> tuple[tuple[int, int], bool]:
        """((tactic of the first product, of the second), whether the finalize may be fused) as FlashInfer takes them.

        Raises:
            UnsupportedError: the config says nothing to this release.
        """
        fused = {"fused": True, "separate": False}.get(str(config.get(FINALIZE)))
        names = PARAMETERS[:-1]
        if set(config) != set(PARAMETERS) or fused is None:
            raise UnsupportedError(f"FlashInfer's MoE takes {', '.join(PARAMETERS)}, not {config_key(config)}.")
        if all(config[name] == DEFAULT for name in names):
            return (-1, -1), fused
        tiles = [config["gemm1_tile"], config["gemm2_tile"]]
        swaps = [config["gemm1_swap_ab"], config["gemm2_swap_ab"]]
        if not set(tiles) <= set(self.tiles) or not all(isinstance(swap, bool) for swap in swaps):
            raise UnsupportedError(f"FlashInfer's MoE has no tactic for the config {config_key(config)}.")
        n = len(self.tiles)
        first, second = (self.tiles.index(str(tile)) for tile in tiles)
        block = self.n_gemm2(fused=fused) // 2  # of those that are not swapped: with the finalize fused behind without
        at = int(bool(swaps[1])) * block + (n if fused else 0) + second
        return (int(bool(swaps[0])) * n + first, self.n_gemm1 + at), fused

    def decode(self, tactics: tuple[int, int], *, fused: bool) -> dict[str, ConfigValue]:
        """The inverse of `encode`.

        Raises:
            UnsupportedError: an index is not in its list, or names a second product without the fused finalize that is
                allowed, which `separate` names already.
        """
        words: dict[str, ConfigValue] = {FINALIZE: "fused" if fused else "separate"}
        if tactics == (-1, -1):
            return dict.fromkeys(PARAMETERS[:-1], DEFAULT) | words
        n, (first, second) = len(self.tiles), tactics
        at = second - self.n_gemm1
        found: dict[str, ConfigValue] = {}
        if 0 <= first < self.n_gemm1 and 0 <= at < self.n_gemm2(fused=fused):
            found = words | {
                "gemm1_tile": self.tiles[first % n],
                "gemm1_swap_ab": first >= n,
                "gemm2_tile": self.tiles[at % n],
                "gemm2_swap_ab": at >= self.n_gemm2(fused=fused) // 2,
            }
        if not found or self.encode(found) != (tactics, fused):
            raise UnsupportedError(f"FlashInfer's MoE has the tactics {tactics}, a pair that fp4tune does not know.")
        return found


@functools.cache
def tactics_of_sources(package: Path, version: str) -> MoeTactics:
    """The tactics that the installed FlashInfer builds for NVFP4 on SM12x.

    Args:
        package: the folder of the `flashinfer` package.
        version: of it, for sentences.

    Raises:
        UnsupportedError: a source is missing, or builds its lists in another way.
    """
    texts = []
    for name in (_HEURISTIC, _DISPATCH):
        try:
            texts.append((package / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise UnsupportedError(
                f"FlashInfer {version} lacks the source {Path(name).name} ({error.strerror}); install it anew."
            ) from error
    function, configs = _FUNCTION.search(texts[0]), _CONFIGS.search(texts[1])
    listed = _TILES.search(function[0]) if function else None
    if (
        not function
        or not configs
        or not listed
        or not _ONE_EACH.search(function[0])
        or not _DOUBLED.search(configs[0])
    ):
        raise UnsupportedError(f"FlashInfer {version} lists its MoE tactics in a way that fp4tune does not know.")
    never = _NEVER.search(function[0])
    without = set(_NAME.findall(never[1])) if never else set()
    tiles = [tile for tile in _NAME.findall(listed[1]) if tile not in without]
    # The names count K in bytes: two elements each.
    return MoeTactics(tuple(f"{m}x{n}x{2 * int(k)}" for m, n, k in tiles))
