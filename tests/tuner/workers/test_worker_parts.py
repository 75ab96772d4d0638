"""The small parts: sticky errors, blame, caches, what the machine has, and that the tuner's own process stays light."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fp4tune.kernels.problem import parse_shape
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.workers import resources
from fp4tune.tuner.workers.blame import Blame
from fp4tune.tuner.workers.caches import unwritable
from fp4tune.tuner.workers.sticky import StickyError, no_device, sticky_name

PROBLEM = parse_shape("3x48x64")


class AcceleratorError(RuntimeError):
    """As torch's: the number of the error is in an attribute."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.error_code = code


class CudaAPIError(Exception):
    """As the classes of bindings that know no RuntimeError."""


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "illegal memory access"),
        (RuntimeError("CUDA error: misaligned address"), "misaligned address"),
        (RuntimeError("CUDA error: an illegal instruction was encountered"), "illegal instruction"),
        (RuntimeError("CUDA error: unspecified launch failure"), "launch failure"),
        (RuntimeError("CUDA error: hardware stack error"), "hardware stack error"),
        (RuntimeError("CUDA error: invalid program counter"), "invalid program counter"),
        (RuntimeError("operation not supported on global/shared address space"), "invalid address space"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device-side assert"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "uncorrectable ECC error"),
        (RuntimeError("CUDA error: the launch timed out and was terminated"), "launch timeout"),
        (RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "illegal memory access"),
        (RuntimeError("cuLaunchKernel: cudaErrorLaunchFailure"), "launch failure"),
        (RuntimeError("GPU is lost"), "lost device"),
        (AcceleratorError("what it says changes", 716), "misaligned address"),
        (CudaAPIError("[719] Call to cuCtxSynchronize results in CUDA_ERROR_LAUNCH_FAILED"), "launch failure"),
        (StickyError("lost context", "anything"), "lost context"),
    ],
)
def test_errors_that_end_a_process(error: Exception, name: str):
    assert sticky_name(error) == name


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: invalid argument"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("Triton Error [CUDA]: out of resources: shared memory"),
        AcceleratorError("CUDA error: invalid configuration argument", 9),
        ValueError("a misaligned address was given"),
        KeyError("illegal memory access"),
        RuntimeError(""),
    ],
)
def test_errors_that_do_not(error: Exception):
    assert sticky_name(error) == ""


def test_what_an_error_was_raised_from_counts():
    def fail() -> None:
        try:
            raise RuntimeError("CUDA error: misaligned address")
        except RuntimeError as error:
            raise ValueError("the launch failed") from error

    with pytest.raises(ValueError, match="launch") as caught:
        fail()
    assert sticky_name(caught.value) == "misaligned address"
    loop = ValueError("it goes round")
    loop.__cause__ = loop
    assert sticky_name(loop) == ""


def test_texts_that_say_that_there_is_no_device():
    assert no_device("No CUDA GPUs are available")
    assert no_device("CUDA error: no CUDA-capable device is detected")
    assert no_device("Found no NVIDIA driver on your system.")
    assert not no_device("CUDA out of memory")
    assert not no_device("CUDA error: an illegal memory access was encountered")


def test_two_deaths_are_one_too_many():
    blame = Blame()
    one, same = Candidate("a.b", {"x": 1, "y": 2}), Candidate("a.b", {"y": 2, "x": 1})
    assert blame.verdict(PROBLEM, one) == ""
    blame.add(PROBLEM, one, "It was killed by SIGSEGV.")
    assert blame.verdict(PROBLEM, same) == ""
    blame.add(PROBLEM, same, "It hung.")
    verdict = blame.verdict(PROBLEM, one)
    assert verdict == ("It ended its worker 2 times and is not run again. It was killed by SIGSEGV. Then: It hung.")
    assert blame.verdict(parse_shape("4x48x64"), one) == ""
    assert blame.verdict(PROBLEM, Candidate("a.c", one.config)) == ""


def test_caches_that_can_be_written_are_not_mentioned(tmp_path: Path):
    assert unwritable(["triton", "humming", "cpu"], {"HOME": str(tmp_path)}) == {}
    assert (tmp_path / ".triton" / "cache").is_dir()
    assert unwritable(["cpu"], {"HOME": "/proc/nowhere"}) == {}


