"""What a latency model says of a problem: an estimate, never a measurement, and never an answer to a server.

`t = max(bytes / bandwidth, flops / rate, serial * K / 1024) + launch`: a roofline (Williams, Waterman and Patterson,
CACM 52(4), 2009) with two terms of practice. `launch` is what a call takes however little it does. `serial` is for few
rows, when a block walks along K with too few blocks beside it to fill the card; published times of an RTX PRO 6000
grow so with K (docs/latency-model.md). How it is fitted is in `latency_fit`, which needs numpy; nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ..db.records import LatencyModel, Winner
from ..kernels.operands import touched_bytes
from ..kernels.problem import Problem
from ..kernels.routing import drawn_load


class Term(StrEnum):
    """What a problem's time may be bound by, beside the launch."""

    BANDWIDTH = "bandwidth"
    RATE = "rate"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Point:
    """One problem and the best time that was measured of it.

    Attributes:
        problem: what was computed. n_bytes, n_flops: what one call reads and writes, and computes, at least.
        time_us: microseconds.
    """

    problem: Problem
    n_bytes: int
    n_flops: int
    time_us: float

    @property
    def layer(self) -> tuple[int, ...]:
        """N, K and experts: what it has in common with the same layer's problems of other M, routing or output."""
        one = self.problem
        return one.n, one.k, one.experts, one.experts_total, one.top_k


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model says of a problem. Source `model`.

    Attributes:
        time_us: microseconds.
        term: the largest of the terms that the model knows.
        outside: M is below or above all that the model was fitted on, where tiles are padded otherwise: worth little.
    """

    time_us: float
    term: Term
    outside: bool


def load_of(problem: Problem, seed: int) -> tuple[int, int]:
    """(bytes, operations) of one call on the operands of (problem, seed), at least; (0, 0) if no expert has rows.

    Of a problem with experts only the weights of those count that the drawn routing really hits.
    """
    rows, _ = drawn_load(problem, seed)
    return touched_bytes(problem, seed), rows * problem.flops_per_row


def estimate(model: LatencyModel, problem: Problem, seed: int) -> Estimate | None:
    """What a model says of a problem; None if it knows no term, or if there is nothing to compute.

    Args:
        model: of the problem's op and format; that is not checked.
        problem: what is computed.
        seed: of its operands: it decides which experts are hit.
    """
    n_bytes, n_flops = load_of(problem, seed)
    times = list(_terms_us(model, n_bytes, n_flops, problem.k))
    if not times or not n_bytes:
        return None
    longest, term = max(times, key=lambda one: one[0])
    return Estimate(model.launch_us + longest, term, not model.m_low <= problem.m <= model.m_high)


def _terms_us(model: LatencyModel, n_bytes: int, n_flops: int, k: int) -> Iterator[tuple[float, Term]]:
    if model.bandwidth_bytes_per_s is not None:
        yield n_bytes / model.bandwidth_bytes_per_s * 1e6, Term.BANDWIDTH
    if model.rate_flops_per_s is not None:
        yield n_flops / model.rate_flops_per_s * 1e6, Term.RATE
    if model.serial_us_per_1024_k is not None:
        yield model.serial_us_per_1024_k * k / 1024, Term.SERIAL


def undecided(model: LatencyModel) -> tuple[str, ...]:
    """One sentence for each constant that the measurements do not decide."""
    found = []
    if model.bandwidth_bytes_per_s is None:
        found.append("bandwidth_bytes_per_s is unknown: too few problems are bound by bytes, or all of about one size")
    if model.rate_flops_per_s is None:
        found.append("rate_flops_per_s is unknown: too few problems are bound by operations, or all of about one size")
    if model.serial_us_per_1024_k is None:
        found.append("serial_us_per_1024_k is unknown: too few problems are bound by K, or all of about one K")
    if not model.launch_us:
        found.append("launch_us is at its bound of 0: the problems are too long for it to show")
    return tuple(found)


def nearness(model: LatencyModel | None, problem: Problem, seed: int) -> Callable[[int], tuple[bool, float]]:
    """A key that sorts the M of problems that differ from `problem` in M alone, nearest first.

    Nearest is the M of the least ratio to the problem's, either way. With a model those come first that it says are
    bound by the same term: across such a border kernels want other tiles, however near M is.

    Args:
        model: of the problem's op and format, or None.
        problem: what seeds are for.
        seed: of the operands.
    """
    here = estimate(model, problem, seed) if model else None

    def key(m: int) -> tuple[bool, float]:
        there = estimate(model, replace(problem, m=m), seed) if model and here else None
        differs = here is not None and there is not None and here.term is not there.term
        return differs, max(m, problem.m) / min(m, problem.m)

    return key


def best_points(winners: Iterable[Winner], seed_of: Callable[[str], int]) -> list[Point]:
    """The best measured time of every problem among winners, by the problem's key.

    A winner carries what was re-measured beside it: the fastest of its tie set, of its default and of itself counts,
    and of several environments the fastest.

    Args:
        winners: of one device and one policy.
        seed_of: a run's seed, by its id: it decides which experts were hit.
    """
    best: dict[str, Point] = {}
    for winner in winners:
        time_us = min(choice.time_us for choice in (winner.choice, winner.default, *winner.tie_set))
        known = best.get(winner.problem.key)
        if known is not None and known.time_us <= time_us:
            continue
        n_bytes, n_flops = load_of(winner.problem, seed_of(winner.run_id))
        if n_bytes:
            best[winner.problem.key] = Point(winner.problem, n_bytes, n_flops, time_us)
    return [point for _, point in sorted(best.items())]
