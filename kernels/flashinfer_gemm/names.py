"""Every name of FlashInfer, and of the CUTLASS DSL below it, that is used: module -> names, for all and by backend.

`Seam.need` hands out what is listed here and nothing else, and a probe looks for all of it, so that a release without
one is refused by that name: by every backend for NEEDED, by one backend for its part of NEEDED_BY. A dotted name is an
attribute of a class or a function.

What no class tells cannot be looked for and is met where it is used: what an object has that FlashInfer makes (a
runner's `get_valid_tactics`, `get_cache_key_extras` and, of MoE, `gemm_idx_for_tuning` and `runner_dict`; the
AutoTuner's `is_tuning_mode`; a compiled kernel's `export_to_c`, `__ptx__` and `ir_module`), the DSL's `_arch`, which
has a sentence of its own, and the functions of a native library. Two names are used where they exist, and no release
is refused for want of them: `get_max_active_clusters` and `_get_stream_cache_buf`.
"""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]
"""Module -> names in it."""

NEEDED: Names = {
    "flashinfer": ("mm_fp4", "__file__"),
    "flashinfer.autotuner": (
        "AutoTuner",
        "OptimizationProfile",
        "StaticDim",
        "_collect_metadata",
        "AutoTuner.get",
        "AutoTuner.choose_one",
        "AutoTuner._get_cache_key",
        "AutoTuner._get_input_sizes",
        "AutoTuner._profiling_policy",
    ),
    "flashinfer.utils": ("get_device_properties", "get_compute_capability", "get_device_sm_count", "_get_cache_buf"),
    "flashinfer.gemm.gemm_base": (
        "_get_cudnn_plan_index_for_tactic",
        "_create_cutlass_fp4_gemm_module",
        "get_cutlass_fp4_gemm_module",
        "_get_trtllm_gemm_module_impl",
        "gen_trtllm_gen_gemm_module",
    ),
}
"""What every backend needs."""

_NATIVE: Names = {"flashinfer.jit.core": ("JitSpecNvcc",)}
"""To ask whether a native library is built."""

_DSL: Names = {
    "cutlass": ("cute", "cute.compile"),
    "cutlass.cutlass_dsl": ("CuTeDSL", "CuTeDSL._get_dsl"),
    "flashinfer.jit.cute_dsl_core": ("JitSpecCuteDsl", "JitSpecCuteDsl._load_from_disk"),
}
"""To compile a kernel of the DSL for a card that need not be here."""

EXPORT = "export"
"""Not a backend: what a cache file is made and checked with."""

NEEDED_BY: Mapping[str, Names] = {
    "flashinfer.b12x": {
        **_DSL,
        "flashinfer.gemm.gemm_base": ("_B12X_MM_FP4_KERNEL_CACHE",),
        "flashinfer.gemm.kernels.dense_blockscaled_gemm_sm120_b12x": ("_select_default_dense_gemm_plan",),
    },
    "flashinfer.cute_dsl": {**_DSL, "flashinfer.gemm.kernels.sm12x_cute.runner": ("_COMPILED",)},
    "flashinfer.cutlass": {**_NATIVE, "flashinfer.jit.gemm": ("gen_gemm_sm120_module_cutlass_fp4",)},
    "flashinfer.cudnn": {},
    "flashinfer.trtllm": {
        **_NATIVE,
        "flashinfer.jit.gemm": ("gen_trtllm_gen_gemm_module",),
        "flashinfer.artifacts": ("ArtifactPath", "ArtifactPath.TRTLLM_GEN_GEMM"),
        "flashinfer.utils": ("get_shuffle_matrix_a_row_indices",),
    },
    "flashinfer.group_gemm": {
        **_NATIVE,
        "flashinfer.jit.gemm": ("gen_gemm_sm120_module",),
        "flashinfer.gemm.gemm_base": ("group_gemm_nvfp4_nt_groupwise",),
    },
    "flashinfer.cutlass_moe": {
        **_NATIVE,
        "flashinfer.jit.fused_moe": ("gen_cutlass_fused_moe_sm120_module",),
        "flashinfer.fused_moe.core": (
            "cutlass_fused_moe",
            "get_cutlass_fused_moe_module",
            "get_cutlass_fused_moe_module.__wrapped__",
            "gen_cutlass_fused_moe_sm120_module",
        ),
    },
    "flashinfer.b12x_moe": {
        "flashinfer.fused_moe.cute_dsl.b12x_moe": ("b12x_fused_moe",),
        "flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_dispatch": ("_STATIC_COMPACT_CUTOVER_PAIRS_CACHE",),
        "flashinfer.cute_dsl.utils": ("convert_sf_to_mma_layout",),
    },
    EXPORT: {"flashinfer.autotuner": ("AutoTuner.load_configs", "AutoTuner.search_cache")},
}
"""Backend -> what it needs beyond NEEDED."""


def is_listed(module: str, name: str) -> bool:
    """Whether a name is in one of the tables."""
    return any(name in names.get(module, ()) for names in (NEEDED, *NEEDED_BY.values()))
