"""What CUDA is here, asked of made-up machines, of real compilers that die, and of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest
from fp4tune.kernels import cuda_stack
from fp4tune.kernels.cuda_stack import CudaStack

NO_DRIVER = "/nowhere/libcuda.so.1"
NO_CUDNN = "/nowhere/libcudnn.so.9"


class Machine:
    """A folder with packages, toolkits and compilers of our choice; `stack()` is what a process would find there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site, self.bin = root / "site", root / "bin"
        self.site.mkdir()
        self.bin.mkdir()
        self.environ = {"PATH": str(self.bin)}
        self.library, self.cudnn = NO_DRIVER, NO_CUDNN

    def install(self, name: str, version: str) -> Machine:
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return self

    def torch(self, version: str, cuda: str | None) -> Machine:
        folder = self.site / "torch"
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('torch must not be imported')\n")
        text = (
            f"from typing import Optional\n__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        )
        (folder / "version.py").write_text(text + "git_version = 'abc'\nhip: Optional[str] = None\n")
        return self

    def script(self, path: Path, body: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def nvcc(self, home: str, version: str, *headers: str) -> Path:
        """A toolkit with a compiler that says its version and, in a dry run, where its headers are."""
        include = self.root / home / "targets/linux/include"
        include.mkdir(parents=True)
        for header in headers:
            (include / header).write_text("")
        dry = f'#$ INCLUDES="-I{self.root / home}/bin/../targets/linux/include"  '
        return self.script(
            self.root / home / "bin/nvcc",
            f"[ \"$1\" = --version ] && echo 'Cuda compilation tools, release {version}, V{version}.41' || "
            f"echo '{dry}' >&2",
        )

    def stack(self) -> CudaStack:
        return CudaStack(
            environ=self.environ, path=[str(self.site)], toolkit=self.root / "usual", root=self.root,
            library=self.library, cudnn=self.cudnn,
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_an_empty_machine_has_nothing_and_every_reason_says_so(machine):
    stack = machine.stack()
    assert cuda_stack.nvcc(stack) is None
    assert cuda_stack.cuda_version(stack) is cuda_stack.torch_cuda(stack) is None
    assert cuda_stack.cudnn_version(stack) is cuda_stack.cudnn_frontend_version(stack) is None
    assert stack.runtimes == ()
    assert stack.driver_cuda is None
    assert cuda_stack.conflicts(stack) == ()
    assert cuda_stack.conflict(stack) == ""
    assert cuda_stack.header("cuda_runtime.h", stack) == ""
    assert cuda_stack.max_jobs(stack) is None
    for reason in (
        cuda_stack.why_cuda_too_old((12, 9), "It", stack),
        cuda_stack.why_torch_too_old((12, 9), "It", stack),
        cuda_stack.why_cudnn_too_old((9, 10), "It", stack=stack),
        cuda_stack.why_no_jit(stack=stack),
    ):
        assert reason.endswith("."), reason
        assert reason.count(". ") == 0, reason
        assert reason[0].isupper(), reason


def test_pytorch_is_read_and_not_imported(machine):
    stack = machine.torch("2.13.0+cu130", "13.0").stack()
    assert stack.torch == ("2.13.0+cu130", (13, 0))
    assert cuda_stack.torch_cuda(stack) == cuda_stack.cuda_version(stack) == (13, 0)
    assert cuda_stack.why_torch_too_old((13, 0), "It", stack) == ""
    assert cuda_stack.why_torch_too_old((13, 1), "It", stack) == (
        "It needs PyTorch built for CUDA 13.1 or newer, and PyTorch 2.13.0+cu130 is built for CUDA 13.0."
    )
    assert "with no nvcc beside it" in cuda_stack.why_cuda_too_old((13, 1), "It", stack)


def test_a_cpu_build_has_no_cuda(machine):
    stack = machine.torch("2.13.0+cpu", None).stack()
    assert stack.torch == ("2.13.0+cpu", None)
    assert "PyTorch 2.13.0+cpu is built without CUDA." in cuda_stack.why_torch_too_old((12, 8), "It", stack)


def test_the_module_and_its_answers_import_no_heavy_package():
    code = (
        "import sys; from fp4tune.kernels import cuda_stack as c\n"
        "c.why_no_jit(); c.conflicts(); c.cudnn_version(); c.why_torch_too_old((12, 8), 'It')\n"
        "heavy = {'torch', 'numpy', 'triton', 'flashinfer', 'cutlass'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_nvcc_is_looked_for_in_cuda_home_then_on_path_then_in_the_usual_place(machine):
    machine.nvcc("usual", "12.8")
    assert machine.stack().nvcc.version == (12, 8)
    (machine.bin / "nvcc").symlink_to(machine.nvcc("on_path", "12.9"))
    assert machine.stack().nvcc.version == (12, 9)
    machine.nvcc("older", "11.8")
    machine.environ["CUDA_PATH"] = str(machine.root / "older")
    assert machine.stack().nvcc.version == (11, 8)
    machine.nvcc("named", "13.0")
    machine.environ["CUDA_HOME"] = str(machine.root / "named")
    found = machine.stack().nvcc
    assert (found.version, found.path) == ((13, 0), machine.root / "named/bin/nvcc")
    machine.environ["CUDA_HOME"] = str(machine.root / "nothing")
    stack = machine.stack()
    assert stack.nvcc is None, "FlashInfer and PyTorch take no other either"
    assert stack.why_no_nvcc == (
        f"There is no nvcc in {machine.root}/nothing/bin, which CUDA_HOME names: set CUDA_HOME to a CUDA toolkit."
    )


def test_an_nvcc_of_a_wheel_is_pointed_at(machine):
    home = machine.site / "nvidia/cu13"
    machine.script(home / "bin/nvcc", "exit 0")
    assert machine.stack().why_no_nvcc.endswith(f"set CUDA_HOME={home}, where a wheel put one.")


@pytest.mark.parametrize(
    ("body", "words"),
    [("exit 3", "does not run"), ("echo hello", "does not say its version"), ("kill -9 $$", "not run")],
)
def test_an_nvcc_that_does_not_work_is_none(machine, body, words):
    machine.script(machine.bin / "nvcc", body)
    stack = machine.stack()
    assert stack.nvcc is None
    assert words in cuda_stack.why_no_jit(stack=stack)


def test_what_compiling_needs_is_asked_for_one_by_one(machine):
    machine.environ["CUDA_HOME"] = str(machine.root / "cuda")
    nvcc = machine.nvcc("cuda", "12.8", "cuda_runtime.h")
    too_old = cuda_stack.why_no_jit(stack=machine.stack())
    assert too_old == (
        f"Compiling its kernels needs CUDA 12.9 or newer, and {nvcc} is of CUDA 12.8: set CUDA_HOME to a newer toolkit."
    )
    assert "no C++ compiler" in cuda_stack.why_no_jit((12, 8), stack=machine.stack())
    machine.script(machine.bin / "g++", "exit 0")
    assert cuda_stack.why_no_jit((12, 8), stack=machine.stack()) == ""
    headers = ("cuda_runtime.h", "curand_kernel.h")
    missing = cuda_stack.why_no_jit((12, 8), headers, machine.stack())
    assert "does not find the header curand_kernel.h: install nvidia-curand==12.*" in missing
    extra = machine.root / "extra"
    extra.mkdir()
    (extra / "curand_kernel.h").write_text("")
    machine.environ["CPATH"] = f":{extra}"
    assert cuda_stack.why_no_jit((12, 8), headers, machine.stack()) == ""
    assert cuda_stack.header("curand_kernel.h", machine.stack()) == str(extra / "curand_kernel.h")


def test_half_of_a_package_is_none(machine):
    """What an install that was broken off leaves behind; and a cuDNN that is no library."""
    (machine.site / "nvidia_cudnn_cu13-9.15.0.57.dist-info").mkdir()
    machine.cudnn = str(machine.site / "libcudnn.so.9")
    Path(machine.cudnn).write_text("truncated")
    (machine.site / "torch").mkdir()
    (machine.site / "torch/__init__.py").write_text("")
    stack = machine.stack()
    assert stack.package("nvidia-cudnn-cu13") == ""
    assert cuda_stack.cudnn_version(stack) is None
    assert stack.torch is None


def test_cudnn_is_that_of_pytorchs_cuda(machine):
    machine.install("nvidia-cudnn-cu12", "9.10.2.21").install("nvidia-cudnn-cu13", "9.15.0.57")
    machine.torch("2.13.0+cu128", "12.8").install("nvidia-cudnn-frontend", "1.32.0")
    stack = machine.stack()
    assert cuda_stack.cudnn_version(stack) == (9, 10, 2, 21)
    assert cuda_stack.cudnn_frontend_version(stack) == (1, 32, 0)
    assert cuda_stack.why_cudnn_too_old((9, 10, 2), "It", stack=stack) == ""
    assert cuda_stack.why_cudnn_too_old((9, 14), "It", stack=stack) == (
        "It needs cuDNN 9.14 or newer, and 9.10.2.21 is installed: install nvidia-cudnn-cu12>=9.14."
    )
    assert "frontend 1.40 or newer, and 1.32.0 is" in cuda_stack.why_cudnn_too_old(
        (9, 10), "It", frontend=(1, 40), stack=stack
    )


def test_a_cudnn_outside_of_python_is_asked(machine):
    """NVIDIA's containers have it among the system's libraries."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = machine.root / "cudnn.c"
    source.write_text("#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 91002; }\n")
    machine.cudnn = str(machine.root / "libcudnn.so.9")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", machine.cudnn, source], check=True, timeout=60)
    assert cuda_stack.cudnn_version(machine.stack()) == (9, 10, 2)
    machine.install("nvidia-cudnn-cu13", "9.15.0.57")
    assert cuda_stack.cudnn_version(machine.stack()) == (9, 15, 0, 57)


def test_two_runtimes_are_named_both(machine):
    machine.install("nvidia-cuda-runtime-cu12", "12.8.90")
    assert cuda_stack.conflicts(machine.stack()) == ()
    machine.install("nvidia-cuda-runtime", "13.5.37").torch("2.9.1+cu128", "12.8")
    assert cuda_stack.conflict(machine.stack()) == (
        "Two CUDA runtimes are installed, nvidia-cuda-runtime-cu12 12.8.90 and nvidia-cuda-runtime 13.5.37: keep that of "
        "CUDA 12, which PyTorch is built for, and uninstall the other."
    )


def test_a_compiler_of_another_major_version_is_a_conflict_and_of_another_minor_is_none(machine):
    machine.torch("2.9.1+cu128", "12.8")
    machine.environ["CUDA_HOME"] = str(machine.root / "cuda")
    nvcc = machine.nvcc("cuda", "13.2")
    assert cuda_stack.conflicts(machine.stack()) == (
        f"PyTorch 2.9.1+cu128 is built for CUDA 12.8, and {nvcc} is of CUDA 13.2: set CUDA_HOME to a toolkit of CUDA 12.",
    )
    machine.nvcc("same", "12.9")
    machine.environ["CUDA_HOME"] = str(machine.root / "same")
    assert cuda_stack.conflicts(machine.stack()) == ()


def test_the_cutlass_dsl_loads_the_newest_libraries_that_the_driver_supports(machine, monkeypatch):
    """nvidia-cutlass-dsl 4.8.1 picks a flavour so, whatever PyTorch is built for."""
    machine.torch("2.9.1+cu128", "12.8").install("nvidia-cutlass-dsl-libs-cu12", "4.8.1")
    assert cuda_stack.conflicts(machine.stack()) == ()
    machine.install("nvidia-cutlass-dsl-libs-cu13", "4.8.1")
    assert cuda_stack.conflict(machine.stack()) == (
        "PyTorch 2.9.1+cu128 is built for CUDA 12.8, and the CUTLASS DSL would load nvidia-cutlass-dsl-libs-cu13 4.8.1: "
        "uninstall nvidia-cutlass-dsl-libs-cu13."
    )
    machine.library = str(fake_driver.build(machine.root))
    monkeypatch.setenv("FAKE_CUDA_VERSION", "12080")
    assert machine.stack().driver_cuda == (12, 8)
    assert cuda_stack.conflicts(machine.stack()) == ()


def test_the_cutlass_dsl_without_libraries_for_pytorchs_cuda(machine):
    machine.torch("2.13.0+cu130", "13.0").install("nvidia-cutlass-dsl-libs-cu12", "4.8.1")
    assert cuda_stack.conflict(machine.stack()).endswith("cu12 4.8.1: install nvidia-cutlass-dsl[cu13].")


@pytest.mark.parametrize(("text", "jobs"), [("4", 4), ("", None), ("0", None), ("many", None), ("-2", None)])
def test_max_jobs_is_a_positive_number_or_unset(machine, text, jobs):
    machine.environ["MAX_JOBS"] = text
    assert cuda_stack.max_jobs(machine.stack()) == jobs


def test_jobs_fit_into_memory(machine):
    (machine.root / "proc").mkdir()
    (machine.root / "proc/meminfo").write_text(f"MemTotal: {1 << 21} kB\n")
    assert cuda_stack.jobs_that_fit(stack=machine.stack()) == 1, "2 GiB hold no job of 8, and one must run"
    assert cuda_stack.jobs_that_fit(1 << 20, machine.stack()) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("output", "code", "who"),
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 1, "cicc"),
        ("nvcc error   : 'cudafe++' died due to signal 9", 1, "cudafe++"),
        ("nvcc error   : 'ptxas' died due to signal 9 (Kill signal)", 255, "ptxas"),
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", 1, "cc1plus"),
        ("g++: internal compiler error: Killed (program cc1plus)", 4, "cc1plus"),
        ("FAILED: gemm.o\nKilled\nninja: build stopped: subcommand failed.", 1, ""),
        ("sh: line 1: 12345 Killed                  nvcc -c gemm.cu", 1, ""),
        ("", 137, ""),
        ("", -9, ""),
        ("virtual memory exhausted: Cannot allocate memory", 1, ""),
        ("LLVM ERROR: out of memory", 1, ""),
        ("ptxas fatal   : Memory allocation failure", 1, ""),
    ],
)
def test_a_compiler_that_died_for_want_of_memory_is_recognised(machine, output, code, who):
    machine.environ["MAX_JOBS"] = "16"
    reason = cuda_stack.why_jit_died(output, code, machine.stack())
    assert f"({who})" in reason or not who
    assert "MAX_JOBS is 16" in reason
    assert "set MAX_JOBS to " in reason
    assert reason.endswith(".")


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ('gemm.cu(12): error: identifier "Killed" is undefined', 2),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", 1),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1),
        ("fatal error: curand_kernel.h: No such file or directory", 1),
        ("warning: Killed", 0),
        ("ptxas error   : Entry function uses too much shared data", 255),
        ("", 1),
    ],
)
def test_a_compiler_that_failed_for_another_reason_is_not(machine, output, code):
    assert cuda_stack.why_jit_died(output, code, machine.stack()) == ""


def test_with_one_job_the_advice_is_another(machine):
    machine.environ["MAX_JOBS"] = "1"
    reason = cuda_stack.why_jit_died("Killed", 137, machine.stack())
    assert "MAX_JOBS is already 1" in reason
    assert "set MAX_JOBS" not in reason


@pytest.mark.parametrize("limit_kib", [80_000, 120_000])
def test_a_real_compiler_without_memory_says_what_is_recognised(tmp_path, limit_kib):
    if not (shutil.which("g++") and shutil.which("bash")):
        pytest.skip("no g++")
    source = tmp_path / "big.cpp"
    source.write_text("#include <map>\n#include <regex>\nint main() { return std::map<int, std::regex>().size(); }\n")
    command = f"ulimit -v {limit_kib}; g++ -O2 -c {source} -o {tmp_path}/big.o"
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert "ran out of memory" in cuda_stack.why_jit_died(done.stderr, done.returncode), done.stderr


def test_a_real_compiler_that_is_killed(tmp_path):
    """As the kernel's out-of-memory killer does it: SIGKILL to cc1plus, and g++ reports it."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    killer = tmp_path / "cc1plus"
    killer.write_text("#!/bin/sh\nkill -9 $$\n")
    killer.chmod(0o755)
    (tmp_path / "small.cpp").write_text("int main() { return 0; }\n")
    done = subprocess.run(
        ["g++", f"-B{tmp_path}", "-c", str(tmp_path / "small.cpp"), "-o", str(tmp_path / "small.o")],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "(cc1plus) was killed" in cuda_stack.why_jit_died(done.stderr, done.returncode), done.stderr


def test_the_compiler_of_this_machine():
    stack = CudaStack()
    if stack.nvcc is None:
        assert stack.why_no_nvcc.endswith(".")
        pytest.skip(stack.why_no_nvcc)
    said = subprocess.run([stack.nvcc.path, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert f"release {cuda_stack.dotted(stack.nvcc.version)}," in said
    assert cuda_stack.header("cuda_runtime.h").endswith("cuda_runtime.h")
    assert cuda_stack.why_no_jit(stack.nvcc.version) == ""
    future = (stack.nvcc.version[0] + 1, 0)
    assert f"is of CUDA {cuda_stack.dotted(stack.nvcc.version)}" in cuda_stack.why_no_jit(future)


def test_this_process_is_looked_at_once():
    assert cuda_stack.here() is cuda_stack.here()
    assert cuda_stack.nvcc() is cuda_stack.nvcc()
    import torch

    version, cuda = cuda_stack.here().torch
    assert version == torch.__version__
    assert (cuda_stack.dotted(cuda) if cuda else None) == torch.version.cuda


@pytest.mark.parametrize(
    ("text", "version"),
    [("9.10.2.21", (9, 10, 2, 21)), ("2.10.0a0+git1", (2, 10, 0)), ("13", (13,)), ("", ()), ("unknown", ())],
)
def test_numbers_of_a_version(text, version):
    assert cuda_stack.numbers(text) == version
