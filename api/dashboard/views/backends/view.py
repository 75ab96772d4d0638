"""Which backend? Every backend's best of every problem, and who wins how often."""

from __future__ import annotations

from collections.abc import Mapping

from .....db.dashboard.backends import Candidates, CandidatesIn, CandidatesOf, WinsOf
from .....db.dashboard.problem import PlacesOf
from .....db.dashboard.scopes import Scope
from .....db.records import Policy
from .....kernels.errors import InvalidInputError, NotFoundError
from .....kernels.problem import parse_key
from ....results.figures import shape_text
from ...choices import choose_scope, first_steps
from ...formatting import format_value
from ...links import link
from ...model import Filter, Kind, NextStep, Section, View
from ...page import CURSOR, ENVIRONMENT, POLICY, PROBLEM, Asked, Context, Page, UnfittingError
from .figures import candidates_figure, wins_figure
from .published import of_environment, of_problem
from .tables import baseline_of, candidates_table, means_table, serves, side_by_side, times_served, wins_table

PAGE_OF_PROBLEMS = 75
"""Most problems of one page: each takes some statements of SQL, and 3 ms."""

_LISTING = "dashboard.backends"


def view(context: Context, asked: Asked) -> View:
    """The page."""
    chosen = choose_scope(context, asked)
    if chosen.scope is None:
        return View("Backends", next_steps=first_steps(context))
    if asked.get(PROBLEM):
        return _one(context, chosen.scope, asked.get(PROBLEM), chosen.filters)
    return _all(context, asked, chosen.scope, chosen.filters)


def _all(context: Context, asked: Asked, scope: Scope, filters: tuple[Filter, ...]) -> View:
    """Who wins, and the problems, a page of them."""
    store, environment = context.store, scope.environment.fingerprint
    place = {"environment": environment, "policy": scope.policy}
    counts = store.ask(WinsOf(environment, scope.policy))
    wins = wins_table(counts)
    page = store.ask(CandidatesIn(environment, scope.policy, _before(context, asked), PAGE_OF_PROBLEMS))
    more = ""
    if page.before is not None:
        more = link(PAGE.slug, "problems", **place, cursor=context.cursors.make(_LISTING, place, page.before))
    said = (
        "The fastest config of each backend on each problem, microseconds, from the run that the winner comes from. "
        "What is served may be slower than the fastest by what cannot be told apart. A problem leads to its defaults, "
        "intervals and configs."
    )
    return View(
        f"Backends on {scope.environment.device.name}",
        sections=(
            Section("Who wins", figure=wins_figure(wins), table=wins, folded=True, anchor="wins"),
            Section("Against what is served", table=means_table(page.items), anchor="means"),
            Section("By problem", (said,), table=side_by_side(page.items, scope, more), anchor="problems"),
            of_environment(store, scope),
        ),
        filters=filters,
        lead=_lead(counts),
    )


def _before(context: Context, asked: Asked) -> int | None:
    """Where the page begins; None for the newest.

    Raises:
        InvalidInputError: the cursor is none of this page.
    """
    if not asked.get(CURSOR):
        return None
    position = context.cursors.read(_LISTING, asked.filters(), asked.get(CURSOR))
    if not isinstance(position, int):
        raise InvalidInputError("This address of a next page is none of this page: begin again without cursor.")
    return position


def _lead(wins: Mapping[str, int]) -> str:
    """Who wins, in a sentence."""
    if not wins:
        return ""
    total = sum(wins.values())
    most = sorted(wins.items(), key=lambda item: (-item[1], item[0]))
    first = ", ".join(f"{name} for {n:,}" for name, n in most[:3])
    rest = f" and {len(most) - 3:,} more backends for the others" if len(most) > 3 else ""
    return f"{total:,} problem{'s are' if total != 1 else ' is'} served: {first}{rest}."


def _one(context: Context, scope: Scope, problem: str, filters: tuple[Filter, ...]) -> View:
    """One problem."""
    environment = scope.environment.fingerprint
    one = _candidates(context, CandidatesOf(environment, scope.policy, problem))
    place = {"environment": environment, "policy": scope.policy}
    table, others = candidates_table(one), of_problem(context.store, one.problem, scope)
    # Of another policy than published times are they may stand below each other, and share no picture.
    drawn = others.table if scope.policy == Policy.CUDA_GRAPH else None
    return View(
        f"Backends on {shape_text(one.problem)}",
        sections=(
            Section(
                "Measured here",
                ("Best and default of each backend, and BF16 beside them, from the run that the winner comes from.",),
                candidates_figure(table, drawn),
                table,
                anchor="measured",
            ),
            others,
        ),
        filters=(*filters, Filter(PROBLEM.name, "Problem", problem)),
        next_steps=(
            NextStep("What is served for this problem, and why.", link=link("problem", problem=problem, **place)),
            NextStep("All problems of this environment.", link=link(PAGE.slug, **place)),
        ),
        lead=_lead_of(one),
    )


def _candidates(context: Context, question: CandidatesOf) -> Candidates:
    """What every backend reached on a problem.

    Raises:
        UnfittingError: the problem is served, and not in this environment by this policy.
        NotFoundError: it is served nowhere.
    """
    try:
        return context.store.ask(question)
    except NotFoundError as error:
        try:
            places = context.store.ask(PlacesOf(parse_key(question.problem)))
        except InvalidInputError:
            places = []
        if not places:
            raise
        raise UnfittingError(str(error), (PROBLEM.name,)) from error


def _lead_of(one: Candidates) -> str:
    """What is served, and how far ahead of the others it is."""
    said = f"{one.backend} is served, {format_value(one.time_us, Kind.TIME_US)} µs."
    baseline = baseline_of(one)
    others = [best for name, best in one.finals.items() if name != one.backend and serves(name, one.problem)]
    nearest = min(others, key=lambda best: best.time_us or float("inf"), default=None)
    if nearest is not None and (factor := times_served(one, nearest)):
        said += f" The best of the others in the finals, {nearest.backend}, is {factor:.2f}x as fast."
    if baseline is not None and (factor := times_served(one, baseline)):
        said += f" BF16 ({baseline.backend}) takes {1 / factor:.2f} times as long."
    return said


PAGE = Page("backends", "Backends", "Which backend?", (ENVIRONMENT, POLICY, PROBLEM, CURSOR), view)
