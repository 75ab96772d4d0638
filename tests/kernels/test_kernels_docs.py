"""docs/kernels.md names every module, backend and parameter; docs/cpu-space.md every parameter of cpu.dequant."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from fp4tune.kernels.backend import load_backends
from fp4tune.kernels.device import Device
from fp4tune.kernels.nvfp4 import E2M1_VALUES, round_e2m1
from fp4tune.kernels.oracle import BOUNDS
from fp4tune.kernels.problem import Routing, parse_shape

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/kernels.md").read_text(encoding="utf-8")
DEVICES = (
    Device("cpu", "CPU", "", 8, 64 << 30, 32 << 20, 0.0),
    Device("cuda", "NVIDIA H200", "9.0", 132, 140 << 30, 50 << 20, 700.0),
)
OURS = ("cpu.dequant", "torch.dequant")


def test_every_public_module_is_named():
    for module in (ROOT / "kernels").glob("[!_]*.py"):
        if module.stem != "errors":
            assert f"`{module.stem}`" in PAGE, module.stem


def test_every_backend_has_a_section_or_a_link_to_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in project["project"]["entry-points"]["fp4tune.backends"]:
        if f"### {name}\n" in PAGE:
            continue
        link = re.search(rf"\[`{re.escape(name)}`\]\(([\w-]+\.md)(?:#([\w-]+))?\)", PAGE)
        assert link, name
        page = (ROOT / "docs" / link[1]).read_text(encoding="utf-8")
        assert f"`{name}`" in page or re.search(rf"^#+ {re.escape(name)}\b", page, re.MULTILINE), f"{name}: {link[1]}"
        sections = [re.sub(r"[^\w -]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]
        assert link[2] is None or link[2] in [title.replace(" ", "-") for title in sections], link[0]


@pytest.mark.parametrize("name", OURS)
def test_every_parameter_with_its_extremes_is_named(name):
    backend = load_backends()[name]
    section = PAGE.split(f"### {name}\n")[1].split("\n### ")[0]
    device = next(d for d in DEVICES if d.kind == ("cpu" if name == "cpu.dequant" else "cuda"))
    space = backend.space(parse_shape("e64k4:16x65536x4096"), device)
    for parameter in space.parameters:
        row = re.search(rf"^\| `{parameter.name}` \|(.*)\|$", section, re.MULTILINE)
        assert row, parameter.name
        assert str(parameter.values[0]) in row[1] or parameter.name == "block_n"
    wide = backend.space(parse_shape("16x65536x64"), device)
    blocks = next(p.values for p in wide.parameters if p.name == "block_n")
    assert f"{blocks[0]} … {blocks[-1]}" in section


def test_tables_hold_what_the_code_does():
    ties = re.search(r"^\| tie \|(.*)\|$", PAGE, re.MULTILINE)[1].split("|")
    goes_to = re.search(r"^\| goes to \|(.*)\|$", PAGE, re.MULTILINE)[1].split("|")
    import torch

    for tie, to in zip(ties, goes_to, strict=True):
        assert E2M1_VALUES[int(round_e2m1(torch.tensor([float(tie)])))] == float(to)
    for dtype, bound in BOUNDS.items():
        name = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}[str(dtype).removeprefix("torch.")]
        row = re.search(rf"^\| {name} \| (\S+) \|", PAGE, re.MULTILINE)
        assert float(row[1]) == bound
    for routing in Routing:
        assert f"| `{routing.value}` |" in PAGE


def test_the_measured_page_covers_every_parameter():
    page = (ROOT / "docs/cpu-space.md").read_text(encoding="utf-8")
    space = load_backends()["cpu.dequant"].space(parse_shape("e64k4:16x65536x4096"), DEVICES[0])
    for parameter in space.parameters:
        row = re.search(rf"^\| `{parameter.name}` \| (\d+) of \d+ \| (\d+)%", page, re.MULTILINE)
        assert row, parameter.name
        assert int(row[1]) >= 1, f"{parameter.name} decides nothing and should not be a parameter"
    speedups = [float(x) for x in re.findall(r"\| (\d+\.\d\d) \| [\d.]+% \| \d+% \|$", page, re.MULTILINE)]
    assert max(speedups) >= 1.1
