"""What compilers say without a device: known by config, target and versions, replaced, listed; on both databases."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from fp4tune.db import Store
from fp4tune.db.records import CompileStatus, Page, Source, StaticFactsFilter, StoredStaticFacts
from fp4tune.kernels.errors import InvalidInputError
from store_factory import FACTS, GROUPED, SMALL, Clock, new_static_facts


def test_an_entry_comes_back_as_it_was(store: Store, clock: Clock):
    new = new_static_facts(problem=GROUPED)
    (id_,) = store.add_static_facts([new])
    assert store.static_facts() == Page(
        [
            StoredStaticFacts(
                id_, GROUPED, new.backend, new.config, new.target, new.versions, CompileStatus.OK, FACTS, 1.25, "",
                Source.COMPILED, clock.now,
            )
        ]
    )  # fmt: skip


@pytest.mark.parametrize("status", [CompileStatus.COMPILE_FAILED, CompileStatus.UNSUPPORTED])
def test_what_did_not_compile_has_an_error_and_no_facts(store: Store, status: CompileStatus):
    store.add_static_facts([new_static_facts(status=status, facts=None, error="ptxas: out of registers\n🚀")])
    (stored,) = store.static_facts().items
    assert (stored.status, stored.facts, stored.error) == (status, None, "ptxas: out of registers\n🚀")


def test_what_compiled_and_must_not_be_run_may_say_why(store: Store):
    spilled = replace(FACTS, stack_bytes=512)
    store.add_static_facts([new_static_facts(status=CompileStatus.UNSUPPORTED, facts=spilled, error="it spills")])
    (stored,) = store.static_facts().items
    assert (stored.status, stored.facts, stored.error) == (CompileStatus.UNSUPPORTED, spilled, "it spills")


@pytest.mark.parametrize(
    "wrong",
    [{"facts": None}, {"status": CompileStatus.COMPILE_FAILED}, {"facts": replace(FACTS, target="sm_90a")}],
)
def test_facts_without_success_or_of_another_target_cannot_be_made(wrong: dict[str, object]):
    with pytest.raises(ValueError, match="static facts"):
        new_static_facts(**wrong)


OTHERS = {
    "problem": GROUPED,
    "backend": "humming",
    "config": {"block_m": 64, "stages": 3.0},
    "target": "sm_90a",
    "versions": {"triton": "3.6.0"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_part_of_what_it_is_known_by_makes_another_entry(store: Store, name: str):
    more = {name: OTHERS[name]}
    if name == "target":
        more["facts"] = replace(FACTS, target="sm_90a")
    ids = store.add_static_facts([new_static_facts(), new_static_facts(**more)])
    assert len(set(ids)) == 2
    assert [stored.id for stored in store.static_facts().items] == ids


def test_a_later_entry_replaces_and_keeps_the_id(store: Store, clock: Clock):
    first = store.add_static_facts([new_static_facts(), new_static_facts(problem=GROUPED)])
    later = clock.advance(10)
    failed = new_static_facts(status=CompileStatus.COMPILE_FAILED, facts=None, error="no ptxas", compile_s=0.5)
    assert store.add_static_facts([failed]) == first[:1]
    one, other = store.static_facts().items
    assert (one.id, one.status, one.facts, one.error, one.created_at) == (
        first[0], CompileStatus.COMPILE_FAILED, None, "no ptxas", later,
    )  # fmt: skip
    assert (other.id, other.status) == (first[1], CompileStatus.OK)
    assert store.add_static_facts([new_static_facts()]) == first[:1]
    assert store.static_facts().items[0].facts == FACTS


def test_of_several_in_one_call_the_last_stays(store: Store):
    ids = store.add_static_facts([new_static_facts(compile_s=float(n)) for n in range(3)])
    assert len(set(ids)) == 1
    assert [stored.compile_s for stored in store.static_facts().items] == [2.0]


def test_none_are_no_work(store: Store):
    assert store.add_static_facts([]) == []


def test_a_config_longer_than_an_index_takes(store: Store):
    long = {"source": "x" * 100_000}
    ids = store.add_static_facts([new_static_facts(config=long)])
    assert store.add_static_facts([new_static_facts(config=long)]) == ids


def test_pages_cover_everything_once(store: Store):
    ids = store.add_static_facts([new_static_facts(config={"n": n}) for n in range(1200)])
    seen, after = [], 0
    while after is not None:
        page = store.static_facts(limit=500, after=after)
        seen += [stored.id for stored in page.items]
        after = page.next_after
    assert sorted(ids) == seen
    assert [store.static_facts(limit=1, after=id_ - 1).items[0].config for id_ in ids[:3]] == [
        {"n": 0}, {"n": 1}, {"n": 2},
    ]  # fmt: skip


def test_every_filter_alone_and_all_pairs_agree_with_filtering_by_hand(store: Store):
    store.add_static_facts(
        [
            new_static_facts(problem=problem, backend=backend, target=target, facts=replace(FACTS, target=target))
            for problem in (SMALL, GROUPED)
            for backend in ("triton.native", "humming")
            for target in ("sm_90a", "sm_120a")
        ]
    )
    everything = store.static_facts().items
    assert len(everything) == 8
    filters = {
        "problem_key": (GROUPED.key, lambda s: s.problem.key),
        "backend": ("humming", lambda s: s.backend),
        "target": ("sm_90a", lambda s: s.target),
    }
    for names in itertools.combinations_with_replacement(filters, 2):
        given = {name: filters[name][0] for name in names}
        wanted = [s for s in everything if all(filters[name][1](s) == value for name, value in given.items())]
        assert store.static_facts(StaticFactsFilter(**given)).items == wanted
    assert store.static_facts(StaticFactsFilter(target="sm_80")).items == []
    for bad in ({"limit": 0}, {"after": -1}):
        with pytest.raises(InvalidInputError):
            store.static_facts(**bad)
