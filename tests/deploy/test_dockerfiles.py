"""What the Dockerfiles say, read and linted. That they can be built and run is tests/deploy/test_images.py."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from pathlib import Path

import pytest
from deploy_tools import DOCKER, DOCKERFILES, ROOT, last, program, steps
from fp4tune.api.settings import Settings
from fp4tune.tuner.workers import caches

SERVICE = DOCKER / "service.Dockerfile"
TUNER = DOCKER / "tuner.Dockerfile"
# What the tuner's own variables are, beside the settings of the service.
OTHERS = {"FP4TUNE_LOCK_DIR", "FP4TUNE_CUTLASS_CACHE_DIR", "FP4TUNE_PYTHON"}


def lint(path: Path) -> str:
    done = subprocess.run(
        [program("hadolint"), "--no-color", "--failure-threshold", "style", str(path)],
        capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode == 0) == (done.stdout == ""), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=[p.name for p in DOCKERFILES])
def test_hadolint_has_nothing_to_say(path: Path):
    assert lint(path) == ""


def test_the_linter_finds_what_is_wrong(tmp_path: Path):
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python:latest\nRUN cd /tmp && pip install x\n")
    assert {"DL3007", "DL3042"} <= set(re.findall(r"DL\d{4}", lint(bad)))


@pytest.mark.parametrize("path", DOCKERFILES, ids=[p.name for p in DOCKERFILES])
def test_a_rule_is_ignored_only_at_one_place_and_with_its_reason(path: Path):
    assert not list(ROOT.glob("**/.hadolint.y*ml")), "nothing is ignored everywhere"
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if "hadolint" in line:
            assert re.fullmatch(r"# hadolint ignore=DL\d{4}", line), "one rule, for the line below"
            reason = lines[number - 1]
            assert reason.startswith("# "), f"{path.name}:{number + 1}: say why in the line above"
            assert "hadolint" not in reason


@pytest.mark.parametrize("path", DOCKERFILES, ids=[p.name for p in DOCKERFILES])
def test_the_base_is_one_argument_with_a_tag(path: Path):
    before, *stages = steps(path)
    base = last(before, "ARG").pairs["BASE_IMAGE"]
    name, _, tag = base.partition(":")
    assert name
    # Two numbers of Python's are moved to each patch; PyTorch's images have three anyway.
    assert re.match(r"\d+\.\d+\.\d+-", tag), "a tag that names one release"
    assert {stage[0].rest.split()[0] for stage in stages} == {"${BASE_IMAGE}"}
    assert "@sha256:" not in base, "a digest is the builder's to give: none could be looked up"


@pytest.mark.parametrize("path", DOCKERFILES, ids=[p.name for p in DOCKERFILES])
def test_both_end_as_the_same_user_without_a_name_to_look_up(path: Path):
    final = steps(path)[-1]
    assert last(final, "USER").rest == "10001:10001"
    assert last(final, "STOPSIGNAL").rest == "SIGTERM", "which fp4tune takes for a wish to end"
    assert last(final, "ENTRYPOINT").exec_form, "a shell in between would keep the signal to itself"
    assert last(final, "CMD").exec_form


def test_the_service_is_what_its_settings_say():
    final = steps(SERVICE)[-1]
    env = {name: value for step in final if step.word == "ENV" for name, value in step.pairs.items()}
    ours = {name.removeprefix("FP4TUNE_").lower(): value for name, value in env.items() if name.startswith("FP4TUNE_")}
    settings = Settings(**ours)
    assert settings.host == "0.0.0.0", "loopback of a container is reached by nobody"
    assert settings.port == Settings.model_fields["port"].default
    assert last(final, "EXPOSE").rest == str(settings.port)
    assert Path(settings.db).parent == Path(last(final, "VOLUME").rest)
    assert last(final, "ENTRYPOINT").exec_form == ["fp4tune"]
    assert last(final, "CMD").exec_form == ["serve"]
    _, _, command = last(final, "HEALTHCHECK").rest.partition(" CMD ")
    assert command == '["python", "/opt/fp4tune/healthcheck.py"]'


def test_the_tuner_has_every_cache_and_lock_on_a_volume():
    final = steps(TUNER)[-1]
    env = {name: value for step in final if step.word == "ENV" for name, value in step.pairs.items()}
    volumes = last(final, "VOLUME").exec_form or []
    for cache in caches._CACHES:
        assert any(Path(env[cache.variable]).is_relative_to(volume) for volume in volumes), cache.variable
    for name in ("FP4TUNE_DB", "FP4TUNE_LOCK_DIR", "HOME", "CUDA_CACHE_PATH"):
        assert any(Path(env[name]).is_relative_to(volume) for volume in volumes), name
    named = {name for name in env if name.startswith("FP4TUNE_")}
    assert named - OTHERS <= {f"FP4TUNE_{field.upper()}" for field in Settings.model_fields}


@pytest.mark.parametrize("path", DOCKERFILES, ids=[p.name for p in DOCKERFILES])
def test_what_is_copied_is_there_and_reaches_the_builder(path: Path):
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for stage in steps(path)
        for step in stage
        if step.word == "COPY" and not step.rest.startswith("--from")
        for source in step.rest.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in let_in, f".dockerignore keeps {source} from the builder"


def test_only_what_is_copied_reaches_the_builder():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    text = "".join(path.read_text() for path in DOCKERFILES)
    for name in (line[1:] for line in lines if line.startswith("!")):
        assert re.search(rf"^COPY .*{re.escape(name)}\b", text, re.MULTILINE), name
    for secret in ("api/fp4tune.db", "db/x.db-wal", "kernels/__pycache__"):
        assert any(fnmatch.fnmatch(secret, line) for line in lines if line.startswith("**")), secret
