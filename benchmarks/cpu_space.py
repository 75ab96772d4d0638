"""Which parameter of `cpu.dequant` decides what: writes docs/cpu-space.md.

    python benchmarks/cpu_space.py

For each problem every config of the space is timed once, in random order. What goes to the final: the default, the
fastest few, and for each parameter the fastest few of those that keep it at its default. The finalists are raced, in
random order in every round, and the table is made of that race alone: how much faster the best is than the default,
and how much is lost when one parameter stays at its default while all others are free. The default enters the race
twice; how far its two times are apart is the noise.

A round during which other processes took more than a tenth of the cores is dropped: threads that wait for each other
are slowed down by a neighbour out of all proportion. If a race sees too few quiet rounds in its time, the quietest
are taken, and the table says how busy they were.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from fp4tune.kernels.backend import Config, config_key
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import Device, detect
from fp4tune.kernels.operands import Operands, make_operands
from fp4tune.kernels.oracle import compare, poison, reference
from fp4tune.kernels.problem import Format, OutDtype, Problem, parse_shape

BACKEND = CpuDequant()

PROBLEMS: tuple[tuple[str, Problem], ...] = (
    ("Qwen3.5-397B TP8, attention qkv, decode", parse_shape("1x2560x4096")),
    ("the same, verify", parse_shape("16x2560x4096")),
    ("the same, FP32 result", parse_shape("4x2560x4096", out_dtype=OutDtype.FP32)),
    ("the same, prefill", parse_shape("256x2560x4096")),
    ("attention o, verify", parse_shape("16x4096x1024")),
    ("GDN in_proj_ba in BF16, decode", parse_shape("1x16x4096", format=Format.BF16)),
    ("MoE w13, decode", parse_shape("e512k10:4x256x4096")),
    ("MoE w2, decode", parse_shape("e512k10:4x4096x128")),
    ("Qwen3-30B-A3B TP8, MoE w2, verify", parse_shape("e128k8:16x2048x96")),
    ("a small MoE, verify", parse_shape("e64k4:16x128x256")),
    ("attention o in BF16, decode", parse_shape("4x4096x1024", format=Format.BF16)),
)
FINALISTS = 3
ROUNDS = 15
QUIET = 0.1
"""Share of the cores that others may take in a round that counts."""

DECIDES = 0.03
"""Loss from which a parameter is said to decide a problem."""


@dataclass(frozen=True)
class Result:
    """What the race of one problem showed.

    Attributes:
        label: what the problem is. problem: the problem. configs: how many were timed.
        default_us, best_us: microseconds. best: the fastest config.
        noise: relative difference of the default's two times.
        busy: share of the cores that other processes took meanwhile.
        losses: parameter -> relative loss with it at its default.
    """

    label: str
    problem: Problem
    configs: int
    default_us: float
    best_us: float
    best: Config
    noise: float
    busy: float
    losses: dict[str, float]


def screen(problem: Problem, operands: Operands, configs: Sequence[Config]) -> dict[str, float]:
    """Fastest of a few calls of each config, in seconds, by config key; every config is checked first."""
    expected = reference(operands)
    times = {}
    for config in configs:
        run = BACKEND.prepare(problem, operands, config)
        poison(operands.out)
        run()
        verdict = compare(operands.out, operands, expected)
        if not verdict.ok:
            raise SystemExit(f"{problem.key} {config_key(config)}: {verdict.sentence}")
        samples: list[float] = []
        while len(samples) < 3 or (sum(samples) < 0.01 and len(samples) < 50):
            samples.append(seconds(run))
        times[config_key(config)] = min(samples)
    return times


def cores_used_by_others() -> tuple[float, float]:
    """(seconds of CPU that other processes have used, seconds of CPU that there were), since some fixed time."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    hz = os.sysconf("SC_CLK_TCK")
    idle, total = fields[3] + fields[4], sum(fields)
    own = os.times()
    return (total - idle) / hz - (own.user + own.system), total / hz


