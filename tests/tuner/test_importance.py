from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys

import pytest
from fp4tune.tuner.importance import MAX_TRIALS, MIN_TOP, MIN_TRIALS, importances

TILES = (16, 32, 64, 128)


def tried(n: int, time_us=lambda config, noise: 10.0 + 10.0 * (config["tile"] < 64) + noise, *, seed: int = 0):
    """Configs of four parameters, of which at most `tile` matters."""
    generator = random.Random(seed)
    configs = [
        {"tile": generator.choice(TILES), "stages": generator.choice((2, 3)), "split": generator.choice((True, False)),
         "order": generator.choice(("m", "n"))}
        for _ in range(n)
    ]  # fmt: skip
    return [(config, time_us(config, generator.random() / 10)) for config in configs]


@pytest.mark.parametrize("n", [0, 1, 19])
def test_too_few_trials_say_so(n: int):
    found = importances(tried(n))
    assert not found.parameters
    assert found.n_trials == n
    assert f"fewer than {MIN_TRIALS}" in found.why_not


def test_times_that_are_none_are_left_out():
    bad = [({"tile": 16}, time_us) for time_us in (math.nan, math.inf, -1.0, 0.0)]
    assert importances(tried(19) + bad).n_trials == 19
    assert importances(tried(60)) == importances(tried(60) + bad)


def test_parameters_without_a_choice_are_told_apart():
    found = importances([({**config, "chunks": 1}, time_us) for config, time_us in tried(60)])
    assert found.fixed == (("chunks", "1"),)
    assert {one.name for one in found.parameters} == {"tile", "stages", "split", "order"}
    nothing = importances([({"chunks": 1}, 10.0 + i) for i in range(30)])
    assert nothing.fixed == (("chunks", "1"),)
    assert nothing.why_not == "Every trial had the same value of every parameter."


def test_configs_without_parameters_in_common():
    found = importances([({"a" if i % 2 else "b": i}, 10.0 + i) for i in range(30)])
    assert not found.parameters
    assert found.why_not


def test_equal_times_say_nothing():
    assert "the same time" in importances(tried(40, lambda config, noise: 5.0)).why_not


def test_true_is_not_one():
    """Both are seen, and are two values."""
    rows = [({"x": (1, True, 1.0)[i % 3], "y": i % 2}, 10.0 + (i % 3) + i / 1000) for i in range(60)]
    found = {one.name: one for one in importances(rows).parameters}
    assert sorted(found["x"].values) == ["1", "1.0", "true"]


def test_hostile_names_and_values_are_only_text():
    evil = "<script>alert(1)</script>'; DROP TABLE trials;--\x1b[31m" + "x" * 10_000
    rows = [({evil: (evil, "b")[i % 2], "y": i % 5}, 10.0 + 5 * (i % 2) + i / 1000) for i in range(60)]
    found = importances(rows)
    assert found.parameters[0].name == evil
    assert found.parameters[0].best == json.dumps(evil)


def test_the_parameter_that_matters_comes_first_and_the_others_may_be_chance():
    found = importances(tried(200))
    first, *others = found.parameters
    assert first.name == "tile"
    assert first.share > 0.7
    assert first.best in {"64", "128"}
    assert not first.may_be_chance
    assert sum(one.share for one in found.parameters) == pytest.approx(1)
    assert all(one.share < 0.2 for one in others)
    assert (found.n_trials, found.n_top) == (200, 20)


def test_where_nothing_matters_importances_are_mostly_called_chance():
    """At 5 % a parameter: of 40 studies of four, 8 are expected beyond it, and more than 20 are next to impossible."""
    beyond = sum(
        not one.may_be_chance
        for seed in range(40)
        for one in importances(tried(40, lambda config, noise: 10 + noise, seed=seed)).parameters
    )
    assert beyond <= 20


def test_few_trials_have_at_least_five_that_count_as_fast():
    assert importances(tried(20)).n_top == MIN_TOP
    assert importances(tried(100)).n_top == 10


def test_the_same_trials_give_the_same_answer():
    assert importances(tried(80)) == importances(tried(80))


def test_many_trials_are_thinned_over_their_whole_order():
    """All that is fast stands at the end."""
    n = 10 * MAX_TRIALS
    rows = [
        ({"tile": TILES[i % 4], "stages": i % 3}, 10.0 if i >= n // 2 and i % 4 == 3 else 20.0 + i / n)
        for i in range(n)
    ]
    random.Random(0).shuffle(rows)
    late = sorted(rows, key=lambda row: row[1] == 10.0)
    found = importances(late)
    assert found.n_trials == MAX_TRIALS
    assert (found.parameters[0].name, found.parameters[0].best) == ("tile", "128")


def test_every_point_of_a_full_grid():
    """Where all configs were tried, only what decides about the fastest counts."""
    grid, grid_again = itertools.tee(itertools.product(TILES, (2, 3), (True, False), ("m", "n")))
    rows = [
        (
            {"tile": tile, "stages": stages, "split": split, "order": order},
            10.0 if (tile, split) == (64, True) else 20.0,
        )
        for tile, stages, split, order in itertools.chain(grid, grid_again)
    ]
    found = {one.name: one for one in importances(rows).parameters}
    assert found["tile"].share > found["split"].share > 0.1
    assert found["stages"].share == found["order"].share < 0.01


def test_importing_it_imports_nothing_heavy():
    code = "import sys, fp4tune.tuner.importance; print({'optuna', 'numpy', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_asking_it_imports_no_torch():
    code = (
        "import sys; from fp4tune.tuner.importance import importances\n"
        "found = importances([({'x': i % 3}, 1.0 + i % 3 + i / 100) for i in range(40)])\n"
        "assert found.parameters, found\n"
        "print({'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
