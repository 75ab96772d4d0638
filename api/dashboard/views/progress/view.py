"""Is more tuning worth it? Best so far against trials, beside a calculated random search."""

from __future__ import annotations

from collections.abc import Sequence

from .....db.dashboard.progress import (
    MAX_TRIED,
    BackendsOf,
    Found,
    FoundBy,
    NewestRunWith,
    Progress,
    ProgressOf,
    TriedOf,
)
from .....db.records import Run, RunProblemState, RunStatus
from .....kernels.errors import NotFoundError
from .....kernels.problem import Problem
from .....tuner.importance import MIN_TRIALS, Importances, importances
from ....dashboard import tune_commands
from ....results.figures import shape_text
from ...choices import MAX_OPTIONS, TUNE_FIRST
from ...links import link
from ...model import Command, Filter, NextStep, Option, Section, View
from ...page import BACKEND, PROBLEM, RUN, Asked, Context, Page
from ...policy_words import policy_sentence
from ..backends.tables import serves
from ..run_words import resume_command, settings_of, what
from .importance import importance_section
from .steps import (
    BIASED,
    FAIR,
    RANDOM_WORDS,
    Advice,
    advise,
    finals_table,
    quarters_table,
    steps_figure,
    steps_table,
    what_counts,
)

MAX_RUNS = 50
"""Newest runs to choose from."""

REFRESH_S = 5
"""Seconds until the page of a problem that is being searched asks for itself again."""

MOST_TRIALS, MOST_BUDGET_S = 100_000, 1e6
"""What `fp4tune tune` takes at most."""


def view(context: Context, asked: Asked) -> View:
    """The page: of the run and the problem that the address names, else of the newest run and its first problem.

    Raises:
        NotFoundError: there is no such run.
    """
    store = context.store
    newest = store.runs(limit=MAX_RUNS)
    if not newest:
        return View(PAGE.question, next_steps=(TUNE_FIRST,))
    run = _run(context, asked, newest)
    states = store.run_problems(run.id)
    state, warnings = _state(states, asked.get(PROBLEM), run)
    if state is None:
        filters = (_run_filter(newest, run),)
        step = NextStep(f"Run {run.id} has no problems.", link=link("run", run=run.id))
        return View(PAGE.question, filters=filters, next_steps=(step,))
    problem = state.item.problem
    names = store.ask(BackendsOf(run.id, problem.key))
    baselines = tuple(name for name in names if not serves(name, problem))
    progress = store.ask(ProgressOf(run.id, problem.key, baselines))
    served = store.ask(FoundBy(run.id, problem.key))
    is_alive = run.status is RunStatus.RUNNING and not state.done and store.is_alive(run)
    advice = advise(progress, served.n_ties if served else None, settings_of(run), ended=state.done)
    backend, offered = _backend(progress, baselines, served, asked.get(BACKEND))
    found = Importances(why_not="No trial ran, so no parameter can matter.")
    if backend:
        found = importances(store.ask(TriedOf(run.id, problem.key, backend)))
    n_ran = progress.backends.get(backend, (0, 0))[0]
    if n_ran > MAX_TRIED and not found.why_not:
        warnings = (*warnings, f"Importances are of about {MAX_TRIED:,} of the {n_ran:,} trials of {backend} that ran.")
    return View(
        f"Search of {shape_text(problem)} by run {run.id}",
        sections=(
            *_sections(progress, advice, served, run, state, is_alive=is_alive),
            importance_section(found, backend),
        ),
        filters=(
            _run_filter(newest, run),
            _problem_filter(states, problem),
            *([Filter(BACKEND.name, "Parameters of", backend, offered)] if offered else []),
        ),
        next_steps=_next_steps(progress, run, state, is_alive=is_alive),
        lead=advice.lead,
        warnings=warnings,
        refresh_s=REFRESH_S if is_alive else None,
    )


def _run(context: Context, asked: Asked, newest: Sequence[Run]) -> Run:
    """The run that is asked for; else the newest that tried the problem that is asked for; else the newest."""
    if asked.get(RUN):
        return context.store.run(asked.get(RUN))
    if key := asked.get(PROBLEM):
        run_id = context.store.ask(NewestRunWith(key))
        if run_id is None:
            raise NotFoundError(f"No run has tried {key}.")
        return context.store.run(run_id)
    return newest[0]


def _state(
    states: Sequence[RunProblemState], key: str, run: Run
) -> tuple[RunProblemState | None, tuple[str, ...]]:  # fmt: skip
    """(the problem that is shown, what there is to say about that)."""
    found = next((state for state in states if state.item.problem.key == key), None)
    if found is not None or not states:
        return found, ()
    said = (f"Run {run.id} did not tune {key}; this is its first problem.",) if key else ()
    return states[0], said


