"""Problems, devices, environments and winners as plain JSON values or JSON text, the same wherever they are shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ..db.records import WinnerEntry
from ..kernels.device import Device, Environment
from ..kernels.problem import Problem

Document = dict[str, Any]

encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
"""Compact JSON text of a plain value. NaN and infinities are refused, because JSON has none."""

quote = json.encoder.encode_basestring
"""JSON text of a string, as `encode` writes it."""


def time_text(at: datetime) -> str:
    """ISO 8601 in UTC, to the millisecond: `2026-11-02T12:00:00.000Z`. A naive time is taken as UTC."""
    utc = at if at.tzinfo is UTC else at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return utc.isoformat(timespec="milliseconds")[:-6] + "Z"


def problem_document(problem: Problem) -> Document:
    """All fields of a problem, and its two text forms."""
    return {
        "op": problem.op,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "experts": problem.experts,
        "experts_total": problem.experts_total,
        "top_k": problem.top_k,
        "routing": problem.routing,
        "format": problem.format,
        "out_dtype": problem.out_dtype,
        "shape": problem.shape,
        "key": problem.key,
    }


def device_document(device: Device) -> Document:
    """A device, without the ordinal, which means nothing to others."""
    return {
        "fingerprint": device.fingerprint,
        "kind": device.kind,
        "name": device.name,
        "compute_capability": device.compute_capability,
        "sms": device.sms,
        "memory_bytes": device.memory_bytes,
        "l2_bytes": device.l2_bytes,
        "power_limit_w": device.power_limit_w,
    }


def environment_document(environment: Environment) -> Document:
    """An environment's fingerprint and versions; its device stands beside it."""
    return {"fingerprint": environment.fingerprint, "versions": dict(sorted(environment.versions.items()))}


def environment_json(environment: Environment) -> str:
    """Device and environment as two members of a JSON object, without its braces."""
    device, versions = device_document(environment.device), environment_document(environment)
    return f'"device":{encode(device)},"environment":{encode(versions)}'


def problem_json(problem: Problem, key: str) -> str:
    """`problem_document` as JSON text, three times as fast: enumerations and shapes need no escaping.

    Args:
        problem: the problem.
        key: its key, which is at hand and takes time to make.
    """
    return (
        f'{{"op":"{problem.op}","m":{problem.m},"n":{problem.n},"k":{problem.k},"experts":{problem.experts},'
        f'"experts_total":{problem.experts_total},"top_k":{problem.top_k},"routing":"{problem.routing}",'
        f'"format":"{problem.format}","out_dtype":"{problem.out_dtype}","shape":"{problem.shape}","key":"{key}"}}'
    )


def winner_json(entry: WinnerEntry) -> str:
    """A winner as members of a JSON object: its problem, then what is served and what it is worth.

    Times are microseconds, medians with their 95% interval; speedup is default over served time. Configs are JSON
    already, and a finite float's repr is JSON.

    Returns:
        The members without the object's braces and without the first quotation mark: it goes on with `problem":` or
        after `tuned_`, which is what it is called in the answer for a bucket.
    """
    return (
        f'problem":{problem_json(entry.problem, entry.problem_key)},'
        f'"backend":{quote(entry.backend)},"config":{entry.config_json},"time_us":{entry.time_us!r},'
        f'"time_us_low":{entry.time_us_low!r},"time_us_high":{entry.time_us_high!r},'
        f'"default":{{"backend":{quote(entry.default_backend)},"config":{entry.default_config_json},'
        f'"time_us":{entry.default_time_us!r},"time_us_low":{entry.default_time_us_low!r},'
        f'"time_us_high":{entry.default_time_us_high!r}}},"speedup":{entry.default_time_us / entry.time_us!r},'
        f'"tie_set_size":{entry.n_ties},"measured_at":"{time_text(entry.created_at)}",'
        f'"run_id":{quote(entry.run_id)},"n_trials":{entry.n_trials},"policy":{quote(entry.policy)},'
        f'"source":{quote(entry.source)}'
    )
