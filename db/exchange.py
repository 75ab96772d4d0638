"""The file that `fp4tune db export` writes and `fp4tune db import` reads: gzip, JSON Lines, a header first.

The same rows give the same bytes (with the same zlib): canonical JSON, lines in a fixed order, no time and no file
name in gzip's header. The header counts the lines, so that a file that was cut at the end of a line is noticed, too.
No line is longer than MAX_LINE and a file is read line by line, so a hostile one cannot take more memory than that.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, Self

from ..kernels.errors import InvalidInputError, NotFoundError, StoreError
from .fields import Fields

FORMAT = "fp4tune.export"
"""What the header calls it."""

VERSION = 1
"""The newest version of the format: what is written, and the last that can be read. It grows with every change."""

KINDS = ("environment", "run", "run_problem", "trial", "winner", "roofs", "static_facts")
"""What a line may be."""

MAX_LINE = 16 << 20
"""Longest line, bytes. The longest that the store can cause is a winner's: three JSON texts of values.MAX_JSON."""

_MAGIC = b"\x1f\x8b"
_SPOOL = 64 << 20
"""Compressed bytes that wait in memory for the header, which is written last; beyond it they wait on disk."""

Line = tuple[str, dict[str, Any]]
"""What a line is, one of KINDS, and the rest of it."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was exported.

    Attributes:
        counts: how many lines of each kind.
        notes: sentences about what is not in it.
    """

    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import did.

    Attributes:
        added: how many of each kind were stored.
        known: how many of each kind were there already, or newer.
        notes: sentences about what became of them.
    """

    added: Mapping[str, int]
    known: Mapping[str, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """The first line.

    Attributes:
        fp4tune: version of the fp4tune that made the file.
        counts: how many lines of each kind follow.
    """

    fp4tune: str
    counts: Mapping[str, int] = field(default_factory=dict)


def encode(document: Mapping[str, Any]) -> bytes:
    """A line."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def write(out: BinaryIO, lines: Iterable[Line]) -> dict[str, int]:
    """Write a file, and return how many lines of each kind it has.

    Args:
        out: where to, open for writing bytes.
        lines: what follows the header.
    """
    counts = Counter(dict.fromkeys(KINDS, 0))
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as body:
        with _compressed(body) as file:
            for kind, document in lines:
                counts[kind] += 1
                file.write(encode({"kind": kind, **document}))
        header = {"format": FORMAT, "version": VERSION, "fp4tune": metadata.version("fp4tune"), "counts": counts}
        with _compressed(out) as file:
            file.write(encode(header))
        body.seek(0)
        shutil.copyfileobj(body, out)
    return dict(counts)


def _compressed(out: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=out, mtime=0)


class Reader:
    """Reads a file, line by line. A context manager.

    Args:
        path: the file.

    Attributes:
        header: its header, read when the block is entered.

    Raises:
        InvalidInputError: it is no export, is damaged, or a newer fp4tune made it; the sentence names the line.
        NotFoundError: there is no such file.
        StoreError: it cannot be read.
    """

    header: Header

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        try:
            self._raw = self._path.open("rb")
        except FileNotFoundError:
            raise NotFoundError(f"There is no file {self._path} to import.") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"The file {self._path} cannot be read: {error}.") from error
        try:
            self._file = gzip.GzipFile(fileobj=self._raw, mode="rb")
            self._check_magic()
            self.header = self._read_header()
        except BaseException:
            self._raw.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def refuse(self, why: str) -> NoReturn:
        """Say what is wrong with the line that was read last.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(f"{self._path} was not imported: line {self._number}: {why.rstrip('.')}.")

    def lines(self) -> Iterator[tuple[str, Fields]]:
        """Kind and fields of every line after the header."""
        while (document := self._next()) is not None:
            fields = Fields(document, "it")
            try:
                kind = fields.text("kind")
                if kind not in KINDS:
                    raise InvalidInputError(f"{kind[:40]!r} is not one of {', '.join(KINDS)}")
            except InvalidInputError as error:
                self.refuse(str(error))
            self._counts[kind] += 1
            yield kind, fields
        for kind, count in self.header.counts.items():
            if count != self._counts[kind]:
                raise self._broken(f"it should have {count} lines of the kind {kind}, and has {self._counts[kind]}")

    def _broken(self, why: str) -> InvalidInputError:
        return InvalidInputError(f"{self._path} was not imported: {why}.")

    def _check_magic(self) -> None:
        try:
            start = self._raw.read(len(_MAGIC))
            self._raw.seek(0)
        except OSError as error:
            raise StoreError(f"The file {self._path} cannot be read: {error.strerror}.") from error
        if not start:
            raise self._broken("the file is empty")
        if start != _MAGIC:
            raise self._broken("it is not compressed with gzip, as `fp4tune db export` writes it")

    def _read_header(self) -> Header:
        document = self._next()
        if document is None or document.get("format") != FORMAT:
            raise self._broken(f'its first line does not say "format":"{FORMAT}"')
        fields = Fields(document, "the header")
        try:
            version, made_by, counts = fields.integer("version"), fields.text("fp4tune"), fields.mapping("counts")
        except InvalidInputError as error:
            self.refuse(str(error))
        if version != VERSION:
            raise self._broken(
                f"it has version {str(version)[:20]} of the format (fp4tune {made_by[:40]} made it), and this fp4tune "
                f"{metadata.version('fp4tune')} reads version {VERSION}: use the fp4tune that made it, or a newer one"
            )
        if set(counts) != set(KINDS) or any(type(count) is not int for count in counts.values()):
            raise self._broken("its header does not count the lines of every kind")
        return Header(made_by, counts)

    def _next(self) -> dict[str, Any] | None:
        """The next line as JSON; None at the end."""
        try:
            line = self._file.readline(MAX_LINE + 1)
        except EOFError:
            raise self._broken(f"it is cut off after line {self._number}") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._broken(f"it is damaged after line {self._number} ({error})") from None
        except OSError as error:
            raise StoreError(f"The file {self._path} cannot be read: {error.strerror}.") from error
        if not line:
            return None
        self._number += 1
        if len(line) > MAX_LINE:
            self.refuse(f"it is longer than {MAX_LINE >> 20} MiB")
        try:
            document = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self.refuse(f"it is not JSON ({str(error)[:80]})")
        if not isinstance(document, dict):
            self.refuse("it is no JSON object")
        return document


def _no_number(text: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's JSON takes for numbers."""
    raise ValueError(f"{text} is no number of JSON")
