"""docs/deployment.md says what docker/ holds: files, ports, variables, volumes, users, and commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from deploy_tools import DOCKER, DOCKERFILES, ROOT, last, steps
from fp4tune.api.cli.app import app
from fp4tune.api.settings import Settings
from typer.main import get_command

DOC = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
COMPOSE_TEXT = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line]
FP4TUNE = get_command(app)


def test_every_file_that_is_named_is_there():
    named = set(re.findall(r"(?<![\w/.-])(?:docker|docs)/[\w./@-]*\w", DOC))
    assert named >= {"docker/compose.yaml", "docker/service.Dockerfile", "docker/tuner.Dockerfile", "docker/.env"}
    for name in named - {"docker/postgres.env"}:  # a password's, which the reader makes
        assert (ROOT / name).exists(), name
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"docker/*.env", "!docker/.env"} <= set(ignored)
    assert {path.relative_to(ROOT).as_posix() for path in DOCKERFILES} <= named


def test_every_variable_that_is_named_is_one():
    known = {f"FP4TUNE_{name.upper()}" for name in Settings.model_fields}
    known |= set(re.findall(r"\$\{([A-Z0-9_]+):-", COMPOSE_TEXT))
    named = set(re.findall(r"\b(?:FP4TUNE|POSTGRES)_[A-Z_]+\b", DOC))
    assert named
    assert named <= known


def test_there_is_one_port():
    port = str(Settings.model_fields["port"].default)
    assert set(re.findall(r"(?:localhost|127\.0\.0\.1|-p \S+):(\d+)", DOC)) == {port}
    assert f"-p 127.0.0.1:{port}:{port} " in DOC


def test_the_user_and_the_folders_are_those_of_the_images():
    for path in DOCKERFILES:
        final = steps(path)[-1]
        (user,) = {last(final, "USER").rest.split(":")[0]}
        assert f"user {user}" in DOC
        row = next(line for line in DOC.splitlines() if line.startswith(f"| `docker/{path.name}` |"))
        volume = last(final, "VOLUME")
        for folder in [*(volume.exec_form or [volume.rest]), "/tmp"]:
            assert f"`{folder}`" in row
        assert last(steps(path)[0], "ARG").pairs["BASE_IMAGE"] in DOC


def test_the_profiles_are_those_of_compose():
    table = dict(re.findall(r"^\| `(\w+)` \| (`.*) \|$", DOC[DOC.index("| profile |") :], re.MULTILINE)[:3])
    there: dict[str, set[str]] = {}
    for name, service in COMPOSE["services"].items():
        there.setdefault(service["profiles"][0], set()).add(name)
    assert set(table) == set(there)
    for profile, names in there.items():
        assert {f"`{name}`" for name in names} <= set(re.findall(r"`[^`]+`", table[profile]))
    volumes = {f"fp4tune_{name}" for name in COMPOSE["volumes"]}
    assert set(re.findall(r"fp4tune_\w+", DOC)) <= volumes
    assert "COMPOSE_PROJECT_NAME=fp4tune\n" in (DOCKER / ".env").read_text(), "which volumes are named after"


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_shell(block: str):
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_compose_is_asked_for_services_that_there_are():
    asked = [line for line in LINES if line.startswith("docker compose")]
    assert len(asked) > 10
    for line in asked:
        words = shlex.split(line.replace("--env-file docker/postgres.env ", ""))
        assert words[2:4] == ["-f", "docker/compose.yaml"], line
        action, *rest = words[4:]
        assert action in ("up", "cp", "exec", "run", "build", "stop"), line
        names = [word.split(":")[0] for word in rest if re.match(r"[a-z-]+(:/|$)", word) and not word.startswith("-")]
        if action in ("exec", "run", "stop", "cp"):
            assert set(names) & set(COMPOSE["services"]), line


def test_every_command_of_fp4tune_is_one():
    found = re.findall(r"(?:exec service fp4tune|bin/fp4tune|--rm service|--rm tuner|`fp4tune) ((?:db )?[a-z]+)", DOC)
    assert len(found) > 8
    for words in found:
        command: Any = FP4TUNE
        for word in words.split():
            command = command.commands.get(word)
            assert command is not None, f"fp4tune {words}"


def test_what_systemd_is_told_to_read_is_what_is_written():
    units = "".join(path.read_text(encoding="utf-8") for path in (DOCKER / "systemd").iterdir())
    for place in (
        "/etc/fp4tune/fp4tune.env",
        "/etc/fp4tune/tune/",
        "/var/lib/fp4tune/fp4tune.db",
        "/var/cache/fp4tune",
    ):
        assert place in units
        assert place in DOC
    for unit in set(re.findall(r"fp4tune(?:-tune@\w+)?\.(?:service|timer)", DOC)):
        template = re.sub(r"@\w+", "@", unit)
        assert (DOCKER / "systemd" / template).exists(), unit
    assert "$ARGUMENTS" in units
    assert "'ARGUMENTS=--from-misses' > /etc/fp4tune/tune/misses.env" in DOC


def test_a_proxy_lets_the_longest_body_through():
    assert f"client_max_body_size {Settings.model_fields['max_body_bytes'].default >> 20}m;" in DOC
