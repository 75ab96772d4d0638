"""Published measurements for tests: valid ones, every field of which can be replaced by name. Nobody published them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fp4tune.db.records import ReferenceRow, ReferenceSource

SYSTEM = "rtx_pro_6000_server"
SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def source(**fields: Any) -> ReferenceSource:
    made = ReferenceSource(
        "measurements", "0.12.0", SYSTEM, "sglang", "0.5.14", "data/gemm.parquet", "ab" * 32, "Copyright (c) Somebody",
        device=SERVER,
    )  # fmt: skip
    return replace(made, **fields)


def dense(m: int = 1, **fields: Any) -> ReferenceRow:
    made = ReferenceRow(
        "dense", "nvfp4", "kernel", m, 2048, 4096, 0, 0, 0, 1, 1, "", 10.0 + m,
        includes_act_quant=True, l2_hot_risk=m < 8, suspect="slow" if m == 4 else "",
    )  # fmt: skip
    return replace(made, **fields)


def moe(m: int = 1, **fields: Any) -> ReferenceRow:
    made = ReferenceRow(
        "moe", "bfloat16", "fused", m, 256, 4096, 64, 512, 10, 4, 8, "balanced", 1 / 3,
        includes_act_quant=False, l2_hot_risk=False,
    )  # fmt: skip
    return replace(made, **fields)
