"""docs/store.md and the contract say what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from fp4tune.db import Store, liveness, misses, samples, schema, values
from fp4tune.db.engine import BUSY_TIMEOUT_S
from fp4tune.db.models import Base
from store_factory import new_run, new_trial, new_winner

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORE = (DOCS / "store.md").read_text(encoding="utf-8")
CONTRACT = (DOCS / "decisions" / "0002-store-contract.md").read_text(encoding="utf-8")


def test_every_table_is_in_the_table_of_tables():
    documented = re.findall(r"^\| `(\w+)` \|", STORE, re.MULTILINE)
    assert sorted(documented) == sorted([*Base.metadata.tables, schema.VERSION_TABLE])


def test_every_method_is_in_the_contract_and_the_other_way_round():
    methods = {name for name, _ in inspect.getmembers(Store, callable) if not name.startswith("_")}
    assert set(re.findall(r"    def (\w+)\(", CONTRACT)) == methods


def test_parameters_are_those_of_the_contract():
    for name, given in re.findall(r"    def (\w+)\((.*?)\) ->", CONTRACT, re.DOTALL):
        parameters = inspect.signature(getattr(Store, name)).parameters
        expected = [p for p in parameters if p not in ("self", "cls")]
        found = [re.split(r"[:=]", part)[0].strip() for part in re.split(r",\s*(?![^\[]*\])", given)]
        found = [part for part in found if part not in ("self", "cls", "*")]
        # A parameter that only names what it takes may be called otherwise in the contract.
        assert len(found) == len(expected), (name, found, expected)
        keyword_only = [p for p in parameters if parameters[p].kind is inspect.Parameter.KEYWORD_ONLY]
        assert found[len(found) - len(keyword_only) :] == keyword_only, name


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        (r"at most (\S+) characters, a checkpoint's", values.MAX_NAME),
        (r"beyond (\S+) characters the\s+middle is left out", values.MAX_PROSE),
        (r"JSON has at most\s+(\S+) MiB", values.MAX_JSON >> 20),
        (r"of more than (\d+), \d+ evenly spaced", samples.MAX_SAMPLES),
        (r"(\S+) for each device and environment", inspect.signature(Store.add_misses).parameters["cap"].default),
        (r"less or\s+more\), (\S+) in all", misses.TOTAL_CAP),
        (r"each other, up to (\d+) s", BUSY_TIMEOUT_S),
        (r"heartbeat is older than (\d+) s", liveness.HEARTBEAT_TIMEOUT.total_seconds()),
    ],
)
def test_limits_are_those_of_the_code(sentence: str, value: float):
    match = re.search(sentence, STORE)
    assert match, sentence
    assert int(match[1].replace(",", "")) == value


def test_the_queries_run_on_both(store: Store):
    run_id = store.create_run(new_run())
    store.add_trials([new_trial(run_id)])
    store.add_winner(new_winner(run_id))
    (block,) = re.findall(r"```sql\n(.*?)```", STORE, re.DOTALL)
    queries = [query for query in block.split(";") if query.strip()]
    assert len(queries) == 2
    for query in queries:
        with store._reading() as connection:
            assert len(connection.exec_driver_sql(query).all()) == 1
