from __future__ import annotations

import pytest
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import Routing, parse_shape
from fp4tune.kernels.routing import draw_offsets, max_rows


def counts(shape, routing=Routing.UNIFORM, seed=0):
    return draw_offsets(parse_shape(shape, routing=routing), seed).diff().tolist()


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("shape", ["e8k2:1x16x16", "e8k8:5x16x16", "e512k10:16x16x16", "e1k1:7x16x16"])
def test_every_token_reaches_top_k_experts(shape, routing):
    problem = parse_shape(shape, routing=routing)
    rows = counts(shape, routing)
    assert sum(rows) == problem.m * problem.top_k == max_rows(problem)
    assert len(rows) == problem.experts
    assert max(rows) <= problem.m, "a token would be at one expert twice"


@pytest.mark.parametrize("routing", Routing)
def test_offsets_start_at_zero_and_never_fall(routing):
    offsets = draw_offsets(parse_shape("e16of64k4:50x16x16", routing=routing), 1)
    assert offsets.shape == (17,)
    assert offsets[0] == 0
    assert bool((offsets.diff() >= 0).all())


@pytest.mark.parametrize("routing", [Routing.UNIFORM, Routing.POWER_LAW])
def test_a_seed_decides(routing):
    assert counts("e64k4:100x16x16", routing, 7) == counts("e64k4:100x16x16", routing, 7)
    assert counts("e64k4:100x16x16", routing, 7) != counts("e64k4:100x16x16", routing, 8)


def test_uniform_routing_is_uniform():
    rows = counts("e64k4:16000x16x16")
    assert 800 < min(rows) <= max(rows) < 1200  # 1000 ± 31 each; six standard deviations


def test_power_law_gives_the_busiest_fifth_two_thirds():
    shares = []
    for seed in range(5):
        rows = sorted(counts("e512k10:4096x16x16", Routing.POWER_LAW, seed), reverse=True)
        shares.append(sum(rows[:102]) / sum(rows))
    assert 0.58 < sum(shares) / 5 < 0.72


def test_one_hot_sends_all_to_the_same_experts():
    assert counts("e8k2:300x16x16", Routing.ONE_HOT) == [300, 300, 0, 0, 0, 0, 0, 0]
    assert counts("e2of8k3:300x16x16", Routing.ONE_HOT) == [300, 300]


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("shape", ["e64of512k10:16x16x16", "e8of16k2:1000x16x16", "e1of64k1:1x16x16"])
def test_a_rank_gets_about_its_share_and_never_more_than_max_rows(shape, routing):
    problem = parse_shape(shape, routing=routing)
    totals = [sum(counts(shape, routing, seed)) for seed in range(40)]
    assert max(totals) <= max_rows(problem)
    if routing is Routing.UNIFORM:
        assert abs(sum(totals) / 40 - problem.m * problem.top_k * problem.experts / problem.experts_total) < max(
            1, 0.1 * problem.rows
        )


def test_a_rank_can_get_nothing():
    assert {sum(counts("e1of64k1:1x16x16", seed=seed)) for seed in range(200)} == {0, 1}


def test_many_tokens_are_drawn_in_chunks_and_quickly():
    assert sum(counts("e512k10:100000x16x16")) == 1_000_000


def test_dense_problems_have_none():
    assert max_rows(parse_shape("7x16x16")) == 7
    with pytest.raises(InvalidInputError, match="7x16x16 is a dense problem"):
        draw_offsets(parse_shape("7x16x16"), 0)
