"""Where a cell leads: addresses of other pages, or nowhere if what is stored cannot stand in an address."""

from __future__ import annotations

import re

from .page import BACKEND, DEVICE, ENVIRONMENT, POLICY, PROBLEM, RUN, STATUS, address

_PATTERNS = {
    parameter.name: re.compile(parameter.pattern)
    for parameter in (ENVIRONMENT, DEVICE, PROBLEM, RUN, BACKEND, POLICY, STATUS)
}


def link(page: str, anchor: str = "", **values: str | None) -> str:
    """The address of a page; empty if a value is lost, or is one that the page would refuse.

    A database that others wrote may hold any name. A link that leads to a refusal helps nobody.

    Args:
        page: its slug.
        anchor: a section of it; empty for its top.
        values: parameters; empty ones are left out.
    """
    for name, value in values.items():
        pattern = _PATTERNS.get(name)
        if value is None or (value and pattern is not None and pattern.fullmatch(value) is None):
            return ""
    return address(page, anchor, **{name: value for name, value in values.items() if value})
