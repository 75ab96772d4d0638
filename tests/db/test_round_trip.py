"""Whatever record is valid comes back as it went in; on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest
from fp4tune.db import Store
from fp4tune.db.records import (
    Choice,
    CompileStatus,
    Conditions,
    Miss,
    NewStaticFacts,
    NewTrial,
    Origin,
    Roofs,
    RunProblem,
    Source,
    StaticFactsFilter,
    Timing,
    TrialFilter,
    TrialStatus,
    WinnerFilter,
)
from fp4tune.kernels.backend import StaticFacts
from fp4tune.kernels.device import Device, Environment
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, Routing, parse_key
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_factory import new_run, new_trial, new_winner

on_both = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
names = texts | st.text(st.sampled_from("aé🚀"), min_size=255, max_size=255)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
counts = st.integers(0, (1 << 63) - 1)
moments = st.datetimes(timezones=st.just(UTC)) | st.datetimes(timezones=st.timezones())
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
configs = st.dictionaries(
    texts, texts | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False), max_size=5
)
json_values = st.recursive(
    st.none() | st.booleans() | int64s | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    format_ = draw(st.sampled_from(Format))
    step = 1 if format_ is Format.BF16 else 16
    m, n = draw(st.integers(1, 1 << 24)), draw(st.integers(1, 1 << 24))
    k = draw(st.integers(1, (1 << 24) // step)) * step
    out = draw(st.sampled_from(OutDtype))
    if draw(st.booleans()):
        return Problem(m, n, k, format=format_, out_dtype=out)
    total = draw(st.integers(1, 1 << 16))
    experts, top_k = draw(st.integers(1, total)), draw(st.integers(1, total))
    return Problem(m, n, k, Op.GROUPED, experts, total, top_k, draw(st.sampled_from(Routing)), format_, out)


# Devices whose memory differs by less than a GiB are one device.
devices = st.builds(
    Device, texts.map(lambda t: t[:32]), names, texts.map(lambda t: t[:32]), int64s, int64s.map(lambda n: n >> 30 << 30),
    int64s,
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
environments = st.builds(Environment, devices, st.dictionaries(texts, texts, max_size=4))


@st.composite
def figures(draw: st.DrawFn) -> tuple[float, float, float]:
    """Median, low, high."""
    low, median, high = sorted(draw(st.lists(st.floats(1e-300, 1e300), min_size=3, max_size=3)))
    return median, low, high


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    samples = tuple(draw(st.lists(floats32, max_size=256)))
    return Timing(*draw(figures()), samples, draw(st.integers(len(samples), (1 << 63) - 1)))


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    return Choice(draw(names), draw(configs), *draw(figures()))


finite = st.floats(allow_nan=False, allow_infinity=False)
amounts = st.floats(0, allow_infinity=False)
spans = st.none() | st.tuples(counts, counts).map(lambda pair: (min(pair), max(pair)))
facts = st.builds(StaticFacts, names, counts, counts, counts, st.dictionaries(names, counts, max_size=3))


@st.composite
def conditions(draw: st.DrawFn, n_samples: int) -> Conditions:
    throttled = draw(st.sets(st.integers(0, n_samples - 1), max_size=9)) if n_samples else set()
    return Conditions(
        draw(spans), draw(spans), draw(st.none() | int64s), draw(st.none() | finite),
        tuple(draw(st.lists(names, max_size=2))), tuple(sorted(throttled)),
    )  # fmt: skip


@pytest.fixture
def run_id(store: Store) -> str:
    return store.create_run(new_run())


@given(problem=problems())
def test_a_key_names_its_problem(problem: Problem):
    assert parse_key(problem.key) == problem


@given(text=problems().map(lambda p: p.key[:-1]) | problems().map(lambda p: "grouped:" + p.key))
def test_what_is_almost_a_key_is_refused(text: str):
    with pytest.raises(InvalidInputError):
        parse_key(text)


@given(text=st.text())
def test_any_text_is_a_key_or_is_refused(text: str):
    try:
        problem = parse_key(text)
    except InvalidInputError:
        return
    assert problem.key == text


@on_both
@given(data=st.data())
def test_trials(store: Store, data: st.DataObject):
    run_id = store.create_run(new_run())
    status = data.draw(st.sampled_from(TrialStatus))
    first = new_trial(run_id)
    timing = data.draw(timings()) if status is TrialStatus.OK else None
    new = NewTrial(
        run_id=run_id,
        problem=data.draw(problems()),
        environment=data.draw(environments),
        number=data.draw(counts),
        backend=data.draw(names),
        config=data.draw(configs),
        origin=data.draw(st.sampled_from(Origin)),
        status=status,
        timing=timing,
        error=data.draw(texts),
        rel_error=data.draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        seed=data.draw(int64s),
        optimizer=data.draw(names),
        optimizer_version=data.draw(names),
        started_at=data.draw(moments),
        wall_s=data.draw(st.floats(allow_nan=False, allow_infinity=False)),
        policy=data.draw(names),
        source=data.draw(st.sampled_from(Source)),
        compile_s=data.draw(amounts),
        conditions=data.draw(st.none() | conditions(len(timing.samples_us) if timing else 0)),
        roof_share=data.draw(st.none() | amounts),
        facts=data.draw(st.none() | facts),
    )
    try:
        utc = new.started_at.astimezone(UTC)
    except OverflowError:  # the first or last hours of the calendar, elsewhere
        with pytest.raises(InvalidInputError):
            store.add_trials([new])
        return
    (id_,) = store.add_trials([new])
    (trial,) = store.trials(TrialFilter(run_id=run_id)).items
    assert trial.id == id_
    back = replace(
        first,
        **{
            name: getattr(trial, name)
            for name in (
                "problem", "number", "backend", "config", "origin", "status", "error", "rel_error", "seed", "optimizer",
                "optimizer_version", "started_at", "wall_s", "policy", "source", "compile_s", "conditions", "roof_share",
                "facts",
            )
        },
        environment=store.environment(trial.environment_fingerprint),
        timing=None
        if trial.time_us is None
        else Timing(trial.time_us, trial.time_us_low, trial.time_us_high, trial.samples_us, trial.n_samples),
    )  # fmt: skip
    assert back == replace(new, started_at=utc)
    assert trial.environment_fingerprint == new.environment.fingerprint
    assert trial.device_fingerprint == new.environment.device.fingerprint
    assert [type(value) for value in trial.config.values()] == [type(new.config[key]) for key in trial.config]


@on_both
@given(data=st.data())
def test_winners(store: Store, run_id: str, data: st.DataObject):
    new = new_winner(
        run_id,
        problem=data.draw(problems()),
        environment=data.draw(environments),
        choice=data.draw(choices()),
        default=data.draw(choices()),
        tie_set=tuple(data.draw(st.lists(choices(), max_size=3))),
        depends_on=tuple(data.draw(st.lists(names, max_size=3))),
        trial_number=data.draw(counts),
        n_trials=data.draw(counts),
        policy=data.draw(names),
        source=data.draw(st.sampled_from(Source)),
    )
    id_ = store.add_winner(new)
    (winner,) = store.winners(WinnerFilter(problem_key=new.problem.key), after=id_ - 1).items
    assert winner.id == id_
    names_ = ("problem", "environment", "choice", "default", "tie_set", "depends_on", "n_trials", "policy", "source")
    assert [getattr(winner, name) for name in names_] == [getattr(new, name) for name in names_]
    assert winner.environment.fingerprint == new.environment.fingerprint


@on_both
@given(
    environment=environments,
    roofs=st.builds(Roofs, st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.datetimes(timezones=st.just(UTC))),
)
def test_roofs(store: Store, environment: Environment, roofs: Roofs):
    store.set_roofs(environment, roofs)
    assert store.roofs(environment) == roofs


@on_both
@given(data=st.data())
def test_static_facts(store: Store, data: st.DataObject):
    status, target = data.draw(st.sampled_from(CompileStatus)), data.draw(names)
    new = NewStaticFacts(
        problem=data.draw(problems()),
        backend=data.draw(names),
        config=data.draw(configs),
        target=target,
        versions=data.draw(st.dictionaries(names, names, max_size=2)),
        status=status,
        facts=replace(data.draw(facts), target=target)
        if status is CompileStatus.OK or (status is CompileStatus.UNSUPPORTED and data.draw(st.booleans()))
        else None,
        compile_s=data.draw(amounts),
        error=data.draw(texts),
    )
    (id_,) = store.add_static_facts([new])
    (stored,) = store.static_facts(StaticFactsFilter(problem_key=new.problem.key), after=id_ - 1, limit=1).items
    assert (stored.id, stored.source) == (id_, Source.COMPILED)
    assert [getattr(stored, name) for name in NewStaticFacts.__slots__] == [
        getattr(new, name) for name in NewStaticFacts.__slots__
    ]


@on_both
@given(data=st.data())
def test_runs(store: Store, data: st.DataObject):
    items = data.draw(
        st.lists(st.builds(RunProblem, problems(), names, st.lists(names, max_size=3).map(tuple), int64s), max_size=3)
    )
    new = new_run(
        environment=data.draw(environments),
        problems=items,
        checkpoint=data.draw(texts | st.text("a/", min_size=4096, max_size=4096)),
        settings=data.draw(st.dictionaries(st.text(max_size=8), json_values, max_size=3)),
        seed=data.draw(int64s),
        host=data.draw(names),
        pid=data.draw(int64s),
        version=data.draw(names),
    )
    run = store.run(store.create_run(new))
    fields = ("checkpoint", "settings", "seed", "host", "pid", "version")
    assert [getattr(run, name) for name in fields] == [getattr(new, name) for name in fields]
    assert run.n_problems == len(items)
    assert [state.item for state in store.run_problems(run.id)] == items
    assert store.environment(run.environment_fingerprint) == new.environment
    assert run.device_name == new.environment.device.name


@on_both
@given(data=st.data())
def test_misses(store: Store, data: st.DataObject):
    fingerprints = st.text("0123456789abcdef", max_size=16)
    times = sorted(data.draw(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=2, max_size=2)))
    new = Miss(
        data.draw(problems()),
        data.draw(fingerprints),
        data.draw(fingerprints),
        data.draw(st.integers(1, 1 << 40)),
        *times,
    )
    where = {"device_fingerprint": new.device_fingerprint, "environment_fingerprint": new.environment_fingerprint}
    store.forget_misses([new.problem.key], device_fingerprint=new.device_fingerprint)
    assert store.add_misses([new]) == 0
    assert new in store.misses(**where)
    store.forget_misses([new.problem.key], device_fingerprint=new.device_fingerprint)
