"""What a word finds, within bounds, on both databases; % and _ are themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dashboard_stores import HOSTILE, analyze, hostile, million, orphans
from fp4tune.db import Store
from fp4tune.db.dashboard import search
from fp4tune.db.dashboard.search import Found, SearchFor
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import Problem
from query_plans import plans
from store_factory import CARD, GROUPED, ON_CARD, ON_CPU, SMALL, Clock, new_run, new_trial, new_winner

NOTHING = Found((), (), (), (), ())


def is_nothing(found: Found) -> bool:
    return not any((found.problems, found.runs, found.devices, found.environments, found.backends))


def keys(store: Store, text: str) -> list[str]:
    return [one.key for one in store.ask(SearchFor(text)).problems]


@pytest.mark.parametrize("text", ["x" * 256, "a\x00b", "\ud800"])
def test_what_no_database_can_look_for_is_refused(store: Store, text: str):
    with pytest.raises(InvalidInputError):
        store.ask(SearchFor(text))


@pytest.mark.parametrize("text", ["", "  ", "\u3000"])
def test_no_words_find_nothing(store: Store, text: str):
    assert store.ask(SearchFor(text)) == NOTHING


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    run_id = store.create_run(new_run())
    store.add_trials([new_trial(run_id), new_trial(run_id, problem=GROUPED, backend="cutlass.grouped")])
    store.add_winner(new_winner(run_id))
    clock.advance(1)
    store.create_run(new_run(environment=ON_CPU, checkpoint="100%_model\\", problems=()))
    return store


@pytest.mark.parametrize("text", ["%", "_", "\\", "'", '"', "'; DROP TABLE runs; --", "/", "x" * 200, "💥", "0x10"])
def test_wildcards_and_quotes_are_themselves(filled: Store, text: str):
    found = filled.ask(SearchFor(text))
    assert [one.checkpoint for one in found.runs] == (["100%_model\\"] if text in "100%_model\\" else [])
    assert found.devices == found.backends == []
    assert [one.key for one in found.problems] == []


@pytest.mark.parametrize(
    "text",
    [
        "16x2048x4096",
        "2048x4096",
        "2048",
        "4096 2048",
        "dense:16",
        "DENSE:16X2048",
        SMALL.key,
        "attn.qkv",
        "QKV",
        "attn qkv",
    ],
)
def test_a_problem_is_found_by(filled: Store, text: str):
    assert SMALL.key in keys(filled, text)
    assert GROUPED.key not in keys(filled, text)


def test_a_number_is_n_or_k_before_m_and_never_a_part(store: Store):
    many = [Problem(64, 256, 4096), Problem(256, 128, 4096), Problem(1, 2560, 4096), Problem(1, 128, 256)]
    run_id = store.create_run(new_run(problems=()))
    for problem in many:
        store.add_trials([new_trial(run_id, problem=problem)])
    assert keys(store, "256") == [many[3].key, many[0].key, many[1].key]


def test_all_words_must_be_found(filled: Store):
    assert keys(filled, "grouped 4096 nvfp4") == [GROUPED.key]
    assert keys(filled, "dense moe.w13") == []


def test_problems_say_their_role_and_whether_one_is_served(filled: Store):
    one, other = sorted(filled.ask(SearchFor("nvfp4")).problems, key=lambda found: found.key)
    assert (one.key, one.roles, one.is_served) == (SMALL.key, ("attn.qkv",), True)
    assert (other.key, other.roles, other.is_served) == (GROUPED.key, ("moe.w13",), False)


def test_runs_by_the_beginning_of_their_id_and_by_model(filled: Store):
    newest, first = (run.id for run in filled.runs())
    assert [one.id for one in filled.ask(SearchFor(first.lower())).runs] == [first]
    assert first in [one.id for one in filled.ask(SearchFor(first[:8])).runs]
    (found,) = filled.ask(SearchFor("qwen3.5 397B")).runs
    assert (found.id, found.status, found.device, found.n_trials) == (first, "interrupted", "Test Card", 2)
    assert [one.id for one in filled.ask(SearchFor("%_model")).runs] == [newest]


def test_devices_and_environments_by_name_version_and_fingerprint(filled: Store):
    for text in ("test card", CARD.fingerprint, CARD.fingerprint[:5].upper()):
        assert [one.fingerprint for one in filled.ask(SearchFor(text)).devices] == [CARD.fingerprint]
    for text in ("580.95", "driver", "triton 3.6", ON_CARD.fingerprint[:6], "card torch"):
        assert [one.fingerprint for one in filled.ask(SearchFor(text)).environments] == [ON_CARD.fingerprint]
    assert {one.device for one in filled.ask(SearchFor("torch")).environments} == {"Test Card", "Test CPU"}


def test_a_version_that_json_escapes_is_found(store: Store):
    store.create_run(new_run(environment=Environment(CARD, {"driver": 'a"b\\c\u00fc'})))
    for text in ('a"b', "b\\c", "c\u00fc"):
        assert len(store.ask(SearchFor(text)).environments) == 1


def test_backends_with_their_trials(filled: Store):
    (found,) = filled.ask(SearchFor("CUTLASS")).backends
    assert (found.name, found.n_trials, found.n_problems) == ("cutlass.grouped", 1, 1)


def test_one_more_than_the_limit_says_that_there_are_more(store: Store):
    problems = tuple(replace(new_run().problems[0], problem=replace(SMALL, m=m)) for m in range(1, 8))
    store.create_run(new_run(problems=problems))
    assert len(store.ask(SearchFor("2048", limit=4)).problems) == 5
    assert len(store.ask(SearchFor("qkv", limit=4)).problems) == 5


def test_old_rows_beyond_the_bound_are_not_looked_through(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch):
    sqlite_store.create_run(new_run(problems=()))
    run_id = sqlite_store.create_run(new_run(problems=()))
    sqlite_store.add_trials([new_trial(run_id, problem=replace(SMALL, m=m)) for m in (1, 2, 3)])
    monkeypatch.setattr(search, "MAX_PROBLEMS", 2)
    monkeypatch.setattr(search, "MAX_RUNS", 1)
    assert keys(sqlite_store, "nvfp4") == [replace(SMALL, m=m).key for m in (3, 2)]
    assert keys(sqlite_store, replace(SMALL, m=1).key) == [replace(SMALL, m=1).key]
    assert [one.id for one in sqlite_store.ask(SearchFor("qwen3.5")).runs] == [run_id]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_store_can_be_searched(tmp_path: Path, text: str):
    hostile(tmp_path / "a.db", text)
    with Store.open(tmp_path / "a.db", mode="read") as store:
        for words in ("nvfp4", "a", text[:200].replace("\x00", "")):
            store.ask(SearchFor(words))


@pytest.mark.parametrize("table", ["devices", "environments", "problems", "runs"])
def test_what_is_lost_breaks_nothing(tmp_path: Path, table: str):
    orphans(tmp_path / "a.db", table)
    with Store.open(tmp_path / "a.db", mode="read") as store:
        for words in ("nvfp4", "h200", "moe", "triton", "4096"):
            store.ask(SearchFor(words))


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_search_reads_trials(tmp_path: Path, analyzed: bool):
    big = million(tmp_path / "a.db", 5000)
    if analyzed:
        analyze(big.path)
    with Store.open(big.path, mode="read") as store:
        for words in ("4096", "qkv", big.deep_run, "triton", big.deep_problem):
            for plan in plans(store, lambda words=words: store.ask(SearchFor(words))):
                assert "trials" not in plan, plan
            assert not is_nothing(store.ask(SearchFor(words)))
