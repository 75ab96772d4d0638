"""Values as text, strings made harmless, JSON that can stand in a page, and tables as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta, timezone

import pytest
from fp4tune.api.dashboard.exports import MAX_BYTES, to_csv, to_json
from fp4tune.api.dashboard.figures import figure_json, script_json
from fp4tune.api.dashboard.formatting import DASH, MAX_CODE, clean, clean_code, clip, format_value, quoted
from fp4tune.api.dashboard.model import MAX_ROWS, Cell, Column, Figure, Kind, Table
from frame_pages import AT, EVIL, KINDS, times_figure
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers()


@given(
    st.one_of(st.none(), st.booleans(), st.text(), NUMBERS, st.datetimes(), st.datetimes(timezones=st.timezones())),
    st.sampled_from(Kind),
)
def test_every_value_of_every_kind_has_a_text(value, kind):
    text = format_value(value, kind)
    assert text
    if value is None or value != value:
        assert text == DASH
    if isinstance(value, float):
        assert len(text) < 40


@pytest.mark.parametrize("value", [None, "", float("nan"), float("inf"), float("-inf"), 10**400])
@pytest.mark.parametrize("kind", Kind)
def test_what_is_no_value_is_a_dash(value, kind):
    assert format_value(value, kind) == DASH


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1234567, Kind.INTEGER, "1,234,567"), (-5, Kind.INTEGER, "-5"), (2.6, Kind.INTEGER, "3"),
        (10**15, Kind.INTEGER, "1.000e+15"), (1e300, Kind.TIME_US, "1.000e+300"), (1e300, Kind.SHARE, "1.000e+300"),
        (0.0, Kind.NUMBER, "0"), (0.0123456, Kind.NUMBER, "0.01235"), (12.3456, Kind.NUMBER, "12.35"),
        (123456.7, Kind.NUMBER, "123,457"), (1.5e-7, Kind.NUMBER, "1.500e-07"), (42, Kind.NUMBER, "42"),
        (12.345, Kind.TIME_US, "12.35"), (0.0456, Kind.TIME_US, "0.04560"), (1234.56, Kind.TIME_US, "1,234.6"),
        (123456.7, Kind.TIME_US, "123,457"), (0, Kind.TIME_US, "0.00"),
        (1.049, Kind.FACTOR, "1.05x"), (123.4, Kind.FACTOR, "123x"), (1, Kind.FACTOR, "1.00x"),
        (0.56, Kind.SHARE, "56 %"), (0.056, Kind.SHARE, "5.6 %"), (0.996, Kind.SHARE, "99.6 %"), (1.0, Kind.SHARE, "100 %"),
        (0, Kind.SHARE, "0 %"), (1.5, Kind.SHARE, "150 %"),
        (0.0123, Kind.DIFFERENCE, "+1.2 %"), (-0.5, Kind.DIFFERENCE, "-50.0 %"), (-1e-9, Kind.DIFFERENCE, "0.0 %"),
        (0, Kind.SECONDS, "0 s"), (0.0123, Kind.SECONDS, "12 ms"), (0.00012, Kind.SECONDS, "0.12 ms"),
        (1.23, Kind.SECONDS, "1.2 s"), (59.99, Kind.SECONDS, "1 min 0 s"), (200, Kind.SECONDS, "3 min 20 s"),
        (3599.9, Kind.SECONDS, "1 h 0 min"), (7500, Kind.SECONDS, "2 h 5 min"), (90061, Kind.SECONDS, "1 d 1 h"),
        (-1.23, Kind.SECONDS, "-1.2 s"),
        (512, Kind.BYTES, "512 B"), (96 << 30, Kind.BYTES, "96.0 GiB"), (1023, Kind.BYTES, "1.0 KiB"),
        (True, Kind.NUMBER, "yes"), (False, Kind.TEXT, "no"), ("n/a", Kind.NUMBER, "n/a"),
        (AT, Kind.MOMENT, "2026-11-02 12:00:00 UTC"), (AT.replace(tzinfo=None), Kind.TEXT, "2026-11-02 12:00:00 UTC"),
        (AT.astimezone(timezone(timedelta(hours=5))), Kind.MOMENT, "2026-11-02 12:00:00 UTC"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), Kind.MOMENT, "9999-12-31 23:59:59 UTC"),
    ],
)  # fmt: skip
def test_numbers_as_they_are_read(value, kind, text):
    assert format_value(value, kind) == text


# Strings


@given(st.text(st.characters()))
def test_a_clean_text_is_one_line_of_what_can_be_seen(text):
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert len(cleaned) == len(text)
    cleaned.encode()


@pytest.mark.parametrize(
    "character", ["\x00", "\x1b", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\ue000"]
)
def test_what_would_not_be_seen_is_seen(character):
    assert clean(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_white_space_is_a_space_and_letters_are_left():
    assert clean("a\nb\tc\u2028d\u00a0e") == "a b c d e"
    assert clean("µ · é 漢 ع") == "µ · é 漢 ع"


def test_a_command_keeps_its_lines_and_nothing_else():
    assert clean_code("a \\\n\t-b\x1b[2J\u202e") == "a \\\n\t-b\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    assert len(clean_code("x" * 100_000)) == MAX_CODE


def test_clipping():
    assert clip("abc", 3) == "abc"
    assert clip("abcd", 3) == "ab\N{HORIZONTAL ELLIPSIS}"
    assert len(quoted("x" * 10_000)) == 102


# Figures


def test_json_cannot_end_its_script_element():
    text = script_json({"a": EVIL, "</script>": ["<!--", "\u2028\u2029]]>"]})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text)["</script>"][0] == "&lt;!--"


def test_json_has_no_value_that_javascript_has_not():
    text = script_json([float("nan"), float("inf"), -float("inf"), 10**400, 1.5, True, None, AT, {"x": (1, 2)}, object])
    values = json.loads(text, parse_constant=pytest.fail)
    assert values[:9] == [None, None, None, None, 1.5, True, None, "2026-11-02T12:00:00.250Z", {"x": [1, 2]}]


def test_markup_of_a_string_is_not_markup_in_plotly():
    texts = ["<a href='https://elsewhere.invalid'>x</a>", "a<br>b", "<b>x</b><extra></extra>", "1 < 2", "<img src=x>"]
    shown = json.loads(script_json(texts))
    assert shown[0] == "&lt;a href='https://elsewhere.invalid'>x&lt;/a>"
    assert shown[1:] == ["a<br>b", "<b>x</b><extra></extra>", "1 &lt; 2", "&lt;img src=x>"]


def test_a_figure_is_traces_layout_and_height():
    figure = times_figure()
    drawn = json.loads(figure_json(figure))
    assert drawn["height"] == 380
    assert drawn["layout"] == figure.layout
    assert drawn["traces"][0]["x"] == figure.traces[0]["x"]
    assert drawn["traces"][0]["line"] == {"color": "@1"}
    assert drawn["traces"][0]["customdata"][0] == "/dashboard/plain?q=1"


def test_an_address_in_a_figure_is_not_cut():
    address = "/dashboard/problem?problem=" + "x" * 600
    assert json.loads(script_json([address, "y" * 600])) == [address, clip("y" * 600)]


def test_nesting_without_end_ends():
    deep: list = []
    deep.append(deep)
    assert len(script_json(deep)) < 1000
    assert figure_json(Figure("x", "x", [{"x": deep}]))


# CSV and JSON of tables


def rows_of(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table).text, newline="")))


def test_csv_holds_values_as_they_are():
    text = to_csv(KINDS).text
    assert text.endswith("\r\n")
    first, missing, third, _ = rows_of(KINDS)
    assert first == {
        "text": "a text", "code": "block_m=64", "integer": "1234", "number": "0.0123456", "time_us": "12.345",
        "factor": "1.05", "share": "0.56", "difference": "0.0123", "seconds": "200.0", "bytes": str(96 << 30),
        "moment": "2026-11-02T12:00:00.250Z",
    }  # fmt: skip
    assert missing["text"] == missing["number"] == missing["integer"] == missing["moment"] == ""
    assert third["text"] == "winner"


@pytest.mark.parametrize("start", "=+-@\t\r\n")
def test_a_text_is_no_formula_and_a_number_stays_one(start):
    table = Table("t", "t", (Column("a", "a"), Column("b", "b")), [(Cell(f"{start}1+1"), -1.5)])
    assert rows_of(table) == [{"a": f"'{start}1+1", "b": "-1.5"}]


def test_csv_quotes_what_it_must():
    table = Table("t", "t", (Column("a", "a"),), [('say "x", y\nz',), (EVIL,)])
    found = rows_of(table)
    assert found[0]["a"] == 'say "x", y\nz'
    assert found[1]["a"].startswith("<script>alert(1)</script>")


def test_json_names_columns_and_kinds():
    document = json.loads(to_json(KINDS).text, parse_constant=pytest.fail)
    assert list(document) == ["table", "title", "columns", "rows"]
    assert document["columns"][4] == {"name": "time_us", "title": "time_us", "kind": "time_us"}
    assert document["rows"][0]["time_us"] == 12.345
    assert document["rows"][1]["number"] is None
    assert document["rows"][0]["moment"] == "2026-11-02T12:00:00.250Z"


@pytest.mark.parametrize("make", [to_csv, to_json])
def test_what_is_too_long_is_cut_at_a_row_and_says_so(make):
    table = Table("t", EVIL, tuple(Column(f"c{i}", "\u00b5") for i in range(10)), [["\u00b5" * 200] * 10] * MAX_ROWS)
    export = make(table)
    assert len(export.text.encode()) <= MAX_BYTES
    if make is to_csv:
        n = len(rows_of(table))
    else:
        document = json.loads(export.text)
        assert document["truncated"] is True
        n = len(document["rows"])
    assert 0 < n < MAX_ROWS
    assert export.truncated == f"{n} of {MAX_ROWS} rows"
    assert make(Table("t", "t", (Column("a", "a"),), [(1,)])).truncated == ""
