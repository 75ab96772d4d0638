"""What of the store goes into an engine's file: one environment, and nothing that was not measured to be better."""

from __future__ import annotations

from datetime import timedelta

import pytest
from export_store import CARD, START, Ran, Tuned, environment, make
from fp4tune.api.formats.flashinfer import unfit
from fp4tune.api.formats.selection import (
    LeftOut,
    Selected,
    environment_called,
    runs_called,
    select,
    winners_of,
)
from fp4tune.db.records import Origin
from fp4tune.db.store import Store
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.device import Environment, detect
from fp4tune.kernels.errors import InvalidInputError, NotFoundError

MINE = ("flashinfer.b12x", "flashinfer.cutlass")
FAST, SLOW, DEFAULT = {"tile_m": 64, "pad_m": 0}, {"tile_m": 128, "pad_m": 0}, {"tile_m": "default", "pad_m": 0}
SHAPE = "16x2048x4096"


def ours(time_us=10.0):
    return Ran("triton.native", {"block_m": 64}, time_us, Origin.FINAL)


@pytest.fixture
def chosen(tmp_path):
    """What is selected of one problem."""

    def of(served, *others, mine=MINE, only_winners=False, problem=SHAPE):
        path = tmp_path / "s.db"
        make(path, [Tuned(problem, served, others)])
        with Store.open(path, mode="read") as store:
            (winner,) = winners_of(store, environment_called(store, None), [])
            return select(store, winner, mine, unfit=unfit, only_winners=only_winners)

    return of


def test_a_winner_of_the_engine_is_carried(chosen):
    found = chosen(Ran("flashinfer.b12x", FAST, 8.0, Origin.FINAL), ours(9.0))
    assert isinstance(found, Selected)
    assert (found.backend, found.config, found.time_us, found.is_winner) == ("flashinfer.b12x", FAST, 8.0, True)


def test_where_another_backend_won_the_best_of_the_engine_is_carried_if_it_beats_its_default(chosen):
    found = chosen(
        ours(8.0),
        Ran("flashinfer.b12x", FAST, 9.0, Origin.FINAL),
        Ran("flashinfer.b12x", SLOW, 9.5, Origin.FINAL),
        Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT),
        Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.FINAL),
    )
    assert isinstance(found, Selected)
    assert (found.backend, found.config, found.time_us, found.is_winner) == ("flashinfer.b12x", FAST, 9.0, False)


def left_out(found):
    assert isinstance(found, LeftOut)
    return found.why


def test_only_winners_leaves_it_out(chosen):
    others = Ran("flashinfer.b12x", FAST, 9.0), Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT)
    why = left_out(chosen(ours(8.0), *others, only_winners=True))
    assert why == "triton.native won with 8.0 µs, and the file has no entries of it."


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ((), "no config of flashinfer.b12x, flashinfer.cutlass that the file can carry was measured"),
        ((Ran("flashinfer.b12x", FAST, None),), "was measured"),
        # A default was never measured, so it is not known to be beaten.
        ((Ran("flashinfer.b12x", FAST, 9.0),), "no measured config that the file can carry beats"),
        # The intervals overlap (1 % each way), so it may be no better.
        (
            (Ran("flashinfer.b12x", FAST, 11.9), Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT)),
            "beats the engine's own default",
        ),
        # The fastest default is of another of the engine's backends.
        (
            (
                Ran("flashinfer.b12x", FAST, 9.0), Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT),
                Ran("flashinfer.cutlass", DEFAULT, 8.5, Origin.DEFAULT),
            ),
            "beats the engine's own default",
        ),
        # The search says so, the finals, which count, do not.
        (
            (
                Ran("flashinfer.b12x", FAST, 9.0), Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT),
                Ran("flashinfer.b12x", FAST, 12.0, Origin.FINAL), Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.FINAL),
            ),
            "beats the engine's own default",
        ),
        # It would be, padded, and an engine does not pad.
        (
            (
                Ran("flashinfer.b12x", FAST | {"pad_m": 128}, 9.0),
                Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT),
            ),
            "beats the engine's own default",
        ),
    ],
    ids=["none", "crashed", "no default", "tied", "another default", "finals", "padded"],
)  # fmt: skip
def test_what_is_not_known_to_be_better_is_left_out(chosen, others, says):
    why = left_out(chosen(ours(8.0), *others))
    assert why.startswith("triton.native won with 8.0 µs, and ")
    assert says in why


