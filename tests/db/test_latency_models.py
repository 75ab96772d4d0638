"""Latency models in the store: the last fit of each device, op, format and policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fp4tune.db import Store
from fp4tune.db.records import LatencyModel
from fp4tune.kernels.errors import InvalidInputError
from store_factory import CARD, START

MODEL = LatencyModel(
    CARD.fingerprint, "dense", "nvfp4", "cuda.graph", 4.3, 1.27e12, 1.174e15, 3.58, 1, 4096, 120, 0.065, 0.27, START
)
KEY = (CARD.fingerprint, "dense", "nvfp4", "cuda.graph")


def test_a_model_comes_back_as_it_was(store: Store):
    assert store.latency_model(*KEY) is None
    store.save_latency_model(MODEL)
    assert store.latency_model(*KEY) == MODEL
    assert store.latency_models() == [MODEL]


def test_what_the_measurements_do_not_say_stays_unknown(store: Store):
    unknown = replace(MODEL, bandwidth_bytes_per_s=None, serial_us_per_1024_k=None)
    store.save_latency_model(unknown)
    assert store.latency_model(*KEY) == unknown


def test_a_later_fit_replaces_the_one_of_the_same_key_alone(store: Store):
    others = [
        replace(MODEL, **{name: value})
        for name, value in (
            ("device_fingerprint", "other"),
            ("op", "moe"),
            ("format", "bf16"),
            ("policy", "cuda.eager"),
        )
    ]
    for model in (MODEL, *others):
        store.save_latency_model(model)
    later = replace(MODEL, launch_us=5.0, rate_flops_per_s=None, n_points=240, fitted_at=START + timedelta(hours=1))
    store.save_latency_model(later)
    assert store.latency_model(*KEY) == later
    assert sorted(store.latency_models(), key=repr) == sorted([later, *others], key=repr)


@pytest.mark.parametrize(
    "wrong",
    [
        {"launch_us": -1.0}, {"launch_us": float("nan")}, {"bandwidth_bytes_per_s": 0.0}, {"rate_flops_per_s": 0.0},
        {"rate_flops_per_s": float("inf")}, {"serial_us_per_1024_k": -0.1}, {"n_points": 0}, {"m_low": 0},
        {"median_error": -0.1}, {"p90_error": float("inf")}, {"op": "x" * 33}, {"device_fingerprint": "x" * 65},
        {"fitted_at": START.replace(tzinfo=None)},
    ],
    ids=str,
)  # fmt: skip
def test_a_model_that_cannot_be_is_refused_and_the_one_that_was_there_stays(sqlite_store: Store, wrong: dict[str, Any]):
    sqlite_store.save_latency_model(MODEL)
    with pytest.raises(InvalidInputError):
        sqlite_store.save_latency_model(replace(MODEL, **wrong))
    assert sqlite_store.latency_models() == [MODEL]
