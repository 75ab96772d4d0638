from __future__ import annotations

import dataclasses
import random

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.humming_gemm.backend import Humming, known
from fp4tune.kernels.humming_gemm.plan import heuristic_rows
from fp4tune.kernels.humming_gemm.schedule import encode, gemm_type_of, stream_k_locks
from fp4tune.kernels.problem import Format, OutDtype, parse_shape
from humming_cases import CASES, DEVICES, draw, heuristic_list, problem_of

BACKEND = Humming()


@pytest.mark.parametrize(("device", "shape", "format_"), CASES)
def test_every_sampled_config_passes_the_librarys_own_check(humming, device, shape, format_):
    """`analyze_candidate` knows nothing of umma; what it does not model is left out of what it is asked."""
    candidate = pytest.importorskip("humming.tune.candidate")
    from humming.config import GemmType

    found = known(problem_of(shape, format_), DEVICES[device])
    figures = _figures(DEVICES[device])
    profile = candidate.DeviceProfile(
        name="", sm_version=figures.sm_version, num_sms=figures.sm_count, max_smem_size=figures.max_smem_size,
        max_smem_per_sm=figures.smem_per_sm, max_threads_per_sm=figures.max_threads_per_sm,
    )  # fmt: skip
    modelled = {f.name for f in dataclasses.fields(candidate.ScheduleCandidate)}
    configs = draw(found.space, 25)
    assert len(configs) == 25
    with humming.seen_as(DEVICES[device]):
        for config in configs:
            if config["mma"] == "umma":
                continue
            tuning = encode(config, fields=humming.fields)
            asked = {k: v for k, v in tuning.items() if k in modelled}
            asked |= {k: tuple(asked[k]) for k in ("block_shape", "warp_shape")}
            problem = candidate.TuningProblem(
                layer_config=humming.layer(found.plan), shape_m=found.plan.rows,
                gemm_type=GemmType(gemm_type_of(config)), device=profile,
            )  # fmt: skip
            verdict = candidate.analyze_candidate(problem, candidate.ScheduleCandidate.from_config("x", asked))
            assert verdict.legal, (config, verdict.rejection_reasons)


@pytest.mark.parametrize(("device", "shape", "format_"), CASES)
def test_every_sampled_config_passes_the_checks_of_the_kernel(humming, device, shape, format_):
    """HummingKernel's own assertions, in every release and for every instruction; all but the compiler runs."""
    found = known(problem_of(shape, format_), DEVICES[device])
    runtime = humming._of["KernelRuntime"]
    with humming.seen_as(DEVICES[device]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "prepare", lambda kernel: setattr(kernel, "kernel_filename", "none"))
        for config in (found.default, *found.seeds, *draw(found.space, 8)):
            tuning = encode(config, fields=humming.fields)
            humming.compile(found.plan, gemm_type_of(config), tuning)


def test_the_kernel_does_check(humming):
    found = known(parse_shape("16x4096x7168"), DEVICES["h200"])
    config = found.default | {"warp_n": 48}
    with humming.seen_as(DEVICES["h200"]), pytest.raises(UnsupportedError, match="^Humming refuses the schedule"):
        humming.compile(found.plan, "dense", encode(config, fields=humming.fields))


@pytest.mark.parametrize(("device", "shape", "format_"), CASES)
def test_the_size_of_shared_memory_is_what_the_kernel_says(humming, device, shape, format_):
    """The space asks `estimate_smem_size_layer` with our words, the kernel with its own configs."""
    found = known(problem_of(shape, format_), DEVICES[device])
    runtime = humming._of["KernelRuntime"]
    with humming.seen_as(DEVICES[device]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "prepare", lambda kernel: setattr(kernel, "kernel_filename", "none"))
        view = humming.view(found.plan)
        for config in draw(found.space, 4, seed=1):
            tuning = encode(config, fields=humming.fields)
            _, theirs = humming.compile(found.plan, gemm_type_of(config), tuning)
            assert humming.shared_bytes(view, config) == theirs, config


@pytest.mark.parametrize(("device", "shape", "format_"), CASES)
def test_enough_of_the_product_is_legal(humming, device, shape, format_):
    """A search that draws at random, or asks a sampler a dozen times, must meet legal configs."""
    space = known(problem_of(shape, format_), DEVICES[device]).space
    rng = random.Random(2)
    drawn = [{p.name: rng.choice(p.values) for p in space.parameters} for _ in range(600)]
    assert sum(config in space for config in drawn) >= 0.15 * len(drawn)


