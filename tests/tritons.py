"""The Tritons that our kernels are compiled with, and how a program is run with one of them, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OTHER_TRITON = os.environ.get("FP4TUNE_TRITON36", "")
"""Folder of a second Triton, as `make test-old-triton` sets it up."""

TRITONS = [
    "installed",
    pytest.param(
        OTHER_TRITON, id="other", marks=pytest.mark.skipif(not OTHER_TRITON, reason="FP4TUNE_TRITON36 is not set")
    ),
]
"""Parameters of a fixture that compiles with each."""


def compile_with(triton: str, program: Path, jobs: list[dict[str, Any]], cache: Path) -> list[dict[str, Any]]:
    """What `program` prints about `jobs`, in their order, from a process of the Triton that is asked for."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    if triton != "installed":
        environment["PYTHONPATH"] = triton
    done = subprocess.run(
        [sys.executable, program], input=json.dumps(jobs), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
