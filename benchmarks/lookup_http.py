"""Lookups per second and latency of GET /best-config, beside a bare Starlette route that returns the same bytes.

    python benchmarks/lookup_http.py [--winners 100000] [--seconds 3] [--rounds 3]

Both servers are uvicorn with the same settings, each alone on one core; the client is alone on another. Rounds
alternate between them, because a shared machine drifts. Three loads: the bare route; fp4tune asked for shapes all of
which are new to it (nothing kept, every answer made); fp4tune asked again for shapes it has answered before, as when
the ranks of a server start one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path

from http_load import Server, Timings, fill, get, load, pin, serving, stamp

BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from fp4tune.api.http.server import bind
body = open(sys.argv[1], "rb").read()
headers = {"content-type": "application/json", "cache-control": "no-cache", "etag": '"%s"' % ("0" * 32)}
async def best_config(request):
    return Response(body, headers=headers)
sock = bind("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
config = uvicorn.Config(Starlette(routes=[Route("/best-config", best_config)]), log_config=None, access_log=False,
                        server_header=False)
uvicorn.Server(config).run(sockets=[sock])
"""

OURS = """
import sys
from fp4tune.api.http.server import run_server
from fp4tune.api.settings import Settings
settings = Settings(db=sys.argv[1], port=0, log_level="warning")
run_server(settings, on_ready=lambda url: print(url.rpartition(":")[2], flush=True))
"""

BARE_NAME = "bare Starlette"

GOAL_RATE = 0.6
GOAL_P50 = 1.7


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--winners", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="per load and round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pin()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        tuned = fill(path, options.winners)
        requests = [get(f"/best-config?shape={problem.shape}") for problem in tuned]
        step = 7919  # a prime: neighbours in time are no neighbours in the index
        spread = [requests[i * step % len(requests)] for i in range(len(requests))]
        with serving(OURS, str(path)) as ours:
            answer = urllib.request.urlopen(f"http://127.0.0.1:{ours.port}/best-config?shape={tuned[0].shape}").read()
            body = Path(folder) / "body.json"
            body.write_bytes(answer)
            with serving(BARE, str(body)) as bare:
                results = measure(bare, ours, spread, options.rounds, options.seconds)
    report(results, options.winners, len(answer))


def measure(
    bare: Server, ours: Server, spread: list[bytes], rounds: int, seconds: float
) -> dict[tuple[str, int], list[Timings]]:
    """Timings by (load, connections), one a round."""
    results: dict[tuple[str, int], list[Timings]] = {}
    fresh = iter(spread * 100)
    for _ in range(rounds):
        for connections in (1, 16):
            new = [next(fresh) for _ in range(len(spread) // 2)]
            for name, server, requests in (
                (BARE_NAME, bare, spread),
                ("fp4tune, new shapes", ours, new),
                ("fp4tune, asked before", ours, spread[:1000]),
            ):
                if name == "fp4tune, asked before":
                    load(ours, spread[:1000], connections=4, seconds=1.5)
                timings = load(server, requests, connections=connections, seconds=seconds)
                results.setdefault((name, connections), []).append(timings)
    return results


def report(results: dict[tuple[str, int], list[Timings]], winners: int, size: int) -> None:
    """Print the medians over the rounds, their ratios to the bare route, and whether the goals are met."""

    def middle(name: str, connections: int, field: str) -> float:
        return statistics.median(getattr(timings, field) for timings in results[name, connections])

    print(f"{winners} winners stored, answers of {size} bytes; {stamp()}")
    heads = ("p50, 1 conn", "p99, 1 conn", "p99, 16 conn", "per s, 16 conn", "server CPU", "rate", "p50")
    print(f"{'':22}" + "".join(f"{head:>16}" for head in heads))
    met = True
    for name in dict.fromkeys(name for name, _ in results):
        rate = middle(name, 16, "per_s") / middle(BARE_NAME, 16, "per_s")
        p50 = middle(name, 1, "p50_us") / middle(BARE_NAME, 1, "p50_us")
        met = met and rate >= GOAL_RATE and p50 <= GOAL_P50
        cells = (
            f"{middle(name, 1, 'p50_us'):.0f} us",
            f"{middle(name, 1, 'p99_us'):.0f} us",
            f"{middle(name, 16, 'p99_us'):.0f} us",
            f"{middle(name, 16, 'per_s'):.0f}",
            f"{middle(name, 16, 'cpu_us'):.0f} us",
            f"{rate:.2f}x",
            f"{p50:.2f}x",
        )
        print(f"{name:22}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"goals: rate >= {GOAL_RATE}x, p50 <= {GOAL_P50}x: {'met' if met else 'MISSED'}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
