"""`fp4tune export`: what the database serves, as a file that an engine loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernels.errors import InvalidInputError
from ..formats import FORMATS, format_called
from ..formats.flashinfer_metadata import MetadataMode
from .options import DEFAULT_DATABASE, Database, Json, database_must_exist
from .output import config_text, print_json, print_prose, print_table

if TYPE_CHECKING:
    from ...kernels.device import Environment
    from ..formats.flashinfer import Exported

FORCE_HINT = "--force replaces it"


def export(
    format_: Annotated[str, typer.Option("--format", help=f"What to write: {', '.join(FORMATS)}.")],
    environment: Annotated[
        str | None,
        typer.Option("--environment", help="Fingerprint, or the beginning of one, or `latest`; default: the only one."),
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Only the problems of this run. May be repeated.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Only the problems of this checkpoint, as `tune` was given it.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", help="Only configs of this backend, for an engine that pins it. May be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file; default: flashinfer-autotune.json.")] = None,
    metadata: Annotated[
        MetadataMode,
        typer.Option("--metadata", help="exact, or wildcard: leave open what says nothing about these tactics."),
    ] = MetadataMode.EXACT,
    database: Database = DEFAULT_DATABASE,
    *,
    only_winners: Annotated[
        bool, typer.Option("--only-winners", help="Nothing where a backend won that the file cannot carry.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write what is served as an engine's own file, and have the engine's library load it again."""
    from ...db.store import Store
    from ..formats import flashinfer
    from ..formats.files import check_target
    from ..formats.selection import LeftOut, Selected, environment_called, runs_called, select, winners_of

    target = out or Path(format_called(format_).default_file)
    database_must_exist(database)
    backends = flashinfer.backends_called(backend)
    check_target(target, may_replace=lambda _: force, hint=FORCE_HINT)
    with Store.open(database, mode="read") as store:
        runs = runs_called(store, run or [], model)
        where = environment_called(store, environment or _only({one.environment_fingerprint for one in runs}))
        winners = winners_of(store, where, runs)
        chosen = [
            select(store, winner, backends, unfit=flashinfer.unfit, only_winners=only_winners) for winner in winners
        ]
    selected = [one for one in chosen if isinstance(one, Selected)]
    left_out = [one for one in chosen if isinstance(one, LeftOut)]
    exported = flashinfer.export(where, selected, left_out, target, backends=backends, mode=metadata)
    if as_json:
        print_json(
            {
                "format": format_,
                "file": target,
                "environment_fingerprint": where.fingerprint,
                "device": where.device.name,
                "metadata": exported.metadata,
                "verified_as_if": exported.as_if,
                "carried": exported.selected,
                "left_out": exported.left_out,
                "entries": [
                    {"key": e.key, "runner": e.runner, "tactic": e.tactic, "policy": e.policy} for e in exported.entries
                ],
            }
        )
    else:
        _print(exported, target, where)


def _only(found: set[str]) -> str | None:
    """The environment of runs, if they are of one; None if no run was named.

    Raises:
        InvalidInputError: they are of several.
    """
    if len(found) > 1:
        raise InvalidInputError(
            f"These runs are of {len(found)} environments ({', '.join(sorted(found))}), whose winners are never mixed: "
            "name one with --environment."
        )
    return next(iter(found), None)


def _print(exported: Exported, target: Path, environment: Environment) -> None:
    print_table(
        f"In {target}, for {environment.device.name}",
        ("shape", "backend", "config", "time µs", ""),
        [
            (
                one.problem.shape,
                one.backend,
                config_text(one.config),
                one.time_us,
                "winner" if one.is_winner else "best that FlashInfer has",
            )
            for one in exported.selected
        ],
        tall=True,
    )
    if exported.left_out:
        print_table(
            "Not in it", ("problem", "why"), [(one.problem.key, one.why) for one in exported.left_out], tall=True
        )
    version = exported.metadata["flashinfer_version"]
    print_prose(
        f"{target} has {len(exported.entries)} entries for {len(exported.selected)} problems. FlashInfer {version} "
        "loaded it in a fresh process, and every call found its entry and tactic."
    )
    if exported.as_if:
        print_prose(
            f"That process is not in the environment of the winners ({environment.device.name}), so FlashInfer's "
            "comparison of the metadata was answered as if it were."
        )
