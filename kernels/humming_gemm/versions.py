"""The releases of Humming that fp4tune knows, and the fields of a schedule that each of them has. Needs no Humming.

A field that a release does not have is a TypeError there. The table was read off the releases (`dataclasses.fields` of
their TuningConfig) and is held to that by a test, which `make test-humming-versions` runs on each of them.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import metadata

DISTRIBUTION = "humming-kernels"

_ALWAYS = frozenset({
    "block_shape", "warp_shape", "use_stream_k", "num_stages", "num_ctas_per_sm", "use_warp_spec",
    "use_tma", "use_tma_a", "use_tma_as", "use_tma_b", "use_tma_c", "use_tma_bs", "use_tma_bs2", "use_tma_bzp",
    "use_tma_bias", "multi_cast_size_a", "multi_cast_size_b", "raster_group_m",
})  # fmt: skip
_UNTIL_0_1_12 = frozenset({"use_mbarrier", "use_cp_async", "reduce_overlap_last_stage_only", "num_write_splits"})
_FROM_0_1_19 = frozenset({
    "mma_type", "wgmma_use_late_as", "wgmma_split_issue_wait", "producer_stage_unroll", "consumer_stage_unroll",
    "producer_registers", "umma_num_dequant_warpgroups", "umma_cta_group_size", "output_chunk_rows", "use_tma_as2",
    "smem_reuse_mode", "use_pdl", "evict_weights_first",
})  # fmt: skip

FIELDS: dict[str, frozenset[str]] = {
    "0.1.12": _ALWAYS | _UNTIL_0_1_12,
    "0.1.19": _ALWAYS | _FROM_0_1_19,
    "0.1.20": _ALWAYS | _FROM_0_1_19 | {"umma_split_async_loads"},
}
"""Release -> fields of its TuningConfig. SGLang 0.5.23 pins the first, vLLM 0.33 the second."""

RANGE = "0.1.12, 0.1.19 and 0.1.20"
"""The same in words."""

NEWEST = "0.1.20"


def installed_version() -> str:
    """Version of the installed package, or empty; reads the metadata and imports nothing."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def unfit_version() -> str:
    """Why the installed package cannot be used, or nothing."""
    version = installed_version()
    if not version:
        return f"Humming is not installed; install {DISTRIBUTION}=={NEWEST}."
    if version not in FIELDS:
        return f"It knows Humming {RANGE}, and {version} is installed."
    return ""


def unfit_fields(version: str, found: Collection[str]) -> str:
    """Why a package that calls itself `version` is not that release, or nothing.

    Args:
        version: one of FIELDS.
        found: the fields that its TuningConfig has.
    """
    known, here = FIELDS[version], frozenset(found)
    if known == here:
        return ""
    differences = {"has": here - known, "lacks": known - here}
    told = " and ".join(f"{word} {', '.join(sorted(names))}" for word, names in differences.items() if names)
    return f"The installed Humming calls itself {version} and is not that release: its schedule {told}."
