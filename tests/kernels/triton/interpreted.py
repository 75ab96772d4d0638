"""Runs cases of `triton.native` in Triton's CPU interpreter: `TRITON_INTERPRET=1 python interpreted.py < cases.json`.

A process of its own, because Triton decides at import whether its functions are interpreted. For every case the very
body that is compiled for a GPU runs, with `dot_scaled` replaced by an explicit decode: once in the order of program
ids and once in a random one, on the same scratch and counters, into poisoned output.
"""

from __future__ import annotations

import json
import random
import sys

import torch
from fp4tune.kernels import oracle
from fp4tune.kernels.device import detect
from fp4tune.kernels.operands import make_operands
from fp4tune.kernels.problem import parse_key
from fp4tune.kernels.triton_gemm.native_kernels import nvfp4_gemm
from fp4tune.kernels.triton_gemm.native_plan import NativeConfig, build_of, call_of
from triton.runtime import interpreter

SMS = 3
SEED = 5


def run(key: str, config: dict[str, object], sms: int) -> str:
    """Empty if the config is right on the problem, else what was wrong."""
    problem, typed = parse_key(key), NativeConfig(**config)
    operands = make_operands(problem, detect("cpu"), SEED)
    expected = oracle.reference(operands)
    call, build = call_of(operands, typed, sms=sms), build_of(problem, typed, emulate=True)
    if call is None:
        return "" if operands.out.shape[0] == 0 else "nothing was launched"
    set_grid_idx = interpreter.interpreter_builder.set_grid_idx
    outputs = []
    for order in (None, SEED):
        ids = list(range(call.grid[0]))
        if order is not None:
            random.Random(order).shuffle(ids)
        interpreter.interpreter_builder.set_grid_idx = lambda x, y, z, ids=ids: set_grid_idx(ids[x], y, z)
        oracle.poison(operands.out)
        nvfp4_gemm[call.grid](**call.arguments, **build.constexprs)
        interpreter.interpreter_builder.set_grid_idx = set_grid_idx
        verdict = oracle.compare(operands.out, operands, expected)
        if not verdict.ok:
            return verdict.sentence
        outputs.append(operands.out.clone())
    if not all(torch.equal(outputs[0], other) for other in outputs):
        return "the result depends on the order of the programs"
    counters = call.arguments.get("counters")
    return "counters are left set" if counters is not None and bool(counters.any()) else ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = json.load(sys.stdin)
    json.dump([run(case["key"], case["config"], case.get("sms", SMS)) for case in cases], sys.stdout)
