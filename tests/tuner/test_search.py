from __future__ import annotations

import itertools
import random

import pytest
from fp4tune.db.records import Origin
from fp4tune.kernels.backend import Constraint, Parameter, Space
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.search import ENUMERATE_UP_TO, Arm, Search, candidate_key

TILES = (16, 32, 64, 128)
SMALL = Space(
    (Parameter("tile", TILES), Parameter("decode", ("lookup", "arithmetic")), Parameter("stages", (1, 2, 3))),
    (Constraint("large tiles take one stage", lambda c: c["tile"] != 128 or c["stages"] == 1),),
)
LARGE = Space(
    tuple(Parameter(f"p{i}", tuple(range(8))) for i in range(6)),
    (Constraint("p0 + p1 is even", lambda c: (int(c["p0"]) + int(c["p1"])) % 2 == 0),),
)
SMALL_DEFAULT = {"tile": 64, "decode": "lookup", "stages": 2}
LARGE_DEFAULT = {f"p{i}": 4 for i in range(6)}


def cost(config) -> float:
    """A bowl with its minimum at all ones, and coupled coordinates."""
    values = [int(config[f"p{i}"]) for i in range(6)]
    return 100.0 + sum((v - 1) ** 2 for v in values) + 3 * abs(values[2] - values[3])


def run(search: Search, trials: int, score):
    seen = []
    for left in range(trials, 0, -1):
        proposal = search.propose(trials_left=left)
        if proposal is None:
            break
        seen.append(proposal)
        search.tell(proposal.candidate, score(proposal.candidate.config))
    return seen


def test_defaults_come_first_then_seeds_and_nothing_twice():
    arms = [
        Arm("a", SMALL, SMALL_DEFAULT, [{"tile": 16, "decode": "lookup", "stages": 1}, SMALL_DEFAULT]),
        Arm("b", LARGE, LARGE_DEFAULT),
    ]
    seen = run(Search(arms, seed=1), 40, lambda c: 1.0 + len(c))
    assert [p.origin for p in seen[:3]] == [Origin.DEFAULT, Origin.DEFAULT, Origin.SEED]
    assert [p.candidate.backend for p in seen[:3]] == ["a", "b", "a"]
    keys = [candidate_key(p.candidate) for p in seen]
    assert len(keys) == len(set(keys)) == 40


def test_every_proposal_is_legal():
    arms = [Arm("a", SMALL, SMALL_DEFAULT), Arm("b", LARGE, LARGE_DEFAULT)]
    spaces = {"a": SMALL, "b": LARGE}
    for proposal in run(Search(arms, seed=2), 60, lambda c: 10.0 if "tile" in c else cost(c)):
        assert proposal.candidate.config in spaces[proposal.candidate.backend]


def test_a_seed_outside_the_space_is_not_tried():
    """A winner of an older version of a backend may name parameters or values that are gone."""
    stale = [{"tile": 256, "decode": "lookup", "stages": 1}, {"tile": 16}]
    seen = run(Search([Arm("a", SMALL, SMALL_DEFAULT, stale)], seed=0), 100, lambda _c: 1.0)
    assert all(p.candidate.config in SMALL for p in seen)


def test_a_small_space_is_enumerated_whole_then_exhausted():
    search = Search([Arm("a", SMALL, SMALL_DEFAULT)], seed=3)
    seen = run(search, 100, lambda c: float(c["tile"]))
    legal = {candidate_key(Candidate("a", c)) for c in SMALL}
    assert search.n_listed == len(legal) == 20
    assert {candidate_key(p.candidate) for p in seen} == legal
    assert search.propose(trials_left=10) is None


def test_the_filter_never_runs_dry_although_the_sampler_repeats_itself():
    """All configs fail: the sampler learns nothing and proposes what was seen, yet every trial is a new one."""
    search = Search([Arm("a", SMALL, SMALL_DEFAULT)], seed=4)
    seen = []
    for _ in range(20):
        proposal = search.propose(trials_left=1)
        assert proposal is not None
        seen.append(candidate_key(proposal.candidate))
        search.tell(proposal.candidate, None)
    assert len(set(seen)) == 20
    assert search.propose(trials_left=1) is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_search_beats_random_on_a_bowl(seed: int):
    """Best of 60 trials out of 131,072 legal configs, against the same number of random ones (mean over 20 draws)."""
    assert LARGE.size > ENUMERATE_UP_TO
    seen = run(Search([Arm("b", LARGE, LARGE_DEFAULT)], seed=seed), 60, cost)
    found = min(cost(p.candidate.config) for p in seen)
    draw = random.Random(seed)
    randoms = []
    for _ in range(20):
        points = [{f"p{i}": draw.randrange(8) for i in range(6)} for _ in range(120)]
        legal = [p for p in points if p in LARGE][:60]
        randoms.append(min(map(cost, legal)))
    assert found < sum(randoms) / len(randoms)


def test_the_same_seed_proposes_the_same():
    def trace(seed: int) -> list[str]:
        arms = [Arm("a", SMALL, SMALL_DEFAULT), Arm("b", LARGE, LARGE_DEFAULT)]
        return [candidate_key(p.candidate) for p in run(Search(arms, seed=seed), 30, lambda c: 5.0 + len(c))]

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_a_resumed_search_goes_on_where_it_was():
    first = Search([Arm("b", LARGE, LARGE_DEFAULT)], seed=5)
    seen = run(first, 20, cost)
    second = Search([Arm("b", LARGE, LARGE_DEFAULT)], seed=5)
    for proposal in seen:
        second.tell(proposal.candidate, cost(proposal.candidate.config))
    assert not second.musts_left
    more = run(second, 20, cost)
    old = {candidate_key(p.candidate) for p in seen}
    assert not old & {candidate_key(p.candidate) for p in more}


def test_no_arms_no_proposals():
    search = Search([], seed=0)
    assert search.propose(trials_left=5) is None
    assert not search.musts_left


def test_space_of_the_tests_is_what_it_says():
    assert sum(1 for _ in SMALL) == sum(
        t != 128 or s == 1 for t, _, s in itertools.product(TILES, ("lookup", "arithmetic"), (1, 2, 3))
    )


def test_what_is_served_now_is_tried_however_small_the_budget():
    served = {"tile": 16, "decode": "arithmetic", "stages": 3}
    search = Search([Arm("a", SMALL, SMALL_DEFAULT, served=served), Arm("b", LARGE, LARGE_DEFAULT)], seed=0)
    seen = []
    while search.musts_left:
        proposal = search.propose(trials_left=1)
        assert proposal is not None
        seen.append(proposal.candidate.config)
        search.tell(proposal.candidate, 1.0)
    assert seen == [SMALL_DEFAULT, LARGE_DEFAULT, served]


def test_a_long_search_asks_the_sampler_less_often_for_each_trial():
    """An ask takes time in proportion to the trials so far, so a fixed number would make long searches crawl."""
    search = Search([Arm("b", LARGE, LARGE_DEFAULT)], seed=0)
    draw = random.Random(0)
    while len(search._seen) < 1000:
        config = {f"p{i}": draw.randrange(8) for i in range(6)}
        if config in LARGE:
            search.tell(Candidate("b", config), cost(config))
    asked = 0
    ask = search._ask

    def counted():
        nonlocal asked
        asked += 1
        ask()
        return Candidate("b", LARGE_DEFAULT), search._study.ask()  # known: the filter asks again

    search.tell(Candidate("b", LARGE_DEFAULT), cost(LARGE_DEFAULT))
    search._ask = counted  # type: ignore[method-assign]
    assert search.propose(trials_left=5) is not None
    assert asked == 2
