"""What do I get? The speed-up of every GEMM at every M of a model, and what it saves a step."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .....db.dashboard.gains import MAX_RUNS, ItemsOf, NewestRuns, Served, ServedFor, TunedItems
from .....db.dashboard.scopes import Scope
from ....results.figures import geometric_mean
from ...choices import Chosen, choose_scope, first_steps
from ...model import Filter, NextStep, Option, Section, View
from ...page import CURSOR, ENVIRONMENT, POLICY, Asked, Context, Page, Parameter, address
from ...tune_commands import policy_options, tune_checkpoint, tune_model, tune_shapes
from ...workloads import ModelWorkload, workload_of
from .cells import MAX_LAYERS, GemmRow, Place, PublishedTimes, State, published_for, rows_of
from .grid import MAX_COLUMNS, grid, pages, problem_list, published_list
from .models import BY_HAND, EP, MODEL, TP, ChosenModel, choose_model, model_title, presets_filter
from .totals import STEPS, Totals, incomplete_table, total_figure, total_table, totals_of

TOKENS = Parameter("tokens", "all", "`all`, for every M of the model's phases, or nothing, for those that are tuned")

MAX_PROBLEMS = 5_000
"""Most problems of a model that are looked up."""

WHAT = (
    "A time here is that of one GEMM on one rank, measured alone. N and K are those of a rank; M is the tokens that "
    "the layer sees, before routing where there are experts."
)
TOTAL = (
    "The times of the GEMMs in the table above, each as often as layers run it, on one rank. Attention, norms, "
    "communication, sampling and launch gaps are not in it, so a server's step takes longer and gains less."
)


@dataclass(frozen=True, slots=True)
class _Found:
    """Everything that the page is made of."""

    scope: Scope
    chosen: ChosenModel
    workload: ModelWorkload
    rows: Sequence[GemmRow]
    tokens: Sequence[int]
    all_tokens: Sequence[int]
    published: PublishedTimes
    notes: tuple[str, ...]

    @property
    def places(self) -> list[Place]:
        """Every problem of the model, at whatever M."""
        return [place for row in self.rows for place in row.places.values()]

    @property
    def grey(self) -> list[Place]:
        """The problems of the heatmap's M for which nothing is served."""
        wanted = set(self.tokens)
        return [place for place in self.places if place.served is None and place.use.problem.m in wanted]


def view(context: Context, asked: Asked) -> View:
    """The page.

    Raises:
        NotFoundError: the address names an environment, a policy or a model that is not known here.
        InvalidInputError: the token of a page is not one of this page's.
    """
    scopes = choose_scope(context, asked)
    runs = context.store.ask(NewestRuns())
    if scopes.scope is None:
        return View("Gains", next_steps=first_steps(context), lead="Nothing is served yet.")
    chosen = choose_model(asked, runs, scopes.scope.environment.fingerprint)
    if chosen is None:
        return _without_runs(scopes)
    found = _find(context, asked, scopes.scope, chosen)
    columns = Filter(TOKENS.name, "M", asked.get(TOKENS), (Option("", "those that are tuned"), Option("all", "all")))
    filters = (
        *scopes.filters,
        *chosen.filters,
        *([columns] if asked.get(TOKENS) or len(found.all_tokens) > len(found.tokens) else []),
    )
    totals = totals_of(found.rows)
    return View(
        title=_title(chosen),
        sections=(*_heatmap(context, asked, found), *_totals(totals)),
        filters=filters,
        next_steps=_next_steps(found, totals),
        lead=_lead(found),
        warnings=(*chosen.warnings, *found.workload.warnings, *found.notes),
    )


def _find(context: Context, asked: Asked, scope: Scope, chosen: ChosenModel) -> _Found:
    """Read what the page shows."""
    store, environment = context.store, scope.environment
    tuned = store.ask(ItemsOf([run.run_id for run in chosen.runs]))
    workload = workload_of(chosen.model, tuned.items, preset=chosen.preset)
    is_cut = len(workload.uses) > MAX_PROBLEMS
    if is_cut:
        workload = ModelWorkload(workload.uses[:MAX_PROBLEMS], workload.preset, workload.n_bf16, workload.warnings)
    problems = [use.problem for use in workload.uses]
    served = store.ask(ServedFor(environment.fingerprint, scope.policy, [one.key for one in problems]))
    tokens, everything = _tokens(workload, served, every=asked.get(TOKENS) == "all")
    missing = [one for one in problems if one.key not in served and one.m in set(tokens)]
    published = published_for(store, environment.device.name, scope.policy, missing)
    rows = rows_of(workload, served, published.references)
    return _Found(
        scope, chosen, workload, rows, tokens, everything, published, _notes(chosen, tuned, workload, is_cut=is_cut)
    )  # fmt: skip


