"""What is served for one problem in one environment, the evidence for it, and the commands that ask for it."""

from __future__ import annotations

import re
from dataclasses import replace

from .....db.dashboard.gains import Served
from .....db.dashboard.problem import AttemptsAt, EvidenceOf, PlacesOf, TunedElsewhere
from .....db.dashboard.scopes import Scope
from .....db.records import Run, Winner, WinnerFilter
from .....kernels.backend import can_serve, load_backends
from .....kernels.device import Environment
from .....kernels.errors import NotFoundError
from .....kernels.problem import Problem, parse_key
from .....tuner.plausible import doubt_in
from ....results.figures import shape_text
from ...choices import MAX_OPTIONS, Chosen, choose_scope, environment_label
from ...formatting import format_value
from ...model import Filter, Kind, NextStep, Option, View
from ...page import ENVIRONMENT, POLICY, PROBLEM, Asked, Context, Page, UnfittingError, address
from ...workloads import Use
from ..gains.cells import Place, State, place_of
from ..gains.grid import interval
from . import answers as problem_answers
from . import evidence as problem_evidence
from . import missing as problem_missing

MAX_POLICIES = 100
"""Most policies of a problem in an environment that are looked through."""


def view(context: Context, asked: Asked) -> View:
    """The page.

    Raises:
        InvalidInputError: the address names a problem that is none.
        UnfittingError: it names a policy by which nothing is served in the environment that it names.
        NotFoundError: it names an environment that is not stored.
    """
    key = asked.get(PROBLEM)
    field = Filter(PROBLEM.name, "Problem", key)
    if not key:
        step = NextStep("Choose a problem: every cell of the page of gains leads to one.", link=address(""))
        return View("A problem", filters=(field,), next_steps=(step,))
    problem = parse_key(key)
    places = context.store.ask(PlacesOf(problem))
    chosen = _chosen(context, asked, places)
    winner = _winner(context, problem, chosen.scope) if chosen.scope else None
    if winner is not None and chosen.scope is not None:
        return _served(context, winner, chosen, field)
    return _missing(context, asked, problem, chosen, places, field)


def _chosen(context: Context, asked: Asked, places: list[TunedElsewhere]) -> Chosen:
    """The scope that the address names, or else the newest that serves the problem, or else the newest of all."""
    environment, policy = asked.get(ENVIRONMENT), asked.get(POLICY)
    fitting = [
        one for one in places if environment in ("", one.environment.fingerprint) and policy in ("", one.policy)
    ]  # fmt: skip
    if fitting:
        first = fitting[0]
        named = {ENVIRONMENT.name: first.environment.fingerprint, POLICY.name: first.policy}
        return choose_scope(context, Asked(asked.page, {**asked.values, **named}))
    try:
        return choose_scope(context, asked)
    except UnfittingError:
        raise
    except NotFoundError:
        if not environment:
            raise
        found = context.store.environment(environment)  # one that is not stored at all is refused
        return Chosen(None, (), _filters_at(found, choose_scope(context, Asked(asked.page, {})).filters))


