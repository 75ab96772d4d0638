"""Why a backend cannot be used, a sentence each. What is installed is made up, but for the names of libraries."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace

import pytest
from fp4tune.kernels import cuda_stack
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import InvalidInputError, UnsupportedError
from fp4tune.kernels.flashinfer_gemm import b12x_moe, backends, dense, live, moe_base, native_build, on_cards, versions
from fp4tune.kernels.flashinfer_gemm import seam as seam_module
from fp4tune.kernels.flashinfer_gemm.b12x_moe import B12xMoe
from fp4tune.kernels.flashinfer_gemm.backends import B12x, Cudnn, CuteDsl, Cutlass, Trtllm
from fp4tune.kernels.flashinfer_gemm.cutlass_moe import CutlassMoe
from fp4tune.kernels.flashinfer_gemm.group_gemm import GroupGemm
from fp4tune.kernels.flashinfer_gemm.names import EXPORT, NEEDED_BY
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, parse_shape

from .conftest import card

OF_A_KIND = {Op.DENSE: "16x512x1024", Op.GROUPED: "e8k2:16x512x1024", Op.MOE: "moe:e8k2:16x512x1024"}
ALL = [B12x(), Cutlass(), Cudnn(), CuteDsl(), CutlassMoe(), B12xMoe(), GroupGemm(), Trtllm()]
ON_SM120 = ALL[:-1]


def stack(*, cuda=(13, 0), torch=("2.13.0", (13, 0)), cudnn=(9, 23, 1), frontend=(1, 32, 0), headers=True, flavour=13):
    nvcc = cuda and SimpleNamespace(path="/cuda/bin/nvcc", version=cuda)
    return SimpleNamespace(
        nvcc=nvcc or None,
        why_no_nvcc="There is no nvcc.",
        cuda_version=cuda or torch[1],
        torch=torch,
        torch_cuda=torch[1],
        cudnn_version=cudnn,
        cudnn_frontend_version=frontend,
        host_compiler="/usr/bin/g++",
        memory_bytes=16 << 30,
        jobs=1,
        max_jobs=1,
        dsl_flavour=flavour,
        package=lambda name: "4.8.1",
        header=lambda name: name if headers else None,
    )


@pytest.fixture
def installed(monkeypatch):
    """Everything is installed, and FlashInfer can be imported; what a test gives stands in its place."""

    def install(*, flashinfer="0.7.4", dsl="4.8.1", built=True, jit_cache="", **software):
        found = {versions.DISTRIBUTION: flashinfer, versions.DSL: dsl, versions.JIT_CACHE: jit_cache}
        asked = lambda name=versions.DISTRIBUTION: found.get(name, "")  # noqa: E731
        for module in (versions, backends, dense, native_build, moe_base, b12x_moe):
            monkeypatch.setattr(module, "installed_version", asked)
        seam = SimpleNamespace(
            version=flashinfer,
            why_lacking=lambda _: "",
            need=lambda *_: (lambda *__: SimpleNamespace(is_compiled=built),),
        )
        monkeypatch.setattr(B12xMoe, "why_not_ready", lambda self, flashinfer: "")  # asks for names, see test_moe
        monkeypatch.setattr(on_cards, "seam", lambda: seam)
        monkeypatch.setattr(on_cards, "why_not", lambda device: "")
        monkeypatch.setattr(cuda_stack, "here", lambda: stack(**software))

    install()
    return install


def reason(backend, device=None):
    found = backend.probe(device or card())
    assert found.available == (not found.reason)
    return found.reason


@pytest.mark.parametrize("backend", ON_SM120, ids=lambda backend: backend.name)
@pytest.mark.parametrize("capability", ["12.0", "12.1"])
def test_a_backend_is_there_when_everything_is(installed, backend, capability):
    assert reason(backend, card(capability)) == ""


@pytest.mark.parametrize("capability", ["10.0", "10.3"])
def test_trtllm_is_there_on_sm100_and_sm103(installed, capability):
    assert reason(Trtllm(), card(capability)) == ""


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.name)
def test_a_cpu_and_a_card_of_another_generation_are_refused(installed, backend):
    assert reason(backend, detect("cpu")) == "It needs a CUDA device."
    said = reason(backend, card("9.0", 132))
    known = "10.0 and 10.3" if backend.name == "flashinfer.trtllm" else "12.0 and 12.1"
    assert said == f"It is for compute capability {known}, and card of 9.0 with 132 SMs has 9.0."


@pytest.mark.parametrize("backend", ON_SM120, ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("", "FlashInfer is not installed; install flashinfer-python==0.7.4."),
        ("0.6.18", "It knows FlashInfer 0.7.2 to 0.7.4, and 0.6.18 is installed."),
    ],
)
def test_flashinfer_missing_or_outside_the_range(installed, backend, version, sentence):
    installed(flashinfer=version)
    assert reason(backend) == sentence


@pytest.mark.parametrize(
    ("backend", "capability", "software", "sentence"),
    [
        (B12x(), "12.0", {"cuda": (12, 8)}, "flashinfer.b12x needs CUDA 12.9 or newer"),
        (B12x(), "12.0", {"dsl": ""}, "flashinfer.b12x needs the CUTLASS DSL, which is not installed"),
        (CuteDsl(), "12.0", {"torch": ("2.13.0", (12, 9))}, "flashinfer.cute_dsl needs PyTorch built for CUDA 13.0"),
        (CuteDsl(), "12.0", {"torch": ("2.13.0", None)}, "flashinfer.cute_dsl needs PyTorch built for CUDA 13.0"),
        (Cutlass(), "12.0", {"cuda": (12, 6)}, "flashinfer.cutlass needs CUDA 12.8 or newer"),
        (Cutlass(), "12.1", {"cuda": (12, 8)}, "flashinfer.cutlass needs CUDA 12.9 or newer"),
        (Cutlass(), "12.0", {"built": False, "cuda": None}, "Its library is not built: install flashinfer-jit-cache"),
        (Cutlass(), "12.0", {"built": False, "headers": False}, "does not find the header cuda_runtime.h"),
        (Cutlass(), "12.0", {"built": False}, "native_build flashinfer.cutlass."),
        (Cudnn(), "12.0", {"cudnn": None}, "flashinfer.cudnn needs cuDNN 9.10.2 or newer, and it is not installed"),
        (Cudnn(), "12.0", {"cudnn": (9, 8, 0)}, "flashinfer.cudnn needs cuDNN 9.10.2 or newer, and 9.8.0 is installed"),
        (Cudnn(), "12.0", {"frontend": (1, 9, 0)}, "flashinfer.cudnn needs cuDNN's frontend 1.13 or newer"),
        (Trtllm(), "10.0", {"cuda": (12, 6)}, "flashinfer.trtllm needs CUDA 12.8 or newer"),
        (Trtllm(), "10.0", {"built": False}, "native_build flashinfer.trtllm."),
        (B12xMoe(), "12.0", {"cuda": (12, 9)}, "flashinfer.b12x_moe needs CUDA 13.0 or newer"),
        (B12xMoe(), "12.0", {"dsl": ""}, "flashinfer.b12x_moe needs the CUTLASS DSL, which is not installed"),
        (CutlassMoe(), "12.1", {"cuda": (12, 8)}, "flashinfer.cutlass_moe needs CUDA 12.9 or newer"),
        (CutlassMoe(), "12.0", {"built": False, "headers": False}, "does not find the header cuda_runtime.h"),
        (CutlassMoe(), "12.0", {"built": False}, "native_build flashinfer.cutlass_moe."),
        (GroupGemm(), "12.0", {"built": False, "cuda": None}, "It cannot be built here: There is no nvcc."),
        (GroupGemm(), "12.0", {"built": False}, "native_build flashinfer.group_gemm."),
    ],
)
def test_what_a_backend_needs_and_lacks_is_named(installed, backend, capability, software, sentence):
    installed(**software)
    said = reason(backend, card(capability))
    assert sentence in said
    problem = parse_shape(OF_A_KIND[backend.op])
    with pytest.raises(UnsupportedError) as caught:
        backend.space(problem, card(capability))
    assert str(caught.value) == f"{backend.name} cannot be used. {said}"


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("backend", [Cutlass(), CutlassMoe(), GroupGemm(), Trtllm()], ids=lambda backend: backend.name)
def test_a_library_that_nvcc_of_another_cuda_builds_is_not_used(installed, backend, built):
    clash = (
        "PyTorch 2.13.0 is built for CUDA 13.0, and /cuda/bin/nvcc is of CUDA 12.9: "
        "set CUDA_HOME to a toolkit of CUDA 13."
    )
    installed(cuda=(12, 9), built=built)
    before = "" if built else "Its library is not built: install flashinfer-jit-cache==0.7.4. It cannot be built here: "
    its_card = card(".".join(str(part) for part in backend.capabilities[0]))
    assert reason(backend, its_card) == before + clash
    installed(cuda=(12, 9), jit_cache="0.7.4")
    assert reason(backend, its_card) == ""


@pytest.mark.parametrize("backend", [B12x(), CuteDsl(), B12xMoe()], ids=lambda backend: backend.name)
def test_a_dsl_of_another_cuda_than_pytorch_is_not_used(installed, backend):
    installed(flavour=12)
    assert reason(backend) == (
        "PyTorch 2.13.0 is built for CUDA 13.0, and the CUTLASS DSL would load nvidia-cutlass-dsl-libs-cu12 4.8.1: "
        "install nvidia-cutlass-dsl[cu13]."
    )


def test_a_probe_never_raises(installed, monkeypatch):
    def broken(*_):
        raise OSError("libsomething.so: cannot open shared object file")

    monkeypatch.setattr(on_cards, "seam", broken)
    assert reason(Cutlass()) == "FlashInfer cannot be used (OSError: libsomething.so: cannot open shared object file)."


@pytest.mark.parametrize("backend", ["flashinfer.cutlass", "flashinfer.cutlass_moe", "flashinfer.group_gemm"])
def test_a_library_is_looked_for_under_the_name_that_flashinfer_gives_it(flashinfer, backend, monkeypatch):
    """TensorRT-LLM's is not among them: to describe it, FlashInfer downloads."""
    library = native_build.LIBRARIES[backend]
    (describe,) = flashinfer.need(library.module, library.function)
    context = importlib.import_module("flashinfer.jit.core").current_compilation_context
    monkeypatch.setattr(context, "TARGET_CUDA_ARCHS", {(12, "0f")})
    assert describe().name == library.name


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        (B12x(), {"flashinfer", "cutlass_dsl"}),
        (CuteDsl(), {"flashinfer", "cutlass_dsl"}),
        (Cutlass(), {"flashinfer", "nvcc"}),
        (Cudnn(), {"flashinfer", "cudnn", "cudnn_frontend"}),
        (Trtllm(), {"flashinfer", "nvcc"}),
        (CutlassMoe(), {"flashinfer", "nvcc"}),
        (GroupGemm(), {"flashinfer", "nvcc"}),
        (B12xMoe(), {"flashinfer", "cutlass_dsl"}),
    ],
)
def test_a_backend_names_the_versions_that_decide(installed, backend, names):
    assert set(backend.versions(card())) == names


