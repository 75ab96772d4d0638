"""Answers as JSON, the same for `fp4tune best --json` and for the HTTP service."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..kernels.problem import Problem
from .index import Tuned
from .lookup import Answer, Match, NoAnswer
from .plain import Document, encode, environment_json, problem_document, problem_json


def answer_document(answer: Answer) -> Document:
    """An answer as plain values."""
    document: Document = json.loads(answer_json(answer, environment_json(answer.environment)))
    return document


def answer_json(answer: Answer, environment: str) -> str:
    """An answer as a JSON object.

    Args:
        answer: what to show.
        environment: `environment_json` of the answer's environment; `WinnerIndex.environment_json` has it at hand.
    """
    asked = answer.problem
    bucket = f'problem":{problem_json(asked, asked.key)},"tuned_' if answer.match is Match.BUCKET else ""
    return f'{{"match":"{answer.match}","reasons":{encode(answer.reasons)},"{bucket}{answer.tuned.text},{environment}}}'


def exact_json(tuned: Tuned, reasons: str, environment: str) -> str:
    """An exact answer as a JSON object, from parts that are JSON already.

    Args:
        tuned: what is served.
        reasons: what was assumed, a JSON list.
        environment: as in `answer_json`.
    """
    return f'{{"match":"exact","reasons":{reasons},"{tuned.text},{environment}}}'


def no_answer_document(missing: NoAnswer, nearest: Sequence[Problem]) -> Document:
    """Why there is no answer, and what is tuned nearby."""
    return {
        "match": Match.NONE,
        "reasons": missing.reasons,
        "problem": problem_document(missing.problem),
        "nearest": [problem_document(problem) for problem in nearest],
    }
