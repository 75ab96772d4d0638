"""The progress display of `fp4tune tune`: two live lines on a terminal, one line a problem elsewhere.

A run on a GPU has hundreds of configs that do not compile or are refused; a terminal shows each, a log file counts them
in the problem's line.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from ...db.records import RunProblem, TrialStatus
from ...tuner.events import (
    CompilersAwaited,
    Event,
    FinalsStarted,
    ProblemDone,
    ProblemStarted,
    RunDone,
    RunStarted,
    TrialDone,
)

WITH_BAR = 104
"""Columns of a terminal from which on there is room for a bar beside the text, whose lines take up to 80."""


class TuneDisplay:
    """Shows the events of a job. A context manager.

    Args:
        console: where to; standard error, so that results on standard output stay clean.
        trials: most trials a problem.
        problem_s: seconds a problem may take, finals included, for the time left.
    """

    def __init__(self, console: Console, *, trials: int, problem_s: float) -> None:
        self._console = console
        self._trials = trials
        self._problem_s = problem_s
        self._took_s: list[float] = []
        self._started = time.monotonic()
        self._n_problems = 0
        self._n_done = 0
        self._line = ""
        self._task: TaskID | None = None
        self._lost = False
        self._ended: Counter[TrialStatus] = Counter()
        self._why: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()
        bar = [BarColumn(bar_width=20)] if console.width >= WITH_BAR else []
        self._progress = Progress(
            SpinnerColumn(),
            *bar,
            TextColumn("{task.description}\n{task.fields[state]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> TuneDisplay:  # noqa: PYI034 - not meant to be subclassed
        """Start the live lines."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the live lines."""
        with contextlib.suppress(OSError):  # as in __call__
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show one event. A terminal or a reader that went away ends the display, not the run."""
        if self._lost:
            return
        try:
            self._show(event)
        except OSError:
            self._lost = True

    def _show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._run_started(event)
        elif isinstance(event, ProblemStarted):
            self._problem_started(event)
        elif isinstance(event, TrialDone):
            self._trial_done(event)
        elif isinstance(event, CompilersAwaited):
            self._compilers_awaited(event)
        elif isinstance(event, FinalsStarted):
            self._update(state=f"re-measuring {_counted(event.n_finalists, 'finalist')}, {self._time_left(0.0)}")
        elif isinstance(event, ProblemDone):
            self._problem_done(event)
        elif isinstance(event, RunDone):
            self._print(f"run {event.run_id} {event.status.value}: {_counted(event.n_trials, 'trial')} stored")

    def _run_started(self, event: RunStarted) -> None:
        device = event.environment.device
        self._n_problems, self._n_done = event.n_problems, event.n_done
        done = f", {event.n_done} of them done before" if event.n_done else ""
        self._print(f"run {event.run_id} on {device.name}: {_counted(event.n_problems, 'problem')}{done}")

    def _problem_started(self, event: ProblemStarted) -> None:
        self._started = time.monotonic()
        self._ended.clear()
        self._why.clear()
        for refusal in event.refused.items():
            if self._console.is_terminal or refusal not in self._told:
                self._told.add(refusal)  # in a log the same reason once, not once a problem
                self._print(f"  {refusal[0]}: {refusal[1]}")
        self._line = f"problem {event.position + 1} of {self._n_problems}: {_name(event.item)}"
        if self._task is not None:
            self._progress.remove_task(self._task)
        total = self._trials if event.n_listed is None else min(self._trials, max(1, event.n_listed))
        self._task = self._progress.add_task(
            escape(self._line), total=total, completed=min(total, event.n_trials), state="making operands"
        )

    def _trial_done(self, event: TrialDone) -> None:
        state = "nothing has run yet"
        if event.best_us is not None:
            state = f"best {event.best_us:,.1f} µs"
            if event.default_us is not None:
                state += f", default {event.default_us:,.1f} µs ({event.default_us / event.best_us:.2f}x)"
        self._ended[event.status] += 1
        if event.error:
            why = f"{event.candidate.backend} {event.status.value}: {event.error}"
            self._why[why] += 1
            if self._console.is_terminal:
                self._print(f"  {why}")
        self._update(advance=1, state=f"trial {event.number + 1}, {state}, {self._time_left(event.seconds_left)}")

    def _compilers_awaited(self, event: CompilersAwaited) -> None:
        waiting = f"waiting for the compiler{'s' * (len(event.backends) > 1)} of {' and '.join(event.backends)}"
        self._update(state=f"{waiting}, {self._time_left(event.seconds_left)}")
        why = "beyond the seconds of this problem if need be: what a backend does untuned is always measured"
        if event.beyond_budget and (waiting, why) not in self._told:  # once a run for the same compilers
            self._told.add((waiting, why))
            self._print(f"  {waiting}, {why}")

    def _problem_done(self, event: ProblemDone) -> None:
        self._n_done += 1
        self._took_s.append(time.monotonic() - self._started)
        head = f"[{event.position + 1}/{self._n_problems}] {_name(event.item)}: "
        served = event.selection
        if served is None:
            self._print(f"{head}{event.outcome}{self._failures()}")
            if self._why and not self._console.is_terminal:  # a log must say why, and a terminal has
                self._print(f"  most often: {self._why.most_common(1)[0][0]}")
            return
        bf16 = f", bf16 {event.baseline.time_us:,.1f} µs" if event.baseline is not None else ""
        self._print(
            f"{head}{served.served.backend} {served.served.time_us:,.1f} µs, default {served.default.time_us:,.1f} µs"
            f"{bf16}; {event.outcome}{self._failures()} ({_left_text(self._rest_s(0.0))})"
        )

    def _failures(self) -> str:
        """What did not run, by how it ended: `; 3 wrong, 12 unsupported`."""
        failed = [f"{n} {status.value}" for status, n in sorted(self._ended.items()) if status is not TrialStatus.OK]
        return f"; {', '.join(failed)}" if failed else ""

    def _rest_s(self, problem_left_s: float) -> float:
        """Seconds left of the run: this problem's, and as much for each other as the ones so far took."""
        typical_s = sum(self._took_s) / len(self._took_s) if self._took_s else self._problem_s
        others = self._n_problems - self._n_done - (1 if problem_left_s else 0)
        return problem_left_s + max(0, others) * typical_s

    def _time_left(self, problem_left_s: float) -> str:
        return _left_text(self._rest_s(problem_left_s))

    def _update(self, *, state: str, advance: int = 0) -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=advance, state=escape(state))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _name(item: RunProblem) -> str:
    return f"{item.role} {item.problem.shape}".strip()


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _left_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s left" if minutes else f"{rest} s left"
