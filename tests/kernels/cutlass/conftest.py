from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fp4tune.kernels import cuda_stack
from fp4tune.kernels.cutlass_gemm import builder, toolchain
from fp4tune.kernels.cutlass_gemm.toolchain import Headers, Toolchain

FAKE_NVCC = """#!/bin/sh
# Writes down that it ran, then does what its script says for this run: the first line for the first, the last for all
# that follow. OUT is the file that it was to write.
for word; do [ "$previous" = -o ] && OUT=$word; previous=$word; done
export OUT
echo "$@" >> {log}
line=$(sed -n "$(wc -l < {log})p" {script})
[ -n "$line" ] || line=$(tail -n 1 {script})
eval "$line"
"""


class FakeNvcc:
    """A compiler that does what a test says, and a note of how it was called."""

    def __init__(self, folder: Path) -> None:
        self.path, self._log, self._script = folder / "nvcc", folder / "calls", folder / "script"
        self.path.write_text(FAKE_NVCC.format(log=self._log, script=self._script))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        self._log.touch()
        self.will("echo code > $OUT")

    def will(self, *lines: str) -> None:
        self._script.write_text("".join(f"{line}\n" for line in lines))

    @property
    def calls(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def fake_nvcc(tmp_path) -> FakeNvcc:
    return FakeNvcc(tmp_path)


@pytest.fixture
def fake_tools(fake_nvcc, tmp_path) -> Toolchain:
    return Toolchain(Headers(tmp_path / "include", (4, 5, 0)), fake_nvcc.path, "13.0", "13.0.88")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(builder.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def real_tools() -> dict[str, Toolchain]:
    """CUTLASS release -> toolchain with its headers, from the folders that `make test-cutlass` names."""
    nvcc = cuda_stack.nvcc()
    assert nvcc, cuda_stack.why_no_jit()
    found = {}
    for place in os.environ["FP4TUNE_TEST_CUTLASS"].split(os.pathsep):
        headers = toolchain.find_headers({}, [place])
        assert headers, f"there are no headers in {place}"
        found[headers.release] = Toolchain(
            headers, nvcc.path, ".".join(map(str, nvcc.version)), toolchain.nvcc_build(nvcc.path)
        )
    return found
