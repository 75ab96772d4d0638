"""Values that one database swallows and the other refuses: settled before either sees them; on both."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dashboard_stores
import pytest
from fp4tune.db import Store
from fp4tune.db.records import Timing, TrialStatus
from fp4tune.db.values import MAX_PROSE, prose
from fp4tune.kernels.errors import Fp4tuneError, InvalidInputError, StoreError
from store_factory import (
    CONDITIONS,
    FACTS,
    ON_CARD,
    ROOFS,
    START,
    failed_trial,
    measured_on_a_card,
    new_run,
    new_static_facts,
    new_trial,
    new_winner,
)

BAD_NAMES = ["a\x00b", "\ud800", "a\udcffb", "x" * 10_000, 5, None, b"bytes"]
GOOD_NAMES = ["", "x" * 255, "Ünïcödé 🚀", "'; DROP TABLE runs; --", "%s {} \\ \n\t", "\u202e\ufeff\U0010ffff"]


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def run_id(store: Store) -> str:
    return store.create_run(new_run())


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_cannot_be_kept_exactly_are_refused(store: Store, run_id: str, name: str):
    for field in ("checkpoint", "host", "version"):
        with pytest.raises(InvalidInputError):
            store.create_run(new_run(**{field: name}))
    for field in ("backend", "optimizer", "optimizer_version", "policy"):
        with pytest.raises(InvalidInputError):
            store.add_trials([new_trial(run_id, **{field: name})])
    with pytest.raises(InvalidInputError):
        store.add_winner(new_winner(run_id, depends_on=["torch", name]))
    assert len(store.runs()) == 1
    assert store.trials().items == store.winners().items == []


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_all_other_names_are_kept_exactly(store: Store, name: str):
    run_id = store.create_run(new_run(checkpoint=name, version=name))
    store.add_trials([new_trial(run_id, backend=name, optimizer=name)])
    run, (trial,) = store.run(run_id), store.trials().items
    assert (run.checkpoint, run.version, trial.backend, trial.optimizer) == (name,) * 4


@pytest.mark.parametrize("text", ["", "a\nb\r\n\tc", "x" * MAX_PROSE, "🚀 \u2028", "\\x00"])
def test_an_error_is_kept_exactly(store: Store, run_id: str, text: str):
    store.add_trials([failed_trial(run_id, error=text)])
    store.finish_problem(run_id, 0, text)
    assert store.trials().items[0].error == text
    assert store.run_problems(run_id)[0].outcome == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\x00b", "a\\x00b"),
        ("bad \udcff byte", "bad \\udcff byte"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_an_error_that_cannot_be_kept_exactly_is_kept_legibly(store: Store, run_id: str, text: str, kept: str):
    store.add_trials([failed_trial(run_id, error=text)])
    assert store.trials().items[0].error == kept


def test_a_huge_error_loses_its_middle_and_says_so(store: Store, run_id: str):
    text = "begin" + "x" * 5_000_000 + "end"
    store.add_trials([failed_trial(run_id, error=text)])
    kept = store.trials().items[0].error
    assert len(kept) <= MAX_PROSE
    assert kept.startswith("beginxxx")
    assert kept.endswith("xxxend")
    left_out = int(kept.split("[")[1].split()[0])
    assert len(text) - left_out == kept.count("x") + len("beginend") - "[characters left out]".count("x")


def test_prose_never_grows_beyond_its_limit_by_the_note():
    assert len(prose("x" * (MAX_PROSE + 1))) <= MAX_PROSE


@pytest.mark.parametrize(
    "config",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {"x": None},
        {"x": [1]},
        {"x": {}},
        {"x": b""},
        {1: 1},
        {"x": "y" * (1 << 20)},
    ],
)
def test_configs_that_are_no_configs_are_refused(store: Store, run_id: str, config: dict[str, object]):
    with pytest.raises(InvalidInputError, match=r"[Cc]onfig"):
        store.add_trials([new_trial(run_id, config=config)])
    for field in ("choice", "default"):
        bad = getattr(new_winner(run_id), field).__class__("b", config, 1.0, 1.0, 1.0)
        with pytest.raises(InvalidInputError):
            store.add_winner(new_winner(run_id, **{field: bad}))
        with pytest.raises(InvalidInputError):
            store.add_winner(new_winner(run_id, tie_set=[bad]))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"": ""},
        {"s": "a\x00\ud800 🚀"},
        {"i": 1 << 200},
        {"f": 0.1 + 0.2, "g": -0.0, "h": 1e-310},
        {"b": True, "i": 1},
    ],
)
def test_all_other_configs_are_kept_exactly(store: Store, run_id: str, config: dict[str, object]):
    store.add_trials([new_trial(run_id, config=config)])
    kept = store.trials().items[0].config
    assert kept == config
    assert [type(value) for value in kept.values()] == [type(config[key]) for key in kept]


@pytest.mark.parametrize(
    "settings",
    [
        {"x": float("nan")},
        {"x": {"y": [float("-inf")]}},
        {"x": Path("a")},
        {"x": {1, 2}},
        {"x": {1: 2}},
        {"x": START},
        {"x": nested(100_000)},
        {"x": "y" * (1 << 20)},
    ],
)
def test_settings_that_are_no_json_are_refused(store: Store, settings: dict[str, object]):
    with pytest.raises(InvalidInputError, match="settings"):
        store.create_run(new_run(settings=settings))


def test_settings_come_back_as_json_gives_them(store: Store):
    settings = {"a": [1, 2.5, None, True, "x\x00\udc80"], "b": {"c": (1, 2)}, "": {}}
    run_id = store.create_run(new_run(settings=settings))
    assert store.run(run_id).settings == {**settings, "b": {"c": [1, 2]}}


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 200, 1.0, "1"])
def test_integers_beyond_64_bits_are_refused(store: Store, run_id: str, number: int):
    for field in ("seed", "pid"):
        with pytest.raises(InvalidInputError, match="integer"):
            store.create_run(new_run(**{field: number}))
    for field in ("seed", "number"):
        with pytest.raises(InvalidInputError, match="integer"):
            store.add_trials([new_trial(run_id, **{field: number})])
    for field in ("n_trials", "trial_number"):
        with pytest.raises(InvalidInputError, match="integer"):
            store.add_winner(new_winner(run_id, **{field: number}))


@pytest.mark.parametrize("number", [(1 << 63) - 1, -(1 << 63), 0])
def test_integers_of_64_bits_are_kept(store: Store, number: int):
    run_id = store.create_run(new_run(seed=number))
    store.add_trials([new_trial(run_id, seed=number)])
    assert store.run(run_id).seed == store.trials().items[0].seed == number


def test_a_negative_number_of_a_trial_is_refused(store: Store, run_id: str):
    with pytest.raises(InvalidInputError, match="number of a trial"):
        store.add_trials([new_trial(run_id, -1)])


@pytest.mark.parametrize("sample", [float("nan"), float("inf"), 1e39])
def test_samples_that_are_no_numbers_are_refused(store: Store, run_id: str, sample: float):
    with pytest.raises(InvalidInputError, match="sample"):
        store.add_trials([new_trial(run_id, timing=Timing(1.0, 1.0, 1.0, [1.0, sample], 2))])


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf")])
def test_a_wall_time_that_is_no_number_is_refused(store: Store, run_id: str, wall_s: float):
    with pytest.raises(InvalidInputError, match="wall time"):
        store.add_trials([new_trial(run_id, wall_s=wall_s)])


@pytest.mark.parametrize(
    "moment", [START.replace(tzinfo=None), datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))]
)
def test_times_that_mean_no_moment_are_refused(store: Store, run_id: str, moment: datetime):
    with pytest.raises(InvalidInputError, match="time"):
        store.add_trials([new_trial(run_id, started_at=moment)])
    assert store.trials().items == []


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 3, 29, 2, 30, 0, 123456, timezone(timedelta(hours=-11, minutes=-30))),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_times_of_any_zone_come_back_in_utc(store: Store, run_id: str, moment: datetime):
    store.add_trials([new_trial(run_id, started_at=moment)])
    kept = store.trials().items[0].started_at
    assert kept == moment
    assert kept.tzinfo is UTC


def test_the_sentence_never_shows_more_than_a_line_of_the_value(store: Store, run_id: str):
    for bad in ({"backend": "x" * 10_000}, {"config": {"k" * 5000: None}}, {"seed": 10**5000}):
        with pytest.raises(Fp4tuneError) as caught:
            store.add_trials([new_trial(run_id, **bad)])
        assert len(str(caught.value)) < 300
        assert str(caught.value).isascii()


def test_a_failed_trial_has_no_samples_to_store(store: Store, run_id: str):
    store.add_trials([failed_trial(run_id, status=TrialStatus.TIMEOUT)])
    with store._reading() as connection:
        row = connection.exec_driver_sql("SELECT samples, n_samples, time_us FROM trials").one()
    assert tuple(row) == (b"", 0, None)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"compile_s": float("nan")}, "compile time"),
        ({"compile_s": -0.5}, "compile time .* at least 0"),
        ({"roof_share": float("inf")}, "share of the roof"),
        ({"roof_share": -1.0}, "share of the roof"),
        ({"conditions": replace(CONDITIONS, sm_clock_mhz=(1980, 1755))}, "SM clock"),
        ({"conditions": replace(CONDITIONS, memory_clock_mhz=(1, 2, 3))}, "memory clock"),
        ({"conditions": replace(CONDITIONS, temperature_c=1.5)}, "temperature"),
        ({"conditions": replace(CONDITIONS, power_w=float("nan"))}, "power"),
        ({"conditions": replace(CONDITIONS, throttle_reasons=("a\x00b",))}, "throttle reason"),
        ({"conditions": replace(CONDITIONS, throttled_samples=(30,))}, "indices below 30"),
        ({"conditions": replace(CONDITIONS, throttled_samples=(7, 0))}, "growing"),
        ({"conditions": replace(CONDITIONS, throttled_samples=(-1,))}, "throttled sample"),
        ({"facts": replace(FACTS, registers=1 << 63)}, "registers"),
        ({"facts": replace(FACTS, stack_bytes=-1)}, "stack frame"),
        ({"facts": replace(FACTS, target="\ud800")}, "target"),
        ({"facts": replace(FACTS, instructions={"OMMA": 0.5})}, "instructions"),
        ({"facts": replace(FACTS, instructions={"x" * 300: 1})}, "opcode"),
    ],
)
def test_what_a_card_cannot_have_said_is_refused(store: Store, run_id: str, fields: dict[str, Any], sentence: str):
    with pytest.raises(InvalidInputError, match=sentence):
        store.add_trials([new_trial(run_id, 0), measured_on_a_card(run_id, 1, **fields)])
    assert store.trials().items == []


@pytest.mark.parametrize("figure", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["copy_bytes_per_s", "bf16_flops_per_s"])
def test_roofs_that_no_card_has_are_refused(store: Store, name: str, figure: float):
    with pytest.raises(InvalidInputError):
        store.set_roofs(ON_CARD, replace(ROOFS, **{name: figure}))
    with pytest.raises(InvalidInputError, match="time zone"):
        store.set_roofs(ON_CARD, replace(ROOFS, measured_at=START.replace(tzinfo=None)))
    assert store.roofs(ON_CARD) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "a\x00b"},
        {"config": {"x": float("nan")}},
        {"target": "x" * 300, "facts": replace(FACTS, target="x" * 300)},
        {"versions": {"triton": 3}},
        {"versions": {"a\x00b": "3"}},
        {"compile_s": -1.0},
        {"facts": replace(FACTS, shared_bytes=-1)},
    ],
)
def test_static_facts_that_no_database_could_hold_are_refused(store: Store, fields: dict[str, Any]):
    with pytest.raises(InvalidInputError):
        store.add_static_facts([new_static_facts(), new_static_facts(**fields)])
    assert store.static_facts().items == []


@pytest.mark.parametrize("number", [math.inf, 0.0, -1.0])
def test_a_winner_with_a_time_that_cannot_be_is_damage_for_an_index(tmp_path, number):
    path = tmp_path / "odd.db"
    dashboard_stores.odd(path, number)
    with Store.open(path, mode="read") as store, pytest.raises(StoreError, match=r"winner \d+ has the times .*restore"):
        store.winner_changes()


@pytest.mark.parametrize("table", ["runs", "devices", "environments", "problems"])
def test_a_winner_whose_partner_is_missing_is_damage_for_an_index(tmp_path, table):
    path = tmp_path / "orphans.db"
    dashboard_stores.orphans(path, table)
    with Store.open(path, mode="read") as store, pytest.raises(StoreError, match="cannot be read .*restore"):
        store.winner_changes()
