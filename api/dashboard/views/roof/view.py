"""How near is the roof? The roofline of a card and one mark a problem."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from .....db.dashboard.roof import Served, ServedIn, Workload, WorkloadsOf
from .....db.dashboard.scopes import Scope
from .....db.records import Roofs
from .....kernels.device import Device
from .....kernels.problem import Op
from .....tuner.roofs import floor_us
from ....results.figures import shape_text
from ...choices import TUNE_FIRST, choose_scope, first_steps
from ...links import link
from ...measures import share_text
from ...model import Filter, NextStep, Option, View
from ...page import ENVIRONMENT, POLICY, RUN, Asked, Context, Page
from ...tune_commands import tune_shapes
from .roofline import ANY_SEED, Limit, Placed, can_be, place
from .sections import to_gain, under_the_roofs, with_m

MAX_MARKS = 500
"""Most problems of the page: with links and hover texts they take two thirds of the megabyte that a page may have."""

MAX_OPTIONS = 200

ROOFS_AGREE = 0.01
"""Shares of the roof that differ by less are taken for the same: they are shown as whole percents."""

MEASURED_AGAIN = 8
"""Problems that the command names which measures the roofs: the newest."""


def view(context: Context, asked: Asked) -> View:
    """The page."""
    chosen = choose_scope(context, asked)
    scope = chosen.scope
    if scope is None:
        return View("Roofline", next_steps=first_steps(context))
    environment = scope.environment
    run_id = context.store.run(asked.get(RUN)).id if asked.get(RUN) else ""
    filters = (*chosen.filters, _run_filter(context.store.ask(WorkloadsOf(environment.fingerprint)), run_id))
    title = f"Roofline of {environment.device.name}"
    roofs = context.store.roofs(environment)
    if roofs is None or not can_be(roofs):
        some = context.store.ask(ServedIn(environment.fingerprint, scope.policy, run_id, MEASURED_AGAIN))
        return View(title, filters=filters, next_steps=(_measure(scope, some[:MEASURED_AGAIN]),))
    found = context.store.ask(ServedIn(environment.fingerprint, scope.policy, run_id, MAX_MARKS))
    served = found[:MAX_MARKS]
    placed = [one for each in served if (one := place(each, roofs, environment.device)) is not None]
    return View(
        title,
        sections=(
            under_the_roofs(placed, roofs, scope),
            to_gain(placed, scope),
            with_m(placed),
        ),
        filters=filters,
        next_steps=_next_steps(served, scope, run_id),
        lead=_lead(placed),
        warnings=_warnings(scope, roofs, served, placed, run_id=run_id, is_cut=len(found) > MAX_MARKS),
    )


def _run_filter(workloads: Sequence[Workload], run_id: str) -> Filter:
    """Whose problems are shown."""
    options = [Option("", "all, newest first"), *(Option(one.run_id, _label(one)) for one in workloads)]
    if run_id and run_id not in {option.value for option in options}:
        options.insert(1, Option(run_id, f"run {run_id}"))
    return Filter(RUN.name, "Problems of", run_id, tuple(options[:MAX_OPTIONS]))


def _label(one: Workload) -> str:
    """A workload for people: `qwen3.5-397b-a17b-nvfp4 · TP 8 · EP 1 · 10 problems`."""
    ranks = [f"{name} {count}" for name, count in (("TP", one.tp), ("EP", one.ep)) if count]
    name = PurePosixPath(one.checkpoint).name or one.checkpoint
    return " · ".join([name, *ranks, f"{one.n_problems} problems"])


def _measure(scope: Scope, some: Sequence[Served]) -> NextStep:
    """What to do where no roofs are known."""
    device = scope.environment.device
    if device.kind == "cpu":
        return NextStep(
            f"There is no roofline of {device.name}: roofs are measured on GPUs only. Choose another environment above."
        )
    return NextStep(
        f"The roofs of this {device.name} were not measured in this environment, and figures of a data sheet are not "
        "drawn here. A tuning run on the card measures them before it begins (copy bandwidth and BF16 rate, a few "
        "seconds), and stores each trial's share of them: tune the problems again, beginning with these.",
        command=next(
            iter(tune_shapes([one.problem for one in some], scope.policy)), "fp4tune tune --shape 16x4096x7168"
        ),
    )


def _next_steps(served: Sequence[Served], scope: Scope, run_id: str) -> tuple[NextStep, ...]:
    if served:
        return ()
    if not run_id:
        return (TUNE_FIRST,)
    return (
        NextStep(
            f"Nothing of the problems of run {run_id} is served here by {scope.policy}.",
            link=link(PAGE.slug, environment=scope.environment.fingerprint, policy=scope.policy),
        ),
    )


def _lead(placed: Sequence[Placed]) -> str:
    """The answer in numbers; empty if there is none."""
    if not placed:
        return ""
    limits = Counter(one.limit for one in placed)
    by = "; ".join(f"by {_WORDS[limit]} {count:,}" for limit, count in limits.most_common())
    most = max(placed, key=lambda one: one.gain_us)
    layers = f" over {most.served.layers:,} layers" if most.served.layers > 1 else ""
    return (
        f"The median of {len(placed):,} problem{'s' * (len(placed) != 1)} reaches "
        f"{share_text(statistics.median(one.share for one in placed))} of the roof. Limited {by}. Most is left at "
        f"{shape_text(most.served.problem)}: {most.gain_us:,.1f} µs{layers}."
    )


_WORDS = {Limit.MEMORY: "memory", Limit.MATRIX: "the matrix units"}


def _warnings(
    scope: Scope, roofs: Roofs, served: Sequence[Served], placed: Sequence[Placed], *, run_id: str, is_cut: bool
) -> tuple[str, ...]:
    """What a reader must know about what is not here, and what is only nearly so."""
    said = []
    if is_cut and run_id:
        said.append(f"The run has more problems: the first {MAX_MARKS:,} are shown.")
    elif is_cut:
        said.append(
            f"Of {scope.n_winners:,} problems the newest {MAX_MARKS:,} are shown: choose a workload to see its own."
        )
    if missing := len(served) - len(placed):
        said.append(
            f"{missing:,} problem{'s are' if missing > 1 else ' is'} left out, because no share of the roof was "
            "stored with the measurement, as happens before the roofs are known: tune again to see them."
        )
    shown = [one for one in placed if one.share > 1]
    if shown:
        said.append(
            f"{len(shown):,} problem{'s are' if len(shown) > 1 else ' is'} above the roof. Slightly above 100 % "
            "happens: a kernel that mostly reads may beat a copy, half of which is writing. Far above means that its "
            "operands came from the L2 cache."
        )
    before = [one for one in placed if one.served.stored_at < roofs.measured_at]
    off = max((_off(one, roofs, scope.environment.device) for one in before), default=0.0)
    if off > ROOFS_AGREE:
        said.append(
            f"The roofs were measured at {roofs.measured_at:%Y-%m-%d %H:%M} UTC, after {len(before):,} of these "
            "problems. A share of the roof is the one that was stored with its measurement, by the roofs known then: "
            f"it differs by up to {share_text(off)} from what the picture shows."
        )
    return tuple(said)


def _off(one: Placed, roofs: Roofs, device: Device) -> float:
    """How far the stored share is from what the roofs would give now, relative to it; 0 where that needs torch."""
    problem = one.served.problem
    return abs(one.least_us / floor_us(problem, roofs, ANY_SEED, device) - 1) if problem.op is Op.DENSE else 0.0


PAGE = Page("roof", "Roof", "How near is the roof?", (ENVIRONMENT, POLICY, RUN), view)
