"""Lines of `fp4tune tune` and its neighbours, put together from what is missing or asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ...db.records import Policy
from ...kernels.problem import Problem
from ..results.command import field_options
from .workloads import Model, Use

MAX_SHAPES = 24
"""Most shapes that one line names."""

MAX_LINES = 4
"""Most lines for the problems of a model; of more groups, one line tunes all of them."""


def policy_options(policy: str) -> list[str]:
    """The options of `fp4tune tune` that make it measure so."""
    return {Policy.CUDA_EAGER.value: ["--policy", "eager"], Policy.CPU_WARM.value: ["--device", "cpu"]}.get(policy, [])


def tune_model(spelling: str, model: Model, uses: Sequence[Use], policy: str) -> list[str]:
    """Lines that tune some problems of a checkpoint.

    Args:
        spelling: the checkpoint, as it is typed.
        model: its TP and EP.
        uses: what to tune; at least one.
        policy: how it is to be measured.
    """
    tokens: dict[str, set[int]] = {}
    for use in uses:
        tokens.setdefault(use.role.split("+", 1)[0], set()).add(use.problem.m)
    groups: dict[tuple[int, ...], list[str]] = {}
    for role, counts in tokens.items():
        groups.setdefault(tuple(sorted(counts)), []).append(role)
    if len(groups) > MAX_LINES:
        groups = {tuple(sorted(set().union(*groups))): list(tokens)}
    bf16 = ["--bf16"] if any(use.problem.format.value == "bf16" for use in uses) else []
    return [
        shlex.join([
            *tune_checkpoint(spelling, model), "--tokens", ",".join(map(str, counts)),
            *(word for role in roles if role for word in ("--role", role)), *bf16, *policy_options(policy),
        ])
        for counts, roles in groups.items()
    ]  # fmt: skip


def tune_checkpoint(spelling: str, model: Model) -> list[str]:
    """`fp4tune tune CHECKPOINT --tp 8`, as words."""
    sizes = [word for name, size in (("--tp", model.tp), ("--ep", model.ep)) if size != 1 for word in (name, str(size))]
    return ["fp4tune", "tune", spelling, *sizes]


def tune_shapes(problems: Sequence[Problem], policy: str) -> list[str]:
    """Lines that tune bare shapes: those of one routing, format and output dtype in one line."""
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(tuple(field_options([problem])), []).append(problem)
    return [
        shlex.join([*_shapes("tune", some), *options, *policy_options(policy)])
        for options, alike in kinds.items()
        for some in _slices(alike)
    ]


def best(problem: Problem, environment: str, policy: str) -> str:
    """The line that asks for a problem without a service. It takes the problem's own fields, whatever is usual."""
    return shlex.join(
        [*_shapes("best", [problem]), *field_options([problem]), "--environment", environment, "--policy", policy]
    )


def tune_again(
    problem: Problem, policy: str, *, seed: int = 0, trials: int | None = None, budget_s: float | None = None
) -> str:
    """The line that tunes a problem again as a run did.

    Args:
        problem: the problem.
        policy: how it was measured.
        seed: of the run.
        trials: of the run; None for the usual.
        budget_s: of the run; None for the usual.
    """
    words = [*_shapes("tune", [problem]), *field_options([problem])]
    words += ["--seed", str(seed)] if 0 < seed < 2**31 else []
    words += ["--trials", str(trials)] if trials not in (None, 64) else []
    words += ["--budget-s", f"{budget_s:g}"] if budget_s not in (None, 30.0) else []
    return shlex.join([*words, *policy_options(policy)])


def backend_options(backends: Sequence[str]) -> list[str]:
    """The options that name backends."""
    return [word for name in backends for word in ("--backend", name)]


def _shapes(command: str, problems: Sequence[Problem]) -> list[str]:
    return ["fp4tune", command, *(word for one in problems for word in ("--shape", one.shape))]


def _slices(problems: Sequence[Problem]) -> Iterator[Sequence[Problem]]:
    for start in range(0, len(problems), MAX_SHAPES):
        yield problems[start : start + MAX_SHAPES]
