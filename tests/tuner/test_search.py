from __future__ import annotations

import itertools
import random

import pytest
from fp4tune.db.records import Origin
from fp4tune.kernels.backend import Constraint, Parameter, Space
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.search import (
    BASELINE_EVERY,
    ENUMERATE_UP_TO,
    LEFT_BEHIND_AFTER,
    LEFT_BEHIND_FACTOR,
    MAX_BASELINE_CONFIGS,
    Arm,
    Search,
    candidate_key,
    first_candidates,
)

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


@pytest.mark.parametrize("in_flight", [3, 16])
def test_what_is_pending_is_never_proposed_again_whatever_the_order_of_the_answers(in_flight: int):
    draw = random.Random(in_flight)
    arms = [Arm("a", SMALL, SMALL_DEFAULT), Arm("b", LARGE, LARGE_DEFAULT, [dict.fromkeys(LARGE_DEFAULT, 2)])]
    search = Search(arms, seed=1)
    pending: list[Candidate] = []
    keys: list[str] = []
    for _ in range(30):
        while len(pending) < in_flight:
            proposal = search.propose(trials_left=50)
            assert proposal is not None
            pending.append(proposal.candidate)
            keys.append(candidate_key(proposal.candidate))
        candidate = pending.pop(draw.randrange(len(pending)))
        search.tell(candidate, None if draw.random() < 0.2 else draw.uniform(1, 2))
    assert len(keys) == len(set(keys))


def test_a_must_that_is_pending_is_left_and_not_to_be_proposed():
    search = Search([Arm("a", SMALL, SMALL_DEFAULT)], seed=0)
    assert search.musts_left
    assert search.musts_to_propose
    proposal = search.propose(trials_left=1)
    assert proposal is not None
    assert search.musts_left
    assert not search.musts_to_propose
    search.tell(proposal.candidate, None)
    assert not search.musts_left


def test_a_space_that_is_all_pending_has_nothing_more_to_propose():
    search = Search([Arm("a", SMALL, SMALL_DEFAULT)], seed=0)
    for _ in range(20):
        assert search.propose(trials_left=30) is not None
    assert search.propose(trials_left=30) is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_search_with_many_pending_still_beats_random(seed: int):
    search = Search([Arm("b", LARGE, LARGE_DEFAULT)], seed=seed)
    pending: list[Candidate] = []
    found = []
    for _ in range(60):
        while len(pending) < 8:
            proposal = search.propose(trials_left=60)
            assert proposal is not None
            pending.append(proposal.candidate)
        candidate = pending.pop(0)
        found.append(cost(candidate.config))
        search.tell(candidate, found[-1])
    draw = random.Random(seed)
    randoms = []
    for _ in range(20):
        points = [{f"p{i}": draw.randrange(8) for i in range(6)} for _ in range(120)]
        randoms.append(min(map(cost, [p for p in points if p in LARGE][:60])))
    assert min(found) < sum(randoms) / len(randoms)


# --- baselines ---------------------------------------------------------------------------------------------------

BASELINE = Space((Parameter("library", ("x", "y")), Parameter("swap", (False, True))))
BASELINE_DEFAULT = {"library": "x", "swap": False}


def with_baseline() -> list[Arm]:
    seeds = [{"library": "y", "swap": True}]
    return [Arm("base", BASELINE, BASELINE_DEFAULT, seeds, None, True), Arm("b", LARGE, LARGE_DEFAULT)]


def test_the_default_of_a_baseline_comes_after_the_others_defaults_and_is_no_must():
    search = Search(with_baseline(), seed=0)
    first = run(search, 2, lambda _c: 1.0)
    assert [(p.candidate.backend, p.origin) for p in first] == [("b", Origin.DEFAULT), ("base", Origin.DEFAULT)]
    other = Search(with_baseline(), seed=0)
    other.tell(Candidate("b", LARGE_DEFAULT), 1.0)
    assert not other.musts_left


def test_a_baseline_is_tried_whole_but_takes_no_more_than_its_share():
    seen = run(Search(with_baseline(), seed=0), 60, lambda c: cost(c) if "p0" in c else 1.0)
    of_baseline = [i for i, p in enumerate(seen) if p.candidate.backend == "base"]
    assert len(of_baseline) == BASELINE.size
    assert all(n * BASELINE_EVERY <= i for n, i in enumerate(of_baseline[1:], start=1))
    assert seen[of_baseline[1]].origin is Origin.SEED


def test_a_fast_baseline_does_not_draw_the_sampler():
    """The same search with and without it, and its times told, proposes the same of the others."""
    alone = run(Search(with_baseline()[1:], seed=3), 40, cost)
    beside = run(Search(with_baseline(), seed=3), 44, lambda c: cost(c) if "p0" in c else 1.0)
    racing = [candidate_key(p.candidate) for p in beside if p.candidate.backend == "b"]
    assert racing[:30] == [candidate_key(p.candidate) for p in alone][:30]


