"""Which tiles FlashInfer's CUTLASS NVFP4 GEMM for SM12x has, read from its header, so that it need not be built to ask.

A tactic is an index into a list that the header builds; another release may build another one. Building takes an hour.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ..errors import UnsupportedError

_LIST = re.compile(r"std::vector<CutlassTileConfigSM120>\s+\w+\s*=\s*\{(.*?)\};", re.DOTALL)
_NAME = re.compile(r"CutlassTileConfigSM120::CtaShape(\d+)x(\d+)x(\d+)B")
_PUSH = re.compile(
    r"push_back\(CutlassGemmConfig\(\s*tile_config,\s*MainloopScheduleType::AUTO,\s*"
    r"EpilogueScheduleType::AUTO,\s*clusterShape,\s*(true|false),\s*(true|false)\)\)"
)

ORDER = ((True, False), (False, False), (True, True), (False, True))
"""(swap_ab, stream_k) of the four tactics of a tile, in their order; what the header must say."""


@functools.cache
def tiles_of_header(path: Path, version: str) -> list[tuple[int, int, int]]:
    """(M, N, K) in elements of every tile, in the order of its tactics: tactic = 4 · tile + position in ORDER.

    The header counts K in bytes: two elements each.

    Args:
        path: `fp4_gemm_cutlass_template_sm120.h` of the installed FlashInfer.
        version: of it, for the sentence.

    Raises:
        UnsupportedError: it cannot be read, or numbers its tactics in another way.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnsupportedError(
            f"FlashInfer {version} lacks the header {path.name} ({error.strerror}); install it anew."
        ) from error
    lists = _LIST.findall(text)
    order = tuple((swap == "true", stream_k == "true") for swap, stream_k in _PUSH.findall(text))
    if len(lists) != 1 or order != ORDER or text.count("push_back(") != len(ORDER):
        raise UnsupportedError(f"FlashInfer {version} numbers its CUTLASS tactics in a way that fp4tune does not know.")
    return [(int(m), int(n), 2 * int(k)) for m, n, k in _NAME.findall(lists[0])]
