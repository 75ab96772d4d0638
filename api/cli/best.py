"""`fp4tune best`: the answer that a server would get, without a server."""

from __future__ import annotations

from typing import Annotated, Any

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
    from ..documents import answer_document, no_answer_document
    from ..index import WinnerIndex, followed
    from ..lookup import Answer, find, locate, nearest

    if not shape:
        raise InvalidInputError("Name at least one --shape.")
    problems = problems_of(shape, routing, format_, out_dtype)
    database_must_exist(database)
    with Store.open(database, mode="read") as store:
        index = followed(WinnerIndex(), store)
    place = locate(index, device, environment)
    found = [find(index, problem, place, policy) for problem in problems]
    documents = [
        answer_document(one) if isinstance(one, Answer) else no_answer_document(one, nearest(index, one))
        for one in found
    ]
    if as_json:
        print_json(documents)
    else:
        _print(documents)
    if any(document["match"] == "none" for document in documents):
        raise typer.Exit(EXIT_NONE)


def _print(documents: list[dict[str, Any]]) -> None:
    """A table of the answers, then the sentences that belong to them."""
    answers = [document for document in documents if document["match"] != "none"]
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
    for document in documents:
        if document["match"] == "none":
            near = ", ".join(problem["shape"] for problem in document["nearest"]) or "nothing"
            shape, why = document["problem"]["shape"], "; ".join(document["reasons"])
            sentences[f"no answer for {shape}: {why}. Nearest tuned: {near}."] = None
    for sentence in sentences:
        print_line(sentence)
