"""`fp4tune results`: the page of a card, from the database."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernels.errors import InvalidInputError
from .options import DEFAULT_DATABASE, Database, Json, database_must_exist
from .output import print_json, print_line

if TYPE_CHECKING:
    from ..results import Agreement, RunResult


def results(
    run: Annotated[list[str], typer.Argument(help="Runs of one environment (ids or unique prefixes of them).")],
    again: Annotated[
        str | None, typer.Option("--again", help="A run that tuned the same problems again, to be compared.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write the page to; default: print it.")] = None,
    noise: Annotated[
        list[Path] | None,
        typer.Option("--noise", help="File with what `fp4tune noise --json` printed. May be repeated."),
    ] = None,
    database: Database = DEFAULT_DATABASE,
    again_database: Annotated[
        str | None, typer.Option("--again-db", help="Database of the run of --again, if it is another one.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Make the results page of runs as Markdown: what is served, beside every default, BF16 and the roofs."""
    from ...db.store import Store
    from ...kernels.backend import load_backends
    from ..results import agreement, gather, page, read_noise

    if again_database is not None and again is None:
        raise InvalidInputError("--again-db says where the run of --again is, and no --again is given.")
    database_must_exist(database)
    backends = load_backends()
    with Store.open(database, mode="read") as store:
        found = [gather(store, name, backends) for name in dict.fromkeys(run)]
    agreements: list[Agreement] = []
    if again is not None:
        database_must_exist(again_database or database)
        with Store.open(again_database or database, mode="read") as store:
            agreements = [agreement(_most_in_common(found, other := gather(store, again, backends)), other)]
    environment = found[0].environment.fingerprint
    policy = str(found[0].run.settings.get("policy"))
    quiet = [entry for path in noise or [] for entry in read_noise(path, environment=environment, policy=policy)]
    text = page(found, agreements, noise=quiet, command=_command(run, again, noise or []))
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInputError(f"The page cannot be written to {out}: {error.strerror}.") from error
    if as_json:
        print_json({"runs": found, "again": [_document(one) for one in agreements], "noise": quiet})
    elif out is not None:
        print_line(f"{out} has the results of {len(found)} run{'s' if len(found) > 1 else ''}.")
    else:
        typer.echo(text, nl=False)


def _most_in_common(found: list[RunResult], other: RunResult) -> RunResult:
    """The run that has the most problems in common with another."""
    theirs = {one.problem for one in other.problems}
    return max(found, key=lambda mine: len(theirs & {one.problem for one in mine.problems}))


def _document(found: Agreement) -> dict[str, Any]:
    return {
        "first": found.first,
        "second": found.second,
        "counts": {verdict.value: count for verdict, count in found.counts.items()},
        "problems": [
            {"problem": problem, "verdict": verdict, "first": mine, "second": theirs}
            for problem, verdict, mine, theirs in found.verdicts
        ],
    }


def _command(runs: list[str], again: str | None, noise: list[Path]) -> str:
    """What made the page, without the paths of this machine."""
    words = [
        *runs,
        *(["--again", again] if again else []),
        *(word for path in noise for word in ("--noise", path.name)),
    ]
    return shlex.join(["fp4tune", "results", *words])
