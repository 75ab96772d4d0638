"""What the HTTP benchmarks share: a database full of winners, a server pinned to a core, and a light client.

The client is one thread with an epoll loop over plain sockets: it must cost less than the server, or it would be
what is measured. Both run on loopback, on one core each.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle, islice, product
from pathlib import Path

from fp4tune.db import Store
from fp4tune.db.records import Choice, NewRun, NewWinner, RunProblem
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.problem import Problem

DEVICE = Device("cuda", "Benchmark Card", "12.0", 188, 96 << 30, 128 << 20, 600.0)
PIN = """
import os
os.sched_setaffinity(0, {int(os.environ["FP4TUNE_BENCH_CORE"])})
"""
"""Code by which a server keeps to its core."""

ENVIRONMENT = Environment(
    DEVICE,
    {"driver": "580.95", "cuda": "13.0", "cublas": "13.1", "torch": "2.13.0", "triton": "3.6.0", "flashinfer": "0.6.3"},
)


@dataclass(frozen=True)
class Timings:
    """What a client saw.

    Attributes:
        per_s: answers per second, all connections together.
        p50_us, p99_us: latency of an answer, microseconds.
        cpu_us: the server's processor time an answer, microseconds: hardly disturbed by what else the machine does.
    """

    per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: on loopback.
        pid: its process.
    """

    port: int
    pid: int

    def cpu_s(self) -> float:
        """Processor seconds used so far, user and system (proc(5), /proc/[pid]/stat, fields 14 and 15)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def problems(count: int) -> list[Problem]:
    """`count` distinct dense problems: 200 sizes of M up to 8192, as many (N, K) as it takes."""
    ms = [*range(1, 129), *range(136, 1025, 16), *range(1536, 8193, 512)][:200]
    pairs = product(range(512, 1 << 20, 512), (1024, 2048, 4096, 8192))
    return list(islice((Problem(m, n, k) for n, k in pairs for m in ms), count))


def fill(path: Path, count: int) -> list[Problem]:
    """Store `count` winners; their problems."""
    tuned = problems(count)
    with Store.open(path) as store:
        run = store.create_run(
            NewRun(ENVIRONMENT, [RunProblem(tuned[0])], "", {"made_by": "benchmark"}, 0, "localhost", os.getpid(), "0")
        )
        for start in range(0, count, 5000):
            store.add_winners([_winner(run, problem) for problem in tuned[start : start + 5000]])
    return tuned


def _winner(run: str, problem: Problem) -> NewWinner:
    time_us = 2.0 + problem.operand_bytes / 1.5e6  # an estimate from 1.5 TB/s; the figure itself does not matter
    config = {"block_m": 64, "block_n": 128, "block_k": 256, "stages": 4, "warps": 8, "split_k": 1}
    choice = Choice("triton.native", config, time_us, time_us * 0.99, time_us * 1.01)
    default = Choice("triton.native", config | {"stages": 3}, time_us * 1.2, time_us * 1.19, time_us * 1.21)
    return NewWinner(
        run, problem, ENVIRONMENT, choice, default, (choice,), ("torch", "triton"), 0, 24, "cuda.graph"
    )  # fmt: skip


@contextlib.contextmanager
def serving(code: str, *arguments: str) -> Iterator[Server]:
    """Start a server on the first core. Its code prints its port on a line of its own when it is ready."""
    process = subprocess.Popen([sys.executable, "-c", PIN + code, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line.strip().isdigit():
            raise SystemExit(f"the server did not start: {code}")
        yield Server(int(line), process.pid)
    finally:
        process.terminate()
        process.wait(30)


def pin() -> None:
    """Stay on the last core that this process may use, and leave the first to the servers."""
    os.environ["FP4TUNE_BENCH_CORE"] = str(min(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def get(path: str) -> bytes:
    """The bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n".encode()


def load(server: Server, requests: Sequence[bytes], *, connections: int, seconds: float) -> Timings:
    """Send `requests` in turn, one at a time on each connection, for some seconds.

    Raises:
        SystemExit: an answer was not 200.
    """
    selector = selectors.EpollSelector()
    source = cycle(requests)
    started: dict[int, float] = {}
    latencies: list[float] = []
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(connections)]
    pending = {sock.fileno(): b"" for sock in sockets}
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ)
        started[sock.fileno()] = time.perf_counter()
        sock.sendall(next(source))
    begin, cpu = time.perf_counter(), server.cpu_s()
    end = begin + seconds
    now = begin
    while now < end:
        for key, _ in selector.select():
            sock, fd = key.fileobj, key.fd
            assert isinstance(sock, socket.socket)
            data = pending[fd] + sock.recv(1 << 18)
            if not _complete(data):
                pending[fd] = data
                continue
            now = time.perf_counter()
            latencies.append(now - started[fd])
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"unexpected answer: {data[:400]!r}")
            pending[fd] = b""
            started[fd] = now
            sock.sendall(next(source))
    cpu_us = (server.cpu_s() - cpu) / len(latencies) * 1e6
    for sock in sockets:
        sock.close()
    latencies.sort()
    quantile = lambda q: latencies[min(len(latencies) - 1, int(q * len(latencies)))] * 1e6  # noqa: E731 - two uses
    return Timings(len(latencies) / (now - begin), quantile(0.5), quantile(0.99), cpu_us)


def _complete(data: bytes) -> bool:
    """True if `data` is a whole response with a Content-Length."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return False
    at = data.lower().find(b"content-length:", 0, head)
    return len(data) >= head + 4 + int(data[at + 15 : data.index(b"\r", at)])


def stamp() -> str:
    """When and on what a benchmark ran."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    cores = f"{os.cpu_count()} cores of {cpu.partition(': ')[2]}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {cores}, Python {sys.version.split()[0]}"
