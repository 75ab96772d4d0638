"""The latency model: constants come back, those that no measurement decides do not, and wild times bend nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fp4tune.db.records import LatencyModel, Origin, RunProblem
from fp4tune.db.store import Store
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.cpu_dequant import CpuDequant
from fp4tune.kernels.device import current_environment, detect
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import touched_bytes
from fp4tune.kernels.problem import Problem, Routing, parse_shape
from fp4tune.kernels.routing import draw_offsets
from fp4tune.tuner.fit_models import Fitted, Unfitted, fit_models
from fp4tune.tuner.latency_fit import MIN_POINTS, estimate_us, fit, held_out, quantile
from fp4tune.tuner.latency_model import Point, Term, best_points, estimate, load_of, nearness, undecided
from job_factory import job, trials_of
from store_factory import CARD, ON_CARD, choice, new_run, new_winner

TRUE = LatencyModel(
    "f" * 16, "dense", "nvfp4", "cuda.graph", 4.2, 1.3e12, 1.2e15, 3.6, 1, 4096, 60, 0.05, 0.2, datetime(2026, 1, 1, tzinfo=UTC)
)  # fmt: skip
LAYERS = [(n, k) for n in (1024, 7168, 32768) for k in (1024, 2048, 4096, 16384)]
TOKENS = (1, 16, 128, 1024, 4096)


def points(model: LatencyModel = TRUE, *, layers=LAYERS, tokens=TOKENS, noise: float = 0.0, seed: int = 0):
    """Problems that take exactly what a model says, or so much more or less at most."""
    draw = random.Random(seed)
    found = []
    for n, k in layers:
        for m in tokens:
            problem = Problem(m, n, k)
            said = estimate(model, problem, 0)
            time_us = said.time_us * (1 + draw.uniform(-noise, noise))
            found.append(Point(problem, *load_of(problem, 0), time_us))
    return found


def per_s(found, term: Term) -> float:
    return 1e6 / found.us_per[term]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "t.db") as opened:
        yield opened


# --- the fit -------------------------------------------------------------------------------------------------------


def test_the_constants_of_exact_times_come_back():
    found = fit(points())
    assert found.launch_us == pytest.approx(4.2, rel=1e-2)
    assert per_s(found, Term.BANDWIDTH) == pytest.approx(1.3e12, rel=2e-3)
    assert per_s(found, Term.RATE) == pytest.approx(1.2e15, rel=2e-3)
    assert 1024 * found.us_per[Term.SERIAL] == pytest.approx(3.6, rel=2e-3)
    assert sum(found.binds.values()) == len(points())
    assert min(found.binds.values()) >= 3


@pytest.mark.parametrize("wild", [0.01, 10.0, 1000.0])
def test_wild_measurements_bend_nothing(wild: float):
    noisy = points(noise=0.03)
    for i in range(0, len(noisy), 12):
        noisy[i] = replace(noisy[i], time_us=noisy[i].time_us * wild)
    found = fit(noisy)
    assert found.launch_us == pytest.approx(4.2, rel=0.1)
    assert per_s(found, Term.BANDWIDTH) == pytest.approx(1.3e12, rel=0.05)
    assert per_s(found, Term.RATE) == pytest.approx(1.2e15, rel=0.05)
    assert 1024 * found.us_per[Term.SERIAL] == pytest.approx(3.6, rel=0.05)


def test_the_same_measurements_give_the_same_fit_in_any_order():
    noisy = points(noise=0.1)
    assert fit(noisy) == fit(noisy)
    shuffled = random.Random(1).sample(noisy, len(noisy))
    assert fit(shuffled).launch_us == pytest.approx(fit(noisy).launch_us, rel=1e-6)


def test_many_problems_are_fitted_as_well():
    """More than are looked at on the grid."""
    layers = [(512 * n, 512 * k) for n in (1, 3, 8, 20, 50, 80) for k in (1, 2, 5, 11, 20, 32)]
    found = fit(points(layers=layers, tokens=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096], noise=0.05))
    assert per_s(found, Term.BANDWIDTH) == pytest.approx(1.3e12, rel=0.05)
    assert per_s(found, Term.RATE) == pytest.approx(1.2e15, rel=0.05)


def test_without_many_rows_no_rate_is_invented():
    found = fit(points(tokens=(1, 2, 4)))
    assert Term.RATE not in found.us_per
    assert per_s(found, Term.BANDWIDTH) == pytest.approx(1.3e12, rel=0.01)


def test_problems_of_one_k_tell_nothing_of_what_is_serial_in_k():
    found = fit(points(layers=[(n, 4096) for n in (1024, 2048, 7168, 16384, 32768, 65536)]))
    assert Term.SERIAL not in found.us_per
    assert {Term.BANDWIDTH, Term.RATE} == set(found.us_per)


def test_a_model_without_a_term_gets_none():
    found = fit(points(replace(TRUE, serial_us_per_1024_k=None)))
    assert Term.SERIAL not in found.us_per
    assert found.launch_us == pytest.approx(4.2, rel=0.02)


def test_too_few_problems_are_refused_with_their_number():
    with pytest.raises(UnsupportedError, match=f"^7 problems are measured, and a fit needs {MIN_POINTS}"):
        fit(points()[:7])
    with pytest.raises(UnsupportedError, match="^1 problem is measured"):
        fit(points()[:1])


def test_too_few_layers_are_refused_with_their_number():
    with pytest.raises(UnsupportedError, match="^2 layers are measured"):
        held_out(points(layers=LAYERS[:2]))


def test_times_that_do_not_grow_are_refused():
    with pytest.raises(UnsupportedError, match="do not grow"):
        fit([replace(point, time_us=7.0) for point in points()])
    alike = [(4096 + 16 * i, 4096) for i in range(9)]
    with pytest.raises(UnsupportedError, match="do not grow"):
        fit(points(layers=alike, tokens=(1,)))


def test_a_layer_is_judged_by_a_fit_that_has_not_seen_it():
    """One layer's kernels are four times as slow: its own times must not be in the fit that says so."""
    slow = LAYERS[5]
    measured = [
        replace(p, time_us=4 * p.time_us) if (p.problem.n, p.problem.k) == slow else p for p in points(noise=0.02)
    ]
    held = held_out(measured)
    assert [one.point for one in sorted(held, key=lambda one: one.point.problem.key)] == sorted(
        measured, key=lambda p: p.problem.key
    )
    for one in held:
        mine = (one.point.problem.n, one.point.problem.k) == slow
        assert one.error == pytest.approx(0.75 if mine else 0.0, abs=0.1)


