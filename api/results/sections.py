"""The tables of one run: what is served, the backends side by side, what tuning cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...db.records import TrialStatus
from ...kernels.backend import config_key
from ...tuner.plausible import doubt_in
from .figures import geometric_mean, shape_text
from .gather import Measured, ProblemResult, RunResult
from .markdown import Labels, cell, percent, table, time_text, times
from .noise_file import NoiseEntry, noise_of


def in_short(result: RunResult) -> Iterator[str]:
    """What the run found, in two sentences."""
    winners = [one.winner for one in result.problems if one.winner]
    if not winners:
        return
    served = Counter(winner.choice.backend for winner in winners)
    kept = sum(_is_default(one) for one in result.problems)
    yield (
        f"Served: {', '.join(f'`{name}` for {n}' for name, n in served.most_common())} of {len(winners)} problems; for "
        f"{kept} of them it is a backend's default."
    )
    over_bf16 = [factor for one in result.problems if (factor := _over_bf16(one, _served_us(one))) is not None]
    means = [f"{geometric_mean([winner.speedup for winner in winners]):.2f}x as fast as the fastest default"]
    if over_bf16:
        faster = sum(factor > 1 for factor in over_bf16)
        means.append(f"{geometric_mean(over_bf16):.2f}x as fast as bf16 (faster for {faster} of {len(over_bf16)})")
    yield f"In the geometric mean over the problems it is {' and '.join(means)}."
    yield ""


def winners(result: RunResult, labels: Labels, noise: Sequence[NoiseEntry]) -> Iterator[str]:
    """What is served."""
    with_roles = any(one.item.role for one in result.problems)
    figures = ["µs", "default µs", "speed-up", "bf16 µs", "x bf16", "roof", "tied", *(["A/A"] if noise else [])]
    heads = [*(["role", "layers"] if with_roles else []), "shape", "served", "config", *figures]
    rows = []
    for one in result.problems:
        row = [cell(one.item.role) or "-", str(one.item.layers)] if with_roles else []
        row += [shape_text(one.problem), *_served(one, labels)]
        if noise:
            backend = one.winner.choice.backend if one.winner else ""
            found = noise_of(noise, one.problem, backend)
            row.append(percent(found.across_median if found else None, digits=2))
        rows.append(row)
    yield from ("### What is served", "", *table(heads, rows, right=figures), "")
    reasons = [f"- {shape_text(one.problem)}: {_outcome(one)}" for one in result.problems if one.winner is None]
    doubts = [(one, doubt_in(one.outcome)) for one in result.problems if one.winner is not None]
    reasons += [f"- {shape_text(one.problem)}: doubtful: {cell(doubt)}" for one, doubt in doubts if doubt]
    if reasons:
        yield from (*reasons, "")


def side_by_side(result: RunResult) -> Iterator[str]:
    """Every backend's default and best, with bf16."""
    backends = sorted({one.backend for problem in result.problems for one in (*problem.defaults, *problem.bests)})
    figures = ["bf16", *(f"{name} {what}" for name in backends for what in ("default", "best"))]
    rows = []
    for one in result.problems:
        row = [shape_text(one.problem), f"{one.baseline.time_us:.2f}" if one.baseline and one.baseline.time_us else "-"]
        for name in backends:
            row += [_beside(one, _of(one.defaults, name)), _beside(one, _of(one.bests, name))]
        rows.append(row)
    means = [_mean_over_bf16(result, name, best=best) for name in backends for best in (False, True)]
    if len(rows) > 1 and any(means):
        rows.append(["**geometric mean**", "", *(f"({times(mean)})" if mean else "-" for mean in means)])
    yield from ("### Backends side by side", "")
    if not backends:
        yield from ("No backend that can be served has been tried.", "")
        return
    yield from (*table(["shape", *figures], rows, right=figures), "")
    reasons: dict[str, list[str]] = {}
    for one in result.problems:
        for default in one.defaults:
            if default.time_us is None:
                why = cell(default.error.split("\n", 1)[0]) or "no reason was given"
                sentence = f"`{default.backend}` default {default.status.value}: {why}"
                reasons.setdefault(sentence, []).append(shape_text(one.problem))
    if reasons:
        yield from (*(f"- {why} ({_listed(shapes)})" for why, shapes in reasons.items()), "")


