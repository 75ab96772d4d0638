"""The contract with the installed FlashInfer: what the seam needs is there, and means what we take it to mean."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import arguments
from fp4tune.kernels.flashinfer_gemm import seam as seam_module
from fp4tune.kernels.flashinfer_gemm.backends import B12x, CuteDsl
from fp4tune.kernels.flashinfer_gemm.cutlass_tiles import ORDER
from fp4tune.kernels.flashinfer_gemm.names import NEEDED, NEEDED_BY
from fp4tune.kernels.flashinfer_gemm.stand_ins import stand_in
from fp4tune.kernels.flashinfer_gemm.tactics import TILES, CuteDslCodec
from fp4tune.kernels.problem import OutDtype, Problem

from .conftest import card

PROBLEM = Problem(16, 6144, 4096)
SM120, RTX_PRO_6000, RTX_5090 = (12, 0), 188, 170
E2M1, BFLOAT16 = 17826818, 1052672
"""How TensorRT-LLM's kernels number dtypes."""

RUNNERS = {
    "b12x": "B12xFp4GemmRunner",
    "cutlass": "CutlassFp4GemmRunner",
    "cudnn": "CudnnFp4GemmRunner",
    "cute-dsl": "Sm12xCuTeFp4GemmRunner",
}


def captured(flashinfer, backend, problem=PROBLEM, *, sms=RTX_PRO_6000, capability=SM120, **options):
    with flashinfer.on(capability, sms):
        return arguments.stand_ins(problem, problem.m, **options).call(flashinfer, backend)


def tactics(flashinfer, backend, problem, sms=RTX_PRO_6000, capability=SM120):
    with flashinfer.on(capability, sms):
        return flashinfer.tactics(arguments.stand_ins(problem, problem.m).call(flashinfer, backend))


@pytest.mark.parametrize("module", NEEDED)
def test_every_name_that_is_needed_is_there(flashinfer, module):
    assert None not in flashinfer.need(module, *NEEDED[module])


@pytest.mark.parametrize("what", NEEDED_BY)
def test_every_name_that_one_backend_needs_is_there(flashinfer, what):
    assert flashinfer.why_lacking(what) == ""


@pytest.mark.parametrize(
    ("what", "name", "alone"),
    [
        ("flashinfer.b12x", "flashinfer.gemm.gemm_base:_B12X_MM_FP4_KERNEL_CACHE", True),
        ("flashinfer.cute_dsl", "flashinfer.gemm.kernels.sm12x_cute.runner:_COMPILED", True),
        ("flashinfer.cutlass", "flashinfer.jit.gemm:gen_gemm_sm120_module_cutlass_fp4", True),
        ("flashinfer.trtllm", "flashinfer.artifacts:ArtifactPath.TRTLLM_GEN_GEMM", True),
        ("flashinfer.group_gemm", "flashinfer.gemm.gemm_base:group_gemm_nvfp4_nt_groupwise", True),
        ("flashinfer.cutlass_moe", "flashinfer.fused_moe.core:gen_cutlass_fused_moe_sm120_module", True),
        (
            "flashinfer.b12x_moe",
            "flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_dispatch:_STATIC_COMPACT_CUTOVER_PAIRS_CACHE",
            True,
        ),
        ("export", "flashinfer.autotuner:AutoTuner.search_cache", True),
        ("flashinfer.b12x", "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl._load_from_disk", False),
    ],
)
def test_a_name_that_one_backend_needs_leaves_out_that_backend(flashinfer, monkeypatch, what, name, alone):
    module, name = name.split(":")
    *path, last = name.split(".")
    home = importlib.import_module(module)
    for part in path:
        home = getattr(home, part)
    monkeypatch.delattr(home, last)
    said = f"FlashInfer {flashinfer.version} lacks {name} in {module}, which fp4tune needs."
    refused = {one: flashinfer.why_lacking(one) for one in NEEDED_BY if flashinfer.why_lacking(one)}
    assert refused == dict.fromkeys([what] if alone else ["flashinfer.b12x", "flashinfer.cute_dsl"], said)


def test_a_probe_says_which_name_a_backend_lacks(flashinfer, monkeypatch):
    for backend in (B12x, CuteDsl):
        monkeypatch.setattr(backend, "why_not_here", lambda self, device: "")
    base = importlib.import_module("flashinfer.gemm.gemm_base")
    monkeypatch.delattr(base, "_B12X_MM_FP4_KERNEL_CACHE")
    assert B12x().probe(card()).reason == (
        f"FlashInfer {flashinfer.version} lacks _B12X_MM_FP4_KERNEL_CACHE in flashinfer.gemm.gemm_base, which fp4tune "
        "needs."
    )
    assert CuteDsl().probe(card()).available