def test_layers_that_differ_in_routing_alone_are_held_out_together():
    one = Point(parse_shape("e8k2:4x64x128"), 1, 1, 1.0)
    other = replace(one, problem=parse_shape("e8k2:16x64x128", routing=Routing.POWER_LAW))
    assert one.layer == other.layer
    assert one.layer != replace(one, problem=parse_shape("e4k2:4x64x128")).layer


def test_more_layers_than_folds_are_all_held_out_once():
    layers = [(1024 + 64 * i, 512 * (1 + i % 9)) for i in range(70)]
    measured = points(layers=layers, tokens=(1,))
    held = held_out(measured)
    assert sorted(one.point.problem.key for one in held) == sorted(p.problem.key for p in measured)


def test_quantiles_are_errors_that_occurred():
    assert quantile([0.3, 0.1, 0.2], 0.5) == 0.2
    assert quantile([i / 10 for i in range(10)], 0.9) == 0.8
    assert quantile([0.4], 0.9) == 0.4


# --- the estimate --------------------------------------------------------------------------------------------------


def test_an_estimate_is_the_largest_term_and_the_launch():
    few, many, long = Problem(1, 32768, 4096), Problem(4096, 7168, 4096), Problem(1, 1024, 16384)
    said = [estimate(TRUE, one, 0) for one in (few, many, long)]
    assert [one.term for one in said] == [Term.BANDWIDTH, Term.RATE, Term.SERIAL]
    assert said[0].time_us == pytest.approx(4.2 + few.operand_bytes / 1.3e6)
    assert said[1].time_us == pytest.approx(4.2 + 2 * 4096 * 7168 * 4096 / 1.2e9)
    assert said[2].time_us == pytest.approx(4.2 + 16 * 3.6)


