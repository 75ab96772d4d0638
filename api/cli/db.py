"""`fp4tune db`: the database's schema and backups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_DATABASE, Database, Json, database_must_exist
from .output import print_json, print_line

app = typer.Typer(help="Upgrade or back up the database.", no_args_is_help=True, rich_markup_mode=None)


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