def seconds(run: Callable[[], None]) -> float:
    """One call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def finalists(configs: Sequence[Config], times: dict[str, float], default: Config) -> list[Config]:
    """The default, the fastest, and the fastest with each parameter at its default; each once."""
    ranked = sorted(configs, key=lambda c: times[config_key(c)])
    chosen = [default, *ranked[:FINALISTS]]
    for name, value in default.items():
        chosen += [c for c in ranked if c[name] == value][:FINALISTS]
    return list({config_key(c): c for c in chosen}.values())


def race(
    problem: Problem, operands: Operands, entrants: Sequence[Config], budget_s: float, rng: random.Random
) -> tuple[list[float], float]:
    """Median time of each entrant over the quiet rounds in seconds, and how busy others kept the cores in these."""
    runs = [BACKEND.prepare(problem, operands, config) for config in entrants]
    order = list(range(len(runs)))
    rounds: list[tuple[float, list[float]]] = []
    quiet, start = 0, time.perf_counter()
    while len(rounds) < ROUNDS or (quiet < ROUNDS and time.perf_counter() - start < budget_s):
        others, total = cores_used_by_others()
        rng.shuffle(order)
        times: list[list[float]] = [[] for _ in runs]
        # A round is at least 0.3 s, because the operating system counts CPU time in ticks of 10 ms.
        began = time.perf_counter()
        while not times[0] or time.perf_counter() - began < 0.3:
            for i in order:
                runs[i]()  # brings back into the caches what the one before has evicted
                times[i].append(seconds(runs[i]))
        others_after, total_after = cores_used_by_others()
        busy = (others_after - others) / (total_after - total)
        rounds.append((busy, [statistics.median(t) for t in times]))
        quiet += busy <= QUIET
    rounds.sort(key=lambda r: r[0])
    kept = rounds[:ROUNDS]
    medians = [statistics.median(times[i] for _, times in kept) for i in range(len(runs))]
    return medians, max(0.0, statistics.mean(busy for busy, _ in kept))


def examine(label: str, problem: Problem, device: Device, budget_s: float, rng: random.Random) -> Result:
    """Screen, then race."""
    operands = make_operands(problem, device, 0)
    default = BACKEND.default(problem, device)
    configs = list(BACKEND.space(problem, device))
    rng.shuffle(configs)
    chosen = finalists(configs, screen(problem, operands, configs), default)
    (*times, default_again), busy = race(problem, operands, [*chosen, default], budget_s, rng)
    best = min(range(len(chosen)), key=lambda i: times[i])
    losses = {
        name: min(t for t, c in zip(times, chosen, strict=True) if c[name] == value) / times[best] - 1
        for name, value in default.items()
    }
    default_us = 1e6 * min(times[0], default_again)
    noise = abs(times[0] - default_again) / min(times[0], default_again)
    return Result(label, problem, len(configs), default_us, 1e6 * times[best], chosen[best], noise, busy, losses)


def document(results: Sequence[Result], device: Device, command: str) -> str:
    """The page."""
    names = list(dict.fromkeys(name for r in results for name in r.losses))
    made = (
        f"Made by `{command}` on {device.name}, {device.sms} cores, {device.memory_bytes / 2**30:.0f} GiB, "
        f"torch {torch.__version__}. Times are microseconds, measured there and nowhere else."
    )
    lines = [
        "# What the parameters of cpu.dequant decide",
        "",
        made,
        "",
        "What each parameter means: [kernels.md](kernels.md). How this is measured: the head of the script.",
        "",
        "| problem | what it is | configs | default | best | times as fast | noise | others' CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{_name(r.problem)}` | {r.label} | {r.configs} | {r.default_us:.0f} | {r.best_us:.0f} "
        f"| {r.default_us / r.best_us:.2f} | {r.noise:.1%} | {r.busy:.0%} |"
        for r in results
    ]
    lines += [
        "",
        "Loss with one parameter at its default and all others free, in percent of the best time:",
        "",
        "| problem | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for r in results:
        cells = [f"{100 * r.losses[name]:.0f}" if name in r.losses else "" for name in names]
        lines.append(f"| `{_name(r.problem)}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"| parameter | problems it decides (loss ≥ {DECIDES:.0%} and the noise) | largest loss, where |",
        "|---|---|---|",
    ]
    for name in names:
        of = [r for r in results if name in r.losses]
        worst = max(of, key=lambda r: r.losses[name])
        decided = sum(r.losses[name] >= max(DECIDES, r.noise) for r in of)
        lines.append(f"| `{name}` | {decided} of {len(of)} | {worst.losses[name]:.0%}, `{_name(worst.problem)}` |")
    lines += ["", "The best configs:", ""]
    lines += [f"- `{_name(r.problem)}`: `{config_key(r.best)}`" for r in results]
    return "\n".join([*lines, ""])


def _name(problem: Problem) -> str:
    """The shape, with format and output dtype where they are not the usual ones."""
    format_ = [] if problem.format is Format.NVFP4 else [f"in {problem.format.value}"]
    out_dtype = [] if problem.out_dtype is OutDtype.BF16 else [f"to {problem.out_dtype.value}"]
    return " ".join([problem.shape, *format_, *out_dtype])


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Which parameter of cpu.dequant decides what.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs/cpu-space.md")
    parser.add_argument(
        "--budget-s", type=float, default=60.0, help="seconds that the race of one problem takes at most"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only problems whose shape contains this; prints, writes nothing")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    device, rng = detect("cpu"), random.Random(options.seed)
    results = []
    for label, problem in PROBLEMS:
        if options.only in problem.shape:
            results.append(examine(label, problem, device, options.budget_s, rng))
            r = results[-1]
            losses = ", ".join(f"{name} {loss:.0%}" for name, loss in r.losses.items())
            print(f"{r.problem.key}: {r.default_us / r.best_us:.2f} times as fast ({losses}),", end=" ")
            print(f"noise {r.noise:.1%}, others {r.busy:.0%}", flush=True)
    page = document(results, device, shlex.join(["python", "benchmarks/cpu_space.py", *given]))
    if options.only:
        print(page)
    else:
        options.out.write_text(page, encoding="utf-8")
        print(f"wrote {options.out.name}")


if __name__ == "__main__":
    main()