def _tokens(workload: ModelWorkload, served: dict[str, Served], *, every: bool) -> tuple[list[int], list[int]]:
    """(M of the heatmap, M of the workload). Without `every` only those that a run tuned or something is served for."""
    everything = sorted({use.problem.m for use in workload.uses})
    used = {use.problem.m for use in workload.uses if use.is_tuned or use.problem.key in served}
    return (everything if every or not used else sorted(used))[:MAX_COLUMNS], everything


def _notes(chosen: ChosenModel, tuned: TunedItems, workload: ModelWorkload, *, is_cut: bool) -> tuple[str, ...]:
    """What is not shown, and what is in doubt, a sentence each."""
    notes = []
    if tuned.is_cut or is_cut or chosen.n_runs > len(chosen.runs):
        notes.append(
            f"This model has {chosen.n_runs} runs among the newest {MAX_RUNS}; the problems of the newest "
            f"{len(chosen.runs)} of them are shown, at most {MAX_PROBLEMS:,}."
        )
    if tuned.n_unreadable:
        notes.append(f"{tuned.n_unreadable} problems of its runs cannot be read and are left out: check the database.")
    shared = {use.role for use in workload.uses if {"decode", "draft_decode"} <= use.layers.keys()}
    if shared and not workload.preset:
        notes.append(
            f"{', '.join(sorted(shared)[:5])}: the MTP layers share this GEMM with the others, and runs store one "
            "number of layers for both, so the totals below count all of them in every phase."
        )
    return tuple(notes)


def _title(chosen: ChosenModel) -> str:
    model = chosen.model
    return f"Gains: {model_title(model.name)}, TP {model.tp}, EP {model.ep}" if model.name else f"Gains: {BY_HAND}"


def _lead(found: _Found) -> str:
    """As `1.04x over the defaults in the geometric mean of 10 problems; 2 of 10 are ties`."""
    places = found.places
    states = Counter(place.state for place in places)
    factors = [place.speedup for place in places if place.speedup is not None]
    n_grey = len(found.grey)
    if not places:
        return "No problem of this model is known here."
    if not factors and states[State.NO_DEFAULT]:
        return (
            f"{_count(states[State.NO_DEFAULT], 'problem')} served here, none of them with a default to compare with."
        )
    if not factors:
        what = _count(len(places), "problem" if found.chosen.model.name else "shape")
        return (
            f"Nothing is served here yet for {what} {'of this model' if found.chosen.model.name else 'given by hand'}."
        )
    parts = [
        f"{geometric_mean(factors):.2f}x over the defaults in the geometric mean of {_count(len(factors), 'problem')}",
        f"{states[State.TIE]} of {len(factors)} {'is a tie' if states[State.TIE] == 1 else 'are ties'}",
    ]
    if states[State.NO_DEFAULT]:
        parts.append(f"{states[State.NO_DEFAULT]} more have no default to compare with")
    if n_grey:
        parts.append(f"{n_grey} more at these M {'is' if n_grey == 1 else 'are'} not tuned here")
    return f"{'; '.join(parts)}."


def _heatmap(context: Context, asked: Asked, found: _Found) -> tuple[Section, ...]:
    """The heatmap, its problems as a list, and what others published, a page of GEMMs."""
    environment, policy = found.scope.environment.fingerprint, found.scope.policy
    shown = [row for row in found.rows if set(found.tokens) & row.places.keys()]
    parts = list(pages(shown, len(found.tokens))) or [[]]
    cursor = asked.get(CURSOR)
    at = int(context.cursors.read("gains", asked.filters(), cursor)) if cursor else 0
    at = min(max(0, at), len(parts) - 1)
    more = ""
    if at + 1 < len(parts):
        values = {name: value for name, value in asked.values.items() if name != CURSOR.name}
        more = address("", **values, cursor=context.cursors.make("gains", asked.filters(), at + 1))
    rows = parts[at]
    sections = [
        Section(
            "GEMMs by M",
            (WHAT, *_scope_words(found)),
            table=grid(rows, found.tokens, environment, policy, more=more, note=_grid_note(found)),
            anchor="gains",
        ),
        Section(
            "Problem by problem",
            table=problem_list(rows, found.tokens, environment, policy),
            folded=True,
            anchor="problems",
        ),
    ]
    published = published_list(rows, found.tokens, environment, policy)
    if published is not None:
        words = "These times are somebody else's, measured elsewhere: a hint of what to expect, and nothing to serve."
        sections.append(Section("Published times", (words,), table=published, anchor="published"))
    return tuple(sections)


