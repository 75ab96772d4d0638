"""`fp4tune model`: what the time of a GEMM is made of on a device, fitted on what was measured there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernels.errors import InvalidInputError, NotFoundError, UnsupportedError
from .options import DEFAULT_DATABASE, Database, Json, database_must_exist
from .output import Cell, plain, print_json, print_line, print_table

if TYPE_CHECKING:
    from ...db.records import LatencyModel
    from ...kernels.device import Device
    from ...tuner.fit_models import Fitted, Kind, Unfitted

MAX_DOUBTFUL = 10
"""Problems far from a fit that are printed; --json has all of them."""


def model(
    device: Annotated[
        str | None, typer.Option("--device", help="Name or fingerprint of the device; default: every one.")
    ] = None,
    database: Database = DEFAULT_DATABASE,
    *,
    as_json: Json = False,
) -> None:
    """Fit a latency model on the stored measurements of each device, and store it as an estimate."""
    from datetime import UTC, datetime

    from ...db.store import Store
    from ...tuner.fit_models import Fitted, Unfitted, fit_models

    database_must_exist(database)
    with Store.open(database, mode="write") as store:
        devices = named([one for one, _ in store.devices()], device)
        found = list(fit_models(store, devices, at=datetime.now(UTC)))
        fitted = [one for one in found if isinstance(one, Fitted)]
        left_out = [one for one in found if isinstance(one, Unfitted)]
        if not fitted:
            raise _nothing(devices, left_out, database)
        for one in fitted:
            store.save_latency_model(one.model)
    if as_json:
        print_json({"models": [_document(one) for one in fitted], "left_out": [_left_out(one) for one in left_out]})
    else:
        _print(fitted, left_out)


def named(devices: Sequence[Device], text: str | None) -> list[Device]:
    """The device that a name, a fingerprint or a beginning of one names; all of them for None.

    Raises:
        NotFoundError: there is none. InvalidInputError: it names several.
    """
    if text is None:
        return list(devices)
    from ..index import MIN_PREFIX, is_prefix

    found = [one for one in devices if one.name == text or (is_prefix(text) and one.fingerprint.startswith(text))]
    if len(found) > 1:
        raise InvalidInputError(f"{text!r} names {len(found)} devices: give the whole fingerprint, {_listed(found)}.")
    if not found:
        there = f"the database has {_listed(devices)}" if devices else "the database has none"
        known_as = f"a name, a fingerprint, or at least {MIN_PREFIX} of its first digits"
        raise NotFoundError(f"There is no device {text!r} ({known_as}): {there}.")
    return found


def _listed(devices: Sequence[Device]) -> str:
    shown = [f"{one.fingerprint} ({one.name})" for one in devices[:10]]
    return ", ".join(shown) + (f" and {len(devices) - 10} more" if len(devices) > 10 else "")


def _nothing(devices: Sequence[Device], left_out: Sequence[Unfitted], database: str) -> Exception:
    """Why there is no model at all."""
    if not left_out:
        where = f"on {devices[0].name} " if len(devices) == 1 else ""
        return NotFoundError(f"Nothing that was measured {where}is served from {database!r}: run `fp4tune tune` first.")
    return UnsupportedError("; ".join(f"{_name(one.kind)}: {one.reason}" for one in left_out) + ".")


def _name(kind: Kind) -> str:
    return f"{kind.device.name}, {kind.op}, {kind.format}, {kind.policy}"


def _print(fitted: Sequence[Fitted], left_out: Sequence[Unfitted]) -> None:
    print_table(
        "Latency models: estimates, never served",
        (
            "device", "op", "format", "policy", "launch µs", "TB/s", "TFLOP/s", "µs per 1,024 K", "problems", "M",
            "median error", "p90 error",
        ),
        [_row(one) for one in fitted],
        caption="time = max(bytes / bandwidth, operations / rate, serial * K / 1,024) + launch; errors are those of "
        "problems of a layer (N, K) that the fit had not seen; constants hold for the M shown: with few rows TB/s and "
        "TFLOP/s are of these problems and no roofs of the card",
        tall=True,
    )  # fmt: skip
    for one in fitted:
        for sentence in undecided_of(one.model):
            print_line(f"note: {_name(one.kind)}: {sentence}")
        doubtful = one.doubtful
        for held in doubtful[:MAX_DOUBTFUL]:
            print_line(
                f"doubtful: {_name(one.kind)}: {held.point.problem.shape} took {held.point.time_us:,.1f} µs, and a fit "
                f"without its layer says {held.estimate_us:,.1f} µs"
            )
        if len(doubtful) > MAX_DOUBTFUL:
            print_line(f"doubtful: {len(doubtful) - MAX_DOUBTFUL} more; --json has them")
    for without in left_out:
        print_line(f"left out: {_name(without.kind)}: {without.reason}")


def undecided_of(model_: LatencyModel) -> tuple[str, ...]:
    """Sentences about the constants that the measurements do not decide."""
    from ...tuner.latency_model import undecided

    return undecided(model_)


def _row(one: Fitted) -> list[Cell]:
    fitted = one.model
    return [
        one.kind.device.name,
        one.kind.op,
        one.kind.format,
        one.kind.policy,
        f"{fitted.launch_us:.2f}",
        _figure(fitted.bandwidth_bytes_per_s, 1e12),
        _figure(fitted.rate_flops_per_s, 1e12),
        _figure(fitted.serial_us_per_1024_k, 1.0),
        fitted.n_points,
        f"{fitted.m_low} to {fitted.m_high}",
        f"{fitted.median_error:.1%}",
        f"{fitted.p90_error:.1%}",
    ]


def _figure(value: float | None, unit: float) -> str:
    """Three digits, as a CPU has hundredths of what a GPU has."""
    return "unknown" if value is None else f"{value / unit:.3g}"


def _document(one: Fitted) -> dict[str, Any]:
    return {
        **plain(one.model),
        "source": "model",
        "device": one.kind.device.name,
        "binds": {term.value: n for term, n in one.binds.items()},
        "undecided": undecided_of(one.model),
        "doubtful": [
            {"problem": held.point.problem, "time_us": held.point.time_us, "estimate_us": held.estimate_us}
            for held in one.doubtful
        ],
    }


def _left_out(one: Unfitted) -> dict[str, Any]:
    kind = one.kind
    return {
        "device_fingerprint": kind.device.fingerprint,
        "device": kind.device.name,
        "op": kind.op,
        "format": kind.format,
        "policy": kind.policy,
        "n_points": one.n_points,
        "reason": one.reason,
    }
