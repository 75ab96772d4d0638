"""`fp4tune db`: the database's schema, backups, and what is carried from one database to another."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_DATABASE, Database, Json, database_must_exist
from .output import print_json, print_line

DEFAULT_EXPORT = Path("fp4tune-export.jsonl.gz")

app = typer.Typer(
    help="Upgrade or back up the database, carry runs from one to another.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("upgrade")
def upgrade(database: Database = DEFAULT_DATABASE, *, as_json: Json = False) -> None:
    """Bring the database's schema up to date, creating the database if there is none."""
    from ...db.store import Store

    with Store.open(database, mode="create") as store:
        state = store.upgrade()
        url = store.url
    if as_json:
        print_json({"database": url, "schema": state.current})
    else:
        print_line(f"{url} has schema {state.current}, the newest that this fp4tune knows.")


@app.command("backup")
def backup(
    path: Annotated[Path, typer.Argument(help="Where to; must not exist.")],
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Copy a SQLite database while it may be in use; the copy is checked before it gets its name."""
    from ...db.store import Store

    database_must_exist(database)
    with Store.open(database, mode="read") as store:
        store.backup(path)
    if as_json:
        print_json({"backup": path, "bytes": path.stat().st_size})
    else:
        print_line(f"{path} is a complete copy, {path.stat().st_size:,} bytes.")


@app.command("export")
def export(
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="Id of a run, or a unique beginning of it; may be repeated. Default: all."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The file to make; must not exist.")] = DEFAULT_EXPORT,
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Write runs with their trials and winners to one compact file, for `fp4tune db import`."""
    from ...db.store import Store

    database_must_exist(database)
    with Store.open(database, mode="read") as store:
        summary = store.export(out, run_ids=run or None)
    size = out.stat().st_size
    if as_json:
        print_json({"export": out, "bytes": size, "counts": summary.counts, "notes": summary.notes})
        return
    print_line(f"{out} has {_counted(summary.counts)}, {size:,} bytes.")
    _notes(summary.notes)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `fp4tune db export` wrote.")],
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Add what an export holds to the database, all of it or nothing; again changes nothing."""
    from ...db.exchange import Reader
    from ...db.store import Store

    with Reader(path):  # what is no export at all makes no database
        pass
    with Store.open(database, mode="create") as store:
        summary = store.import_from(path)
        url = store.url
    if as_json:
        print_json({"database": url, "added": summary.added, "known": summary.known, "notes": summary.notes})
        return
    known = sum(summary.known.values())
    there = f" {known} of its lines were known here." if known else ""
    print_line(f"{url} got {_counted(summary.added)} from {path}.{there}")
    _notes(summary.notes)


_NAMES = {
    "environment": ("environment", "environments"),
    "run": ("run", "runs"),
    "trial": ("trial", "trials"),
    "winner": ("winner", "winners"),
    "roofs": ("set of roofs", "sets of roofs"),
    "static_facts": ("set of static facts", "sets of static facts"),
}


def _counted(counts: Mapping[str, int]) -> str:
    """Counts in words: `1 run, 64 trials`."""
    parts = [
        f"{counts[kind]:,} {one if counts[kind] == 1 else several}"
        for kind, (one, several) in _NAMES.items()
        if counts.get(kind)
    ]
    return ", ".join(parts) or "nothing"


def _notes(notes: tuple[str, ...]) -> None:
    """Sentences about what is not there, beside the result."""
    for note in notes:
        typer.echo(f"note: {note}", file=sys.stderr)