def test_an_architecture_list_is_a_part_of_what_decides(installed, monkeypatch):
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "12.0f")
    assert Cutlass().versions(card())["flashinfer_arch_list"] == "12.0f"
    assert "flashinfer_arch_list" not in B12x().versions(card())


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (Problem(16, 512, 1024, format=Format.BF16), "is for dense problems in nvfp4, not for"),
        (Problem(16, 512, 1024, Op.GROUPED, 8, 8, 2), "is for dense problems in nvfp4, not for"),
        (Problem(16, 512, 1024, out_dtype=OutDtype.FP32), "writes bf16 or fp16, not fp32"),
        (Problem(16, 512, 16), "needs K to be a multiple of 32, and it is 16"),
        (Problem(16, 500, 1024), "needs N to be a multiple of 8, and it is 500"),
    ],
)
def test_a_problem_that_it_cannot_run_is_refused_by_what_is_wrong(problem, sentence):
    with pytest.raises(UnsupportedError, match=sentence):
        B12x().check_problem(problem)


@pytest.mark.parametrize("backend", [CuteDsl(), Trtllm()], ids=lambda backend: backend.name)
def test_these_write_bf16_alone(backend):
    with pytest.raises(UnsupportedError, match="writes bf16, not fp16"):
        backend.check_problem(Problem(16, 512, 1024, out_dtype=OutDtype.FP16))