def _run_filter(newest: Sequence[Run], run: Run) -> Filter:
    runs = newest if run.id in {one.id for one in newest} else [run, *newest]
    options = (
        Option(one.id, f"{one.started_at:%Y-%m-%d %H:%M} · {what(one)[:60]} · {_device(one)} · {one.id}")
        for one in runs
    )
    return Filter(RUN.name, "Run", run.id, tuple(options))


def _device(run: Run) -> str:
    name: str | None = run.device_name  # missing if the database is damaged
    return (name or "unknown device")[:60]


def _problem_filter(states: Sequence[RunProblemState], problem: Problem) -> Filter:
    keys = list(dict.fromkeys([state.item.problem.key for state in states]))
    if problem.key not in keys[:MAX_OPTIONS]:
        keys.insert(0, problem.key)
    return Filter(PROBLEM.name, "Problem", problem.key, tuple(Option(key, key) for key in keys[:MAX_OPTIONS]))


def _backend(
    progress: Progress, baselines: Sequence[str], served: Found | None, wanted: str
) -> tuple[str, tuple[Option, ...]]:
    """(whose parameters are shown, whose could be).

    The one that is asked for; else that of what is served, or else of the fastest trial, if enough of its trials ran to
    say anything; else the one with the most.
    """
    ran = {name: n_ran for name, (n_ran, _) in progress.backends.items() if n_ran}
    names = list(ran)
    best = next((one.backend for one in reversed(progress.drawn) if one.improved), "")
    likely = [name for name in (served.backend if served else "", best) if ran.get(name, 0) >= MIN_TRIALS]
    most = sorted(names, key=lambda name: (name in baselines, -ran[name]))
    chosen = next((name for name in (wanted, *likely, *most) if name in ran), "")
    options = (Option(name, f"{name} ({progress.backends[name][0]:,} ran)") for name in names[:MAX_OPTIONS])
    return chosen, tuple(options)


def _sections(
    progress: Progress, advice: Advice, served: Found | None, run: Run, state: RunProblemState, *, is_alive: bool
) -> tuple[Section, ...]:
    steps = steps_table(progress)
    words = [*advice.facts, f"The run says: {state.outcome}."] if state.outcome else list(advice.facts)
    if policy := settings_of(run).get("policy"):
        words.append(f"Measured by {policy_sentence(str(policy))}.")
    about = RANDOM_WORDS
    if progress.n_sampled:
        about = f"{RANDOM_WORDS} {BIASED}"
    elif progress.n_enumerated:
        about = f"{RANDOM_WORDS} {FAIR}"
    return (
        Section("In short", tuple(words), commands=_commands(advice, run, state, is_alive=is_alive), anchor="short"),
        Section("Best so far", (about,), steps_figure(steps), steps, folded=True, anchor="steps"),
        Section(
            "Quarter by quarter", (), None, quarters_table(progress, what_counts(settings_of(run))), anchor="quarters"
        ),
        Section("The finals", (), None, finals_table(progress, served), anchor="finals"),
    )


def _commands(advice: Advice, run: Run, state: RunProblemState, *, is_alive: bool) -> tuple[Command, ...]:
    """What goes on with it."""
    if is_alive or advice.is_exhausted:
        return ()
    if not state.done and run.status is not RunStatus.FINISHED:
        return (Command("Go on with the run, where it stopped", resume_command(run)),)
    settings = settings_of(run)
    trials, budget_s = settings.get("trials"), settings.get("budget_s")
    twice = tune_commands.tune_again(
        state.item.problem,
        str(settings.get("policy") or ""),
        seed=run.seed,
        trials=min(2 * trials, MOST_TRIALS) if type(trials) is int and trials > 0 else None,
        budget_s=min(2.0 * budget_s, MOST_BUDGET_S) if isinstance(budget_s, int | float) and budget_s > 0 else None,
    )
    return (Command("Search it again, with twice the trials and seconds", twice),)


def _next_steps(progress: Progress, run: Run, state: RunProblemState, *, is_alive: bool) -> tuple[NextStep, ...]:
    if progress.n_ran:
        return ()
    if progress.n_draws and not is_alive:
        why = NextStep("No trial ran that could be served: read why.", link=link("failures", run=run.id))
        resume = () if state.done else (NextStep("Go on with the run.", command=resume_command(run)),)
        return (why, *resume)
    if is_alive:
        return (NextStep("The run has not come here yet: the page updates itself.", link=link("run", run=run.id)),)
    if state.done:
        said = f"Nothing was tried: {state.outcome}." if state.outcome else "Nothing was tried."
        return (NextStep(said, link=link("run", run=run.id)),)
    return (NextStep("The run ended before it came to this problem.", command=resume_command(run)),)


PAGE = Page("progress", "Progress", "Is more tuning worth it?", (RUN, PROBLEM, BACKEND), view)
