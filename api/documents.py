"""Answers as JSON, the same for `fp4tune best --json` and for the HTTP service."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..db.records import Source
from ..kernels.problem import Problem
from ..tuner.reference.curves import Estimate
from .index import Tuned
from .lookup import Answer, Match, NoAnswer
from .plain import Document, device_document, encode, environment_json, problem_document, problem_json
from .references import ReferenceAnswer


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


def reference_document(answer: ReferenceAnswer) -> Document:
    """What others measured, as plain values. `backend` and `config` are null: there is nothing to serve.

    The times stand in an object of their own, so that nobody takes them for what was measured here.
    """
    reference, device = answer.reference, answer.missing.place.device
    source = reference.fastest.curve.source
    return {
        "match": Match.REFERENCE,
        "reasons": answer.reasons,
        "problem": problem_document(reference.problem),
        "backend": None,
        "config": None,
        "device": device_document(device) if device else None,
        "source": Source.REFERENCE,
        "reference": {
            **_published_document(reference.fastest),
            "suspect": reference.fastest.suspect,
            "published_on": {"system": source.system, "device": source.device},
            "attribution": source.attribution,
            "nvfp4_is_fastest": reference.nvfp4_is_fastest,
            "nvfp4_over_fastest": reference.nvfp4_over_fastest,
            "not_l2_hot": _published_document(reference.cold) if reference.cold else None,
            "alternatives": [_published_document(one) for one in reference.alternatives],
        },
    }


def _published_document(one: Estimate) -> Document:
    """A published time, whose it is, and what to know about it."""
    source, key = one.curve.source, one.curve.key
    return {
        "precision": key.precision,
        "framework": source.framework,
        "framework_version": source.framework_version,
        "kernel_source": key.kernel_source,
        "time_us": one.time_us,
        "time_us_low": one.time_us_low,
        "time_us_high": one.time_us_high,
        "interpolated": one.interpolated,
        "includes_act_quant": one.curve.includes_act_quant,
        "l2_hot_risk": one.l2_hot_risk,
    }


def no_answer_document(missing: NoAnswer, nearest: Sequence[Problem]) -> Document:
    """Why there is no answer, and what is tuned nearby."""
    return {
        "match": Match.NONE,
        "reasons": missing.reasons,
        "problem": problem_document(missing.problem),
        "nearest": [problem_document(problem) for problem in nearest],
    }
