"""Plain, frozen records of what is not measured here. `fp4tune.db.records` has them all; take them from there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """One imported file of somebody else's measurements. Source `reference`, always.

    Attributes:
        package, package_version: the distribution that it came with, `aiconfigurator-core` and `0.12.0`.
        system: what the publisher calls the card, `rtx_pro_6000_server`.
        framework, framework_version: whose kernels were measured, `sglang` and `0.5.14`.
        file: its path inside the package, with `/`.
        sha256: of its bytes, 64 hexadecimal digits.
        attribution: whose it is, and under which licence.
        imported_at: UTC, when it was stored; None before that, and the store sets it.
        n_rows: how many rows it gave; the store counts them.
        device: the card as the publisher names it, `NVIDIA RTX PRO 6000 Blackwell Server Edition`.
    """

    package: str
    package_version: str
    system: str
    framework: str
    framework_version: str
    file: str
    sha256: str
    attribution: str
    imported_at: datetime | None = None
    n_rows: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    """One published latency.

    Attributes:
        op: `dense`, a GEMM; `moe`, a fused MoE layer (gate and up, activation, down and weighted sum of one rank),
            which is never comparable with a grouped GEMM; `moe_nongated`, the same without a gate.
        precision: as published: `nvfp4`, `fp8`, `fp8_block`, `bfloat16`, ...
        kernel_source: what the publisher calls the kernel.
        m: rows of A; moe: tokens of the whole layer, before routing and over all ranks.
        n: columns of D; moe: intermediate size of one rank.
        k: the reduced dimension; moe: hidden size.
        experts: experts of one rank; 0 if dense. experts_total: of the layer. top_k: experts a token.
        tp, ep: ranks that share every expert's intermediate size, and ranks that share the experts; 1 if dense.
        distribution: how tokens spread over experts, as published; empty if dense.
        time_us: mean latency in microseconds; no variance is published.
        includes_act_quant: quantising the activations is part of the time.
        l2_hot_risk: the weights may have been read from L2 and not from memory.
        suspect: why it is not to be trusted; empty if nothing speaks against it.
    """

    op: str
    precision: str
    kernel_source: str
    m: int
    n: int
    k: int
    experts: int
    experts_total: int
    top_k: int
    tp: int
    ep: int
    distribution: str
    time_us: float
    includes_act_quant: bool
    l2_hot_risk: bool
    suspect: str = ""


@dataclass(frozen=True, slots=True)
class ReferenceImport:
    """What became of a file.

    Attributes:
        n_added: rows that were stored now.
        n_known: rows that were there, because the same file had been imported.
    """

    n_added: int
    n_known: int


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """An estimate of how long a GEMM takes on one device. Source `model`, always: it never answers a server.

    `t = max(bytes / bandwidth, flops / rate, serial * K / 1024) + launch`

    Attributes:
        device_fingerprint: whose measurements it was fitted on.
        op, format: `Op` and `Format` of the problems it is for. policy: how they were measured.
        launch_us: constant part, microseconds.
        bandwidth_bytes_per_s: effective bandwidth; None if the measurements do not say (no problem is bound by it).
        rate_flops_per_s: effective rate of multiply and add operations; None as above.
        serial_us_per_1024_k: what 1,024 of K cost one after the other, microseconds; None as above.
        m_low, m_high: smallest and largest M among the problems it was fitted on: tiles are padded, so that what
            holds for few rows says nothing of many.
        n_points: problems it was fitted on.
        median_error, p90_error: of |estimate / measurement - 1| on measurements that were held out.
        fitted_at: UTC.
    """

    device_fingerprint: str
    op: str
    format: str
    policy: str
    launch_us: float
    bandwidth_bytes_per_s: float | None
    rate_flops_per_s: float | None
    serial_us_per_1024_k: float | None
    m_low: int
    m_high: int
    n_points: int
    median_error: float
    p90_error: float
    fitted_at: datetime