@pytest.mark.parametrize(
    ("backend", "problem", "sentence"),
    [
        (Trtllm(), Problem(16, 576, 1024), "flashinfer.trtllm needs N to be a multiple of 128, and it is 576."),
        (Trtllm(), Problem(16, 512, 1040), "flashinfer.trtllm needs K to be a multiple of 32, and it is 1040."),
        (Cudnn(), Problem(16, 500, 1024), "flashinfer.cudnn needs N to be a multiple of 8, and it is 500."),
        (Cudnn(), Problem(16, 512, 1040), "flashinfer.cudnn needs K to be a multiple of 32, and it is 1040."),
        (
            Cudnn(),
            Problem(16, 512, 1024, out_dtype=OutDtype.FP32),
            "flashinfer.cudnn writes bf16 or fp16, not fp32.",
        ),
    ],
)
def test_a_shape_that_a_live_backend_does_not_take_is_refused_before_the_card_is_asked(
    installed, monkeypatch, backend, problem, sentence
):
    monkeypatch.setattr(live, "live_tactics", lambda *_: pytest.fail("asked the card"))
    its_card = card(".".join(str(part) for part in backend.capabilities[0]))
    for ask in (backend.space, backend.default):
        with pytest.raises(UnsupportedError) as caught:
            ask(problem, its_card)
        assert str(caught.value) == sentence


