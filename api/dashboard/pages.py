"""Every page, in the order in which its question is asked."""

from __future__ import annotations

from .page import Page
from .views import (
    backends,
    compare,
    devices,
    environments,
    failures,
    gains,
    history,
    problem,
    progress,
    roof,
    run,
    runs,
    search,
    trust,
)

PAGES: tuple[Page, ...] = (
    gains.PAGE,
    problem.PAGE,
    roof.PAGE,
    backends.PAGE,
    history.PAGE,
    compare.PAGE,
    trust.PAGE,
    progress.PAGE,
    failures.PAGE,
    runs.PAGE,
    run.PAGE,
    devices.PAGE,
    environments.PAGE,
    search.PAGE,
)

BY_SLUG = {page.slug: page for page in PAGES}