def test_fit_and_estimate_are_the_same_formula():
    found = fit(points())
    model = replace(
        TRUE,
        launch_us=found.launch_us,
        bandwidth_bytes_per_s=per_s(found, Term.BANDWIDTH),
        rate_flops_per_s=per_s(found, Term.RATE),
        serial_us_per_1024_k=1024 * found.us_per[Term.SERIAL],
    )
    for point in points():
        assert estimate(model, point.problem, 0).time_us == pytest.approx(estimate_us(found, point))


def test_only_experts_that_are_hit_count():
    problem = parse_shape("e512k10:4x256x4096")
    offsets = draw_offsets(problem, 3)
    n_bytes, n_flops = load_of(problem, 3)
    assert n_flops == 2 * int(offsets[-1]) * 256 * 4096
    assert n_bytes == touched_bytes(problem, 3)
    assert n_bytes < problem.operand_bytes / 10


def test_where_nothing_is_computed_there_is_no_estimate():
    """None of four tokens meets the one expert of 512 that is here."""
    nothing = parse_shape("e1of512k1:1x256x4096")
    seed = next(seed for seed in range(100) if int(draw_offsets(nothing, seed)[-1]) == 0)
    assert estimate(TRUE, nothing, seed) is None


def test_a_model_without_any_term_says_nothing():
    empty = replace(TRUE, bandwidth_bytes_per_s=None, rate_flops_per_s=None, serial_us_per_1024_k=None)
    assert estimate(empty, Problem(1, 1024, 1024), 0) is None
    assert len(undecided(empty)) == 3


def test_an_estimate_says_when_m_is_outside_of_what_was_fitted():
    model = replace(TRUE, m_low=4, m_high=64)
    assert [estimate(model, Problem(m, 1024, 1024), 0).outside for m in (1, 4, 64, 65)] == [True, False, False, True]


def test_what_is_undecided_is_named():
    assert undecided(TRUE) == ()
    (sentence,) = undecided(replace(TRUE, rate_flops_per_s=None))
    assert sentence.startswith("rate_flops_per_s is unknown")
    (sentence,) = undecided(replace(TRUE, launch_us=0.0))
    assert "at its bound of 0" in sentence


# --- what is fitted on ---------------------------------------------------------------------------------------------


def test_the_fastest_of_what_was_re_measured_counts_and_of_environments_the_fastest(store: Store):
    other = replace(ON_CARD, versions={**ON_CARD.versions, "driver": "590.1"})
    problem = Problem(16, 2048, 4096)
    for environment, fastest in ((ON_CARD, 9.0), (other, 8.0)):
        run_id = store.create_run(new_run(environment=environment, problems=[RunProblem(problem)]))
        ties = (choice(fastest + 0.5), choice(fastest, stages=4))
        winner = new_winner(run_id, environment=environment, problem=problem, choice=ties[0], tie_set=ties)
        store.add_winner(winner)
    (point,) = best_points(store.winners(limit=10).items, lambda run_id: store.run(run_id).seed)
    assert point.time_us == 8.0
    assert point.n_bytes == problem.operand_bytes


def fill(store: Store, model: LatencyModel, policy: str, *, tokens=TOKENS, layers=LAYERS) -> None:
    """Winners that took what a model says."""
    items = [RunProblem(point.problem) for point in points(model, tokens=tokens, layers=layers)]
    run_id = store.create_run(new_run(problems=items))
    winners = []
    for point in points(model, tokens=tokens, layers=layers):
        served = choice(point.time_us)
        slower = choice(2 * point.time_us, stages=4)
        winners.append(
            new_winner(run_id, problem=point.problem, choice=served, default=slower, tie_set=(served,), policy=policy)
        )
    store.add_winners(winners)


