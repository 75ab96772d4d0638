"""How a run is told: its state, what it is about, the command that started it, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....db.dashboard.runs import RunSeen
from ....db.records import Run, RunStatus
from ....kernels.errors import Fp4tuneError
from ...results.command import command_of
from ..model import Cell, Command, Mark
from ..page import Context

KILLED = "killed"
"""What a run is called that says it is running, and whose process is gone: as `fp4tune runs` does."""

MAX_SHAPES = 200
"""Most shapes of a run whose command is put together again: a longer line is of no use to anybody."""


def settings_of(run: Run) -> Mapping[str, Any]:
    """A run's settings; none if the database holds something else."""
    settings: object = run.settings
    return settings if isinstance(settings, Mapping) else {}


def tp_of(run: Run) -> int | None:
    """Over how many GPUs the model was sharded; None for bare shapes."""
    value = settings_of(run).get("tp", 1 if run.checkpoint else None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def what(run: Run) -> str:
    """What was tuned: the model as the user named it, or that it was shapes."""
    return run.checkpoint or "shapes"


def status_word(seen: RunSeen) -> str:
    """Its status, or that it was killed."""
    return KILLED if seen.was_killed else seen.run.status.value


def status_cell(seen: RunSeen) -> Cell:
    """Its status."""
    word = status_word(seen)
    marks = {KILLED: (Mark.BAD,), "failed": (Mark.BAD,), "finished": (Mark.GOOD,)}
    return Cell(word, marks=marks.get(word, ()), note="its process is gone" if word == KILLED else "")


def can_be_resumed(seen: RunSeen) -> bool:
    """Whether there is something left to do, and nobody who does it."""
    return seen.run.status is not RunStatus.FINISHED and not seen.is_alive


def resume_command(run: Run) -> str:
    """What goes on with a run."""
    return f"fp4tune tune --resume {run.id}"


def commands_of(context: Context, seen: RunSeen) -> tuple[Command, ...]:
    """The command that started a run, if it can be told, and the one that goes on with it."""
    started = _start_command(context, seen.run)
    commands = [Command("It was started like this", started)] if started else []
    if can_be_resumed(seen):
        commands.append(Command("Go on with it, where it stopped", resume_command(seen.run)))
    return tuple(commands)


def _start_command(context: Context, run: Run) -> str:
    """The command that started a run; empty if what is stored does not tell."""
    if not run.checkpoint and run.n_problems > MAX_SHAPES:
        return ""
    try:
        items = [] if run.checkpoint else [state.item for state in context.store.run_problems(run.id)]
        return command_of(run, items)
    except (Fp4tuneError, ValueError, TypeError, AttributeError, LookupError):
        # Settings are whatever some fp4tune remembered: a line that might be wrong is worse than none.
        return ""