def _filters_at(environment: Environment, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """The choice of an environment, where one is chosen in which nothing is served at all."""
    here = Option(environment.fingerprint, environment_label(environment))
    return tuple(
        replace(one, value=here.value, options=(here, *one.options[: MAX_OPTIONS - 1]))
        for one in filters
        if one.name == ENVIRONMENT.name
    )


def _winner(context: Context, problem: Problem, scope: Scope) -> Winner | None:
    """What is served in a scope. A policy that no question may name, because others wrote it, is looked for by hand."""
    can_be_named = re.fullmatch(POLICY.pattern, scope.policy) is not None
    where = WinnerFilter(
        problem_key=problem.key,
        environment_fingerprint=scope.environment.fingerprint,
        policy=scope.policy if can_be_named else None,
    )
    found = context.store.winners(where, limit=1 if can_be_named else MAX_POLICIES).items
    return next((one for one in found if one.policy == scope.policy), None)


def _served(context: Context, winner: Winner, chosen: Chosen, field: Filter) -> View:
    """The page of a problem for which something is served."""
    problem, environment = winner.problem, winner.environment
    run = _run(context, winner.run_id)
    evidence = context.store.ask(EvidenceOf(winner.run_id or "", problem, environment.fingerprint))
    place = _place(winner, evidence.outcome)
    doubt = doubt_in(evidence.outcome)
    backends = load_backends()
    names = {one.backend for one in evidence.finals}
    baselines = {name for name in names if name in backends and not can_serve(backends[name], problem)}
    age_s = (context.now - winner.created_at).total_seconds()
    return View(
        title=f"Problem {shape_text(problem)}",
        lead=_lead(winner, place),
        filters=(field, *chosen.filters),
        warnings=(f"The served time is doubted: {doubt}",) if doubt else (),
        sections=(
            problem_answers.served_section(winner, evidence, place.state, place.speedup, age_s),
            problem_answers.config_section(winner),
            problem_answers.commands_section(winner, run, context.base_url),
            problem_evidence.section(winner, evidence, baselines),
            problem_answers.versions_section(winner),
            problem_answers.links_section(
                problem, environment.fingerprint, winner.policy, winner.run_id or "", environment.device.fingerprint
            ),
        ),
    )


def _missing(
    context: Context, asked: Asked, problem: Problem, chosen: Chosen, places: list[TunedElsewhere], field: Filter
) -> View:
    """The page of a problem for which nothing is served."""
    scope = chosen.scope
    environment = scope.environment.fingerprint if scope else asked.get(ENVIRONMENT)
    attempts = context.store.ask(AttemptsAt(problem, environment))
    where = f"in {environment_label(scope.environment)} under {scope.policy}" if scope else "here"
    n = sum(one.n for one in attempts)
    never = "it was never tried " + ("there" if environment else "here")
    tried = f"{n:,} trial{'s' * (n != 1)} of it ended as listed below" if attempts else never
    return View(
        title=f"Problem {shape_text(problem)}",
        lead=f"Nothing is served for it {where}; {tried}.",
        filters=(field, *chosen.filters),
        next_steps=tuple(problem_missing.next_steps(problem, scope, attempts)),
        sections=tuple(problem_missing.sections(context.store, problem, scope, attempts, places)),
    )


def _place(winner: Winner, outcome: str) -> Place:
    """The winner as the page of gains sees it, so that the two cannot differ."""
    choice, default = winner.choice, winner.default
    same = (choice.backend, dict(choice.config)) == (default.backend, dict(default.config))
    tied = same or any(
        (one.backend, dict(one.config)) == (default.backend, dict(default.config)) for one in winner.tie_set
    )
    served = Served(
        choice.backend, choice.time_us, choice.time_us_low, choice.time_us_high, default.time_us, same, tied,
        len(winner.tie_set), winner.run_id or "", outcome, winner.created_at,
    )  # fmt: skip
    return place_of(Use(winner.problem, "", {}, 1, is_tuned=True), served)


def _lead(winner: Winner, place: Place) -> str:
    choice = winner.choice
    span = interval(choice.time_us_low, choice.time_us_high)
    time = f"{format_value(choice.time_us, Kind.TIME_US)} µs" + f" ({span})" * bool(span)
    said = f"{choice.backend} in {time} on {winner.environment.device.name}"
    if place.state is State.NO_DEFAULT or place.speedup is None:
        return f"{said}; there is no default's time to compare it with."
    if place.state is State.TIE:
        return f"{said}; a tie: the fastest default cannot be told apart from the fastest config, or is it."
    return f"{said}, {place.speedup:.2f}x as fast as the fastest default."


def _run(context: Context, run_id: str) -> Run | None:
    """The run, if it is stored."""
    try:
        return context.store.run(run_id) if run_id else None
    except NotFoundError:
        return None


PAGE = Page("problem", "", "What is served for this problem, and why?", (PROBLEM, ENVIRONMENT, POLICY), view)
