"""Pieces of the results page: cells, tables, figures, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...db.records import Choice
from ...kernels.backend import ConfigValue, config_key
from .gather import Measured


class Labels:
    """Short names of configs, `C1`, `C2`, ... in the order in which they are asked for.

    A config can have fifteen parameters, and stands on a page once.
    """

    def __init__(self) -> None:
        self._configs: dict[tuple[str, str], tuple[str, Mapping[str, ConfigValue]]] = {}

    def of(self, choice: Choice | Measured) -> str:
        """The name of a config."""
        key = (choice.backend, config_key(choice.config))
        self._configs.setdefault(key, (f"C{len(self._configs) + 1}", choice.config))
        return self._configs[key][0]

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, backend, config) of every config that was asked for."""
        return [(label, backend, config_code(config)) for (backend, _), (label, config) in self._configs.items()]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table. `right` names the columns that are aligned right."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---:' if head in right else '---' for head in heads)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Text that ends no cell and no line of a table, and is not read as code."""
    return "".join(c if c.isprintable() else " " for c in text).replace("|", "\\|").replace("`", "'")


def time_text(measured: Choice | Measured) -> str:
    """`10.20 [10.10, 10.40]`; `-` if it did not run."""
    if measured.time_us is None:
        return "-"
    return f"{measured.time_us:.2f} [{measured.time_us_low:.2f}, {measured.time_us_high:.2f}]"


def times(factor: float | None) -> str:
    """`1.25x`; `-` if it is not known."""
    return "-" if factor is None else f"{factor:.2f}x"


def percent(share: float | None, *, digits: int = 1) -> str:
    """`49 %`; `-` if it is not known."""
    return "-" if share is None else f"{share * 100:.{digits}f} %"


def config_code(config: Mapping[str, ConfigValue]) -> str:
    """A config as code, so that underscores stay what they are."""
    values = " ".join(f"{name}={value}" for name, value in sorted(config.items()))
    return f"`{cell(values)}`" if values else "-"
