"""A page with nothing to show says what to do next, whatever the reason that there is nothing."""

from __future__ import annotations

import dashboard_stores
import pytest
from fp4tune.api.dashboard.pages import PAGES
from fp4tune.db import Store
from fp4tune.kernels.errors import Fp4tuneError

STORES = {
    "empty": dashboard_stores.empty,
    "single failure": dashboard_stores.single_failure,
    "killed": dashboard_stores.killed,
}
FILTERS = (
    {},
    {"status": "timeout"},
    {"status": "unsupported"},
    {"status": "wrong"},
    {"status": "finished"},
    {"status": "running"},
    {"backend": "nobody"},
    {"backend": "nobody", "status": "wrong"},
    {"device": "0123456789abcdef"},
    {"environment": "0123456789abcdef"},
    {"q": "nothing that is there"},
)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("page", [page for page in PAGES if page.label], ids=lambda page: page.label)
def test_a_page_has_rows_or_says_what_to_do(kind, page, tmp_path, show):
    path = tmp_path / "store.db"
    STORES[kind](path)
    names = {parameter.name for parameter in page.parameters}
    with Store.open(path, mode="read") as store:
        for values in FILTERS:
            if not set(values) <= names:
                continue
            try:
                view = show(store, page.slug, **values)
            except Fp4tuneError:
                continue  # a page of its own, which has links
            rows = any(section.table is not None and section.table.rows for section in view.sections)
            assert rows or view.next_steps, values
