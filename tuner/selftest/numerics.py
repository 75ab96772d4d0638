"""Numerics: every config that time allows goes through the correctness gate, the defaults first.

On a card the executor is that of the tuning job, so a config that crashes or hangs costs itself and no other, and what
is checked is what would be tuned. Times are not kept: nothing here is measured as a tuning run measures.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...db.records import TrialStatus
from ...kernels.backend import config_key
from ...kernels.errors import Fp4tuneError
from ..measure import Effort
from .plan import MAX_LISTED, Planned, in_order
from .report import Checked, Finding, LeftOut, Outcome

if TYPE_CHECKING:
    from ...kernels.problem import Problem
    from ..executor import Candidate, Executor
    from .report import Report

GRACE_S = 20.0
"""Seconds beyond the deadline in which defaults are still begun: imports from a slow disk must not empty a report."""

QUICK = Effort(warmup_s=0.0, min_samples=1, max_samples=1, target_half_width=1.0, budget_s=0.01)
"""A sample, because an executor times what passed its gate; nobody looks at it."""

SEED = 20_120
"""Of the operands and of samples of spaces: the same everywhere, so that two reports are of the same numbers."""


def check_numerics(
    executor: Executor,
    problem: Problem,
    planned: Sequence[Planned],
    report: Report,
    *,
    deadline: float,
    now: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Run what was planned for one problem until the deadline; what came of it goes into the report.

    Args:
        executor: idle.
        problem: what is computed.
        planned: by backend.
        report: written to.
        deadline: by `now`; after it nothing is begun but defaults, and those only for GRACE_S more. What is on the
            device then ends, what is being compiled is not waited for.
        now: a monotonic clock, seconds.
        tell: hears a line about each problem.
    """
    for one in planned:
        if one.reason:
            report.findings.append(Finding("numerics", _subject(one.backend, problem), one.outcome, one.reason))
    if all(one.reason for one in planned):
        return
    queue = deque(in_order(planned))
    n_backends = sum(not one.reason for one in planned)
    tell(f"{problem.shape}: {len(queue)} configs of {n_backends} backend{'' if n_backends == 1 else 's'}")
    first = len(report.checked)
    why = "time ran out"
    try:
        _run(executor, problem, queue, report, lambda is_default: deadline + is_default * GRACE_S - now())
    except Exception as error:  # noqa: BLE001 - a report with this in it is what a selftest is for
        why = "the device was lost, or the problem cannot be set up on it"
        text = str(error) if isinstance(error, Fp4tuneError) else f"{type(error).__name__}: {error}"
        report.findings.append(Finding("numerics", problem.shape, Outcome.WRONG, text))
    finally:
        executor.close()
    for one in planned:
        if not one.reason:
            _summarise(one, problem, report.checked[first:], report, why)


def _run(
    executor: Executor,
    problem: Problem,
    queue: deque[tuple[Candidate, bool]],
    report: Report,
    left_s: Callable[[bool], float],
) -> None:
    """Submit and collect while there is time, which `left_s` says for a default and for others.

    Raises if the problem cannot be opened, or the device is gone.
    """
    defaults = {candidate.backend: candidate for candidate, is_default in queue if is_default}
    executor.open(problem, SEED)
    in_flight = n_defaults = 0
    while queue or in_flight:
        while queue and in_flight < executor.lookahead and left_s(queue[0][1]) >= 0:
            executor.submit(queue.popleft()[0])
            in_flight += 1
        patience_s = left_s(n_defaults < len(defaults))
        if not in_flight or patience_s < 0 or executor.await_compilers(patience_s):
            return
        candidate, result = executor.collect(QUICK)
        in_flight -= 1
        is_default = defaults.get(candidate.backend) == candidate
        n_defaults += is_default
        report.checked.append(
            Checked(
                problem.key, candidate.backend, candidate.config, is_default, result.status, result.rel_error,
                result.error,
            )
        )  # fmt: skip


def _summarise(one: Planned, problem: Problem, ran: Sequence[Checked], report: Report, why: str) -> None:
    """One finding for a backend and a problem, and what of it was left out."""
    own = [checked for checked in ran if checked.backend == one.backend]
    done = {config_key(checked.config) for checked in own}
    left = [config for config in one.configs if config_key(config) not in done]
    if left:
        listed = left if len(left) <= MAX_LISTED else []
        report.left_out.append(LeftOut(problem.key, one.backend, len(left), why, listed))
    if one.more is None or one.more > 0:
        text = "more than are counted" if one.more is None else one.why_more
        report.left_out.append(LeftOut(problem.key, one.backend, one.more or 0, text))
    outcome, text = _verdict(own, len(left))
    report.findings.append(Finding("numerics", _subject(one.backend, problem), outcome, text))


def _verdict(own: Sequence[Checked], n_left: int) -> tuple[Outcome, str]:
    if not own:
        left = f"{n_left} {'was' if n_left == 1 else 'were'} left out."
        return Outcome.NOT_RUN, f"No config ran: {left if n_left else 'there is none.'}"
    wrong = [one for one in own if one.is_wrong]
    right = [one for one in own if one.status is TrialStatus.OK]
    worst = max((one.rel_error or 0.0 for one in right), default=0.0)
    parts = [f"{len(right)} of {len(own)} configs right, relative error up to {worst:.1e}"]
    if refused := sum(one.status is TrialStatus.UNSUPPORTED and not one.is_wrong for one in own):
        parts.append(f"{refused} refused by the backend")
    if n_left:
        parts.append(f"{n_left} left out")
    if wrong:
        first = wrong[0].error.split("\n", 1)[0]
        parts.append(f"{len(wrong)} not as they should be, the first {wrong[0].status.value}: {first}")
    return (Outcome.WRONG if wrong else Outcome.OK), "; ".join(parts)


def _subject(backend: str, problem: Problem) -> str:
    return f"{backend} {problem.shape}"
