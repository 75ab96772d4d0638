"""Builds a stand-in for the CUDA driver's library, which answers from FAKE_CUDA_* in the environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def build(folder: Path) -> Path:
    """`libcuda.so.1` in `folder`, called through ctypes like the real one. Skips the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    built = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True, timeout=60)
    return built
