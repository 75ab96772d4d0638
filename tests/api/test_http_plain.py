"""Plain questions take a short way through the index; the answer is that of the long way, byte for byte."""

from __future__ import annotations

import pytest
from fp4tune.api.http import lookups
from fp4tune.api.http.lookups import Places, answer_query
from fp4tune.api.index import WinnerIndex
from fp4tune.api.references import References
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import Op, Problem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from winner_factory import device, entry, environment

HERE, LATER, ELSEWHERE = environment(), environment(driver="590.10"), environment(device("Other Card"))

dense = st.builds(Problem, m=st.integers(1, 40), n=st.integers(1, 3), k=st.just(16))
grouped = st.builds(
    Problem, m=st.integers(1, 40), n=st.just(16), k=st.just(16), op=st.sampled_from([Op.GROUPED, Op.MOE]),
    experts=st.integers(1, 2), experts_total=st.integers(2, 3), top_k=st.integers(1, 2),
)  # fmt: skip
winners = st.lists(st.tuples(dense | grouped, st.sampled_from([HERE, LATER, ELSEWHERE])), max_size=12)
names = st.sampled_from(
    ["", "&device=Test+Card", "&device=nobody", f"&device={HERE.device.fingerprint[:8]}", "&device="]
    + [f"&environment={at.fingerprint}" for at in (HERE, LATER, ELSEWHERE)]
)
shapes = (dense | grouped).map(lambda problem: problem.shape) | st.sampled_from(
    ["x", "", "016x1x16", "e1k1:1x16x16", "moe:1x16x16"]
)


class NothingPublished:
    """A store that is never asked, because no system is in the index."""

    def reference_layers(self, *systems: object) -> frozenset:
        raise AssertionError(systems)

    def reference_rows(self, *layer: object) -> list:
        raise AssertionError(layer)


def ask(index: WinnerIndex, query: bytes) -> tuple[object, ...]:
    try:
        reply = answer_query(index, Places(index), References(NothingPublished(), index), query)
    except InvalidInputError as error:
        return type(error), str(error)
    return reply.match, reply.missing, reply.rendered


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tuned=winners, shape=shapes, name=names)
def test_short_way_and_long_way_agree(monkeypatch: pytest.MonkeyPatch, tuned: list, shape: str, name: str):
    entries = [entry(problem, at, number=i) for i, (problem, at) in enumerate(tuned, 1)]
    index = WinnerIndex().with_entries(entries, [HERE, LATER, ELSEWHERE])
    query = f"shape={shape}{name}".encode()
    short = ask(index, query)
    with monkeypatch.context() as patch:
        patch.setattr(lookups, "_answer_plain", lambda *_: None)
        assert ask(index, query) == short


def test_plain_questions_do_take_the_short_way(monkeypatch: pytest.MonkeyPatch):
    tuned = ["16x2048x4096", "e2k1:1x16x16", "moe:e2k1:1x16x16"]
    index = WinnerIndex().with_entries([entry(shape, number=i) for i, shape in enumerate(tuned, 1)], [HERE])
    monkeypatch.setattr(lookups, "ask", lambda fields: pytest.fail("the long way"))
    for query in (
        b"shape=16x2048x4096",
        b"shape=e2k1:1x16x16",
        b"shape=moe:e2k1:1x16x16",
        b"device=Test+Card&shape=16x2048x4096",
    ):
        assert ask(index, query)[0] == "exact"