def test_a_name_that_no_table_lists_is_not_handed_out(flashinfer):
    with pytest.raises(LookupError, match=r"_quantize of flashinfer must be listed in names\.py"):
        flashinfer.need("flashinfer", "_quantize")


def test_a_module_of_the_dsl_that_is_not_there_is_not_called_flashinfers(flashinfer, monkeypatch):
    monkeypatch.setitem(sys.modules, "cutlass.cutlass_dsl", None)
    assert flashinfer.why_lacking("flashinfer.b12x").startswith(
        "The installed CUTLASS DSL cannot import cutlass.cutlass_dsl (ModuleNotFoundError:"
    )
    assert flashinfer.why_lacking("flashinfer.cutlass") == ""


def test_the_page_names_what_is_private():
    page = (Path(__file__).parents[3] / "docs/flashinfer.md").read_text()
    listed = {name for names in (NEEDED, *NEEDED_BY.values()) for all_of in names.values() for name in all_of}
    private = {part for name in listed for part in name.split(".") if part.startswith("_") and not part.endswith("__")}
    assert len(private) > 10
    assert [name for name in private if name not in page] == []


def test_flashinfer_is_imported_in_the_seam_and_nowhere_else():
    """By a statement, or by a name: beside the seam's nothing below it calls import_module."""
    root = Path(__file__).parents[3]
    found = set()
    for file in (*root.glob("kernels/**/*.py"), *root.glob("api/**/*.py")):
        text, name = file.read_text(), file.relative_to(root).as_posix()
        by_name = "import_module(" in text and ("flashinfer" in name or 'import_module("flashinfer' in text)
        if by_name or re.search(r"^\s*(import|from) flashinfer\b", text, re.MULTILINE):
            found.add(name)
    assert found == {"kernels/flashinfer_gemm/seam.py"}


def test_a_release_without_a_name_is_refused_by_that_name(flashinfer, monkeypatch):
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner
    monkeypatch.delattr(importlib.import_module("flashinfer.autotuner"), "_collect_metadata")
    monkeypatch.delattr(tuner, "_profiling_policy")
    with pytest.raises(UnsupportedError, match=r"lacks _collect_metadata, AutoTuner\._profiling_policy, which"):
        seam_module.seam.__wrapped__()
    monkeypatch.setattr(seam_module, "seam", seam_module.seam.__wrapped__)
    assert "_collect_metadata" in seam_module.why_not()


@pytest.mark.parametrize("backend", RUNNERS)
def test_a_backend_has_one_runner_of_a_known_name(flashinfer, with_cudnn, backend):
    call = captured(flashinfer, backend)
    assert (call.op, len(call.runners), call.runner_name, call.tactic) == ("fp4_gemm", 1, RUNNERS[backend], -1)
    assert len(call.inputs) == 10


@pytest.mark.parametrize("backend", RUNNERS)
def test_a_key_on_sm121_is_that_on_sm120_but_for_the_card_that_cute_dsl_names(flashinfer, with_cudnn, backend):
    keys = []
    for capability, sms in ((SM120, RTX_PRO_6000), ((12, 1), 48)):
        with flashinfer.on(capability, sms):
            keys.append(flashinfer.key(arguments.stand_ins(PROBLEM, 16).call(flashinfer, backend)))
    assert keys[1] == keys[0].replace("(12, 0)", "(12, 1)")
    assert (keys[1] != keys[0]) == (backend == "cute-dsl")


def test_trtllm_has_one_runner_on_sm100(flashinfer):
    assert captured(flashinfer, "trtllm", capability=(10, 0), sms=148).runner_name == "TrtllmGemmRunner"


@pytest.mark.parametrize("sms", [RTX_PRO_6000, RTX_5090])
@pytest.mark.parametrize("m", [1, 16, 256, 4096])
def test_b12x_offers_four_tiles_with_and_without_prefetch(flashinfer, m, sms):
    found = tactics(flashinfer, "b12x", Problem(m, 6144, 4096), sms)
    tiles = [(64, 64), (64, 128), (128, 64), (128, 128)]
    assert found == [(tile, (1, 1), False, prefetch, "sm120", None) for tile in tiles for prefetch in (False, True)]


def test_b12x_offers_a_swapped_tile_for_one_row_of_a_narrow_weight(flashinfer):
    found = tactics(flashinfer, "b12x", Problem(1, 512, 4096))
    assert found[8:] == [((64, 32), (1, 1), True, prefetch, "sm120", None) for prefetch in (False, True)]


def test_the_same_tiles_are_offered_on_every_card_and_b12x_itself_takes_another(flashinfer):
    problem = Problem(128, 10816, 4096)
    assert tactics(flashinfer, "b12x", problem, RTX_PRO_6000) == tactics(flashinfer, "b12x", problem, RTX_5090)
    seeds = [B12x().seeds(problem, card("12.0", sms))[0] for sms in (RTX_PRO_6000, RTX_5090)]
    assert [(seed["tile_m"], seed["tile_n"]) for seed in seeds] == [(64, 128), (128, 128)]


