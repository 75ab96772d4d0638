"""Documentation that cannot rot: every command, option, setting and exit code is documented, every README command runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import typer
from fp4tune.api.cli.app import EXIT_UNEXPECTED, app
from fp4tune.api.cli.tune import EXIT_INTERRUPTED
from fp4tune.api.settings import Settings
from fp4tune.kernels import errors

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
OFFLINE = (ROOT / "docs" / "offline.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PIP_OPTIONS = ("--dest", "--find-links", "--no-deps", "--no-index", "--only-binary", "--platform", "--python-version")
PIP_OPTIONS += ("--target", "--wheel-dir")
# Of docker, compose, pg_dump and systemctl.
DEPLOY_OPTIONS = (
    "--build",
    "--build-arg",
    "--cap-drop",
    "--env-file",
    "--init",
    "--name",
    "--now",
    "--no-block",
    "--profile",
)
DEPLOY_OPTIONS += ("--read-only", "--rm", "--security-opt", "--tmpfs", "--username", "--volumes")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Each command's name as typed, and the long names of its options."""
    nested = getattr(command, "commands", None)
    options = [name for p in command.params for name in getattr(p, "opts", []) if name.startswith("--")]
    yield " ".join(("fp4tune", *path)), options
    for name, child in (nested or {}).items():
        yield from commands(child, (*path, name))


ALL = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("name", "options"), ALL, ids=[name for name, _ in ALL])
def test_every_command_and_option_is_documented(name: str, options: list[str]):
    section = CLI
    if name not in ("fp4tune", "fp4tune db"):
        assert name in CLI
        start = CLI.index(f"## `{' '.join(name.split()[:2])}")
        end = CLI.find("\n## ", start + 1)
        section = CLI[start : end if end > 0 else None]
    shared = ("--db", "--json", "--help")
    for option in options:
        assert option in (CLI if option in shared else section), f"{name} {option}"


def test_the_documents_name_no_option_that_is_not_there():
    known = {option for _, options in ALL for option in options}
    # Options of other programs that the documents quote.
    known |= {"--help", "--speculative-draft-model-quantization", "--system-site-packages", "--strict", "--slow"}
    known |= {"--version", "--gpus", *PIP_OPTIONS, *DEPLOY_OPTIONS}
    for path in DOCS:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", path.read_text(encoding="utf-8")):
            if "benchmarks/" not in path.read_text(encoding="utf-8") or option in known:
                assert option in known, f"{path.relative_to(ROOT)} names {option}"


def test_every_exit_code_is_documented():
    codes = {0, EXIT_UNEXPECTED, EXIT_INTERRUPTED}
    codes |= {e.exit_code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)}
    table = CLI[CLI.index("## Exit codes") : CLI.index("## Shapes")]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes


def test_every_setting_is_documented():
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for name in Settings.model_fields:
        assert f"FP4TUNE_{name.upper()}" in text, name


def test_links_inside_the_repository_lead_somewhere():
    for path in DOCS:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_nothing_of_a_developers_machine_is_in_the_tree():
    """Paths of the machine it was written on, and the hosts of package registries."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in DOCS]
    forbidden = re.compile(r"/(?:work|opt)/(?:main|shared|wheels|pypi)|/root/\.|/home/\w|files\.pythonhosted|pypi\.org")
    for name in names:
        path = ROOT / name
        if path == Path(__file__) or path.suffix in (".db", ".gz") or not path.is_file():
            continue
        found = forbidden.search(path.read_text(encoding="utf-8", errors="replace"))
        assert found is None, f"{name}: {found}"


def shell_blocks(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_readme_command_runs(tmp_path: Path):
    """All `sh` blocks of the README as one script, as a user would type them, except make's own two."""
    blocks = [block for block in shell_blocks(README) if not block.startswith("make ")]
    assert blocks
    script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + "\n".join(blocks)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("FP4TUNE_DB", None)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"match":"exact"' in done.stdout.replace(" ", "")


