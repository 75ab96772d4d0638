"""`fp4tune import`: published measurements of other people, from packages that are installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .options import DEFAULT_DATABASE, Database, Json
from .output import Cell, print_json, print_line, print_table

if TYPE_CHECKING:
    from ...tuner.reference.aiconfigurator import FileImport

app = typer.Typer(help="Import measurements that others published.", no_args_is_help=True, rich_markup_mode=None)

REFUSED = 2
"""Exit code if a file was refused: it is bad input, and the others were imported."""


@app.callback()
def sources() -> None:
    """Import measurements that others published, from a package that is installed here."""


@app.command("aiconfigurator")
def aiconfigurator(
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="The publisher's name of a card; may be repeated. Default: rtx_pro_6000_server."),
    ] = None,
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> int:
    """Import NVIDIA's GEMM and MoE latencies from the installed aiconfigurator-core (extra `reference`)."""
    from ...tuner.reference.aiconfigurator import DEFAULT_SYSTEM, Package, import_systems

    package = Package.find()
    wanted = system or [DEFAULT_SYSTEM]
    for name in wanted:  # what cannot be imported at all makes no database
        package.card(name)
    from ...db.store import Store

    with Store.open(database, mode="create") as store:
        files = []
        for file in import_systems(store, package, wanted):
            files.append(file)
            if sys.stderr.isatty():  # a large table takes half a minute
                typer.echo(file.source.file, file=sys.stderr)
        url = store.url
    if as_json:
        print_json({"database": url, "files": files})
    else:
        _print(url, files)
    for file in files:
        for reason, count in file.left_out.items():
            _note(f"{file.source.file}: {count:,} rows were left out, because {reason}")
        if file.error:
            _note(f"refused: {file.error}")
    return REFUSED if any(file.error for file in files) else 0


def _print(url: str, files: list[FileImport]) -> None:
    """The files as a table, and whose they are."""
    rows: list[list[Cell]] = [
        [
            file.source.system, file.source.framework, file.source.framework_version, file.source.file.split("/")[-1],
            file.result.n_added if file.result else None, file.result.n_known if file.result else None,
        ]
        for file in files
    ]  # fmt: skip
    for attribution in dict.fromkeys(file.source.attribution for file in files):
        print_line(f"Published by others: {attribution}")
    print_table(
        f"Published measurements in {url}",
        ("system", "framework", "version", "file", "new rows", "known rows"),
        rows,
        caption="Source `reference`: shown as such wherever they are used, and never served before a measurement.",
    )


def _note(sentence: str) -> None:
    """A sentence beside the result."""
    typer.echo(f"note: {sentence}", file=sys.stderr)