@pytest.mark.parametrize(("device", "shape", "format_"), CASES)
def test_the_default_is_what_the_heuristic_says(humming, device, shape, format_):
    """Decoded and encoded again it is field by field the same TuningConfig."""
    from humming.config import TuningConfig

    found = known(problem_of(shape, format_), DEVICES[device])
    assert found.default in found.space
    assert all(seed in found.space for seed in found.seeds)
    gemm_type = gemm_type_of(found.default)
    rows = heuristic_rows(found.plan.rows, sm=found.plan.sm, grouped=bool(found.plan.experts))
    with humming.seen_as(DEVICES[device]):
        theirs = humming.heuristic(found.plan, gemm_type, rows, DEVICES[device])
        ours = encode(found.default, fields=humming.fields)
        sms = DEVICES[device].sms
        assert ours.pop("num_sms", sms) == theirs.pop("num_sms", sms)
        theirs.pop("use_f16_accum", None)
        assert _resolved(TuningConfig, ours) == _resolved(TuningConfig, theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["1x4096x7168", "1x512x2048"])
def test_one_question_gives_what_the_list_would(humming, device, shape):
    """Engines look the whole list up; the default asks for one M, which takes milliseconds for grouped as well."""
    problem = parse_shape(shape)
    found = known(problem, DEVICES[device])
    with humming.seen_as(DEVICES[device]):
        intervals = heuristic_list(humming, found.plan, DEVICES[device])
        for m in (1, 2, 3, 5, 8, 9, 16, 17, 33, 100, 128, 200, 1000, 1030, 2049, 4100, 8192, 20000):
            entry = next(config for above, up_to, config in intervals if above < m <= up_to)
            rows = heuristic_rows(m, sm=found.plan.sm, grouped=False)
            assert humming.heuristic(found.plan, "dense", rows, DEVICES[device]) == entry, m


def test_a_config_is_tested_in_microseconds_and_few_are_drawn_in_vain(humming):
    """No clock: how often the library is asked, which is what takes time."""
    found = known(parse_shape("16x4096x7168"), DEVICES["h200"])
    assert found.space.size > 4096
    configs = draw(found.space, 50)
    asked = []
    original = type(humming).shared_bytes
    try:
        type(humming).shared_bytes = lambda *a, **k: asked.append(a) or original(*a, **k)
        assert all(config in found.space for config in configs * 20)
    finally:
        type(humming).shared_bytes = original
    assert not asked


def test_engines_have_enough_locks(humming):
    found = known(parse_shape("16x4096x7168"), DEVICES["rtx_pro_6000"])
    assert all(stream_k_locks(config, 188) <= 1024 for config in draw(found.space, 50))


def test_indexed_w4a16_on_sm12x_never_loads_by_warps_of_their_own(humming):
    """inclusionAI/humming#50: silently wrong."""
    for device in ("rtx_pro_6000", "gb10"):
        found = known(parse_shape("e64k8:256x2048x4096", format=Format.NVFP4_W4A16), DEVICES[device])
        configs = draw(found.space, 100)
        assert "tma_ws" in {c["load"] for c in configs if c["gemm_type"] == "grouped_contiguous"}
        assert "tma_ws" not in {c["load"] for c in configs if c["gemm_type"] == "indexed"}


@pytest.mark.parametrize(
    ("problem", "device", "sentence"),
    [
        (parse_shape("1x72x80", format=Format.BF16), "h200", "weights, and this problem's are BF16"),
        (parse_shape("1x72x80", out_dtype=OutDtype.FP32), "h200", "BF16 or FP16, not fp32"),
        (
            parse_shape("1x72x80", format=Format.NVFP4_W4A16, out_dtype=OutDtype.FP16),
            "h200",
            "BF16 activations give BF16",
        ),
    ],
)
def test_what_it_cannot_do(problem, device, sentence):
    for ask in (BACKEND.space, BACKEND.default):
        with pytest.raises(UnsupportedError, match=sentence):
            ask(problem, DEVICES[device])


def test_old_cards_and_cpus_are_refused_without_importing_anything(humming):
    turing = dataclasses.replace(DEVICES["a100"], compute_capability="7.5", name="NVIDIA T4")
    cpu = dataclasses.replace(DEVICES["a100"], kind="cpu", compute_capability="", name="a CPU")
    for device in (turing, cpu):
        found = BACKEND.probe(device)
        assert not found.available
        assert device.name in found.reason
        with pytest.raises(UnsupportedError, match="humming cannot be used"):
            BACKEND.space(parse_shape("1x72x80"), device)


def _resolved(config_class, tuning):
    tuning = dict(tuning) | {k: tuple(tuning[k]) for k in ("block_shape", "warp_shape")}
    made = config_class(**tuning)
    if getattr(getattr(made, "mma_type", None), "value", None) == "umma":  # HummingKernel sets it for umma
        made.use_warp_spec = True
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(config_class)}
    # Switches of operands that no NVFP4 layer has; the kernel turns them off.
    return {k: v for k, v in fields.items() if k not in {"use_tma_bs2", "use_tma_bzp", "use_tma_bias", "use_tma_as2"}}


def _figures(device):
    from fp4tune.kernels.humming_gemm.figures import figures_of

    return figures_of(device)
