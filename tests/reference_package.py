"""An installed package of published measurements for tests: what aiconfigurator-core looks like, with a few rows of ours.

No figure in it was published by anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SYSTEM = "rtx_pro_6000_server"
DEVICE = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
BANDWIDTH = 1.792e12

GEMM: dict[str, Any] = {
    "framework": "SGLang", "version": "0.5.14", "device": DEVICE, "op_name": "gemm", "kernel_source": "kernel_a",
    "gemm_dtype": "nvfp4", "m": 1, "n": 2048, "k": 4096, "latency": 0.5,
}  # fmt: skip
MOE: dict[str, Any] = {
    "framework": "VLLM", "version": "0.24.0", "device": DEVICE, "op_name": "moe", "kernel_source": "kernel_m",
    "moe_dtype": "nvfp4", "num_tokens": 16, "hidden_size": 4096, "inter_size": 1024, "topk": 10, "num_experts": 512,
    "moe_tp_size": 4, "moe_ep_size": 1, "distribution": "balanced", "latency": 0.5,
}  # fmt: skip


def gemm(**fields: Any) -> dict[str, Any]:
    """A row of a GEMM table."""
    return {**GEMM, **fields}


def moe(**fields: Any) -> dict[str, Any]:
    """A row of a MoE table."""
    return {**MOE, **fields}


def install(site: Path, *, version: str = "0.12.0") -> Path:
    """Make the package below `site`, without tables. Importing it fails, because nobody should.

    Returns:
        The folder of its systems.
    """
    about = site / f"aiconfigurator_core-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: aiconfigurator-core\nVersion: {version}\nLicense-Expression: Apache-2.0\n"
    )
    systems = site / "aiconfigurator_core" / "systems"
    (systems / "data").mkdir(parents=True)
    (systems.parent / "__init__.py").write_text('raise RuntimeError("the package was imported")\n')
    specify(systems, SYSTEM)
    return systems


def specify(systems: Path, system: str, text: str = f"gpu:\n  mem_bw: {BANDWIDTH:.0f} # bytes/s\n") -> None:
    """Write the specification of a system, and make its folder of data."""
    (systems / f"{system}.yaml").write_text(text)
    (systems / "data" / system).mkdir(exist_ok=True)


def put(
    systems: Path, table: str, rows: Sequence[Mapping[str, Any]], *, framework: str, version: str, system: str = SYSTEM
) -> Path:
    """Write a table (`gemm` or `moe`) of a framework's version; its path."""
    import pyarrow as pa
    from pyarrow import parquet

    path = systems / "data" / system / table / framework / version / f"{table}_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)
    return path
