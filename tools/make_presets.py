"""Make the presets of fp4tune.tuner.presets from a directory of configuration files.

    python tools/make_presets.py DIRECTORY

DIRECTORY holds one folder a model, `<org>--<name>/`, with config.json, an optional hf_quant_config.json and a
SOURCE.md that says where they were obtained (its line `- Obtained from: ...`). Writes `<org>--<name>.json.gz` and
ATTRIBUTION.md into tuner/presets/. The same input gives the same bytes: keys keep the files' order, and the gzip
header carries neither time nor name.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

PRESETS = Path(__file__).resolve().parent.parent / "tuner" / "presets"

PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "nvidia--Qwen3.5-397B-A17B-NVFP4": {
        "mtp_tensors": {
            "value": 1553,
            "source": (
                "published count of the model's mtp.* tensors; that this checkpoint stores the whole MTP branch in "
                "BF16: https://github.com/vllm-project/vllm/pull/38832"
            ),
        }
    },
    "nvidia--MiniMax-M2.5-NVFP4": {
        "mtp_tensors": {
            "value": 0,
            "source": (
                "public MiniMax-M2.x checkpoints ship no MTP weights although config.json declares them: "
                "https://github.com/local-inference-lab/rtx6kpro/pull/10"
            ),
        }
    },
}
"""Figures about weights that the configuration files do not hold. Shown as published, never as read."""

ATTRIBUTION_HEAD = """# Where the presets come from

Configuration files (config.json, hf_quant_config.json) of published checkpoints, unchanged except that each model's
files are joined into one compressed JSON file. They hold no weights. They are copies as the source below holds them
and were not compared with the hub. The files belong to their publishers, whose model licences apply to them.

| preset | obtained from |
|---|---|
"""


def main() -> int:
    """Read the folders, write the presets, print a line for each."""
    parser = argparse.ArgumentParser(description="Make fp4tune's presets from configuration files.")
    parser.add_argument("directory", type=Path, help="holds one <org>--<name>/ folder a model")
    parser.add_argument("--output", type=Path, default=PRESETS, help="where to write (default: tuner/presets)")
    arguments = parser.parse_args()
    folders = sorted(p for p in arguments.directory.iterdir() if (p / "config.json").is_file() and "--" in p.name)
    if not folders:
        sys.stderr.write(f"{arguments.directory} holds no <org>--<name>/ folder with a config.json.\n")
        return 2
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = []
    total = 0
    for folder in folders:
        name = folder.name.replace("--", "/", 1)
        source = obtained_from(folder)
        data = packed(folder, name, source)
        (arguments.output / f"{folder.name}.json.gz").write_bytes(data)
        rows.append(f"| [{name}](https://huggingface.co/{name}) | {source} |\n")
        total += len(data)
        sys.stdout.write(f"{len(data):7d} {name}\n")
    (arguments.output / "ATTRIBUTION.md").write_text(ATTRIBUTION_HEAD + "".join(rows) + published_text(folders))
    sys.stdout.write(f"{total:7d} bytes in {len(folders)} presets\n")
    return 0


def packed(folder: Path, name: str, source: str) -> bytes:
    """One model's files as deterministic gzip'd JSON."""
    quant = folder / "hf_quant_config.json"
    data = {
        "name": name,
        "source": source,
        "published": PUBLISHED.get(folder.name, {}),
        "config": json.loads((folder / "config.json").read_text()),
        "hf_quant_config": json.loads(quant.read_text()) if quant.is_file() else None,
    }
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as file:
        file.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())
    return buffer.getvalue()


def obtained_from(folder: Path) -> str:
    """The public source of the files, from the folder's SOURCE.md."""
    text = (folder / "SOURCE.md").read_text() if (folder / "SOURCE.md").is_file() else ""
    lines = [line for line in text.splitlines() if line.startswith("- Obtained from: ")]
    return describe(lines[0].removeprefix("- Obtained from: ")) if lines else "not recorded"


def describe(source: str) -> str:
    """Shorten the two kinds of source there are to what a reader needs to find the files again."""
    commits = sorted({word.strip(",") for word in source.split() if len(word.strip(",")) == 40})
    if "git history" in source and commits:
        return f"https://github.com/ai-dynamo/aiconfigurator, commit {commits[0]} (Apache-2.0)"
    if "aiconfigurator-core" in source:
        version = source.partition("aiconfigurator-core ")[2].split(",")[0].split(" ")[0]
        return f"the wheel aiconfigurator-core {version}, aiconfigurator_core/model_configs (NVIDIA, Apache-2.0)"
    return source


def published_text(folders: list[Path]) -> str:
    """What is added to the files, so that nobody takes it for a part of them."""
    facts = [
        f"- {folder.name.replace('--', '/', 1)}, {key} = {fact['value']}: {fact['source']}\n"
        for folder in folders
        for key, fact in PUBLISHED.get(folder.name, {}).items()
    ]
    if not facts:
        return ""
    return "\nAdded by fp4tune, as published figures about weights that are not here:\n\n" + "".join(facts)


if __name__ == "__main__":
    raise SystemExit(main())
