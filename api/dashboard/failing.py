"""Errors as pages: what was wrong, and what to do now."""

from __future__ import annotations

from ...kernels.errors import Fp4tuneError, InvalidInputError, NotFoundError, StoreError
from .formatting import quoted
from .model import Filter, NextStep, View
from .page import CURSOR, Asked, Page, address

_TITLES: tuple[tuple[type[Fp4tuneError], str], ...] = (
    (NotFoundError, "Not found"),
    (InvalidInputError, "This cannot be shown"),
    (StoreError, "The database cannot be read now"),
)

_HOME = NextStep("Begin at the first page.", link=address(""))

_FAULT = "An unexpected error; the service's log has the details."


def error_view(error: Fp4tuneError, page: Page, asked: Asked) -> View:
    """The page of an error of ours, with all that was asked in fields, to be corrected.

    Args:
        error: its sentence is shown.
        page: whose view raised it.
        asked: what it was asked; each part of it may be the cause.
    """
    title = next((title for kind, title in _TITLES if isinstance(error, kind)), "This cannot be shown")
    steps = (*_store_steps(error, page, asked), *_fewer(page, asked), _HOME)
    fields = (p for p in page.parameters if p.name != CURSOR.name and asked.values)
    filters = tuple(Filter(p.name, p.name.capitalize(), asked.get(p)) for p in fields)
    return View(title, lead=str(error), filters=filters, next_steps=steps)


def fault_view() -> View:
    """The page of a bug: nothing of it is shown."""
    steps = (
        NextStep("Load this page again. If it fails again, look for the traceback in what the service logged."),
        _HOME,
    )
    return View("This page failed", lead=_FAULT, next_steps=steps)


def unknown_view(path: str) -> View:
    """The page for an address below /dashboard/ that is none."""
    return View("There is no such page", lead=f"There is no page {quoted(path)} here.", next_steps=(_HOME,))


def too_long_view(n_bytes: int, limit: int) -> View:
    """The page for an address that is too long to be read."""
    said = f"The address has {n_bytes:,} bytes behind its question mark; at most {limit:,} are read."
    return View("The address is too long", lead=said, next_steps=(_HOME,))


def _store_steps(error: Fp4tuneError, page: Page, asked: Asked) -> tuple[NextStep, ...]:
    """What to do when the database cannot be read."""
    if not isinstance(error, StoreError):
        return ()
    again = NextStep("Try again; a database that is busy or restarted answers again soon.", link=_address(page, asked))
    return (again, NextStep("Ask the service what it waits for.", link="/readyz"))


def _fewer(page: Page, asked: Asked) -> tuple[NextStep, ...]:
    """The same page with less asked of it."""
    if not asked.values:
        return ()
    if not page.label and len(asked.values) == 1:  # it makes no sense without its parameter
        return (NextStep("Look for it among the runs, or search for it above.", link=address("runs")),)
    names = [name for name in asked.values if name != CURSOR.name]
    steps = [NextStep(f"Show this page without {name}.", link=_address(page, asked, without=name)) for name in names]
    if len(asked.values) == 1 or not page.label:
        return tuple(steps)
    return (*steps, NextStep("Show this page without any choice.", link=address(page.slug)))


def _address(page: Page, asked: Asked, without: str = "") -> str:
    kept = {f"{name}_": value for name, value in asked.values.items() if name not in (without, CURSOR.name)}
    return address(page.slug, **kept)
