"""`fp4tune runs`: what was tuned, when, and how it ended."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import DEFAULT_DATABASE, Database, Json, database_must_exist
from .output import print_json, print_line, print_table


def runs(
    database: Database = DEFAULT_DATABASE,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many runs, newest first.")] = 20,
    *,
    as_json: Json = False,
) -> None:
    """List tuning runs, newest first."""
    from ...db.store import Store

    database_must_exist(database)
    with Store.open(database, mode="read") as store:
        found = store.runs(limit=limit)
        alive = {run.id: store.is_alive(run) for run in found}
    if as_json:
        print_json(found)
        return
    if not found:
        print_line("No runs yet: start one with `fp4tune tune`.")
        return
    print_table(
        "Runs",
        ("run", "status", "started (UTC)", "model or shapes", "device", "problems done", "trials"),
        [
            (
                run.id,
                # A run that says it runs, and whose process is gone, was killed; `tune --resume` goes on with it.
                "killed" if run.status == "running" and not alive[run.id] else run.status.value,
                run.started_at.strftime("%Y-%m-%d %H:%M:%S"),
                run.checkpoint or "shapes",
                run.device_name,
                f"{run.n_done}/{run.n_problems}",
                run.n_trials,
            )
            for run in found
        ],
        caption="go on with a run that is not finished: fp4tune tune --resume RUN",
        tall=True,
    )
