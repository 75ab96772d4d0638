"""The wheel and the tree hold the same, and an inference server can take fp4tune in without anything moving."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "db", "tuner", "api")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree, as `pip install .` would, so that no old build folder can hide a gap."""
    tree = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    (tree / "tests").mkdir()
    (tree / "tests" / "stray.py").write_text("")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(out), str(tree)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (built,) = out.glob("fp4tune-*.whl")
    return built


def test_wheel_holds_every_file_of_the_rooms_and_nothing_outside_the_namespace(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tree = {
        f"fp4tune/{path.relative_to(ROOT).as_posix()}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == tree
    assert any(name.startswith("fp4tune/tuner/presets/") and name.endswith(".json.gz") for name in packed)
    assert any(name.startswith("fp4tune/db/migrations/versions/0001") for name in packed)
    assert "fp4tune/__init__.py" not in packed, "fp4tune is a namespace: a file here would shadow other distributions"


def test_wheel_names_its_command_and_its_backends(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
        text = archive.read(name).decode()
    assert "fp4tune = fp4tune.api.cli:main" in text
    assert "[fp4tune.backends]" in text
    for backend in PROJECT["entry-points"]["fp4tune.backends"]:
        assert f"{backend} = " in text


def test_bounds_are_wide():
    """No upper pin, no exact pin, anywhere a user's resolver would see it."""
    everything = [*PROJECT["dependencies"], *(d for extra in PROJECT["optional-dependencies"].values() for d in extra)]
    assert PROJECT["requires-python"] == ">=3.11"
    for requirement in everything:
        assert not re.search(r"<|==|~=|!=", requirement.split(";")[0]), requirement
    names = {re.split(r"[\[>= ]", d)[0] for d in PROJECT["dependencies"]}
    assert not names & {"torch", "triton", "flashinfer-python", "nvidia-ml-py"}, "GPU libraries are optional"
    assert {"cuda", "postgres", "dev"} <= set(PROJECT["optional-dependencies"])


def resolve(tmp_path: Path, *requirements: str) -> dict[str, str]:
    """What a resolver picks for a serving image, from metadata alone."""
    source = tmp_path / "requirements.in"
    source.write_text("\n".join(requirements))
    done = subprocess.run(
        [
            "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header",
            "--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34", str(source),
        ],
        # System certificates: a proxy that signs for the index is known to the system, not to uv's own bundle.
        env={
            **os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", done.stdout, re.MULTILINE)
    assert pins
    return dict(pins)


@pytest.mark.network
@pytest.mark.parametrize("server", ["sglang==0.5.23", "vllm==0.33.0"])
def test_an_inference_server_resolves_the_same_with_fp4tune_beside_it(server: str, tmp_path: Path):
    alone = resolve(tmp_path, server)
    extras = PROJECT["optional-dependencies"]
    together = resolve(tmp_path, server, *PROJECT["dependencies"], *extras["cuda"], *extras["postgres"])
    moved = {name: (version, together.get(name)) for name, version in alone.items() if together.get(name) != version}
    assert not moved


@pytest.mark.network
def test_the_served_fastapi_of_the_makefile_is_what_vllm_resolves_to(tmp_path: Path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.search(r"^SERVED_FASTAPI := (\S+)$", makefile, re.MULTILINE)
    assert named is not None
    assert resolve(tmp_path, "vllm==0.33.0")["fastapi"] == named[1]
