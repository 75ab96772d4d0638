"""The selftest: its steps, in order, inside a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...db.records import TrialStatus
from ...kernels.backend import compile_need, family, load_backends
from ...kernels.cards import CARDS
from ...kernels.device import Environment, current_environment
from ...kernels.errors import Fp4tuneError
from ...kernels.patience import patience
from ...kernels.problem import parse_key
from ..checkup import check_up
from ..executor import Candidate, Executor, LocalExecutor
from ..workers.executor import WorkerExecutor
from ..workers.family import Deadlines
from .numerics import SEED, check_numerics
from .plan import plan, problems
from .report import Finding, Outcome, Report
from .without_card import PATIENT_S, compile_one_each, contract

if TYPE_CHECKING:
    from ...kernels.backend import Backend
    from ...kernels.device import Device
    from ...kernels.problem import Problem

BUDGET_S = 90.0
"""Seconds after which nothing new is begun but the export: with what is under way then, some two minutes in all."""

STAND_IN = "rtx-pro-6000"
"""The card that contracts are checked and kernels compiled for where no card of its kind is."""

NUMERICS_PART = {"fp4": 0.7, "cuda": 0.5, "cpu": 0.3}
"""Part of the budget that numerics may take, all problems together, on a card with FP4 units, on another, on a CPU; the
rest is for what follows: on the first the export, elsewhere compiling, too."""

ASKING_PART = 0.5
"""Part of the time left to a step that backends may take to say what they offer, where a child process must ask the
card (see kernels/patience.py). The rest is for using it."""

COMPILE_PART = 0.8
"""Part of the budget after which compiling for a card that is not here is given up."""

COMPILE_LEAST_S = 20.0
"""Seconds that compiling gets in any case, however late it has become: a process takes 5 to 15 to import PyTorch."""

OWN_LOCK = "device lock"
"""A check of `doctor` that says nothing here: the selftest holds the lock itself."""

DEADLINES = Deadlines(start=60.0, open=60.0, prepare=30.0, check=15.0, time_margin=10.0, sample=10.0)
"""Of worker processes: shorter than a tuning run's, because two minutes is all there is."""

COMPILE_S = 30.0
"""Seconds that one config gets in the compile pool, on a card."""


class Exporting(Protocol):
    """Writes configs in an engine's format, and has the engine's library load them again.

    The formats are a room above this one; who calls `run_selftest` brings this along.
    """

    def __call__(
        self, backends: Mapping[str, Backend], device: Device, candidates: Sequence[tuple[Problem, Candidate]]
    ) -> list[Finding]:
        """What came of it, with step `export`.

        Args:
            backends: every registered one, by name.
            device: for which card.
            candidates: configs that passed the gate on it; none where no card is: any that the backends offer do then.
        """
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """With what a selftest is run.

    Attributes:
        device: a CUDA device whose lock is held, or the CPU.
        exporting: the export step.
        lock_dir: where device locks lie; None for the usual place.
        budget_s: seconds after which nothing new is begun.
        tell: hears what is being done, a line at a time.
        backends: every registered one.
    """

    device: Device
    exporting: Exporting
    lock_dir: Path | None = None
    budget_s: float = BUDGET_S
    tell: Callable[[str], None] = lambda _: None
    backends: Mapping[str, Backend] | None = None


def run_selftest(means: Means, *, now: Callable[[], float] = time.monotonic) -> Report:
    """Look at everything that can be looked at here, in the time there is.

    Never raises because of a backend, a kernel or a package: that is what the report is for.

    Args:
        means: with what.
        now: a monotonic clock, seconds.
    """
    start = now()
    backends = dict(load_backends() if means.backends is None else means.backends)
    device = means.device
    card = device if _has_fp4(device) else CARDS[STAND_IN]
    environment, contradiction = _environment(device, backends)
    report = Report(
        fp4tune=metadata.version("fp4tune"),
        started_at=datetime.now(UTC),
        environment=environment,
        card=card.name,
        ran_on_card=device.kind == "cuda",
        checks=[one for one in check_up(device, backends, lock_dir=means.lock_dir).checks if one.name != OWN_LOCK],
        findings=contradiction,
    )
    ready, reasons = _ready(backends, device)
    part = NUMERICS_PART["fp4" if card is device else device.kind]
    _numerics(means, ready, report, deadline=start + part * means.budget_s, now=now)
    if card is device:
        passed = _passed(report)
        report.findings += _not_available(reasons, device)
        with patience(0.0):  # the numerics have asked everybody, and who was out of time then is not asked again
            report.findings += [contract(one, problem, card) for one in ready.values() for problem in problems()]
    else:
        passed = []
        for_card, reasons_of_card = _ready(backends, card)
        if device.kind == "cuda":
            report.findings += _not_available(reasons, device)
        report.findings += _not_available({n: why for n, why in reasons_of_card.items() if n not in ready}, card)
        deadline = max(start + COMPILE_PART * means.budget_s, now() + COMPILE_LEAST_S)
        _without_card(for_card, card, report, deadline=deadline, now=now, tell=means.tell)
    means.tell("export, reload, hit")
    try:
        report.findings += means.exporting(backends, card, passed)
    except Exception as error:  # noqa: BLE001 - the rest of the report must not be lost with it
        text = f"{type(error).__name__}: {error}"
        report.findings.append(Finding("export", card.name, Outcome.WRONG, text))
    report.wall_s = now() - start
    return report