def cost(result: RunResult) -> Iterator[str]:
    """What tuning took: trials by how they ended, seconds of compilers and of the clock."""
    seen = [status for status in TrialStatus if any(one.statuses.get(status) for one in result.problems)]
    figures = ["trials", *(status.value for status in seen), "finals", "compile s", "wall s"]
    rows = [
        [
            shape_text(one.problem),
            *map(str, _counts(one, seen)),
            f"{one.compile_s:.1f}",
            f"{one.wall_s:.1f}",
        ]
        for one in result.problems
    ]
    counts = [sum(column) for column in zip(*(_counts(one, seen) for one in result.problems), strict=True)]
    seconds = [sum(one.compile_s for one in result.problems), sum(one.wall_s for one in result.problems)]
    rows.append(["**all**", *map(str, counts), *(f"{total:.1f}" for total in seconds)])
    yield from ("### What tuning took", "", *table(["shape", *figures], rows, right=figures), "")


def _counts(one: ProblemResult, seen: Sequence[TrialStatus]) -> list[int]:
    """Trials, how many of them ended how, and finals."""
    return [sum(one.statuses.values()), *(one.statuses.get(status, 0) for status in seen), one.n_finals]


def _served(one: ProblemResult, labels: Labels) -> list[str]:
    winner, base = one.winner, one.baseline
    base_us = f"{base.time_us:.2f}" if base and base.time_us else "-"
    if winner is None:
        return ["-", "-", "-", "-", "-", base_us, "-", "-", "-"]
    label = labels.of(winner.choice)
    return [
        f"`{winner.choice.backend}`",
        f"{label} (default)" if _is_default(one) else label,
        time_text(winner.choice),
        f"{winner.default.time_us:.2f}",
        times(winner.speedup),
        base_us,
        times(_over_bf16(one, winner.choice.time_us)),
        percent(one.roof_share, digits=0),
        str(len(winner.tie_set)),
    ]


def _is_default(one: ProblemResult) -> bool:
    """Whether what is served is its backend's default."""
    if one.winner is None:
        return False
    default = _of(one.defaults, one.winner.choice.backend)
    return default is not None and config_key(default.config) == config_key(one.winner.choice.config)


def _beside(one: ProblemResult, measured: Measured | None) -> str:
    """`12.20 (1.67x)`, with a star if it was not re-measured in the finals; how it ended if it did not run."""
    if measured is None:
        return "-"
    if measured.time_us is None:
        return measured.status.value
    factor = _over_bf16(one, measured.time_us)
    star = "" if measured.final else "\\*"
    return f"{measured.time_us:.2f}{star}" + (f" ({times(factor)})" if factor is not None else "")


def _mean_over_bf16(result: RunResult, backend: str, *, best: bool) -> float | None:
    """How many times as fast as bf16 a backend is over the problems; None if it has not run one of them."""
    found = [_of(one.bests if best else one.defaults, backend) for one in result.problems]
    factors = [_over_bf16(p, one.time_us if one else None) for p, one in zip(result.problems, found, strict=True)]
    known = [factor for factor in factors if factor]
    return geometric_mean(known) if len(known) == len(factors) else None


def _of(measured: Sequence[Measured], backend: str) -> Measured | None:
    return next((one for one in measured if one.backend == backend), None)


def _served_us(one: ProblemResult) -> float | None:
    return one.winner.choice.time_us if one.winner else None


def _over_bf16(one: ProblemResult, time_us: float | None) -> float | None:
    """How many times as fast as the fastest BF16 kernel."""
    base_us = one.baseline.time_us if one.baseline else None
    return base_us / time_us if base_us and time_us else None


def _outcome(one: ProblemResult) -> str:
    return cell(one.outcome) or "not tuned yet"


def _listed(shapes: Sequence[str], most: int = 3) -> str:
    """The first few, and how many more."""
    more = f" and {len(shapes) - most} more" if len(shapes) > most else ""
    return ", ".join(shapes[:most]) + more
