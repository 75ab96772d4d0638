"""The end of a run: its winners, beside the defaults and BF16, and how to go on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from .output import Cell, config_text, print_json, print_line, print_table

if TYPE_CHECKING:
    from ...db.store import Store
    from ...tuner.job import JobResult
    from ..results import ProblemResult


def print_result(store: Store, result: JobResult, *, as_json: bool, database: str) -> None:
    """Print what a run found.

    Args:
        store: where it is.
        result: how it ended.
        as_json: one JSON document instead of a table.
        database: as the user named it, for the command that goes on.
    """
    from ...kernels.backend import load_backends
    from ..results import gather

    found = gather(store, result.run_id, load_backends())
    served = [one for one in found.problems if one.winner is not None]
    if as_json:
        print_json(
            {
                "run": found.run,
                "problems": store.run_problems(result.run_id),
                "winners": [one.winner for one in served],
                "baselines": [{"problem": one.problem, **_plain(one)} for one in found.problems if one.baseline],
            }
        )
        return
    if served:
        _print_winners(served, f"Winners of run {result.run_id} ({result.status.value})")
    for one in found.problems:
        if one.done and one.winner is None:
            print_line(f"no winner for {one.problem.shape}: {one.outcome}")
    if result.status.value != "finished":
        go_on = shlex.join(["fp4tune", "tune", "--resume", result.run_id, "--db", database])
        print_line(f"The run was interrupted. Go on with: {go_on}")


def print_nothing_missed(*, as_json: bool) -> None:
    """Print that servers miss no shape, in the form of a run that found nothing to do."""
    if as_json:
        print_json({"run": None, "problems": [], "winners": [], "baselines": []})
    else:
        print_line("No server has asked for a shape that is missing for this device: there is nothing to tune.")


def _print_winners(served: list[ProblemResult], title: str) -> None:
    with_bf16 = any(one.baseline for one in served)
    with_role = any(one.item.role for one in served)
    with_roof = any(one.roof_share is not None for one in served)
    print_table(
        title,
        (
            *(["role"] if with_role else []), "shape", "backend", "config", "time µs", "default µs", "speed-up",
            *(["bf16 µs", "x bf16"] if with_bf16 else []), *(["roof"] if with_roof else []), "tied", "trials",
        ),
        [_row(one, with_role=with_role, with_bf16=with_bf16, with_roof=with_roof) for one in served],
        caption="; ".join(
            [
                "speed-up is over the fastest default of any backend, re-measured in the same interleaved rounds",
                *(["bf16 is the fastest unquantised kernel in those rounds"] if with_bf16 else []),
                *(["roof is the least time that the card's measured roofs allow, over the time"] if with_roof else []),
            ]
        ),
        tall=True,
    )  # fmt: skip


def _plain(one: ProblemResult) -> dict[str, object]:
    """The baseline of a problem."""
    base = one.baseline
    assert base is not None  # noqa: S101 - callers look
    figures = {"time_us": base.time_us, "time_us_low": base.time_us_low, "time_us_high": base.time_us_high}
    return {"backend": base.backend, "config": base.config, **figures}


def _row(one: ProblemResult, *, with_role: bool, with_bf16: bool, with_roof: bool) -> list[Cell]:
    winner = one.winner
    assert winner is not None  # noqa: S101 - callers look
    base_us = one.baseline.time_us if one.baseline else None
    return [
        *([one.item.role or "-"] if with_role else []),
        winner.problem.shape,
        winner.choice.backend,
        config_text(winner.choice.config),
        winner.choice.time_us,
        winner.default.time_us,
        f"{winner.speedup:.2f}x",
        *([base_us, f"{base_us / winner.choice.time_us:.2f}x" if base_us else "-"] if with_bf16 else []),
        *([f"{one.roof_share:.0%}" if one.roof_share is not None else "-"] if with_roof else []),
        len(winner.tie_set),
        winner.n_trials,
    ]
