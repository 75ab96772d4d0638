"""Make the pictures of the dashboard in docs/images, from the runs in docs/results. Run by `make screenshots`.

Pictures change with the browser's fonts, so that they are made again on purpose only, and looked at.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # which start a server and a browser, too

import browser_driver
import http_server
from fp4tune.db import Store

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PAGES = {"dashboard-gains": ("", False), "dashboard-problem": ("problem", False), "dashboard-roof": ("roof", True)}
"""Which pages, by the names of their files, and whether in dark."""

MOST_BYTES = 150_000
HEIGHT = 860


def main() -> None:
    """Make all of them."""
    reason = browser_driver.why_not()
    if reason:
        sys.exit(f"There is {reason}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "h200.db", mode="create") as store:
        for name in ("h200", "h200-dense"):
            store.import_from(ROOT / "docs" / "results" / f"{name}.fp4tune.gz")
        with http_server.running(store) as server, browser_driver.chromium() as browser:
            addresses = browser_driver.addresses(browser_driver.crawl(server.get))
            for name, (slug, dark) in PAGES.items():
                page = browser.new_page(
                    base_url=server.url,
                    viewport={"width": browser_driver.WIDE["width"], "height": HEIGHT},
                    color_scheme="dark" if dark else "light",
                )
                page.goto(addresses[slug])
                browser_driver.settle(page)
                png = page.screenshot(animations="disabled")
                page.close()
                if len(png) > MOST_BYTES:
                    png = fewer_colours(png)
                if len(png) > MOST_BYTES:
                    sys.exit(f"{name} has {len(png)} bytes, and {MOST_BYTES} are allowed")
                (IMAGES / f"{name}.png").write_bytes(png)
                print(f"docs/images/{name}.png: {len(png)} bytes, of {addresses[slug]}")


def fewer_colours(png: bytes) -> bytes:
    """The same picture with a palette of at most 256 colours, a third of the size: text and lines need no more.

    Args:
        png: as Chromium makes it: eight bits a channel, RGB or RGBA, not interlaced (https://www.w3.org/TR/png-3/).
    """
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    if depth != 8 or kind not in {2, 6} or interlaced:
        raise ValueError(f"a PNG of depth {depth}, type {kind}, interlaced {interlaced}")
    channels = 3 if kind == 2 else 4
    pixels = _pixels(b"".join(_chunks(png, b"IDAT")), width, height, channels)[..., :3]
    palette, indices = _palette(pixels.reshape(-1, 3))
    rows = np.zeros((height, width + 1), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = indices.reshape(height, width)
    return b"".join(
        [
            png[:8],
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette.tobytes()),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunks(png: bytes, wanted: bytes) -> list[bytes]:
    """The data of every chunk of a type."""
    found, at = [], 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == wanted:
            found.append(png[at + 8 : at + 8 + size])
        at += size + 12
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _pixels(compressed: bytes, width: int, height: int, channels: int) -> np.ndarray:
    """Undo the filters of the rows (PNG, section 9)."""
    raw = np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(height, width * channels + 1)
    done = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y in range(height):
        kind, row = raw[y, 0], raw[y, 1:]
        if kind == 0:
            done[y] = row
        elif kind == 2:
            done[y] = row + above
        elif kind == 1:
            done[y] = np.cumsum(row.reshape(width, channels), axis=0, dtype=np.uint8).reshape(-1)
        else:
            done[y] = _by_byte(int(kind), row, above, channels)
        above = done[y]
    return done.reshape(height, width, channels)


def _by_byte(kind: int, row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    """Filters 3 (average) and 4 (Paeth), which need the byte to the left."""
    done = [0] * channels
    up = [0] * channels + above.tolist()
    for i, value in enumerate(row.tolist(), channels):
        a, b, c = done[i - channels], up[i], up[i - channels]
        if kind == 3:
            guess = (a + b) // 2
        else:
            p = a + b - c
            guess = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        done.append((value + guess) & 255)
    return np.array(done[channels:], np.uint8)


def _palette(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 256 most frequent colours, and for each pixel the nearest of them."""
    packed = (pixels.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=1, dtype=np.uint32)
    colours, where, counts = np.unique(packed, return_inverse=True, return_counts=True)
    rgb = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1).astype(np.int32)
    chosen = rgb[np.argsort(-counts, kind="stable")[:256]]
    nearest = ((rgb[:, None, :] - chosen[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    return chosen.astype(np.uint8), nearest.astype(np.uint8)[where]


if __name__ == "__main__":
    main()