def _scope_words(found: _Found) -> tuple[str, ...]:
    """What GEMMs the page counts, in a sentence."""
    workload, model = found.workload, found.chosen.model
    if not model.name:
        return ("Bare shapes stand for themselves: they have no role, no layers, and so no total.",)
    if not workload.preset:
        inspect = shlex.join(["fp4tune", "inspect", found.chosen.spelling])
        said = "The GEMMs are those that runs of this checkpoint set out to tune"
        return (f"{said}; `{inspect}` lists all that it has.",)
    if not workload.n_bf16:
        return ()
    n, are = _count(workload.n_bf16, "GEMM"), "is" if workload.n_bf16 == 1 else "are"
    said = f"{n} of this model {are} in BF16, not tuned here, and in no figure of this page"
    return (f"{said}; `fp4tune tune --bf16` takes them.",)


def _grid_note(found: _Found) -> str:
    notes = []
    hidden = len(found.all_tokens) - len(found.tokens)
    if hidden > 0:
        notes.append(f"The model runs its GEMMs at {hidden} M more that are not shown.")
    if found.published.n_unread:
        notes.append(f"Published times were looked up for {MAX_LAYERS} GEMMs, and not for {found.published.n_unread}.")
    return " ".join(notes)


def _totals(totals: Totals) -> tuple[Section, ...]:
    """The totals of every phase that has any, then those that are incomplete."""
    sections: list[Section] = []
    for phase, (step, m_is) in STEPS.items():
        if any(one.phase == phase and one.is_complete for one in totals.totals):
            table = total_table(phase, totals.totals)
            words = (*(() if sections else (TOTAL,)), m_is, *totals.left_out)
            sections.append(
                Section(f"A {step}", words, figure=total_figure(phase, table), table=table, anchor=f"total-{phase}")
            )
    incomplete = incomplete_table(totals.totals)
    if incomplete is not None:
        words = ("What these add up to is a part of a step, and says nothing of the whole.",)
        sections.append(Section("Incomplete totals", words, table=incomplete, folded=True, anchor="incomplete"))
    return tuple(sections)


def _next_steps(found: _Found, totals: Totals) -> tuple[NextStep, ...]:
    """The commands that fill what is grey, and what the page could show beside."""
    chosen, policy = found.chosen, found.scope.policy
    uses = [place.use for place in found.grey]
    steps: list[NextStep] = []
    if not found.places and not chosen.model.name:
        steps.append(NextStep("No shape was given by hand yet. Tune one:", "fp4tune tune --shape 16x4096x7168"))
    where = f"on the machine with the {found.scope.environment.device.name}"
    if uses and chosen.model.name:
        lines = tune_model(chosen.spelling, chosen.model, uses, policy)
        text = (
            f"{_count(len(uses), 'problem')} of this model at these M {_are(uses)} not tuned here. Tune them {where}:"
        )
        steps += [NextStep(text if i == 0 else "And:", line) for i, line in enumerate(lines)]
    elif uses:
        lines = tune_shapes([use.problem for use in uses], policy)
        text = f"{_count(len(uses), 'shape')} that runs tuned elsewhere {_are(uses)} not tuned here. Tune them {where}:"
        steps += [NextStep(text if i == 0 else "And:", line) for i, line in enumerate(lines[:4])]
    phases = {phase for place in found.places for phase in place.use.layers}
    done = {one.phase for one in totals.totals if one.is_complete}
    soon = {phase for use in uses for phase in use.layers}
    for phase, (step, _) in STEPS.items():
        if phase in phases - done - soon and found.workload.preset:
            words = [*tune_checkpoint(chosen.spelling, chosen.model), "--phase", phase, *policy_options(policy)]
            steps.append(NextStep(f"No {step} has all of its GEMMs tuned. Tune the usual M of one:", shlex.join(words)))
    return tuple(steps)


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _without_runs(scopes: Chosen) -> View:
    """The page of a database with winners whose runs are not stored."""
    n = scopes.scope.n_winners if scopes.scope else 0
    steps = (
        NextStep("Choose one of the presets above: what is served for its shapes is shown."),
        NextStep("See everything that is served, problem by problem:", link=address("roof")),
    )
    lead = f"Something is served here for {_count(n, 'problem')}, and no run is stored that says of which model."
    return View("Gains", filters=(*scopes.filters, presets_filter()), next_steps=steps, lead=lead)


PAGE = Page("", "Gains", "What do I get?", (ENVIRONMENT, POLICY, MODEL, TP, EP, TOKENS, CURSOR), view)
