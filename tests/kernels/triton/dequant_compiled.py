"""Compiles configs of `triton.dequant` with whatever Triton is on the path: `python dequant_compiled.py < jobs.json`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from fp4tune.kernels.cards import card_for
from fp4tune.kernels.problem import parse_key
from fp4tune.kernels.triton_gemm import dequant
from fp4tune.kernels.triton_gemm.compiler import triton_version
from fp4tune.kernels.triton_gemm.dequant_plan import plan_of


def run(job: dict) -> dict:
    """Facts and PTX of one job, or why there are none."""
    problem, card = parse_key(job["key"]), card_for(job["arch"])
    found = {"error": "", "triton": triton_version()}
    try:
        facts = dequant.TritonDequant().compile(problem, card, job["config"])
    except Exception as error:
        return {**found, "error": f"{type(error).__name__}: {error}"[-2000:]}
    capability = card.capability
    kernel = dequant._compiled(problem, capability, plan_of(job["config"]))  # out of the cache
    return {**found, "facts": asdict(facts), "ptx": kernel.asm["ptx"]}


if __name__ == "__main__":
    json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout)
