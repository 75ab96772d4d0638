"""Answers as JSON: the fast template says what the plain values say."""

from __future__ import annotations

import json
from dataclasses import replace

from fp4tune.api.documents import answer_document, answer_json, exact_json, no_answer_document
from fp4tune.api.index import WinnerIndex
from fp4tune.api.lookup import Answer, NoAnswer, find, locate, nearest
from fp4tune.api.plain import encode, environment_json, problem_document, problem_json, time_text
from fp4tune.kernels.problem import Format, Op, OutDtype, Problem, Routing, parse_shape
from hypothesis import given
from hypothesis import strategies as st
from winner_factory import START, VERSIONS, device, entry, environment

sizes = st.integers(1, 1 << 24)
problems = st.builds(
    Problem, m=sizes, n=sizes, k=st.integers(1, 1 << 20).map(lambda groups: groups * 16),
    format=st.sampled_from(Format), out_dtype=st.sampled_from(OutDtype),
) | st.builds(
    Problem, m=sizes, n=sizes, k=st.just(16), op=st.just(Op.GROUPED), experts=st.integers(1, 8),
    experts_total=st.integers(8, 512), top_k=st.integers(1, 8), routing=st.sampled_from(Routing),
)  # fmt: skip


@given(problems)
def test_problem_text_is_the_document(problem: Problem):
    assert problem_json(problem, problem.key) == encode(problem_document(problem))


def test_names_that_need_escaping():
    at = environment(device('Card "X" \\ ü \u2028\x01'), note='quote " and \\')
    tuned = entry("16x2048x4096", at)._replace(
        backend='a"b', config_json='{"mode":"a\\"b","x":1e-05}', policy="ü\n", time_us=1e-7, default_time_us=1e21
    )
    index = WinnerIndex().with_entries([tuned], [at])
    answer = find(index, parse_shape("16x2048x4096"), locate(index))
    assert isinstance(answer, Answer)
    document = answer_document(answer)
    assert document["backend"] == 'a"b'
    assert document["config"] == {"mode": 'a"b', "x": 1e-05}
    assert document["policy"] == "ü\n"
    assert (document["time_us"], document["default"]["time_us"]) == (1e-7, 1e21)
    assert document["device"]["name"] == at.device.name
    assert document["environment"]["versions"] == {**VERSIONS, "note": 'quote " and \\'}
    text = answer_json(answer, index.environment_json[at.fingerprint])
    assert json.loads(text) == document
    assert exact_json(answer.tuned, encode(answer.reasons), index.environment_json[at.fingerprint]) == text


def test_versions_are_sorted():
    at = environment()
    shuffled = replace(at, versions=dict(reversed(at.versions.items())))
    assert environment_json(shuffled) == environment_json(at)


def test_no_answer_names_the_nearest():
    at = environment()
    index = WinnerIndex().with_entries([entry("16x2048x4096")], [at])
    missing = find(index, parse_shape("99x2048x4096"), locate(index))
    assert isinstance(missing, NoAnswer)
    document = json.loads(encode(no_answer_document(missing, nearest(index, missing))))
    assert document["match"] == "none"
    assert document["reasons"] == list(missing.reasons)
    assert [problem["shape"] for problem in document["nearest"]] == ["16x2048x4096"]


def test_times_are_utc():
    assert time_text(START) == "2026-11-02T12:00:00.000Z"
    assert time_text(START.replace(tzinfo=None)) == "2026-11-02T12:00:00.000Z"
