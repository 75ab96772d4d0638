"""The rules of a match: exact, compatible, bucket, none, and their precedence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fp4tune.api.index import WinnerIndex
from fp4tune.api.lookup import Answer, Match, NoAnswer, find, locate, nearest
from fp4tune.db.records import WinnerEntry
from fp4tune.kernels.device import Environment
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, Routing, parse_shape
from hypothesis import given
from hypothesis import strategies as st
from winner_factory import VERSIONS, device, entry, environment

HERE = environment()
NEW_DRIVER = environment(driver="590.10")
NEW_TORCH = environment(torch="2.13.0")
GROUPED = "e64of512k10:16x256x4096"


ENVIRONMENTS = [HERE, NEW_DRIVER, NEW_TORCH]


def index_of(*entries: WinnerEntry) -> WinnerIndex:
    return WinnerIndex().with_entries(entries, ENVIRONMENTS)


def ask(index: WinnerIndex, shape: str | Problem, environment: Environment | None = None) -> Answer | NoAnswer:
    problem = parse_shape(shape) if isinstance(shape, str) else shape
    if environment is None:
        return find(index, problem, locate(index))
    return find(index, problem, locate(index, environment.device.fingerprint, environment.versions))


def answered(result: Answer | NoAnswer) -> Answer:
    assert isinstance(result, Answer), result
    return result


def missing(result: Answer | NoAnswer) -> NoAnswer:
    assert isinstance(result, NoAnswer), result
    return result


def test_exact_needs_no_reason():
    answer = answered(ask(index_of(entry("16x2048x4096")), "16x2048x4096", HERE))
    assert (answer.match, answer.reasons) == (Match.EXACT, ())


def test_assumed_device_and_environment_are_said():
    old, new = entry("16x2048x4096", HERE, number=1), entry("32x2048x4096", NEW_TORCH, number=2, day=3)
    answer = answered(ask(index_of(old, new), "32x2048x4096"))
    assert answer.match is Match.EXACT
    assert HERE.device.fingerprint in answer.reasons[0]
    assert NEW_TORCH.fingerprint in answer.reasons[1]
    assert "2026-11-05" in answer.reasons[1]


def test_device_by_name_prefix_and_fingerprint():
    other = environment(device("Other"))
    index = WinnerIndex().with_entries([entry("16x2048x4096"), entry("16x2048x4096", other, number=2)], [HERE, other])
    fingerprint = HERE.device.fingerprint
    for text in ("Test Card", fingerprint, fingerprint[:8]):
        assert locate(index, text).device == HERE.device


def test_environment_alone_names_its_device():
    other = environment(device("Other"))
    index = WinnerIndex().with_entries([entry("16x2048x4096"), entry("16x2048x4096", other, number=2)], [HERE, other])
    for text in (other.fingerprint, other.fingerprint[:9]):
        place = locate(index, None, text)
        assert (place.device, place.environment_fingerprint) == (other.device, other.fingerprint)
        assert place.reasons == ()


def test_known_environment_without_winners_can_be_compared():
    place = locate(index_of(entry("16x2048x4096")), None, NEW_DRIVER.fingerprint)
    assert answered(find(index_of(entry("16x2048x4096")), parse_shape("16x2048x4096"), place)).match is Match.COMPATIBLE


def test_compatible_when_only_irrelevant_versions_differ():
    answer = answered(ask(index_of(entry("16x2048x4096")), "16x2048x4096", NEW_DRIVER))
    assert answer.match is Match.COMPATIBLE
    assert answer.reasons == ("versions differ that do not matter to triton.native: driver 580.95 -> 590.10",)


def test_newest_compatible_is_served():
    between = environment(driver="585")
    older, newer = entry("16x2048x4096", HERE, number=1), entry("16x2048x4096", between, number=2, day=1)
    for order in ([older, newer], [newer, older]):
        index = WinnerIndex().with_entries(order, [HERE, between])
        assert answered(ask(index, "16x2048x4096", NEW_DRIVER)).tuned.id == newer.id


def test_stale_is_not_served_and_says_why():
    result = missing(ask(index_of(entry("16x2048x4096")), "16x2048x4096", NEW_TORCH))
    assert result.reasons == ("a winner of 2026-11-02 is stale: torch 2.11.0 -> 2.13.0",)


@pytest.mark.parametrize("gone_from", ["asked", "winner"])
def test_relevant_version_missing_on_one_side_is_a_difference(gone_from: str):
    fewer = Environment(HERE.device, {"torch": "2.11.0"})
    tuned, asked = (HERE, fewer) if gone_from == "asked" else (fewer, HERE)
    index = WinnerIndex().with_entries([entry("16x2048x4096", tuned)], [tuned])
    result = missing(ask(index, "16x2048x4096", asked))
    assert "triton" in result.reasons[0]
    assert "absent" in result.reasons[0]


def test_version_that_neither_side_has_is_no_difference():
    tuned = entry("16x2048x4096", depends_on=("torch", "cutlass-dsl"))
    assert answered(ask(index_of(tuned), "16x2048x4096", NEW_DRIVER)).match is Match.COMPATIBLE


def test_a_superset_of_versions_is_compatible():
    asked = Environment(HERE.device, {**VERSIONS, "humming": "1.0"})
    assert (
        answered(ask(index_of(entry("16x2048x4096")), "16x2048x4096", asked))
        .reasons[-1]
        .endswith("humming absent -> 1.0")
    )


@pytest.mark.parametrize(
    ("asked", "tuned", "served"),
    [
        (12, [16], 16),
        (8, [16], 16),
        (7, [16], None),  # more than twice
        (16, [32], 32),
        (17, [32], 32),
        (17, [34], None),  # tuned above 32
        (33, [64], None),  # asked above 32
        (9, [12, 16], 12),
        (1, [2], 2),
        (16, [8, 15], None),  # below
        (31, [64, 32, 1], 32),
    ],
)
def test_bucket(asked: int, tuned: list[int], served: int | None):
    index = index_of(*(entry(f"{m}x2048x4096", number=i) for i, m in enumerate(tuned, 1)))
    result = ask(index, f"{asked}x2048x4096", HERE)
    if served is None:
        assert isinstance(result, NoAnswer)
        return
    answer = answered(result)
    assert answer.match is Match.BUCKET
    assert answer.tuned.problem.m == served
    assert answer.reasons == (f"M {asked} is not tuned: {served} is the next tuned M above",)


@pytest.mark.parametrize(
    "other",
    [
        Problem(16, 2048, 4096, out_dtype=OutDtype.FP16),
        Problem(16, 2048, 4096, format=Format.NVFP4_W4A16),
        Problem(16, 2064, 4096),
        Problem(16, 2048, 4112),
        Problem(16, 2048, 4096, Op.GROUPED, 1, 1, 1),
    ],
)
def test_a_bucket_shares_everything_but_m(other: Problem):
    assert isinstance(ask(index_of(entry(other)), "12x2048x4096", HERE), NoAnswer)


def test_bucket_of_a_grouped_problem_shares_its_routing():
    tuned = parse_shape(GROUPED)
    index = index_of(entry(tuned))
    assert answered(ask(index, replace(tuned, m=9), HERE)).match is Match.BUCKET
    assert isinstance(ask(index, replace(tuned, m=9, routing=Routing.ONE_HOT), HERE), NoAnswer)
    assert isinstance(ask(index, replace(tuned, m=9, top_k=8), HERE), NoAnswer)


def test_precedence():
    exact = entry("12x2048x4096", NEW_DRIVER, number=1, day=0)
    compatible = entry("12x2048x4096", HERE, number=2, day=1)
    near = entry("14x2048x4096", HERE, number=3, day=2)
    bucket = entry("16x2048x4096", NEW_DRIVER, number=4, day=3)
    served: list[tuple[Match, int]] = []
    remaining = [exact, compatible, near, bucket]
    while remaining:
        answer = answered(ask(index_of(*remaining), "12x2048x4096", NEW_DRIVER))
        served.append((answer.match, answer.tuned.id))
        remaining = [entry for entry in remaining if entry.id != answer.tuned.id]
    assert served == [
        (Match.EXACT, exact.id),
        (Match.COMPATIBLE, compatible.id),
        (Match.BUCKET, bucket.id),  # a bucket of this environment before a nearer one of a compatible environment
        (Match.BUCKET, near.id),
    ]


def test_compatible_bucket_says_both():
    answer = answered(ask(index_of(entry("16x2048x4096")), "12x2048x4096", NEW_DRIVER))
    assert len(answer.reasons) == 2
    assert "next tuned M above" in answer.reasons[0]
    assert "driver 580.95 -> 590.10" in answer.reasons[1]


def test_stale_bucket_is_not_served():
    assert isinstance(ask(index_of(entry("16x2048x4096")), "12x2048x4096", NEW_TORCH), NoAnswer)


def test_the_newer_winner_of_a_problem_and_environment_is_served_in_any_order():
    old, new = entry("16x2048x4096", number=1, time_us=20), entry("16x2048x4096", number=2, time_us=10, day=1)
    for order in ([old, new], [new, old]):
        index = index_of(*order)
        assert index.size == 1
        assert answered(ask(index, "16x2048x4096", HERE)).tuned.id == new.id
    assert answered(ask(index_of(old).with_entries([new]), "16x2048x4096", HERE)).tuned.id == new.id


def test_an_index_never_changes():
    before = index_of(entry("16x2048x4096", number=1))
    after = before.with_entries([entry("8x2048x4096", number=2), entry("16x2048x4096", NEW_TORCH, number=3)])
    assert (before.size, before.last_id, after.size, after.last_id) == (1, 1, 3, 3)
    assert isinstance(ask(before, "8x2048x4096", NEW_TORCH), NoAnswer)
    assert answered(ask(before, "8x2048x4096", HERE)).match is Match.BUCKET
    assert answered(ask(after, "8x2048x4096", HERE)).match is Match.EXACT


def test_nearest_are_five_of_the_same_op_by_log_distance():
    shapes = ["16x2048x4096", "64x2048x4096", "16x4096x4096", "16x2048x8192", "8192x64x64", "1x16x16", GROUPED]
    index = index_of(*(entry(shape, number=i) for i, shape in enumerate(shapes, 1)))
    result = missing(ask(index, "40x2048x4096", HERE))
    found = [problem.shape for problem in nearest(index, result)]
    assert found[0] == "64x2048x4096"
    assert len(found) == 5
    assert GROUPED not in found
    assert nearest(WinnerIndex(), result) == ()


small_problem = st.builds(
    Problem, m=st.integers(1, 9000), n=st.integers(1, 40), k=st.integers(1, 40).map(lambda groups: groups * 16)
)


@given(
    tuned=st.lists(small_problem, min_size=1, max_size=60, unique=True), asked=small_problem, steps=st.integers(1, 5)
)
def test_nearest_equals_comparing_with_all(tuned: list[Problem], asked: Problem, steps: int):
    winners = [entry(p, number=i) for i, p in enumerate(tuned, 1)]
    index = WinnerIndex()
    for start in range(steps):
        index = index.with_entries(winners[start::steps], ENVIRONMENTS)

    def distance(p: Problem) -> float:
        return math.hypot(math.log2(p.m / asked.m), math.log2(p.n / asked.n), math.log2(p.k / asked.k))

    found = nearest(index, NoAnswer(asked, locate(index), ("asked",)))
    assert [distance(p) for p in found] == pytest.approx(sorted(distance(p) for p in tuned)[:5], abs=1e-9)


@given(tuned=st.lists(small_problem, max_size=40, unique=True), asked=small_problem)
def test_any_answer_keeps_the_rules(tuned: list[Problem], asked: Problem):
    index = index_of(*(entry(p, number=i) for i, p in enumerate(tuned, 1)))
    result = ask(index, asked)
    if isinstance(result, NoAnswer):
        assert asked not in tuned
        assert result.reasons
        return
    served = result.tuned.problem
    assert (result.match is Match.EXACT) == (served == asked)
    assert replace(served, m=asked.m) == asked
    if result.match is Match.BUCKET:
        assert asked.m < served.m <= min(32, 2 * asked.m)
        assert served.m == min(p.m for p in tuned if replace(p, m=asked.m) == asked and p.m > asked.m)