def test_of_a_large_baseline_only_some_configs_are_tried():
    search = Search([Arm("base", LARGE, LARGE_DEFAULT, is_baseline=True), Arm("a", SMALL, SMALL_DEFAULT)], seed=0)
    seen = run(search, 500, lambda _c: 1.0)
    assert sum(p.candidate.backend == "base" for p in seen) == MAX_BASELINE_CONFIGS
    assert sum(p.candidate.backend == "a" for p in seen) == 20


def test_what_is_tried_first_is_known_without_a_search():
    served = {"tile": 16, "decode": "arithmetic", "stages": 3}
    arms = [*with_baseline(), Arm("a", SMALL, SMALL_DEFAULT, [{"tile": 32, "decode": "lookup", "stages": 1}], served)]
    first = first_candidates(arms)
    seen = run(Search(arms, seed=0), len(first), lambda _c: 1.0)
    assert [candidate_key(p.candidate) for p in seen] == [candidate_key(c) for c in first]
    assert len(first) == 5


def two_backends(slow_by: float, *, served=None, seed: int = 11) -> list[tuple[str, Origin]]:
    """Backend and origin of what is proposed when backend `slow` takes `slow_by` times as long."""
    seeds = [{"tile": 16, "decode": "lookup", "stages": 1}, {"tile": 32, "decode": "lookup", "stages": 1}]
    arms = [
        Arm("slow", SMALL, SMALL_DEFAULT, [*seeds, {**seeds[0], "stages": 2}], served=served),
        Arm("fast", LARGE, LARGE_DEFAULT),
    ]
    proposals = run(Search(arms, seed=seed), 60, lambda c: 100.0 * slow_by if "tile" in c else cost(c))
    return [(one.candidate.backend, one.origin) for one in proposals]


def test_a_backend_that_is_left_far_behind_leaves_the_race():
    tried = two_backends(2 * LEFT_BEHIND_FACTOR)
    assert [backend for backend, _ in tried].count("slow") == LEFT_BEHIND_AFTER
    assert len(tried) == 60
    assert {origin for backend, origin in tried[LEFT_BEHIND_AFTER + 1 :]} == {Origin.SAMPLER}


def test_a_backend_that_is_not_far_behind_stays():
    tried = two_backends(1.5)
    assert [backend for backend, _ in tried].count("slow") > LEFT_BEHIND_AFTER + 1
    assert ("slow", Origin.SAMPLER) in tried


def test_what_is_served_is_tried_even_of_a_backend_that_left():
    served = {"tile": 16, "decode": "arithmetic", "stages": 3}
    search = Search([Arm("slow", SMALL, SMALL_DEFAULT, served=served), Arm("fast", LARGE, LARGE_DEFAULT)], seed=1)
    search.tell(Candidate("fast", LARGE_DEFAULT), 1.0)
    for stages in (1, 2):
        search.tell(Candidate("slow", {"tile": 32, "decode": "lookup", "stages": stages}), 100.0)
    search.tell(Candidate("slow", SMALL_DEFAULT), 100.0)
    assert search.musts_to_propose
    proposal = search.propose(trials_left=1)
    assert proposal is not None
    assert proposal.candidate == Candidate("slow", served)


def test_a_search_that_one_backend_left_goes_on_where_it_was_after_resume():
    """What was told decides who is in the race, in whatever process it was told."""
    history = [(Candidate("slow", {"tile": tile, "decode": "lookup", "stages": 1}), 1000.0) for tile in TILES[:3]] + [
        (Candidate("fast", LARGE_DEFAULT), 100.0)
    ]
    search = Search([Arm("slow", SMALL, SMALL_DEFAULT), Arm("fast", LARGE, LARGE_DEFAULT)], seed=2)
    for candidate, time_us in history:
        search.tell(candidate, time_us)
    proposals = run(search, 20, cost_or_slow)
    assert [p.candidate.backend for p in proposals] == ["slow", *["fast"] * 19]  # its default is a must
    assert proposals[0].origin == Origin.DEFAULT


def test_what_was_pending_of_a_backend_that_left_can_still_be_told():
    arms = [Arm("slow", SMALL, SMALL_DEFAULT), Arm("fast", LARGE, LARGE_DEFAULT)]
    search = Search(arms, seed=4)
    proposals = [search.propose(trials_left=100) for _ in range(24)]
    assert all(proposals)
    for proposal in proposals:
        search.tell(proposal.candidate, cost_or_slow(proposal.candidate.config))
    assert {p.candidate.backend for p in run(search, 20, cost_or_slow)} == {"fast"}


def cost_or_slow(config) -> float:
    return 1000.0 if "tile" in config else cost(config)