def _has_fp4(device: Device) -> bool:
    """Whether it has FP4 tensor cores, which the kernels of this project exist for: compute capability 10.0 and up."""
    return device.kind == "cuda" and device.capability[0] >= 10


def _environment(device: Device, backends: Mapping[str, Backend]) -> tuple[Environment, list[Finding]]:
    """The environment, and a finding if backends contradict each other about it."""
    try:
        return current_environment(device, backends.values()), []
    except Fp4tuneError as error:
        return Environment(device, {}), [Finding("environment", device.name, Outcome.WRONG, str(error))]


def _not_available(reasons: Mapping[str, str], device: Device) -> list[Finding]:
    return [
        Finding("backends", f"{name} on {device.name}", Outcome.NOT_RUN, reason) for name, reason in reasons.items()
    ]


def _ready(backends: Mapping[str, Backend], device: Device) -> tuple[dict[str, Backend], dict[str, str]]:
    """The backends that can be used on a device, and why the others cannot."""
    states = {name: backend.probe(device) for name, backend in sorted(backends.items())}
    ready = {name: backends[name] for name, state in states.items() if state.available}
    return ready, {name: state.reason for name, state in states.items() if not state.available}


def _numerics(
    means: Means, ready: Mapping[str, Backend], report: Report, *, deadline: float, now: Callable[[], float]
) -> None:
    """Every problem through every backend, each problem in its share of the time that is left."""
    if not ready:
        report.findings.append(Finding("numerics", means.device.name, Outcome.NOT_RUN, "No backend is available."))
        return
    executor = _executor(means, ready)
    try:
        left = problems()
        while left:
            problem = left.pop(0)
            left_s = max(0.0, deadline - now())
            with patience(ASKING_PART * left_s):
                planned = plan(ready, problem, means.device, seed=SEED, slow=_slow(ready, left_s))
            until = now() + (deadline - now()) / (1 + len(left))
            check_numerics(executor, problem, planned, report, deadline=until, now=now, tell=means.tell)
    finally:
        executor.shutdown()


def _slow(ready: Mapping[str, Backend], left_s: float) -> dict[str, str]:
    """The backends whose kernels cannot be compiled in the time there is, each with a sentence that says so."""
    needs_s = {name: compile_need(backend).seconds for name, backend in ready.items()}
    return {
        name: f"One kernel may take {needed_s:.0f} s to compile, and {left_s:.0f} s are left; --budget-s gives more."
        for name, needed_s in needs_s.items()
        if needed_s > max(left_s, PATIENT_S)
    }


def _executor(means: Means, ready: Mapping[str, Backend]) -> Executor:
    """Worker processes for a card, this process for a CPU, as in a tuning run."""
    if means.device.kind == "cpu":
        return LocalExecutor(means.device, ready)
    return WorkerExecutor(means.device, ready, policy="cuda.graph", deadlines=DEADLINES, compile_s=COMPILE_S)


def _without_card(
    for_card: Mapping[str, Backend],
    card: Device,
    report: Report,
    *,
    deadline: float,
    now: Callable[[], float],
    tell: Callable[[str], None],
) -> None:
    """Contracts of what is installed, and one kernel of each compiler, for a card that is not here."""
    families = ", ".join(sorted({family(name) for name in for_card})) or "any backend"
    text = f"No kernel ran on such a card: numerics and launches of {families} there are not checked."
    report.findings.append(Finding("numerics", card.name, Outcome.NOT_RUN, text))
    tell(f"contracts of {len(for_card)} backends for {card.name}, which is not here")
    with patience(ASKING_PART * max(0.0, deadline - now())):
        report.findings += [contract(one, problem, card) for one in for_card.values() for problem in problems()]
    tell(f"one kernel of each compiling backend for {card.name}")
    report.findings += compile_one_each(for_card, problems(), card, deadline=deadline, now=now)


def _passed(report: Report) -> list[tuple[Problem, Candidate]]:
    """The configs that passed the gate."""
    return [
        (parse_key(one.problem), Candidate(one.backend, one.config))
        for one in report.checked
        if one.status is TrialStatus.OK
    ]
