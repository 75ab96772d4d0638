"""How long POST /v1/best-configs takes for 10,000 shapes, with 100,000 winners stored, over loopback.

    python benchmarks/batch_http.py [--winners 100000] [--calls 5]

Half of the shapes are tuned, a quarter is answered by a bucket or not at all, a quarter is far from anything tuned.
Also shown: how long GET /best-config takes meanwhile, because one thread answers the batch and another everything else.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from fp4tune.kernels.problem import Problem
from http_load import Server, Timings, fill, get, load, pin, serving, stamp
from lookup_http import OURS

SHAPES = 10_000

GOAL_S = 1.0


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--winners", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=5)
    options = parser.parse_args()
    pin()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        tuned = fill(path, options.winners)
        body = json.dumps({"shapes": shapes(tuned)}).encode()
        with serving(OURS, str(path)) as server:
            calls = [call(server, body) for _ in range(options.calls)]
            meanwhile = beside(server, body, get(f"/best-config?shape={tuned[0].shape}"))
    seconds = statistics.median(took for took, _, _ in calls)
    _, size, found = calls[-1]
    print(f"{options.winners} winners stored; {SHAPES} shapes asked, {found} answered, {size / 1e6:.1f} MB; {stamp()}")
    print(f"one call: median {seconds:.3f} s, slowest {max(took for took, _, _ in calls):.3f} s of {options.calls}")
    print(f"GET /best-config meanwhile: p50 {meanwhile.p50_us:.0f} us, p99 {meanwhile.p99_us:.0f} us")
    met = seconds < GOAL_S
    print(f"goal: under {GOAL_S} s: {'met' if met else 'MISSED'}")
    sys.exit(0 if met else 1)


def shapes(tuned: list[Problem]) -> list[str]:
    """SHAPES shape strings: two of four tuned, one between tuned M, one far away."""
    step = 7919  # a prime, so that they come from everywhere
    chosen = [tuned[i * step % len(tuned)] for i in range(SHAPES)]
    far = [replace(p, n=p.n + 8, k=p.k + 16) for p in chosen]
    between = [replace(p, m=p.m + 3) for p in chosen]
    return [(chosen[i], chosen[i], between[i], far[i])[i % 4].shape for i in range(SHAPES)]


def call(server: Server, body: bytes) -> tuple[float, int, int]:
    """One call: seconds, bytes of the answer, shapes that have one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    begin = time.perf_counter()
    connection.request("POST", "/v1/best-configs", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = time.perf_counter() - begin
    connection.close()
    if response.status != 200:
        raise SystemExit(f"unexpected answer: {response.status} {answer[:400]!r}")
    document = json.loads(answer)
    if len(document["answers"]) != SHAPES:
        raise SystemExit(f"{len(document['answers'])} answers to {SHAPES} shapes")
    return took, len(answer), document["found"]


def beside(server: Server, body: bytes, request: bytes) -> Timings:
    """Latency of single lookups while batches are answered one after the other."""
    stop = threading.Event()

    def batches() -> None:
        while not stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("POST", "/v1/best-configs", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
            connection.close()

    thread = threading.Thread(target=batches)
    thread.start()
    try:
        return load(server, [request], connections=1, seconds=3)
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
