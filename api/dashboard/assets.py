"""What pages load: style and scripts, all served from here, under names that change with what is in them."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..http.rendering import RawHeaders, Rendered
from .page import ROOT

FOLDER = Path(__file__).parent / "static"

_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}

_FOREVER = b"public, max-age=31536000, immutable"
_COMPRESSED = ".gz"


class Asset:
    """A file of `static/`, as it is and compressed; it stands there as one of the two.

    Args:
        path: the file; with `.gz` at the end if it is kept compressed.

    Attributes:
        name: how pages call it: the file's name without `.gz`.
        served_as: its name in addresses, with a hash of what is in it.
    """

    def __init__(self, path: Path) -> None:
        kept = path.read_bytes()
        self.name = path.name.removesuffix(_COMPRESSED)
        if path.suffix == _COMPRESSED:
            self._compressed, self._plain = kept, None
        else:
            self._compressed, self._plain = gzip.compress(kept, mtime=0), kept
        stem, dot, suffix = self.name.rpartition(".")
        self._type = _TYPES[dot + suffix]
        self._hash = hashlib.sha256(kept).hexdigest()[:16]
        self.served_as = f"{stem}.{self._hash}{dot}{suffix}"

    @functools.cached_property
    def plain(self) -> bytes:
        """The file uncompressed; made once for clients that cannot decompress."""
        return gzip.decompress(self._compressed) if self._plain is None else self._plain

    def answer(self, headers: Iterable[tuple[bytes, bytes]]) -> Rendered:
        """The response to a request with these headers, compressed if it may be."""
        compressed = takes_gzip(headers)
        body = self._compressed if compressed else self.plain
        etag = f'"{self._hash}{"-gzip" if compressed else ""}"'.encode()
        given: RawHeaders = [
            (b"content-type", self._type),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", _FOREVER),
            (b"etag", etag),
            (b"vary", b"accept-encoding"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if compressed:
            given.append((b"content-encoding", b"gzip"))
        return Rendered(200, given, body, etag)


@dataclass(frozen=True, slots=True)
class Assets:
    """Every asset: by the name that pages call it, and by the name in addresses."""

    by_name: Mapping[str, Asset]
    by_served_name: Mapping[str, Asset]

    def address(self, name: str) -> str:
        """Where a page finds an asset."""
        return f"{ROOT}/static/{self.by_name[name].served_as}"


@functools.cache
def load_assets() -> Assets:
    """Read them all, once."""
    found = [
        Asset(path)
        for path in sorted(FOLDER.iterdir())
        if path.name.removesuffix(_COMPRESSED).rpartition(".")[2] in {suffix[1:] for suffix in _TYPES}
    ]
    return Assets({one.name: one for one in found}, {one.served_as: one for one in found})


def takes_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if Accept-Encoding says gzip, or anything, with no weight of zero (RFC 9110 section 12.5.3)."""
    weights: dict[str, float] = {}
    for name, value in headers:
        if name == b"accept-encoding":
            for part in value.decode("latin-1").lower().split(","):
                coding, _, rest = part.partition(";")
                weights[coding.strip()] = _weight(rest)
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _weight(text: str) -> float:
    name, _, value = text.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
