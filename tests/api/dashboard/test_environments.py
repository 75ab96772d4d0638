"""The page of environments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dashboard_stores import HOSTILE, ODD_NUMBERS, ODD_WHOLE_NUMBERS
from evil_databases import hostile, odd, orphans
from fp4tune.api.dashboard.model import Cell
from fp4tune.db import Store
from fp4tune.kernels.errors import NotFoundError
from store_factory import CARD, CPU, ON_CARD, ON_CPU, ROOFS, new_run, new_trial, new_winner

NEWER = replace(ON_CARD, versions={"driver": "590.1", "torch": "2.11.0", "humming": "0.2"})


def values(row) -> list:
    return [one.value if isinstance(one, Cell) else one for one in row]


def table(view, name: str):
    return next(section.table for section in view.sections if section.table.name == name)


def rows(view) -> list[dict]:
    found = table(view, "environments")
    return [dict(zip([c.name for c in found.columns], values(row), strict=True)) for row in found.rows]


def fill(store: Store) -> None:
    for environment in (ON_CARD, NEWER):
        run_id = store.create_run(new_run(environment=environment))
        store.add_trials([new_trial(run_id, n, environment=environment) for n in range(2)])
        store.add_winner(new_winner(run_id, environment=environment))
    store.create_run(new_run(environment=ON_CPU))
    store.set_roofs(ON_CARD, ROOFS)


def test_what_is_not_stored_is_not_found(h200: Store, show):
    for asked in ({"device": "0" * 16}, {"environment": "0" * 16}):
        with pytest.raises(NotFoundError, match="0000000000000000"):
            show(h200, "environments", **asked)


def test_an_environment_of_another_device_is_not_found(empty: Store, show):
    fill(empty)
    with pytest.raises(NotFoundError, match="of the device"):
        show(empty, "environments", device=CPU.fingerprint, environment=ON_CARD.fingerprint)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_break_nothing(show, text: str):
    with hostile(text) as (store, _):
        for row in rows(show(store, "environments")):
            assert row["device"] == text
            show(store, "environments", environment=row["environment"])


@pytest.mark.parametrize("number", [*ODD_NUMBERS.values(), *ODD_WHOLE_NUMBERS.values()])
def test_odd_numbers_break_nothing(show, number: float):
    with odd(number) as (store, _):
        assert rows(show(store, "environments"))


@pytest.mark.parametrize("lost", ["devices", "environments", "runs", "problems"])
def test_lost_rows_break_nothing(show, lost: str):
    with orphans(lost) as (store, _):
        show(store, "environments")


def test_an_empty_store_says_what_to_do(empty: Store, show):
    view = show(empty, "environments")
    assert view.sections == ()
    assert view.next_steps[0].command.startswith("fp4tune tune ")


def test_counts_roofs_and_links(h200: Store, show):
    view = show(h200, "environments")
    (row,) = rows(view)
    assert (row["environment"], row["trials"], row["winners"]) == ("0d4323886a8821a4", 5725, 68)
    assert (row["copy_gb_per_s"], row["bf16_tflop_per_s"]) == (
        pytest.approx(4227.46, abs=0.01),
        pytest.approx(692.41, abs=0.01),
    )
    links = [cell.link for cell in table(view, "environments").rows[0][-4:-1]]
    assert links == [
        "/dashboard/?environment=0d4323886a8821a4", "/dashboard/roof?environment=0d4323886a8821a4",
        "/dashboard/failures?environment=0d4323886a8821a4",
    ]  # fmt: skip
    assert table(view, "environments").rows[0][-1] is None, "there is nothing to compare it with"
    assert ("driver", "580.159.04") in table(view, "versions").rows
    assert view.lead == "1 environment on 1 device."


def test_what_changed_from_one_to_the_next_on_the_same_device(empty: Store, show):
    fill(empty)
    view = show(empty, "environments")
    assert [row["environment"] for row in rows(view)] == [ON_CPU.fingerprint, NEWER.fingerprint, ON_CARD.fingerprint]
    versions = table(view, "versions")
    assert [column.name for column in versions.columns] == [
        "environment", "device", "version_driver", "version_humming", "version_torch", "version_triton",
    ]  # fmt: skip
    cpu, newer, older = ([(cell.value, cell.note) for cell in row[2:]] for row in versions.rows)
    assert newer == [("590.1", "was 580.95"), ("0.2", "was not there"), ("2.11.0", ""), (None, "was 3.6.0")]
    assert {note for _, note in (*cpu, *older)} == {""}


def test_what_to_do_next(empty: Store, show):
    fill(empty)
    compare, roofs = show(empty, "environments").next_steps
    to = f"/dashboard/compare?a={ON_CARD.fingerprint}&b={NEWER.fingerprint}"
    assert compare.link == to
    assert [row[-1].link if row[-1] else "" for row in table(show(empty, "environments"), "environments").rows] == [
        "", to, "",
    ]  # fmt: skip
    alone = show(empty, "environments", environment=NEWER.fingerprint)
    assert [row[-1].link for row in table(alone, "environments").rows] == [to]
    assert NEWER.fingerprint in roofs.text
    assert show(empty, "environments", device=CPU.fingerprint).next_steps == ()


def test_links_only_where_there_is_something(empty: Store, show):
    fill(empty)
    cpu, newer, older = rows(show(empty, "environments"))
    assert (cpu["gains"], cpu["roof"], cpu["failures"]) == (None, None, None)
    assert (newer["gains"], newer["roof"], newer["failures"]) == ("gains", None, "failures")
    assert (older["gains"], older["roof"]) == ("gains", "roof")


def test_filters_narrow(empty: Store, show):
    fill(empty)
    view = show(empty, "environments", device=CARD.fingerprint)
    assert [row["environment"] for row in rows(view)] == [NEWER.fingerprint, ON_CARD.fingerprint]
    assert view.filters[0].value == CARD.fingerprint
    view = show(empty, "environments", environment=ON_CARD.fingerprint)
    assert [row["environment"] for row in rows(view)] == [ON_CARD.fingerprint]
    assert table(view, "versions").rows == [("driver", "580.95"), ("torch", "2.11.0"), ("triton", "3.6.0")]


def test_more_versions_than_fit_are_left_out_with_a_note(empty: Store, show):
    for extra in ("a", "b"):
        versions = {f"name{n:02}": "1" for n in range(20)} | {"extra": extra}
        empty.create_run(new_run(environment=replace(ON_CARD, versions=versions)))
    versions = table(show(empty, "environments"), "versions")
    assert len(versions.columns) == 2 + 16
    assert versions.note.startswith("5 more names")
