"""What pages load: served for ever, compressed, from here only; and colours that can be read."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from itertools import pairwise

import frame_pages
import httpx
import pytest
from fp4tune.api.dashboard.assets import FOLDER, Asset, load_assets, takes_gzip
from fp4tune.db import Store
from http_server import running

STYLE = (FOLDER / "dashboard.css").read_text(encoding="utf-8")
SCRIPT = (FOLDER / "dashboard.js").read_text(encoding="utf-8")
PLOTLY = "plotly-cartesian-4.1.1.min.js"
HTMX = "htmx-2.0.11.min.js"


@pytest.fixture
def client(empty: Store) -> Iterator[httpx.Client]:
    with running(empty, pages=frame_pages.PAGES) as served:
        yield served.client


@pytest.mark.parametrize("name", [PLOTLY, HTMX, "dashboard.css", "dashboard.js", "icon.svg"])
def test_a_file_is_served_compressed_or_not_and_for_ever(client: httpx.Client, name: str):
    path = load_assets().address(name)
    assert re.fullmatch(r"/dashboard/static/[\w.-]+\.[0-9a-f]{16}\.(js|css|svg)", path)
    compressed = client.get(path, headers={"accept-encoding": "gzip, br"})
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert compressed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert compressed.content == plain.content  # the client decompresses
    assert int(compressed.headers["content-length"]) < int(plain.headers["content-length"]) or name == "icon.svg"
    assert compressed.headers["etag"] != plain.headers["etag"]
    for response in (compressed, plain):
        assert response.status_code == 200
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["vary"] == "accept-encoding"
        assert response.headers["x-content-type-options"] == "nosniff"
        held = {
            "if-none-match": response.headers["etag"],
            "accept-encoding": response.request.headers["accept-encoding"],
        }
        again = client.get(path, headers=held)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["vary"] == "accept-encoding"


def test_pages_load_nothing_but_these(client: httpx.Client):
    served = set(load_assets().by_served_name)
    for path in ("", "plain", "evil"):
        text = client.get(f"/dashboard/{path}").text
        loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="([^"]*)"', text)
        assert len(loaded) >= 4
        assert {address.removeprefix("/dashboard/static/") for address in loaded} <= served


def test_what_is_ours_asks_nobody_else():
    for text in (
        STYLE,
        SCRIPT,
        *(path.read_text(encoding="utf-8") for path in (FOLDER.parent / "templates").iterdir()),
    ):
        assert not re.search(r"https?://|url\(|@import|\beval\b|innerHTML", text)


def test_scripts_of_others_come_with_their_licences_and_versions():
    assert "Permission is hereby granted" in (FOLDER / "LICENSE.plotly.txt").read_text(encoding="utf-8")
    assert "Zero-Clause BSD" in (FOLDER / "LICENSE.htmx.txt").read_text(encoding="utf-8")
    assert b"plotly.js (cartesian - minified) v4.1.1" in load_assets().by_name[PLOTLY].plain[:200]
    assert b'version:"2.0.11"' in load_assets().by_name[HTMX].plain
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in (
        "plotly.js-cartesian-dist-min",
        "4.1.1",
        "htmx.org",
        "2.0.11",
        "LICENSE.plotly.txt",
        "LICENSE.htmx.txt",
    ):
        assert name in readme


def test_the_repository_holds_plotly_compressed_only():
    assert [path.name for path in FOLDER.glob("plotly*")] == [f"{PLOTLY}.gz"]
    assert (FOLDER / f"{PLOTLY}.gz").stat().st_size < 520_000


def test_a_name_changes_with_what_is_in_it(tmp_path):
    (tmp_path / "a.js").write_text("1")
    first = Asset(tmp_path / "a.js")
    (tmp_path / "a.js").write_text("2")
    (tmp_path / "b.js.gz").write_bytes(gzip.compress(b"3"))
    assert first.served_as != Asset(tmp_path / "a.js").served_as
    kept = Asset(tmp_path / "b.js.gz")
    assert (kept.name, kept.plain) == ("b.js", b"3")


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("GZIP", True), ("gzip;q=1.0, *;q=0", True),
        ("", False), ("identity", False), ("gzip;q=0", False), ("gzip;q=0.0, *", False), ("*;q=0", False), ("br", False),
        ("gzip;q=nonsense", False),
    ],
)  # fmt: skip
def test_what_a_client_takes(header: str, takes: bool):
    assert takes_gzip([(b"accept-encoding", header.encode())]) is takes


def test_a_client_that_says_nothing_gets_it_plain():
    assert takes_gzip([]) is False


# Colours (WCAG 2.2, success criteria 1.4.3 and 1.4.11)


def palette(dark: bool) -> dict[str, str]:
    light_text, dark_text = STYLE.split("@media (prefers-color-scheme: dark)")[:2]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light_text.split("}")[0]))
    if dark:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark_text.split("}")[0]))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    least, most = sorted((luminance(one), luminance(other)))
    return (most + 0.05) / (least + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(dark: bool):
    of = palette(dark)
    for ink in ("text", "muted", "accent", "good", "bad", "unsure"):
        for ground in ("page", "surface", "stripe"):
            assert contrast(of[ink], of[ground]) >= 4.5, (ink, ground)
    for ink, ground in (("text", "accent-pale"), ("accent", "accent-pale"), ("text", "bad-pale"), ("text", "unsure-pale"),
                        ("untuned-ink", "untuned")):  # fmt: skip
        assert contrast(of[ink], of[ground]) >= 4.5, (ink, ground)
    assert contrast(of["strong-line"], of["surface"]) >= 3, "the border of a field"
    assert contrast(of["focus"], of["page"]) >= 3


@pytest.mark.parametrize("dark", [False, True])
def test_steps_of_the_scale_are_even_and_can_be_read(dark: bool):
    of = palette(dark)
    for i in range(9):
        assert contrast(of[f"heat-{i}"], of[f"heat-{i}-ink"]) >= 4.5, i
    # Lightness as CIE L*, in which equal steps look equal.
    lightness = [116 * luminance(of[f"heat-{i}"]) ** (1 / 3) - 16 for i in range(9)]
    steps = [after - before for before, after in pairwise(lightness)]
    assert all(step > 0 for step in steps) if dark else all(step < 0 for step in steps)
    assert max(map(abs, steps)) < 2 * min(map(abs, steps))


@pytest.mark.parametrize("dark", [False, True])
def test_series_stand_out(dark: bool):
    of = palette(dark)
    series = [of[f"series-{i}"] for i in range(1, 9)]
    assert len(set(series)) == 8
    for colour in [*series, of["reference"]]:
        assert contrast(colour, of["surface"]) >= 3


@pytest.mark.parametrize("dark", [False, True])
def test_hatched_cells_can_be_read(dark: bool):
    of = palette(dark)
    text = STYLE.split("@media (prefers-color-scheme: dark)")[int(dark)].split("}")[0]
    for i in range(9):
        red, green, blue, percent = re.search(rf"--heat-{i}-hatch: rgb\((\d+) (\d+) (\d+) / (\d+)%\)", text).groups()
        ground = [int(of[f"heat-{i}"][j : j + 2], 16) for j in (1, 3, 5)]
        share = int(percent) / 100
        mixed = [round(int(c) * share + g * (1 - share)) for c, g in zip((red, green, blue), ground, strict=True)]
        stripe = "#" + "".join(f"{c:02x}" for c in mixed)
        assert contrast(stripe, of[f"heat-{i}-ink"]) >= 4.5, i


def test_every_role_of_a_figure_has_a_colour_in_both():
    for role in [*(f"series-{i}" for i in range(1, 9)), "text", "muted", "reference", "good", "bad", "band"]:
        assert len(re.findall(rf"--{role}: ", STYLE.split("@media print")[0])) == 2, role
