"""docs/humming.md names every parameter, and what each release has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp4tune.kernels.humming_gemm import backend, space
from fp4tune.kernels.humming_gemm.backend import Humming, known
from fp4tune.kernels.humming_gemm.schedule import KNOBS, LAST_STAGE_ONLY, has_knob
from fp4tune.kernels.humming_gemm.versions import FIELDS
from humming_cases import CASES, DEVICES, problem_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "humming.md").read_text(encoding="utf-8")
PARAMETERS = PAGE.split("## Parameters")[1].split("\n## ")[0]
RELEASES = PAGE.split("## Releases")[1].split("\n## ")[0]


def row(section, name):
    found = re.search(rf"^\| `{name}` \|(.*)\|$", section, re.MULTILINE)
    return found and [cell.strip() for cell in found[1].split("|")]


@pytest.mark.parametrize("device", DEVICES)
def test_every_parameter_and_word_is_named(humming, device):
    for _, shape, format_ in (case for case in CASES if case[0] == device):
        for parameter in known(problem_of(shape, format_), DEVICES[device]).space.parameters:
            assert f"`{parameter.name}`" in PARAMETERS, parameter.name
            for value in parameter.values:
                if isinstance(value, str) and parameter.name != "store":
                    assert f"`{value}`" in PARAMETERS, value


def test_the_table_of_releases_is_the_one_that_is_used():
    assert re.findall(r"^\| (\d+\.\d+\.\d+) \|", RELEASES, re.MULTILINE) == list(FIELDS)
    header = next(line for line in RELEASES.splitlines() if line.startswith("| parameter | field |"))
    assert header == f"| parameter | field | {' | '.join(FIELDS)} |"
    for knob, (field, _) in KNOBS.items():
        has = [has_knob(knob, fields) for fields in FIELDS.values()]
        cells = row(RELEASES, knob)
        if knob == "store" or (all(has) and knob != "reuse"):
            assert cells is None, knob
            continue
        assert cells[0] == f"`{field}`"
        older = [
            f"`{LAST_STAGE_ONLY}`" if field not in fields and h else "yes" if h else "no"
            for fields, h in zip(FIELDS.values(), has, strict=True)
        ]
        assert cells[1:] == older, knob
    assert row(RELEASES, "mma")[1:] == ["yes" if "mma_type" in fields else "the layer's" for fields in FIELDS.values()]


def test_the_limits_are_those_of_the_code():
    assert f"more than {space.MAX_LOCKS} locks" in PAGE
    assert f"more than {backend.MAX_STACK_BYTES} bytes of stack" in PAGE
    assert all(f"`{name}`" in PARAMETERS for name in re.findall(r"(\w+): ", Humming.__doc__) if name in KNOBS)