def test_what_describes_a_library_is_looked_for_by_its_backend():
    for backend, library in native_build.LIBRARIES.items():
        assert library.function in NEEDED_BY[backend][library.module]


def test_only_a_backend_with_a_library_is_built():
    with pytest.raises(InvalidInputError, match=r"flashinfer\.b12x"):
        native_build.build("flashinfer.b12x")


def test_a_build_without_a_compiler_is_refused_before_it_starts(monkeypatch, capsys):
    monkeypatch.setattr(cuda_stack, "here", lambda: stack(cuda=None))
    assert native_build.main(["flashinfer.cutlass"]) == UnsupportedError.exit_code
    assert capsys.readouterr().err == "The library of flashinfer.cutlass cannot be built. There is no nvcc.\n"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "ninja: build stopped\nc++: fatal error: Killed signal terminated program cc1plus",
            r"^A compiler \(cc1plus\) was killed, .* MAX_JOBS is already 1, .* there are 16 GiB of memory; give the machine",
        ),
        (
            "error: no suitable constructor",
            r"^The library of flashinfer\.cutlass cannot be built \((.|\n)*no suitable constructor\)\.$",
        ),
    ],
)
def test_a_build_that_fails_says_whether_for_want_of_memory(installed, monkeypatch, said, sentence):
    class Spec:
        def build_and_load(self):
            raise RuntimeError(f"Ninja build failed. {said}")

    asked = []
    seam = SimpleNamespace(need=lambda *names: (asked.append(names) or Spec,))
    monkeypatch.setattr(seam_module, "seam", lambda: seam)
    monkeypatch.setenv("MAX_JOBS", "1")
    with pytest.raises(UnsupportedError, match=sentence):
        native_build.build("flashinfer.cutlass")
    assert asked == [("flashinfer.jit.gemm", "gen_gemm_sm120_module_cutlass_fp4")]


def test_a_build_is_told_the_architecture_and_how_many_compilers_fit(installed, monkeypatch):
    built = []

    class Spec:
        def build_and_load(self):
            built.append((os.environ["FLASHINFER_CUDA_ARCH_LIST"], os.environ["MAX_JOBS"]))

        def get_library_path(self):
            return "/cache/fp4_gemm_cutlass_sm120.so"

    monkeypatch.setattr(seam_module, "seam", lambda: SimpleNamespace(need=lambda *_: (Spec,)))
    monkeypatch.setattr(cuda_stack, "jobs_that_fit", lambda: 3)
    for name in ("MAX_JOBS", "FLASHINFER_CUDA_ARCH_LIST"):
        monkeypatch.setenv(name, "")  # put back afterwards
        monkeypatch.delenv(name)
    assert native_build.build("flashinfer.cutlass", "12.0f") == "/cache/fp4_gemm_cutlass_sm120.so"
    assert built == [("12.0f", "3")]


def test_backends_are_registered_under_their_names():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["fp4tune.backends"]
    assert {*NEEDED_BY} - {EXPORT} == {backend.name for backend in ALL}
    for backend in ALL:
        assert points[backend.name] == f"{type(backend).__module__}:{type(backend).__name__}"
