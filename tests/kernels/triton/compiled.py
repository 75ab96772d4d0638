"""Compiles configs of `triton.native` with whatever Triton is on the path: `python compiled.py < jobs.json`."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict

from fp4tune.kernels.cards import card_for
from fp4tune.kernels.problem import parse_shape
from fp4tune.kernels.triton_gemm import native
from fp4tune.kernels.triton_gemm.compiler import triton_version


def run(job: dict) -> dict:
    """Facts and PTX of one job."""
    problem, card = parse_shape(job["shape"]), card_for(job["arch"])
    try:
        facts = native.TritonNative().compile(problem, card, job["config"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[-2000:], "triton": triton_version()}
    kernel = native._compile(problem, job["config"], card.capability)  # out of the cache
    ptx = kernel.asm["ptx"]
    return {
        "error": "",
        "triton": triton_version(),
        "facts": asdict(facts),
        "ptx": ptx,
        "descriptors": descriptors(ptx),
    }


def descriptors(ptx: str) -> list[str]:
    """The instruction descriptors of tcgen05 products, where they are constants."""
    names = set(re.findall(r"tcgen05\.mma\S*kind::mxf4nvf4\S* \[[^]]*\], [^,]+, [^,]+, ([^,]+),", ptx))
    values = []
    for name in names:
        values += [name] if name.isdigit() else re.findall(rf"mov\.b32\s+{re.escape(name)}, (\d+);", ptx)
    return values


if __name__ == "__main__":
    json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout)