def test_the_readme_shows_the_dashboard():
    """Three pictures of it, small enough for a slow line; `make screenshots` makes them."""
    shown = re.findall(r"!\[[^\]]{20,}\]\((docs/images/dashboard-\w+\.png)\)", README)
    assert len(set(shown)) >= 3
    for name in shown:
        assert (ROOT / name).read_bytes()[:4] == b"\x89PNG"
        assert (ROOT / name).stat().st_size < 150_000


def test_the_readme_says_how_to_set_up():
    text = "\n".join(shell_blocks(README))
    assert "make demo" in text
    assert "make test" in text


def test_figures_of_a_card_in_the_readme_are_those_of_its_page():
    page = (ROOT / "docs" / "results" / "h200.md").read_text(encoding="utf-8")
    figures = re.findall(r"^\| TP (\d) \| (\d+\.\d\dx) \| (\d+\.\d\dx) \|$", README, re.MULTILINE)
    assert figures
    for tp, over_default, over_bf16 in figures:
        section = page[page.index(f", TP {tp}, EP 1\n") :]
        means = re.search(r"it is (\S+) as fast as the fastest default and (\S+) as fast as bf16", section)
        assert means is not None
        assert means.groups() == (over_default, over_bf16), f"TP {tp}"
        served = dict(
            re.findall(r"^\| moe\S+ \| \d+ \| (\S+) \| `\S+` \| [^|]*\| ([\d.]+) \[", section, re.MULTILINE)[:10]
        )
        humming = dict(re.findall(r"^\| (e\S+) \| [\d.]+ \| ([\d.]+) \(", section, re.MULTILINE)[:10])
        over_humming = geometric_mean(float(humming[shape]) / float(served[shape]) for shape in served)
        assert f"{over_humming:.2f}x (TP {tp})" in README


def test_figures_of_dense_layers_in_the_readme_are_those_of_their_page():
    page = (ROOT / "docs" / "results" / "h200-dense.md").read_text(encoding="utf-8")
    over_bf16 = [float(x) for x in re.findall(r"^\| \d+x\S+ \| `.*?\| ([\d.]+)x \| \d+ % \|", page, re.MULTILINE)]
    assert f"[{len(over_bf16)} problems]" in README
    assert f"is {min(over_bf16):.2f}x to {max(over_bf16):.2f}x as fast as BF16" in README.replace("\n", " ")


# --- a machine without internet ------------------------------------------------------------------------------------


def test_the_packages_to_carry_are_those_that_are_needed():
    table = OFFLINE[OFFLINE.index("| package | what for |") :].split("\n\n", 1)[0]
    needed = {re.split(r"[\[>= ]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert set(re.findall(r"`([a-z0-9-]+)`", re.sub(r"`fp4tune serve`", "", table))) == needed | {"nvidia-ml-py"}


def test_the_caches_that_are_named_are_those_that_are_looked_at():
    from fp4tune.tuner.workers import caches

    for cache in caches._CACHES:
        assert f"`{cache.variable}`" in OFFLINE
        assert f"`~/{cache.below}`" in OFFLINE


@pytest.mark.network
def test_the_way_without_internet_works(tmp_path: Path):
    """Gathered for this Python by the document's own commands, installed from the folder alone, asked for its health."""
    gather, _, install, into_folder, *_ = shell_blocks(OFFLINE)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "*.db"))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def sh(script: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{script}"],
            cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    sh(gather.replace("PYTHON=3.12", f"PYTHON={version}"))
    names = {re.split(r"-\d", path.name)[0].lower().replace("_", "-") for path in (checkout / "wheels").iterdir()}
    assert {"fp4tune", "nvidia-ml-py", "optuna", "sqlalchemy"} <= names
    assert not names & {"torch", "triton"}, "PyTorch is there already"
    environment["PIP_NO_INDEX"] = "1"
    environment.pop("PYTHONPATH", None)
    for block in (install, into_folder):
        assert "Backends" in sh(block)
