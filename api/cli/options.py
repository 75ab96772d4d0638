"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...kernels.errors import InvalidInputError, NotFoundError
from ...kernels.problem import MAX_DIM, Format, OutDtype, Problem, Routing, parse_shape

Database = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="FP4TUNE_DB",
        help="Database: a path, or a SQLAlchemy URL (postgresql+psycopg://...).",
    ),
]
DEFAULT_DATABASE = "fp4tune.db"

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="MxNxK, e<experts>[of<total>]k<top_k>:MxNxK for grouped, moe: and that for a fused layer. Repeatable.",
    ),
]
RoutingOption = Annotated[
    Routing, typer.Option("--routing", help="How tokens spread over experts (grouped and moe shapes).")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Operand format of the shapes.")]
OutDtypeOption = Annotated[OutDtype, typer.Option("--out-dtype", help="Output dtype of the shapes.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Tp = Annotated[int, typer.Option("--tp", help="Tensor parallelism: ranks that share every layer.")]
Ep = Annotated[int, typer.Option("--ep", help="Expert parallelism: ranks that share the experts.")]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", help="Token counts, comma separated (1,16,64), instead of each phase's defaults."),
]


def problems_of(shapes: list[str], routing: Routing, format_: Format, out_dtype: OutDtype) -> list[Problem]:
    """The problems that shape strings name. Raises InvalidInputError."""
    return [
        parse_shape(
            s, routing=routing if s.startswith(("e", "moe:")) else Routing.UNIFORM, format=format_, out_dtype=out_dtype
        )
        for s in shapes
    ]


def token_counts(text: str | None) -> tuple[int, ...] | None:
    """Read a --tokens value.

    Raises:
        InvalidInputError: an entry is no whole number from 1 to 2^24.
    """
    if text is None:
        return None
    counts: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and len(word) <= 12) or not 1 <= int(word) <= MAX_DIM:
            shown = word if len(word) <= 40 else f"{word[:40]}..."
            raise InvalidInputError(
                f"--tokens takes whole numbers from 1 to {MAX_DIM}, comma separated, and {shown!r} is none."
            )
        counts.append(int(word))
    return tuple(dict.fromkeys(counts))


def database_must_exist(url: str) -> None:
    """Refuse a SQLite path that is not there, before anything creates it.

    Raises:
        NotFoundError: there is no such file.
    """
    if "://" not in url and not Path(url).exists():
        raise NotFoundError(f"There is no database {url!r}: run `fp4tune tune` first, or name one with --db.")
