"""Can I trust it? Samples, spread, clocks, the tie set, and whether runs agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .....db.dashboard.scopes import Scope
from .....db.dashboard.trust import MAX_SERVED, Evidence, EvidenceOf, Served, ServedOf
from .....kernels.errors import NotFoundError
from .....tuner.stats import FEW
from ....dashboard import tune_commands
from ....results.figures import shape_text
from ...choices import MAX_OPTIONS, TUNE_FIRST, choose_scope, environment_label
from ...formatting import format_value
from ...links import link
from ...measures import half_width, share_text, time_text
from ...model import Cell, Column, Filter, Kind, Layout, Mark, NextStep, Option, Row, Section, Table, View
from ...page import ENVIRONMENT, POLICY, PROBLEM, Asked, Context, Page
from ...policy_words import policy_sentence
from ..run_words import settings_of
from . import samples as trust_samples
from . import tables as trust_tables
from .doubts import WIDE, doubts


def view(context: Context, asked: Asked) -> View:
    """The page: of one problem, or without one, of all that is served, the least certain first.

    Raises:
        NotFoundError: nothing is served for what the address names.
    """
    chosen = choose_scope(context, asked)
    scope, key = chosen.scope, asked.get(PROBLEM)
    if scope is None:
        return View(PAGE.question, next_steps=(TUNE_FIRST,))
    served = context.store.ask(ServedOf(scope.environment.fingerprint, scope.policy))
    filters = (*chosen.filters, _problem_filter(served, key))
    if not key:
        return _overview(scope, served, filters)
    try:
        evidence = context.store.ask(EvidenceOf(key, scope.environment.fingerprint, scope.policy))
    except NotFoundError:
        return _not_served(scope, key, filters)
    return _one(scope, evidence, filters)


def _problem_filter(served: Sequence[Served], key: str) -> Filter:
    keys = list(dict.fromkeys([*([key] if key else []), *(one.problem_key for one in served)]))
    options = (Option("", "all"), *(Option(one, one) for one in keys[: MAX_OPTIONS - 1]))
    return Filter(PROBLEM.name, "Problem", key, options)


def _not_served(scope: Scope, key: str, filters: tuple[Filter, ...]) -> View:
    step = NextStep(
        f"Nothing is served for {key} in this environment, measured by {scope.policy}. Its own page says which shapes "
        "near it are tuned, and how to tune it.",
        link=link("problem", problem=key, environment=scope.environment.fingerprint, policy=scope.policy),
    )
    return View(f"Trust in {key}", filters=filters, next_steps=(step,))


def _overview(scope: Scope, served: Sequence[Served], filters: tuple[Filter, ...]) -> View:
    """All that is served, the widest interval first."""
    wide = sum(_half_width(one) > WIDE for one in served)
    throttled = sum(bool(one.n_throttled) for one in served)
    few = sum(one.n_samples is None or one.n_samples < FEW for one in served)
    is_cut = scope.n_winners > len(served) == MAX_SERVED
    lead = (
        f"Of {len(served):,} served problems {_n_have(wide)} an interval wider than ±{share_text(WIDE)}, "
        f"{_n_have(throttled)} throttled samples, and {_n_have(few)} fewer than {FEW} samples."
    )
    cut = f"Of {scope.n_winners:,} problems the newest {len(served):,} are shown; the filter above takes any."
    return View(
        f"Trust in what is served on {scope.environment.device.name}",
        sections=(Section("The least certain first", (), None, _served_table(scope, served)),),
        filters=filters,
        lead=lead,
        warnings=(cut,) if is_cut else (),
    )


def _n_have(n: int) -> str:
    return f"{n:,} {'has' if n == 1 else 'have'}"


def _served_table(scope: Scope, served: Sequence[Served]) -> Table:
    rows = []
    for one in sorted(served, key=_certainty):
        wide, few = _half_width(one) > WIDE, one.n_samples is not None and one.n_samples < FEW
        to = link(
            PAGE.slug, problem=one.problem_key, environment=scope.environment.fingerprint, policy=scope.policy
        )  # fmt: skip
        rows.append(
            (
                Cell(one.problem_key, link=to),
                one.backend,
                one.time_us,
                Cell(_half_width(one), marks=(Mark.BAD,) if wide else ()),
                Cell(one.n_samples, marks=(Mark.UNSURE,) if few else ()),
                Cell(one.n_throttled, marks=(Mark.UNSURE,) if one.n_throttled else ()),
                one.n_ties,
                one.created_at,
            )
        )
    return Table(
        "served",
        "What is served, the widest interval first",
        (
            Column("problem", "problem", Kind.CODE),
            Column("backend", "served", Kind.CODE),
            Column("time_us", "µs", Kind.TIME_US),
            Column("half_width", "±", Kind.SHARE, "Half the 95 % interval of the time, over the time."),
            Column("n_samples", "samples", Kind.INTEGER, "A dash: the trial that measured it is not here."),
            Column("n_throttled", "throttled", Kind.INTEGER, "Throttled samples; a dash: nobody looked."),
            Column("n_ties", "tied", Kind.INTEGER, "Configs of the tie set, itself included."),
            Column("created_at", "stored", Kind.MOMENT),
        ),
        rows,
        legend=(((Mark.BAD,), "wider than what counts as a gain"), ((Mark.UNSURE,), "casts a doubt")),
    )


def _certainty(one: Served) -> tuple[bool, float, int]:
    """The least certain first: a time that is none, then the widest."""
    half = _half_width(one)
    return not math.isnan(half), 0.0 if math.isnan(half) else -half, -(one.n_throttled or 0)


def _half_width(one: Served) -> float:
    return half_width(one.time_us, one.time_us_low, one.time_us_high)


def _one(scope: Scope, evidence: Evidence, filters: tuple[Filter, ...]) -> View:
    """One problem."""
    found = trust_samples.entrants(evidence)
    said = doubts(evidence)
    samples, finals = trust_samples.samples_table(found), trust_tables.finals_table(found)
    elsewhere = trust_tables.elsewhere_table(evidence)
    return View(
        f"Trust in {shape_text(evidence.winner.problem)} on {scope.environment.device.name}",
        sections=(
            Section("What was measured", (), None, _facts(evidence), anchor="facts"),
            Section(
                "Its samples", (), trust_samples.samples_figure(samples), samples, folded=True, anchor="samples"
            ),
            Section("Their spread", (), None, trust_samples.spread_table(found), anchor="spread"),
            Section("The tie set", (), trust_tables.finals_figure(finals), finals, anchor="ties"),
            Section("Clocks, temperature, power", (), None, trust_tables.conditions_table(found), anchor="conditions"),
            Section("Numerics", (), None, trust_tables.numerics_table(found, evidence), anchor="numerics"),
            Section("Agreement between runs", (), None, trust_tables.agreement_table(evidence), anchor="agreement"),
            *([Section("In other environments", (), None, elsewhere, anchor="elsewhere")] if elsewhere.rows else []),
        ),
        filters=filters,
        next_steps=_next_steps(evidence) if said else (),
        lead=_lead(evidence, said),
        warnings=tuple(said),
    )  # fmt: skip


def _lead(evidence: Evidence, said: Sequence[str]) -> str:
    choice, n_runs = evidence.winner.choice, 1 + len(evidence.others)
    half = share_text(half_width(choice.time_us, choice.time_us_low, choice.time_us_high))
    time = f"{choice.backend} takes {time_text(choice.time_us)}, ±{half}"
    if said:
        return f"{len(said)} doubt{'s' * (len(said) != 1)}, listed with what is measured: {time}."
    return (
        f"No doubts: {time}, by samples that were neither throttled nor drifting, and {n_runs} runs on this device "
        "have tuned it."
    )


def _facts(evidence: Evidence) -> Table:
    winner, run = evidence.winner, evidence.run
    served = next((one.final for one in trust_samples.entrants(evidence) if one.is_served), None)
    environment = winner.environment.fingerprint
    ends = [format_value(end, Kind.TIME_US) for end in (winner.choice.time_us_low, winner.choice.time_us_high)]
    is_default = len({trust_samples.choice_key(one) for one in (winner.choice, winner.default)}) == 1
    default_us = format_value(winner.default.time_us, Kind.TIME_US)
    rows: list[Row] = [
        ("problem", Cell(winner.problem.key, link=link("problem", problem=winner.problem.key, environment=environment,
                                                       policy=winner.policy))),
        ("served", winner.choice.backend),
        ("config", trust_samples.config_text(winner.choice)),
        ("time", f"{format_value(winner.choice.time_us, Kind.TIME_US)} µs (95 % interval {ends[0]} to {ends[1]} µs)"),
        ("default", "the same" if is_default else f"{winner.default.backend}, {default_us} µs in the same rounds"),
        ("tie set", f"{len(winner.tie_set)} configs" if len(winner.tie_set) != 1 else "itself alone"),
        ("samples", "not in this database" if served is None else f"{served.n_samples:,}"),
        ("measured by", policy_sentence(winner.policy)),
        ("environment", Cell(environment_label(winner.environment), link=link("environments"))),
        ("run", Cell(run.id, link=link("run", run=run.id), note=f"{run.status.value}, fp4tune {run.version}")),
        ("what the run said", evidence.outcome),
        ("search", Cell(f"{winner.n_trials:,} trials", link=link("progress", run=run.id, problem=winner.problem.key))),
        ("stored", winner.created_at),
    ]  # fmt: skip
    columns = (Column("what", "", Kind.TEXT), Column("value", "", Kind.TEXT))
    return Table("facts", "What is served, and how it was measured", columns, rows, layout=Layout.PAIRS)


def _next_steps(evidence: Evidence) -> tuple[NextStep, ...]:
    winner, settings = evidence.winner, settings_of(evidence.run)
    trials, budget_s = settings.get("trials"), settings.get("budget_s")
    command = tune_commands.tune_again(
        winner.problem,
        winner.policy,
        seed=evidence.run.seed,
        trials=trials if type(trials) is int and trials > 0 else None,
        budget_s=float(budget_s) if isinstance(budget_s, int | float) and 0 < budget_s < float("inf") else None,
    )
    text = (
        "Tune it again on this card, idle and cool, with nobody beside: a second run shows whether the choice and the "
        "time hold. What is served now races in it."
    )
    return (NextStep(text, command=command),)


PAGE = Page("trust", "Trust", "Can I trust it?", (PROBLEM, ENVIRONMENT, POLICY), view)
