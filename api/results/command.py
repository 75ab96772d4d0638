"""The command that a run was started with, put together again from what the run remembers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...db.records import Run, RunProblem
from ...kernels.problem import Problem


def command_of(run: Run, items: list[RunProblem]) -> str:
    """`fp4tune tune qwen3.5-397b-a17b-nvfp4 --tp 8 ...`. Of a path only the last part: the rest is somebody's machine.

    Args:
        run: the run.
        items: its problems, which stand for themselves if there is no checkpoint.
    """
    words = ["fp4tune", "tune"]
    if run.checkpoint:
        words.append(Path(run.checkpoint).name)
    else:
        words += [word for item in items for word in ("--shape", item.problem.shape)]
        words += field_options([item.problem for item in items])
    words += _settings(run)
    return shlex.join(words)


def field_options(problems: Sequence[Problem]) -> Iterator[str]:
    """The options of bare shapes for each field that is not at its default in one of them: `--out-dtype`, `fp16`."""
    defaults = {"format": "nvfp4", "out_dtype": "bf16", "routing": "uniform"}
    for name, default in defaults.items():
        for value in sorted({getattr(problem, name).value for problem in problems} - {default}):
            yield from (f"--{name.replace('_', '-')}", value)


def _settings(run: Run) -> Iterator[str]:
    """Options by what the run remembers; those that stand at their default are left out."""
    settings = run.settings
    defaults = {"tp": 1, "ep": 1, "budget_s": 30.0, "trials": 64}
    for name, default in defaults.items():
        value = settings.get(name)
        if isinstance(value, int | float) and math.isfinite(value) and value != default:
            yield from (f"--{name.replace('_', '-')}", f"{value:g}")
    if settings.get("tokens"):
        yield from ("--tokens", ",".join(map(str, settings["tokens"])))
    for name in ("phases", "roles"):
        for value in settings.get(name) or []:
            yield from (f"--{name[:-1]}", str(value))
    if settings.get("bf16"):
        yield "--bf16"
    if run.seed:
        yield from ("--seed", str(run.seed))
    if settings.get("policy") == "cuda.eager":
        yield from ("--policy", "eager")
