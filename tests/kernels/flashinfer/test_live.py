"""Tactics that only the card tells: the question to a child process and its answer."""

from __future__ import annotations

import json
import sys
import time

import pytest
import torch
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import live
from fp4tune.kernels.patience import OutOfTimeError, patience, seconds_left
from fp4tune.kernels.problem import Problem

from .conftest import card

ECHO = """
import json, sys
asked = json.loads(sys.stdin.readline())
print("a library says hello")
print("fp4tune-tactics " + json.dumps({m: [[4, [[2, m]]], [5, []]] for m in asked["rows"]}))
"""


@pytest.fixture
def child(monkeypatch):
    """The child is this text instead."""

    real = live._ask

    def install(text):
        monkeypatch.setattr(live, "_ask", lambda _, question, name: real([sys.executable, "-c", text], question, name))
        live.live_tactics.cache_clear()

    yield install
    live.live_tactics.cache_clear()


def ask(rows=(16, 128)):
    return live.live_tactics("flashinfer.cudnn", Problem(16, 512, 1024), card(), rows)


def test_an_answer_is_tuples_again_by_rows(child):
    child(ECHO)
    assert ask() == {16: ((4, ((2, 16),)), (5, ())), 128: ((4, ((2, 128),)), (5, ()))}


def test_a_problem_is_asked_for_once(child, monkeypatch):
    child(ECHO)
    first = ask()
    monkeypatch.setattr(live, "_ask", lambda *_: pytest.fail("asked again"))
    assert ask() is first


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise SystemExit('cuDNN has no plan')", r"cannot list its tactics on the card \(cuDNN has no plan\)"),
        ("import os; os.abort()", r"cannot list its tactics on the card \(exit status -6\)"),
        ("print('nothing')", r"cannot list its tactics on the card \(exit status 0\)"),
    ],
)
def test_a_child_that_fails_is_a_reason_in_its_words(child, text, sentence):
    child(text)
    with pytest.raises(UnsupportedError, match=sentence):
        ask()


def test_a_child_that_hangs_is_ended(child, monkeypatch):
    child("import time; time.sleep(60)")
    monkeypatch.setattr(live, "TIMEOUT_S", 0.5)
    with pytest.raises(UnsupportedError, match=r"did not list its tactics within 0\.5 s"):
        ask()


def test_who_has_less_time_waits_no_longer_and_may_ask_again(child):
    child("import time; time.sleep(60)")
    start = time.monotonic()
    with (
        pytest.raises(OutOfTimeError, match=r"did not list its tactics within the 0\.[1-5] s that it was given"),
        patience(0.5),
    ):
        ask()
    assert time.monotonic() - start < 30
    child(ECHO)
    assert ask(), "that there was no time is not remembered"


def test_who_has_no_time_starts_no_child_but_hears_what_is_known(child):
    child(ECHO)
    known = ask()
    with patience(0.0):
        assert ask() is known
    child("raise SystemExit('it was started')")
    with patience(0.0), pytest.raises(OutOfTimeError, match="was not asked for its tactics: no time was left"):
        ask()


def test_a_hurry_inside_a_hurry_ends_with_the_earlier_one():
    with patience(10.0):
        with patience(1000.0):
            assert 5.0 < seconds_left(300.0) <= 10.0
        with patience(1.0):
            assert seconds_left(300.0) <= 1.0
        assert seconds_left(300.0) > 5.0
        assert seconds_left(2.0) == 2.0, "never more than usual"
    assert seconds_left(300.0) == 300.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_the_real_child_without_a_card_says_so(flashinfer):
    question = {"backend": "flashinfer.cudnn", "n": 512, "k": 1024, "out_dtype": "bf16", "index": 0, "rows": [16]}
    with pytest.raises(UnsupportedError, match=r"cannot list its tactics on the card \(.*(CUDA|NVIDIA)"):
        live._ask([sys.executable, "-m", live.__name__], json.dumps(question), "flashinfer.cudnn")