@pytest.mark.parametrize(
    ("family", "variable"),
    [
        ("triton", "TRITON_CACHE_DIR"),
        ("humming", "HUMMING_CACHE_DIR"),
        ("humming", "HUMMING_TMP_DIR"),
        ("cutlass", "FP4TUNE_CUTLASS_CACHE_DIR"),
        ("flashinfer", "FLASHINFER_WORKSPACE_BASE"),
    ],
)
def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_moves_it(
    tmp_path: Path, family: str, variable: str
):
    refused = unwritable([family, "cpu"], {"HOME": str(tmp_path), variable: "/proc/nowhere"})
    assert list(refused) == [family]
    assert re.search(r"\(/proc/nowhere(/\.cache/flashinfer)?: ", refused[family])
    assert refused[family].endswith(f"; set {variable} to a directory that can.")


def test_the_cache_of_cutlass_is_looked_for_where_its_builder_puts_it(tmp_path: Path, monkeypatch):
    from fp4tune.kernels.cutlass_gemm.builder import cache_folder

    monkeypatch.delenv("FP4TUNE_CUTLASS_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert unwritable(["cutlass"]) == {}
    assert cache_folder().is_dir()


def test_memory_goes_to_those_who_came_first_and_to_as_many_as_fit():
    """The second waits for the first; the third would fit beside the first and must not pass the second."""
    budget, order = resources.MemoryBudget(10), []
    release = {name: threading.Event() for name in "abc"}
    inside = {name: threading.Event() for name in "abc"}

    def hold(name: str, n: int) -> None:
        with budget.reserve(n) as held:
            order.append((name, held))
            inside[name].set()
            release[name].wait(10)

    threads = []
    for name, n in (("a", 6), ("b", 99), ("c", 3)):
        threads.append(threading.Thread(target=hold, args=(name, n)))
        threads[-1].start()
        inside[name].wait(0.2)
    assert order == [("a", 6)]
    release["a"].set()
    assert inside["b"].wait(10)
    assert not inside["c"].wait(0.2)
    release["b"].set()
    assert inside["c"].wait(10)
    release["c"].set()
    for thread in threads:
        thread.join(10)
    assert order == [("a", 6), ("b", 10), ("c", 3)], "more than there is means all there is"


def test_memory_is_given_back_when_what_it_was_for_goes_wrong():
    budget = resources.MemoryBudget(10)
    for _ in range(3):
        with pytest.raises(RuntimeError), budget.reserve(10):
            raise RuntimeError("it died")
    with budget.reserve(10) as held:
        assert held == 10


def test_a_closed_budget_lets_everybody_pass():
    budget = resources.MemoryBudget(10)
    passed = threading.Event()

    def second() -> None:
        with budget.reserve(10):
            passed.set()

    with budget.reserve(10):
        thread = threading.Thread(target=second)
        thread.start()
        assert not passed.wait(0.2)
        budget.close()
        assert passed.wait(10)
    thread.join(10)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_free_memory_is_what_the_kernel_calls_available(tmp_path: Path):
    root = machine(tmp_path, {"proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable:    3000000 kB\n"})
    assert resources.free_bytes(root) == 3000000 << 10


def test_free_memory_is_what_a_cgroup_has_left(tmp_path: Path):
    root = machine(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\n",
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": str(4 << 30),
            "sys/fs/cgroup/a/memory.current": str(3 << 30),
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {1 << 30}\n",
        },
    )
    assert resources.free_bytes(root) == 2 << 30


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/x/cpu.max": "150000 100000"}, 1),
        ({"sys/fs/cgroup/x/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/x/cpu.max": "max 100000"}, resources.usable_cores()),
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 1),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            resources.usable_cores(),
        ),
    ],
)
def test_cores_are_bounded_by_the_quota(tmp_path: Path, files: dict[str, str], cores: int):
    version = "4:cpu,cpuacct:/x" if any("cfs" in name for name in files) else "0::/x"
    assert resources.usable_cores(machine(tmp_path, {"proc/self/cgroup": version, **files})) == cores


def test_memory_of_a_process_and_of_what_it_started():
    hog = "hog = bytearray(64 << 20); print('fed', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hog!r}], check=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout.readline() == "fed\n"
        assert 64 << 20 < resources.tree_bytes(one.pid) < 200 << 20
        one.communicate("\n")
    assert resources.tree_bytes(one.pid) == 0


def test_the_tuner_imports_no_torch_for_its_workers():
    code = (
        "import sys, json\n"
        "import fp4tune.tuner.workers.executor, fp4tune.tuner.workers.serve\n"
        "json.dump(sorted({name.split('.')[0] for name in sys.modules}), sys.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert not {"torch", "triton", "optuna", "sqlalchemy", "numpy"} & set(json.loads(done.stdout))
