"""The file formats that engines read tactics from, and what each takes of the store. docs/export.md.

One module a format; `selection` reads the store for all of them, `files` writes so that nothing is lost. A format adds
one line to FORMATS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...kernels.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Format:
    """A file format of an engine.

    Attributes:
        name: as `--format` says it. about: what the file is, in a few words.
        default_file: what the file is called if nobody says.
    """

    name: str
    about: str
    default_file: str


FORMATS: Mapping[str, Format] = {
    "flashinfer": Format("flashinfer", "FlashInfer's autotuner cache (v1 JSON)", "flashinfer-autotune.json"),
}
"""Formats by name."""


def format_called(name: str) -> Format:
    """The format called `name`.

    Raises:
        InvalidInputError: there is none; the sentence lists those there are.
    """
    if name not in FORMATS:
        known = ", ".join(f"{one.name} ({one.about})" for one in FORMATS.values())
        raise InvalidInputError(f"There is no format {name!r} to export to; there is {known}.")
    return FORMATS[name]