def test_cutlass_offers_four_tactics_of_every_tile_of_its_header(flashinfer):
    assert flashinfer.cutlass_tiles() == list(TILES)
    for shape in ((1, 512, 4096), (4096, 6144, 4096)):
        assert tactics(flashinfer, "cutlass", Problem(*shape)) == list(range(len(TILES) * len(ORDER)))


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((1, 6144, 4096), ["independent"]),
        ((32, 6144, 4096), ["independent"]),
        ((33, 6144, 4096), ["independent", "independent_tma"]),
        ((128, 6144, 4096), ["independent", "independent_tma", "raw", "raw"]),
        ((128, 6144, 4160), ["independent", "independent_tma"]),
    ],
)
def test_cute_dsl_offers_kernels_by_shape(flashinfer, shape, kinds):
    assert [tactic[0] for tactic in tactics(flashinfer, "cute-dsl", Problem(*shape))] == kinds


def test_fields_of_a_raw_kernel_are_named_as_in_flashinfer(flashinfer):
    raw = importlib.import_module("flashinfer.gemm.kernels.sm12x_cute.policy").RawConfig
    assert ("kernel", *raw._fields) == CuteDslCodec.parameters


@pytest.mark.parametrize(("alpha_shape", "in_key"), [((1,), "(1,)"), ((), "()")])
@pytest.mark.parametrize(
    ("backend", "extras"),
    [
        ("b12x", "()"),
        ("cutlass", "()"),
        ("cudnn", "(torch.bfloat16, 16, True, True)"),
        (
            "cute-dsl",
            "('sm12x_cute_nvfp4_v5', (12, 0), 'torch.uint8', 'torch.uint8', 'torch.uint8', 'torch.bfloat16', False)",
        ),
    ],
)
def test_a_key_has_four_parts(flashinfer, with_cudnn, backend, extras, alpha_shape, in_key):
    with flashinfer.on(SM120, RTX_PRO_6000):
        key = flashinfer.key(arguments.stand_ins(PROBLEM, 16, alpha_shape=alpha_shape).call(flashinfer, backend))
    assert key == (
        f"('fp4_gemm', '{RUNNERS[backend]}', ((16, 2048), (2048, 6144), (-1, 256), (256, 6144), {in_key}, (0,), "
        f"(-1, 6144), (0,), (0,), (-1,)), {extras})"
    )


@pytest.mark.parametrize(("alpha_shape", "in_key"), [((1,), "(1,)"), ((), "()")])
def test_a_key_of_trtllm_has_four_parts(flashinfer, alpha_shape, in_key):
    with flashinfer.on((10, 0), 148):
        key = flashinfer.key(arguments.stand_ins(PROBLEM, 16, alpha_shape=alpha_shape).call(flashinfer, "trtllm"))
    assert key == (
        f"('fp4_gemm', 'TrtllmGemmRunner', ((16, 2048), (2048, 6144), (-1, 256), (256, 6144), {in_key}, (0,), "
        f"(-1, 6144), (0,), (0,), (-1,)), (False, {E2M1}, {BFLOAT16}))"
    )


def test_a_key_of_cudnn_tells_output_dtypes_apart_and_that_of_b12x_does_not(flashinfer, with_cudnn):
    half = Problem(16, 6144, 4096, out_dtype=OutDtype.FP16)
    keys = {b: {flashinfer.key(captured(flashinfer, b, p)) for p in (PROBLEM, half)} for b in ("b12x", "cudnn")}
    assert (len(keys["b12x"]), len(keys["cudnn"])) == (1, 2)


@pytest.mark.parametrize(
    ("m", "bucket"), [(1, 1), (9, 16), (17, 32), (200, 256), (257, 512), (1025, 1280), (2049, 2560), (4097, 8192)]
)
def test_a_key_holds_the_bucket_that_m_is_rounded_up_to(flashinfer, m, bucket):
    call = captured(flashinfer, "b12x", Problem(m, 6144, 4096))
    exact = captured(flashinfer, "b12x", Problem(bucket, 6144, 4096))
    assert flashinfer.key(call) == flashinfer.key(exact)
    assert flashinfer.key(exact, bucket_m=16) == flashinfer.key(captured(flashinfer, "b12x"))


@pytest.mark.parametrize("backend", RUNNERS)
def test_the_policy_is_graph_replay_from_a_cold_l2(flashinfer, with_cudnn, backend):
    policy = flashinfer.policy(captured(flashinfer, backend))
    assert policy == ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]
    assert json.loads(json.dumps(policy)) == policy


