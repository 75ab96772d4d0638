"""The body of `triton.native` against the oracle, in Triton's CPU interpreter: few machines have FP4 matrix units.

What is not covered: `dot_scaled` itself, whose place an explicit decode takes, and what only hardware does (TMA's own
bounds, atomics between programs that really run at once: `test_triton_gpu.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.kernels.cards import card_for
from fp4tune.kernels.problem import parse_key
from fp4tune.kernels.triton_gemm.native import TritonNative
from native_cases import CASES, case

pytest.importorskip("triton")

PROGRAM = Path(__file__).with_name("interpreted.py")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was wrong with each case, if anything, from one process for all of them."""
    cases = [dict(zip(("key", "config", "sms"), case(name), strict=True)) for name in CASES]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, PROGRAM], input=json.dumps(cases), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_right_in_any_order_of_programs_and_again(verdicts: dict[str, str], name: str):
    assert verdicts[name] == ""


@pytest.mark.parametrize("name", CASES)
def test_the_cases_are_configs_of_the_space(name: str):
    key, config, _ = case(name)
    space = TritonNative().space(parse_key(key), card_for("sm_120a"))
    allowed = {p.name: p.values for p in space.parameters}
    small = {"block_m", "block_n", "block_k", "group_m", "parts"}  # small problems are offered fewer of these
    assert set(config) == set(allowed)
    assert all(config[name] in allowed[name] for name in set(config) - small)