def test_a_padded_winner_gives_way_to_the_best_that_is_not(chosen):
    found = chosen(
        Ran("flashinfer.b12x", FAST | {"pad_m": 128}, 8.0),
        Ran("flashinfer.b12x", SLOW, 9.0),
        Ran("flashinfer.b12x", DEFAULT, 12.0, Origin.DEFAULT),
    )
    assert isinstance(found, Selected)
    assert (found.config, found.is_winner) == (SLOW, False)


def test_an_engine_that_pins_a_backend_gets_the_best_of_that_one(chosen):
    others = Ran("flashinfer.cutlass", FAST, 9.0), Ran("flashinfer.cutlass", DEFAULT, 12.0, Origin.DEFAULT)
    found = chosen(Ran("flashinfer.b12x", FAST, 8.0), *others, mine=["flashinfer.cutlass"])
    assert isinstance(found, Selected)
    assert (found.backend, found.time_us, found.is_winner) == ("flashinfer.cutlass", 9.0, False)


def test_a_grouped_problem_has_no_entry(chosen):
    why = left_out(chosen(Ran("flashinfer.group_gemm", {"tile_m": 128}, 8.0), problem="e8k2:16x512x1024"))
    assert "the cache has no entries for grouped problems" in why


# --- which environment, which runs ----------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """(database, older and newer environment, their runs)"""
    path = tmp_path / "two.db"
    tuned = [Tuned(SHAPE, Ran("flashinfer.b12x", FAST, 8.0))]
    old, new = environment(), environment(CARDS["rtx-5090"])
    first = make(path, tuned, old, checkpoint="qwen3-32b-nvfp4")
    second = make(path, tuned, new, clock=lambda: START + timedelta(days=1))
    return path, (old, new), (first, second)


def test_two_environments_are_never_mixed(two):
    path, (old, new), _ = two
    with Store.open(path, mode="read") as store:
        with pytest.raises(InvalidInputError, match="one must be named with --environment") as raised:
            environment_called(store, None)
        assert str(raised.value).index(new.fingerprint) < str(raised.value).index(old.fingerprint), "newest first"
        assert "NVIDIA GeForce RTX 5090" in str(raised.value)
        assert environment_called(store, "latest") == new
        assert environment_called(store, old.fingerprint) == old
        assert environment_called(store, old.fingerprint[:6]) == old
        assert [w.environment for w in winners_of(store, old, [])] == [old]
        with pytest.raises(NotFoundError, match="There is no environment 'zz' with winners"):
            environment_called(store, "zz")


def test_runs_narrow_down_what_is_exported(two):
    path, (old, _), (first, second) = two
    make(path, [Tuned("32x2048x4096", Ran("flashinfer.b12x", FAST, 8.0))], old, checkpoint="other")
    with Store.open(path, mode="read") as store:
        assert [w.problem.m for w in winners_of(store, old, [])] == [16, 32]
        assert [w.problem.m for w in winners_of(store, old, runs_called(store, [first], None))] == [16]
        assert [w.problem.m for w in winners_of(store, old, runs_called(store, [], "other"))] == [32]
        assert [w.problem.m for w in winners_of(store, old, runs_called(store, [second], "other"))] == [16, 32]
        with pytest.raises(NotFoundError, match=r"No run tuned a checkpoint called 'x'; runs tuned: other, qwen3-32b"):
            runs_called(store, [], "x")
        with pytest.raises(NotFoundError):
            runs_called(store, ["0" * 26], None)


def test_nothing_measured_on_a_gpu_in_graphs_is_nothing_to_export(tmp_path):
    path = tmp_path / "c.db"
    cpu = Environment(detect("cpu"), {"torch": "2.11.0"})
    make(path, [Tuned(SHAPE, Ran("cpu.dequant", {"a": 1}, 8.0))], cpu, policy="cpu.warm")
    with (
        Store.open(path, mode="read") as store,
        pytest.raises(NotFoundError, match="no winner that was measured on a GPU"),
    ):
        environment_called(store, None)
    make(path, [Tuned(SHAPE, Ran("flashinfer.b12x", FAST, 8.0))], policy="cuda.eager")
    with Store.open(path, mode="read") as store:
        with pytest.raises(NotFoundError, match=r"no winner was measured by policy cuda\.graph in environment"):
            winners_of(store, environment_called(store, None), [])
        assert environment_called(store, None).device == CARD
