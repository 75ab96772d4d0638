"""Addresses, read: every way in which one can be wrong is one sentence, and is left out."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from fp4tune.api.dashboard.page import BACKEND, CURSOR, ENVIRONMENT, PROBLEM, Asked, Page, address
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.api.dashboard.reading import MAX_FAULTS, MAX_FIELDS, read
from fp4tune.api.dashboard.shown import data_address, safe_link
from hypothesis import given
from hypothesis import strategies as st

PAGE = Page("x", "X", "?", (ENVIRONMENT, PROBLEM, BACKEND), lambda context, asked: pytest.fail("not asked"))
FINGERPRINT = "0123456789abcdef"


@given(st.binary(max_size=400))
def test_any_query_is_read(query):
    reading = read(PAGE, query)
    for name, value in reading.asked.values.items():
        assert re.fullmatch({p.name: p.pattern for p in PAGE.parameters}[name], value)
    assert all(fault.endswith(".") and fault.isprintable() and len(fault) < 400 for fault in reading.faults)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug or "index")
def test_every_page_refuses_what_is_no_value_of_its_parameters(page):
    for parameter in page.parameters:
        reading = read(page, f"{parameter.name}={quote(chr(0))}".encode())
        assert parameter.name not in reading.asked.values
        assert reading.faults[0].startswith(f"{parameter.name} must be {parameter.meaning}, and is ")


def test_what_is_right_is_taken():
    reading = read(PAGE, f"environment={FINGERPRINT}&problem=dense%3A1x2x3&backend=".encode())
    assert reading.asked.values == {"environment": FINGERPRINT, "problem": "dense:1x2x3"}
    assert reading.faults == ()


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        (b"enviroment=x", "There is no parameter 'enviroment'; there are environment, problem, backend. It is left out."),
        (b"backend=a&backend=b", "backend is given 2 times; give it once. It is left out."),
        (b"backend=a&backend=", "backend is given 2 times; give it once. It is left out."),
        (b"environment=0123",
         "environment must be an environment's fingerprint, 16 hexadecimal digits, and is '0123'. It is left out."),
        (b"environment=0123456789abcdef%0a",
         "environment must be an environment's fingerprint, 16 hexadecimal digits, and is '0123456789abcdef '. It is left out."),
        (b"backend=%ff", "backend must be a backend's name, and is '\N{REPLACEMENT CHARACTER}'. It is left out."),
        (b"backend=%3Cscript%3E", "backend must be a backend's name, and is '<script>'. It is left out."),
        (b"backend=a%20b", "backend must be a backend's name, and is 'a b'. It is left out."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_left_out(query, fault):
    reading = read(PAGE, query + b"&problem=dense:1x2x3")
    assert reading.faults == (fault,)
    assert reading.asked.values == {"problem": "dense:1x2x3"}


def test_an_overlong_value_is_not_repeated():
    (fault,) = read(PAGE, b"backend=" + b"x" * 10_000).faults
    assert len(fault) < 200


def test_many_faults_are_counted():
    reading = read(PAGE, b"&".join(b"p%d=1" % i for i in range(20)))
    assert len(reading.faults) == MAX_FAULTS + 1
    assert reading.faults[-1] == "And 15 more parameters are left out for such reasons."
    reading = read(PAGE, b"&".join([b"backend=x"] * 100))
    assert reading.faults == (
        f"The address has 100 parameters; only the first {MAX_FIELDS} are read.",
        f"backend is given {MAX_FIELDS} times; give it once. It is left out.",
    )


def test_a_table_is_named_for_its_data_only():
    assert read(PAGE, b"table=gains", data=True).table == "gains"
    assert read(PAGE, b"table=gains").faults[0].startswith("There is no parameter 'table'")
    assert (
        read(PAGE, b"table=../x", data=True).faults[0].startswith("table must be the name of one of the page's tables")
    )


def test_a_page_without_parameters_says_so():
    page = Page("x", "X", "?", (), PAGE.view)
    assert read(page, b"a=1").faults == ("There is no parameter 'a'; this page takes none. It is left out.",)


# Addresses that pages make


def test_a_tables_addresses_say_what_its_page_was_asked():
    asked = Asked("roof", {"environment": FINGERPRINT, "problem": "dense:1x2x3&"})
    assert (
        data_address(asked, "csv", "t")
        == f"/dashboard/roof.csv?table=t&environment={FINGERPRINT}&problem=dense%3A1x2x3%26"
    )
    assert data_address(Asked("", {}), "json", "t") == "/dashboard/index.json?table=t"


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "//elsewhere.invalid/", "/\\elsewhere.invalid", "https://elsewhere.invalid/", "data:,", "",
     "/a\nb", "/" + "x" * 10_000, "dashboard/", "\t/x", "/\ud800"],
)  # fmt: skip
def test_what_leads_elsewhere_is_no_link(link):
    assert safe_link(link) == ""


def test_addresses_of_pages_are_links():
    for made in (
        address(""),
        address("roof", problem="dense:1x2x3:\u00b5", anchor="trust"),
        address("run", cursor=CURSOR.name),
    ):
        assert safe_link(made) == made
