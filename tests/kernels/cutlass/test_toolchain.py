"""Headers wherever a package brought them, and the sentence for each thing that can be missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fp4tune.kernels import cuda_stack
from fp4tune.kernels.cutlass_gemm import builder, toolchain
from fp4tune.kernels.cutlass_gemm.toolchain import HEADERS_VARIABLE, find_headers, nvcc_build, why_unfit_headers
from fp4tune.kernels.errors import UnsupportedError


def lay(include: Path, version: str) -> Path:
    """As much of CUTLASS's headers as is looked at."""
    (include / "cutlass").mkdir(parents=True)
    (include / "cute").mkdir()
    (include / "cute/tensor.hpp").touch()
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    lines = [f"#define CUTLASS_{part} {number} \n" for part, number in numbers]  # 4.2.0 has such spaces
    (include / "cutlass/version.h").write_text("#pragma once\n" + "".join(lines))
    return include


def package(place: Path, name: str) -> Path:
    (place / name).mkdir(parents=True)
    (place / name / "__init__.py").write_text("raise RuntimeError('it must not be imported')\n")
    return place / name


def flashinfer(place: Path, version: str = "4.5.0") -> Path:
    return lay(package(place, "flashinfer") / "data/cutlass/include", version)


def wheel(place: Path, version: str = "4.2.0") -> Path:
    return lay(package(place, "cutlass_library") / "source/include", version)


def test_the_newer_headers_are_taken(tmp_path):
    include = flashinfer(tmp_path, "4.5.0")
    wheel(tmp_path, "4.2.0")
    found = find_headers({}, [str(tmp_path)])
    assert found == toolchain.Headers(include, (4, 5, 0))
    assert found.release == "4.5.0"


def test_newer_is_by_number(tmp_path):
    flashinfer(tmp_path, "4.9.0")
    assert find_headers({}, [str(tmp_path)]).version == (4, 9, 0)
    include = wheel(tmp_path, "4.10.1")
    assert find_headers({}, [str(tmp_path)]).include == include


def test_either_package_will_do(tmp_path):
    include = wheel(tmp_path / "one")
    assert find_headers({}, [str(tmp_path / "one")]).include == include
    include = flashinfer(tmp_path / "two")
    assert find_headers({}, [str(tmp_path / "one"), str(tmp_path / "two")]).include == include


def test_a_folder_that_is_named_goes_first(tmp_path):
    flashinfer(tmp_path, "4.5.0")
    named = lay(tmp_path / "mine", "4.3.1")
    assert find_headers({HEADERS_VARIABLE: str(named)}, [str(tmp_path)]).version == (4, 3, 1)


def test_without_headers_there_is_a_sentence(tmp_path):
    package(tmp_path, "flashinfer")
    assert find_headers({}, [str(tmp_path)]) is None
    assert why_unfit_headers(None, {}) == (
        "The headers of CUTLASS are not here: install flashinfer-python or nvidia-cutlass, or name a folder in "
        "FP4TUNE_CUTLASS_INCLUDE."
    )
    environ = {HEADERS_VARIABLE: "/no/such"}
    assert find_headers(environ, [str(tmp_path)]) is None
    assert why_unfit_headers(None, environ) == (
        "FP4TUNE_CUTLASS_INCLUDE names /no/such, and there are no headers of CUTLASS in it."
    )


@pytest.mark.parametrize("spoil", ["version", "cute"])
def test_half_of_the_headers_are_none(tmp_path, spoil):
    include = flashinfer(tmp_path)
    if spoil == "version":
        (include / "cutlass/version.h").write_text("#define CUTLASS_MAJOR 4\n")
    else:
        (include / "cute/tensor.hpp").unlink()
    assert find_headers({}, [str(tmp_path)]) is None


def test_headers_that_are_too_old_are_refused_with_both_versions(tmp_path):
    include = flashinfer(tmp_path, "4.1.0")
    said = why_unfit_headers(find_headers({}, [str(tmp_path)]), {})
    assert said.startswith(f"CUTLASS 4.2.0 is needed, and {include} is 4.1.0: install")


def test_nvcc_is_asked_for_before_the_headers(monkeypatch):
    asked = []

    def why_no_jit(minimum):
        asked.append(minimum)
        return "no nvcc"

    monkeypatch.setattr(cuda_stack, "why_no_jit", why_no_jit)
    assert toolchain.why_not("sm_120a") == "no nvcc"
    assert toolchain.why_not("sm_121a") == "no nvcc"
    assert asked == [(12, 8), (12, 9)]
    with pytest.raises(UnsupportedError, match="^no nvcc$"):
        toolchain.toolchain("sm_120a")


@pytest.mark.parametrize(("torch_cuda", "nvcc"), [((13, 0), (12, 9)), ((12, 8), (13, 0))])
def test_nvcc_of_another_cuda_than_pytorchs_is_taken(monkeypatch, tmp_path, torch_cuda, nvcc):
    """A shared object has its CUDA runtime inside; FlashInfer's libraries, which have not, are refused there."""
    stack = SimpleNamespace(
        nvcc=SimpleNamespace(path=Path("/cuda/bin/nvcc"), version=nvcc),
        torch=("2.13.0", torch_cuda),
        torch_cuda=torch_cuda,
        host_compiler="/usr/bin/g++",
        header=lambda name: name,
    )
    monkeypatch.setattr(cuda_stack, "here", lambda: stack)
    monkeypatch.setenv(HEADERS_VARIABLE, str(lay(tmp_path, "4.5.0")))
    assert "set CUDA_HOME to a toolkit" in cuda_stack.why_other_nvcc()
    assert toolchain.why_not("sm_120a") == ""
    assert {"--cudart=static", "-Xlinker=-Bsymbolic"} <= set(builder._SHARED_FLAGS)


def test_missing_headers_are_the_reason_where_nvcc_is_fine(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_stack, "why_no_jit", lambda minimum: "")
    monkeypatch.setenv(HEADERS_VARIABLE, str(tmp_path))
    with pytest.raises(UnsupportedError, match="there are no headers of CUTLASS in it"):
        toolchain.toolchain("sm_120a")


def test_the_exact_compiler_is_known(fake_nvcc, tmp_path):
    fake_nvcc.will("echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    assert nvcc_build(fake_nvcc.path) == "13.0.88"
    nvcc_build.cache_clear()
    fake_nvcc.will("echo something else")
    assert nvcc_build(fake_nvcc.path) == "something else"
    nvcc_build.cache_clear()
    with pytest.raises(UnsupportedError, match="does not run"):
        nvcc_build(tmp_path / "none")
