"""`fp4tune best`: the answer that a server would get, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...db.records import Policy
from ...kernels.errors import InvalidInputError
from ...kernels.problem import Format, OutDtype, Routing
from .options import (
    DEFAULT_DATABASE,
    Database,
    FormatOption,
    Json,
    OutDtypeOption,
    RoutingOption,
    Shapes,
    database_must_exist,
    problems_of,
)
from .output import config_text, print_json, print_line, print_table

if TYPE_CHECKING:
    from ..index import WinnerIndex
    from ..lookup import Answer, NoAnswer
    from ..references import References

EXIT_NONE = 3
"""For one of the shapes there is no answer."""


def best(
    shape: Shapes = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Name or fingerprint of the device; default: the only one.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", help="Fingerprint of the environment; default: the newest.")
    ] = None,
    policy: Annotated[
        Policy | None,
        typer.Option("--policy", help="Only winners measured so; default: cuda.graph before cuda.eager."),
    ] = None,
    routing: RoutingOption = Routing.UNIFORM,
    format_: FormatOption = Format.NVFP4,
    out_dtype: OutDtypeOption = OutDtype.BF16,
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Show the best known configuration of shapes."""
    from ...db import Store
    from ..index import WinnerIndex, followed
    from ..lookup import find, locate
    from ..references import References

    if not shape:
        raise InvalidInputError("Name at least one --shape.")
    problems = problems_of(shape, routing, format_, out_dtype)
    database_must_exist(database)
    with Store.open(database, mode="read") as store:
        index = followed(WinnerIndex(), store)
        references = References(store, index)
        place = locate(index, device, environment)
        documents = [_document(index, references, find(index, problem, place, policy)) for problem in problems]
    if as_json:
        print_json(documents)
    else:
        _print(documents)
    if any(document["match"] == "none" for document in documents):
        raise typer.Exit(EXIT_NONE)


def _document(index: WinnerIndex, references: References, found: Answer | NoAnswer) -> dict[str, Any]:
    """An answer, else what others published, else why there is none."""
    from ..documents import answer_document, no_answer_document, reference_document
    from ..lookup import Answer, nearest
    from ..references import ReferenceAnswer

    if isinstance(found, Answer):
        return answer_document(found)
    published = references.answer(found)
    if isinstance(published, ReferenceAnswer):
        return reference_document(published)
    return no_answer_document(published, nearest(index, published))


def _print(documents: list[dict[str, Any]]) -> None:
    """A table of what is served, one of what others published, then the sentences that belong to them."""
    answers = [document for document in documents if document["match"] not in ("none", "reference")]
    published = [document for document in documents if document["match"] == "reference"]
    if published:
        _print_published(published)
    if answers:
        print_table(
            "Best configurations",
            ("shape", "match", "backend", "config", "time µs", "default µs", "speed-up", "tied"),
            [
                (
                    a["problem"]["shape"],
                    a["match"],
                    a["backend"],
                    config_text(a["config"]),
                    a["time_us"],
                    a["default"]["time_us"],
                    f"{a['speedup']:.2f}x",
                    a["tie_set_size"],
                )
                for a in answers
            ],
            tall=True,
        )
    sentences = dict.fromkeys(f"note: {reason}" for a in answers for reason in a["reasons"])
    sentences |= dict.fromkeys(_notes(published))
    for document in documents:
        if document["match"] == "none":
            near = ", ".join(problem["shape"] for problem in document["nearest"]) or "nothing"
            shape, why = document["problem"]["shape"], "; ".join(document["reasons"])
            sentences[f"no answer for {shape}: {why}. Nearest tuned: {near}."] = None
    for sentence in sentences:
        print_line(sentence)


def _notes(documents: list[dict[str, Any]]) -> Iterator[str]:
    """The reasons, each with its shape unless it holds for all of them."""
    shapes: dict[str, list[str]] = {}
    for document in documents:
        for reason in document["reasons"]:
            shapes.setdefault(reason, []).append(document["problem"]["shape"])
    for reason, those in shapes.items():
        yield f"note: {reason}" if len(those) == len(documents) else f"note on {', '.join(those)}: {reason}"


def _print_published(documents: list[dict[str, Any]]) -> None:
    """What others measured: no config, and never in one table with what was measured here."""
    rows = []
    for document in documents:
        said = document["reference"]
        nvfp4 = said["nvfp4_over_fastest"]
        rows.append(
            (
                document["problem"]["shape"],
                said["precision"],
                f"{said['framework']} {said['framework_version']}",
                said["kernel_source"],
                said["time_us"],
                f"{said['time_us_low']:.1f} to {said['time_us_high']:.1f}",
                "-" if nvfp4 is None else f"{nvfp4:.2f}x",
            )
        )
    print_table(
        "Published by others, nothing to serve: the fastest for each shape",
        ("shape", "precision", "framework", "kernel", "time µs", "likely", "NVFP4 takes"),
        rows,
        tall=True,
    )
    for attribution in dict.fromkeys(document["reference"]["attribution"] for document in documents):
        print_line(f"from: {attribution}")