def test_metadata_has_the_fields_that_a_file_is_compared_by(flashinfer):
    found = flashinfer.metadata()
    assert found["flashinfer_version"] == flashinfer.version
    assert set(found) == {
        "flashinfer_version", "cuda_version", "cublas_version", "cudnn_version", "cudnn_frontend_version",
        "cutlass_dsl_version", "gpu",
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["b12x", "cutlass", "cute-dsl"])
def test_flashinfer_itself_finds_an_entry_under_our_key(flashinfer, tmp_path, backend):
    call = captured(flashinfer, backend, Problem(128, 6144, 4096))
    with flashinfer.on(SM120, RTX_PRO_6000):
        wanted, key = flashinfer.tactics(call)[1], flashinfer.key(call)
    file = tmp_path / "cache.json"
    file.write_text(json.dumps({key: [call.runner_name, wanted, flashinfer.policy(call)]}))
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    try:
        assert tuner.load_configs(str(file))
        with flashinfer.on(SM120, RTX_PRO_6000):
            runner, tactic = tuner.choose_one(call.op, list(call.runners), call.config, call.inputs)
    finally:
        tuner.clear_cache()
    assert (type(runner).__name__, tactic) == (call.runner_name, wanted)


@pytest.mark.parametrize(
    ("backend", "capability", "sms", "tactic"),
    [("cudnn", SM120, RTX_PRO_6000, (3, ((2, 1),))), ("trtllm", (10, 0), 148, 5)],
)
def test_it_finds_an_entry_of_those_whose_tactics_only_the_card_lists(
    flashinfer, with_cudnn, tmp_path, backend, capability, sms, tactic
):
    """With a tactic that is made up."""
    call = captured(flashinfer, backend, capability=capability, sms=sms)
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    file = tmp_path / "cache.json"
    with flashinfer.on(capability, sms):
        key = flashinfer.key(call)
    file.write_text(json.dumps({key: [call.runner_name, tactic, flashinfer.policy(call)]}))
    try:
        assert tuner.load_configs(str(file))
        with flashinfer.on(capability, sms):
            runner, found = tuner.choose_one(call.op, list(call.runners), call.config, call.inputs)
    finally:
        tuner.clear_cache()
    assert (type(runner).__name__, found) == (call.runner_name, tactic)


def test_nothing_is_left_behind(flashinfer):
    utils = importlib.import_module("flashinfer.utils")
    base = importlib.import_module("flashinfer.gemm.gemm_base")
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    owners = (torch.cuda, torch.version, utils, base)
    before = [dict(vars(owner)) for owner in owners]
    captured(flashinfer, "cute-dsl")
    captured(flashinfer, "cutlass")
    for owner, was in zip(owners, before, strict=True):
        now = vars(owner)
        assert [name for name in was if now.get(name) is not was[name]] == []
    assert "choose_one" not in vars(tuner)
    assert utils.get_compute_capability.cache_info().currsize == 0
    assert not torch.cuda.is_initialized()


def test_an_error_inside_leaves_nothing_behind_either(flashinfer):
    base = importlib.import_module("flashinfer.gemm.gemm_base")
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    before = base.get_cutlass_fp4_gemm_module
    with pytest.raises(ValueError, match="multiple of 32"):
        captured(flashinfer, "b12x", Problem(16, 512, 48))
    assert base.get_cutlass_fp4_gemm_module is before
    assert "choose_one" not in vars(tuner)


def test_a_mapping_answers_every_operation_with_its_own_tactic(flashinfer):
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    with flashinfer.intercept({"one": 3}) as calls:
        assert tuner.choose_one("one", ["runner"], None, [], extra=1) == ("runner", 3)
        assert tuner.choose_one("other", ["runner"], None, []) == ("runner", -1)
    assert [(call.op, call.tactic, dict(call.options)) for call in calls] == [
        ("one", 3, {"extra": 1}),
        ("other", -1, {}),
    ]


def test_a_public_call_can_be_left_once_enough_is_captured(flashinfer):
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    with flashinfer.intercept(stop_after=1) as calls:
        tuner.choose_one("one", ["runner"], None, [])
        pytest.fail("went on")
    assert [call.op for call in calls] == ["one"]


def test_stand_ins_say_they_are_on_a_card_and_do_not_overlap():
    one, other = stand_in((4, 8), torch.uint8), stand_in((4, 8), torch.uint8)
    assert (one.device, one.T.device, one.is_cuda) == (torch.device("cuda", 0), torch.device("cuda", 0), True)
    assert one.data_ptr() == one.T.data_ptr() != other.data_ptr()
    assert abs(one.data_ptr() - other.data_ptr()) >= 1 << 40
    assert one.data_ptr() % 256 == 0
