"""Pictures are really drawn, of the numbers of their tables, in the colours of the scheme."""

from __future__ import annotations

import math
from typing import Any

import pytest
from browser_driver import wait
from fp4tune.api.dashboard.pages import PAGES

SLUGS = [page.slug for page in PAGES]
WITH_FIGURES = {"", "roof", "backends", "history", "compare", "trust", "progress", "problem", "failures"}
MARKS = ".points path, .lines path, .barlayer .point path, .heatmaplayer image, .errorbars path, .boxlayer path, .fills path"
FIGURES = f"""() => [...document.querySelectorAll('main figure')].map(figure => {{
    const plot = figure.querySelector('.plot'), drawn = plot?.querySelector('svg.main-svg');
    const data = JSON.parse(figure.querySelector('script.plot-data')?.textContent ?? '{{}}');
    const table = figure.closest('section').querySelector('.links a[href*=".json"]')?.getAttribute('href');
    return {{
        id: figure.id, drawn: !!drawn, marks: plot ? plot.querySelectorAll({MARKS!r}).length : 0,
        points: plot ? plot.querySelectorAll('.points path.point, .barlayer .point').length : 0,
        wide: drawn?.getBoundingClientRect().width ?? 0, alt: plot?.getAttribute('aria-label'),
        traces: data.traces ?? [], table,
        titles: [...(plot?.querySelectorAll('.xtitle, .ytitle') ?? [])].map(one => one.textContent),
        colours: [...new Set([...(plot?.querySelectorAll('.points path, .lines path') ?? [])].map(one => getComputedStyle(one).fill + getComputedStyle(one).stroke))],
        text: plot ? getComputedStyle(plot.querySelector('.xtick text, .ytick text') ?? plot).fill : '',
    }};
}})"""


def drawn(page: Any) -> list[dict[str, Any]]:
    """Every picture of a page, once all are drawn."""
    wait(page, "[...document.querySelectorAll('main figure .plot')].every(one => one.querySelector('svg.main-svg'))")
    found: list[dict[str, Any]] = page.evaluate(FIGURES)
    return found


def is_marked(trace: dict[str, Any]) -> bool:
    """Whether a trace draws each of its points: as a mark, or as a bar."""
    return trace.get("type") == "bar" or "markers" in trace.get("mode", "")


def numbers(values: Any) -> set[float]:
    """Every number in a JSON value."""
    if isinstance(values, bool) or values is None:
        return set()
    if isinstance(values, int | float):
        return {float(values)}
    if isinstance(values, dict):
        return set().union(*map(numbers, values.values()))
    return set().union(*map(numbers, values)) if isinstance(values, list) else set()


@pytest.mark.parametrize("slug", SLUGS, ids=lambda slug: slug or "gains")
def test_pictures_are_drawn_of_their_tables_in_the_schemes_colours(slug: str, contents: dict[str, Any], visit: Any):
    n = 0
    for server, here in contents[slug]:
        if "<figure" not in server.get(here).text:
            continue
        page = visit(here, server=server)
        figures = drawn(page)
        n += len(figures)
        for figure in figures:
            look_at(figure, server)
        page.emulate_media(color_scheme="dark")
        wait(
            page,
            f"before => ({FIGURES})().every((one, i) => one.text !== before[i])",
            arg=[one["text"] for one in figures],
        )
        dark = drawn(page)
        assert [one["traces"] for one in dark] == [one["traces"] for one in figures]
        page.close()
    assert n or slug not in WITH_FIGURES


def look_at(figure: dict[str, Any], server: Any) -> None:
    """A picture shows what is in its table."""
    assert figure["drawn"], figure["id"]
    assert figure["marks"], figure["id"]
    assert figure["alt"], figure["id"]
    assert 300 < figure["wide"] <= 1280, figure["id"]
    assert all(figure["titles"]), figure["id"]
    assert figure["table"], figure["id"]
    rows = server.get(figure["table"]).json()["rows"]
    assert rows, figure["id"]
    marked = [trace for trace in figure["traces"] if is_marked(trace)]
    given = sum(
        x is not None and y is not None for trace in marked for x, y in zip(trace["x"], trace["y"], strict=True)
    )
    assert figure["points"] == given, figure["id"]
    assert 0 < given <= len(rows) * len(marked), figure["id"]
    shown, there = numbers([[trace["x"], trace["y"]] for trace in marked]), numbers(rows)
    # A share may be drawn as percent, a difference as a ratio, and a row without a number of its own at its place.
    there |= {100 * one for one in there} | {1 + one for one in there} | {float(i + 1) for i in range(len(rows))}
    foreign = {value for value in shown - there if not any(math.isclose(value, one) for one in there)}
    assert not foreign, (figure["id"], sorted(foreign)[:5])


def test_a_page_that_is_dark_from_the_start_has_dark_pictures(addresses: dict[str, str], visit: Any):
    light, dark = (drawn(visit(addresses["roof"], dark=dark)) for dark in (False, True))
    assert all(one["text"] != other["text"] for one, other in zip(light, dark, strict=True))


def test_a_point_leads_to_its_problem(addresses: dict[str, str], visit: Any):
    page = visit(addresses["roof"])
    figure = page.locator("main figure").first
    box = figure.locator(".points path.point").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    wait(page, "document.querySelector('main figure .plot').classList.contains('leads-somewhere')")
    page.mouse.click(x, y)
    page.wait_for_url("**/dashboard/problem?**")


def test_without_scripts_a_picture_says_where_its_numbers_are(addresses: dict[str, str], visit: Any):
    page = visit(addresses["roof"], java_script_enabled=False)
    assert "drawn by a script" in page.locator("main figure").first.inner_text()
    assert page.locator("main table").count()


def test_pictures_come_with_what_a_filter_brings(busy: Any, visit: Any):
    page = visit("/dashboard/roof", server=busy)
    before = drawn(page)[0]["traces"]
    field = page.locator("form.filters select").first
    others = field.evaluate("one => [...one.options].map(o => o.value).filter(v => v !== one.value)")
    field.select_option(others[0])
    page.wait_for_url(f"**{others[0]}**")
    wait(page, "document.querySelector('main figure .plot svg.main-svg')")
    assert drawn(page)[0]["traces"] != before
