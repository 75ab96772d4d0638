"""`fp4tune tune --resume`: which run, and that nothing is asked of it that it was not started with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...kernels.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from ...db.records import Run
    from ...db.store import Store
    from ...tuner.context import JobSettings

REMEMBERED = {
    "trials": "trials",
    "budget_s": "budget_s",
    "seed": "seed",
    "backend": "backends",
    "policy": "policy",
    "tp": "tp",
    "ep": "ep",
    "tokens": "tokens",
    "phase": "phases",
    "role": "roles",
    "bf16": "bf16",
}
"""Options that decide what a run does, by their parameter's name, and what its settings call them."""

WANTED_FOR = {
    **dict.fromkeys(("tp", "ep", "tokens", "phase", "role", "bf16"), "a checkpoint"),
    **dict.fromkeys(("format_", "out_dtype", "routing"), "--shape"),
}
"""Options that mean something only beside what is named here."""


def run_to_resume(store: Store, name: str) -> Run:
    """The run that --resume names: an id, a unique prefix of one, or `last` for the newest unfinished one.

    Raises:
        NotFoundError: there is none.
    """
    if name != "last":
        return store.run(name)
    for run in store.runs(limit=1000):
        if run.status.value != "finished":
            return run
    raise NotFoundError("There is no unfinished run to resume.")


def settings_of(run: Run) -> JobSettings:
    """The settings that a run was started with."""
    from ...tuner.context import JobSettings

    return JobSettings(trials=run.settings["trials"], budget_s=run.settings["budget_s"], seed=run.seed)


def refuse_contradictions(run: Run, given: Mapping[str, Any]) -> None:
    """See that what the command line says is what the run was started with.

    Args:
        run: the run to resume.
        given: parameters that stand on the command line, and their values.

    Raises:
        InvalidInputError: one is not.
    """
    settings: dict[str, Any] = {**run.settings, "seed": run.seed}
    for name, value in given.items():
        if name in REMEMBERED:
            stored = settings.get(REMEMBERED[name])
            if _plain(stored) == _plain(value):
                continue
            was = f"with {option(name)} {_text(stored)}" if stored else f"without {option(name)}"
            raise InvalidInputError(
                f"Run {run.id} was started {was} and goes on as it was started: leave {option(name)} {_text(value)} "
                "out, or start a new run."
            )
        if name in WANTED_FOR:
            raise InvalidInputError(f"{option(name)} says nothing of a run that exists: leave it out with --resume.")


def refuse_idle_options(given: Mapping[str, Any], named: str) -> None:
    """See that no option on the command line would be ignored.

    Args:
        given: parameters that stand on the command line.
        named: what is tuned: `a checkpoint`, `--shape` or `--from-misses`.

    Raises:
        InvalidInputError: one would.
    """
    for name in given:
        if WANTED_FOR.get(name, named) != named:
            raise InvalidInputError(
                f"{option(name)} is for {WANTED_FOR[name]}, and here {named} is named: leave it out."
            )


def option(parameter: str) -> str:
    """The option of a parameter: `--out-dtype` of `out_dtype`."""
    return "--" + parameter.strip("_").replace("_", "-")


def _plain(value: object) -> object:
    """A value as it can be compared: the order of a list says nothing."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sorted(map(str, value))
    return value


def _text(value: object) -> str:
    """A value as it would stand on the command line."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return shlex.quote(text.removeprefix("cuda."))  # policies are graph and eager there
