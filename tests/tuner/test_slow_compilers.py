"""Searches in which compilers take longer than everything else: what is waited for, for how long, and that it is said."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_backends import FaultyBackend
from fp4tune.api.cli.progress import TuneDisplay
from fp4tune.db.records import Origin, RunProblem, TrialStatus
from fp4tune.db.store import Store
from fp4tune.kernels.device import Device, detect
from fp4tune.tuner import events, problem_run
from fp4tune.tuner.context import StopFlag
from fp4tune.tuner.executor import Candidate, LocalExecutor
from job_factory import DENSE, QUICK, job, trials_of
from rich.console import Console

ONLY = ("none", "refuses", "raises", "zero_tile")
BUDGET_S = 0.4


class SlowCompiler(LocalExecutor):
    """Candidates take as long to compile as `takes` says, side by side, before they can be collected."""

    def __init__(self, device: Device, backends, takes: Callable[[Candidate], float]) -> None:
        super().__init__(device, backends, timeout_s=10)
        self.lookahead = 8
        self._takes = takes
        self._ready_at: list[tuple[float, Candidate]] = []

    def submit(self, candidate: Candidate) -> None:
        self._ready_at.append((time.monotonic() + self._takes(candidate), candidate))

    def close(self) -> None:
        super().close()
        self._ready_at = []

    def await_compilers(self, timeout_s: float) -> Sequence[Candidate]:
        until = time.monotonic() + timeout_s
        while not (is_ready := min(self._ready_at)[0] <= time.monotonic()) and time.monotonic() < until:
            time.sleep(0.005)
        return () if is_ready else [candidate for _, candidate in self._ready_at]

    def collect(self, effort, *, best_us=None):
        one = min(self._ready_at, key=lambda entry: entry[0])
        assert one[0] <= time.monotonic(), "it is waited for elsewhere"
        self._ready_at.remove(one)
        super().submit(one[1])
        return super().collect(effort, best_us=best_us)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(problem_run, "_POLL_S", 0.02)
    monkeypatch.setattr(problem_run, "_PATIENCE_S", 0.1)


def searched(store: Store, takes: Callable[[Candidate], float], *, tell=None, stop: StopFlag | None = None):
    """(trials of the search, what was told, seconds) of a fast backend and one whose compiler takes `takes`."""
    backends = FaultyBackend("test.fast", only=("none",)), FaultyBackend("test.slow", only=ONLY)
    told: list[events.Event] = []

    def note(event: events.Event) -> None:
        told.append(event)
        if tell is not None:
            tell(event)

    cpu = detect("cpu")
    executor = SlowCompiler(cpu, {b.name: b for b in backends}, takes)
    start = time.monotonic()
    settings = replace(QUICK, budget_s=BUDGET_S)
    run = job(store, cpu, *backends, settings=settings, tell=note, stop=stop, executor=executor).start(
        [RunProblem(DENSE)]
    )
    took_s = time.monotonic() - start
    trials = [t for t in trials_of(store, run.run_id) if t.origin is not Origin.FINAL]
    return trials, [event for event in told if isinstance(event, events.CompilersAwaited)], took_s


def is_slow(candidate: Candidate) -> bool:
    return candidate.backend == "test.slow"


def test_a_default_is_waited_for_beyond_the_budget_and_that_is_said(store: Store):
    trials, told, took_s = searched(store, lambda c: 1.0 * is_slow(c))
    assert took_s >= 1.0
    assert [t.backend for t in trials if t.origin is Origin.DEFAULT and t.status is TrialStatus.OK] == [
        "test.fast", "test.slow",
    ]  # fmt: skip
    (event,) = told
    assert (event.position, event.backends, event.beyond_budget) == (0, ("test.slow",), True)
    assert 0 <= event.seconds_left <= BUDGET_S


def test_anything_else_is_waited_for_as_long_as_the_budget_lasts(store: Store):
    """A default that is compiled already, and configs that would take minutes."""
    trials, told, took_s = searched(store, lambda c: 60.0 * (is_slow(c) and c.config["fault"] != "none"))
    assert took_s < 30
    assert {(t.backend, t.origin) for t in trials} == {(f"test.{name}", Origin.DEFAULT) for name in ("fast", "slow")}
    (event,) = told
    assert (event.backends, event.beyond_budget) == (("test.slow",), False)


def test_a_stop_does_not_wait_for_a_compiler(store: Store):
    stop = StopFlag()

    def when_told(event: events.Event) -> None:
        stop.requested = stop.requested or isinstance(event, events.CompilersAwaited)

    trials, _, took_s = searched(store, lambda c: 60.0 * is_slow(c), tell=when_told, stop=stop)
    assert took_s < 30
    assert [t.backend for t in trials] == ["test.fast"]


def test_a_short_wait_is_not_worth_a_word(store: Store):
    _, told, _ = searched(store, lambda c: 0.02)
    assert not told


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            events.CompilersAwaited(0, ("cutlass",), True, 12.4),
            (
                "  waiting for the compiler of cutlass, beyond the seconds of this problem if need be: what a backend "
                "does untuned is always measured\n"
            ),
        ),
        (
            events.CompilersAwaited(0, ("cutlass", "triton.native"), True, 12.4),
            (
                "  waiting for the compilers of cutlass and triton.native, beyond the seconds of this problem if need "
                "be: what a backend does untuned is always measured\n"
            ),
        ),
        (events.CompilersAwaited(0, ("triton.native",), False, 12.4), ""),
    ],
)
def test_a_log_says_once_what_is_waited_for_beyond_the_budget(event, said):
    out = io.StringIO()
    with TuneDisplay(Console(file=out, width=200), trials=4, problem_s=30.0) as display:
        display(event)
        display(replace(event, position=1))
    assert out.getvalue() == said