def test_policies_are_fitted_apart_and_what_is_too_little_is_left_out(store: Store):
    fill(store, TRUE, "cuda.graph")
    fill(store, replace(TRUE, launch_us=20.0), "cuda.eager")
    run_id = store.create_run(new_run())
    store.add_winner(new_winner(run_id, problem=parse_shape("e64of512k10:16x256x4096"), policy="cuda.graph"))
    at = datetime(2026, 5, 1, tzinfo=UTC)
    eager, graph, grouped = fit_models(store, [CARD], at=at)
    assert isinstance(eager, Fitted)
    assert isinstance(graph, Fitted)
    assert (eager.model.policy, graph.model.policy) == ("cuda.eager", "cuda.graph")
    assert eager.model.launch_us == pytest.approx(20.0, rel=0.02)
    assert graph.model.launch_us == pytest.approx(4.2, rel=0.02)
    assert graph.model.p90_error < 0.02
    assert (graph.model.n_points, graph.model.m_low, graph.model.m_high) == (60, 1, 4096)
    assert graph.doubtful == []
    assert isinstance(grouped, Unfitted)
    assert (grouped.kind.op, grouped.n_points) == ("grouped", 1)
    assert "1 problem is measured" in grouped.reason
    assert store.latency_models() == []


def test_a_problem_that_is_far_from_the_others_is_doubtful_and_still_counts(store: Store):
    fill(store, TRUE, "cuda.graph")
    odd = points()[7]
    run_id = store.create_run(new_run(problems=[RunProblem(odd.problem)]))
    wild = choice(5 * odd.time_us)
    store.add_winner(
        new_winner(run_id, problem=odd.problem, choice=wild, default=wild, tie_set=(wild,), policy="cuda.graph")
    )
    (found,) = fit_models(store, [CARD], at=datetime.now(UTC))
    assert isinstance(found, Fitted)
    assert [one.point.problem for one in found.doubtful] == [odd.problem]
    assert found.model.n_points == 60


# --- seeds ---------------------------------------------------------------------------------------------------------


def test_neighbours_that_are_bound_by_the_same_term_come_first():
    """Bytes bind 7168x4096 up to M 352."""
    problem = Problem(400, 7168, 4096)
    ms = [90, 300, 500, 1000]
    terms = [estimate(TRUE, replace(problem, m=m), 0).term for m in (300, 400)]
    assert terms == [Term.BANDWIDTH, Term.RATE]
    assert sorted(ms, key=nearness(TRUE, problem, 0)) == [500, 1000, 300, 90]
    assert sorted(ms, key=nearness(None, problem, 0)) == [500, 300, 1000, 90]


@pytest.mark.parametrize(("with_model", "second"), [(False, 2), (True, 32)])
def test_a_run_tries_the_seeds_that_the_model_says_are_near(store: Store, *, with_model: bool, second: int):
    """By ratio M 6 and 2 are nearest to 4; by what binds them, with a border at M 3, it is 6 and 32."""
    cpu, backend = detect("cpu"), CpuDequant()
    problem = parse_shape("4x48x64")
    known = [config_key(config) for config in (backend.default(problem, cpu), *backend.seeds(problem, cpu))]
    free = [config for config in backend.space(problem, cpu) if config_key(config) not in known]
    configs = dict(zip((2, 6, 32), free, strict=False))
    environment = current_environment(cpu, [backend])
    run_id = store.create_run(new_run(environment=environment, problems=[RunProblem(problem)]))
    for m, config in configs.items():
        served = replace(choice(10.0, backend=backend.name), config=config)
        store.add_winner(
            new_winner(run_id, environment=environment, problem=replace(problem, m=m), choice=served, default=served,
                       tie_set=(served,), depends_on=(), policy="cpu.warm")
        )  # fmt: skip
    if with_model:
        n_bytes, n_flops = load_of(replace(problem, m=3), 0)
        model = replace(TRUE, device_fingerprint=cpu.fingerprint, policy="cpu.warm", serial_us_per_1024_k=None)
        store.save_latency_model(
            replace(model, bandwidth_bytes_per_s=1e9, rate_flops_per_s=1e9 * n_flops / n_bytes)
        )  # fmt: skip
    result = job(store, cpu, backend).start([RunProblem(problem)])
    trials = sorted(trials_of(store, result.run_id), key=lambda trial: trial.number)
    tried = [trial.config for trial in trials if trial.origin is Origin.SEED]
    assert tried[:2] == [configs[6], configs[second]]
