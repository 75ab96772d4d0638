"""docs/inspector.md against the code: every warning code, every JSON key, every limit, and output that is really printed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_files import merged, nvfp4, qwen35_mtp, write_checkpoint
from fp4tune.api.cli.app import run
from fp4tune.tuner import presets, sharding, workload
from fp4tune.tuner.inspection import (
    json_file,
    model_config,
    notes,
    patterns,
    regex_cost,
    roles,
    safetensors_header,
    shards,
)
from fp4tune.tuner.token_counts import NEXTN, Phase, phase_tokens
from terminal import printed_on_a_terminal

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "inspector.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    start = TEXT.index(f"\n## {title}\n")
    end = TEXT.find("\n## ", start + 1)
    return TEXT[start : end if end > 0 else None]


def codes_of_the_source() -> Iterator[tuple[str, str | None]]:
    """Where a Warn is made, and its code if it is written there."""
    for path in sorted((ROOT / "tuner").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Warn":
                code = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                yield f"{path.relative_to(ROOT)}:{node.lineno}", code


def test_every_warning_code_is_documented_and_no_other():
    found = list(codes_of_the_source())
    assert len(found) > 25
    assert [place for place, code in found if not isinstance(code, str)] == [], "a code must be a literal"
    documented = re.findall(r"^\| `([a-z0-9-]+)` \|", section("Warnings"), re.MULTILINE)
    assert sorted(documented) == sorted({code for _, code in found})


def test_the_example_is_what_is_printed():
    block = re.search(r"```text\n\$ fp4tune (.*?)\n(.*?)\n```", TEXT, re.DOTALL)
    assert block is not None
    printed = "\n".join(printed_on_a_terminal(block[1].split(), columns=100)).rstrip()
    assert printed == block[2]


def keys_of(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every key of a document with the keys above it, except those that are data."""
    if isinstance(value, dict) and path not in {("mtp", "dtypes"), ("mtp", "files")}:
        for key, inner in value.items():
            yield path, key
            yield from keys_of(inner, (*path, key))
    if isinstance(value, list):
        for entry in value:
            yield from keys_of(entry, path)


@pytest.mark.parametrize("reference", ["qwen3-30b-a3b-nvfp4", "gpt-oss-120b", "stored"])
def test_every_json_key_is_documented_in_its_row(reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if reference == "stored":
        config = {
            "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "mtp_num_hidden_layers": 1,
        }  # fmt: skip
        tensors = merged(qwen35_mtp(config, expert="nvfp4"), nvfp4("lm_head", 64, 64))
        reference = str(write_checkpoint(tmp_path, config, {"model.safetensors": tensors}))
    assert run(["inspect", reference, "--tp", "4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    lines = section("JSON").splitlines()
    top = {key: line for line in lines if line.startswith("|") for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    for path, key in keys_of(report):
        assert path or key in top, key
        if path:
            assert f"`{key}`" in top[path[0]], (*path, key)
    assert set(top) == set(report)


def test_limits_are_those_of_the_code():
    text = section("Limits")
    for value in (
        safetensors_header.MAX_HEADER_BYTES, safetensors_header.MAX_TENSORS, shards.MAX_TENSORS, shards.MAX_SHARDS,
        json_file.CONFIG_MAX_ITEMS, json_file.INDEX_MAX_ITEMS, notes.MAX_NAME_CHARS, model_config.MAX_LAYERS,
        model_config.MAX_EXPERTS, patterns.MAX_EXPRESSIONS, patterns.MAX_REGEX_CHARS, sharding.MAX_RANKS,
        workload.MAX_TOKENS_LISTED,
    ):  # fmt: skip
        assert re.search(rf"(?<![\d,]){value:,}(?!\d|,\d)", text), value
    assert f"{json_file.CONFIG_MAX_BYTES >> 20} MiB" in text
    assert f"{json_file.INDEX_MAX_BYTES >> 20} MiB" in text
    assert f"{regex_cost.MAX_HARD_REPEATS} repeats" in text
    assert f"above {patterns.MAX_REGEX_NAME} characters" in text
    assert patterns.MAX_STEPS == 10**9
    assert "10^9 steps" in text
    assert model_config.MAX_DIM == 1 << 24
    assert "2^24" in text


def test_roles_phases_and_presets_are_those_of_the_code():
    text = section("The workload of a rank")
    for role in roles.ORDER:
        assert f"`{role}`" in text or (role.startswith("mtp.") and "`mtp.*`" in text), role
    for phase in Phase:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{phase.value}` |"))
        tokens = phase_tokens(phase, NEXTN)
        assert row.endswith((f"{tokens[0]} to {tokens[-1]} |", f"multiples of {tokens[0]} up to {tokens[-1]} |"))
    assert f"Configurations of {len(presets.names())} published checkpoints" in section("Presets")
