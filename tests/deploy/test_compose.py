"""docker/compose.yaml: valid, contained, and every variable of it explained. That it starts is tests/deploy/test_images.py."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_tools import DOCKER, DOCKERFILES, ROOT, last, program, steps
from fp4tune.api.settings import Settings

COMPOSE = DOCKER / "compose.yaml"
TEXT = COMPOSE.read_text(encoding="utf-8")
PROFILES = {
    "sqlite": {"service"},
    "postgres": {"service-postgres", "postgres"},
    "tune": {"tuner"},
}
# Of the images, not of the service's settings.
OTHERS = {"PGPASSWORD", "POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "POSTGRES_INITDB_ARGS"}


@functools.cache  # it takes a second
def compose(*arguments: str, file: Path = COMPOSE, cwd: Path = ROOT, **environment: str) -> str:
    """docker-compose's answer; it needs no engine for it."""
    # Of this process's environment only what finds programs: a developer's own settings must not decide.
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), **environment}
    done = subprocess.run(
        [program("docker-compose"), "-f", str(file), *arguments],
        cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a variable that is not set, or a key that is going away"
    return done.stdout


def config(*arguments: str, **environment: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(compose(*arguments, "config", **environment))
    return document


def test_a_mistake_is_refused(tmp_path: Path):
    bad = tmp_path / "compose.yaml"
    bad.write_text(TEXT.replace("read_only: true", "read_onyl: true"))
    with pytest.raises(AssertionError, match="read_onyl"):
        compose("config", file=bad)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_valid(profile: str):
    assert set(config("--profile", profile)["services"]) == set().union(*PROFILES.values())


def test_each_service_is_of_one_profile_and_sqlite_is_what_is_meant_where_none_is_named():
    services = config()["services"]
    for profile, names in PROFILES.items():
        assert {name for name, service in services.items() if service["profiles"] == [profile]} == names
    dotenv = (DOCKER / ".env").read_text(encoding="utf-8")
    assert "COMPOSE_PROFILES=sqlite\n" in dotenv
    assert not re.search(r"(PASSWORD|SECRET)=.", dotenv), "this file is in the repository"


@pytest.mark.parametrize("name", sorted(set().union(*PROFILES.values())))
def test_every_container_has_no_more_rights_than_it_needs(name: str):
    service = config()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert not service.get("privileged")
    assert any(str(one).startswith("/tmp") for one in service["tmpfs"])
    for port in service.get("ports", []):
        assert str(port).startswith("127.0.0.1:"), "the service has no authentication"
    if name == "postgres":
        assert "ports" not in service
        assert set(service["networks"]) == {"database"}
    else:
        assert service["user"] == "10001:10001"
        assert "cap_add" not in service


def test_the_address_and_the_port_can_be_chosen():
    services = config(FP4TUNE_BIND="10.1.2.3", FP4TUNE_PUBLISHED_PORT="80")["services"]
    for name in ("service", "service-postgres"):
        assert services[name]["ports"] == ["10.1.2.3:80:8040/tcp"]


def test_any_password_reaches_both_ends_as_it_is():
    password = "p@ss:w/or#d %2F'\""
    services = config(POSTGRES_PASSWORD=password)["services"]
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == password
    for name in ("service-postgres", "tuner"):
        assert services[name]["environment"]["PGPASSWORD"] == password
    assert password not in services["service-postgres"]["environment"]["FP4TUNE_DB"]


def test_the_service_waits_for_a_database_that_answers():
    services = config()["services"]
    assert services["service-postgres"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["postgres"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]


def test_the_tuner_gets_the_cards_and_the_database_of_the_service():
    services = config()["services"]
    (device,) = services["tuner"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]
    (data,) = [volume for volume in services["service"]["volumes"] if volume.endswith(":/data:rw")]
    assert data in services["tuner"]["volumes"]
    paths = {volume.split(":")[1] for volume in services["tuner"]["volumes"]}
    assert set(last(steps(DOCKER / "tuner.Dockerfile")[-1], "VOLUME").exec_form or []) <= paths


def test_what_is_set_is_a_setting():
    known = {f"FP4TUNE_{name.upper()}" for name in Settings.model_fields} | OTHERS
    for name, service in config()["services"].items():
        assert set(service["environment"]) <= known, name
        ours = {
            key.removeprefix("FP4TUNE_").lower(): value
            for key, value in service["environment"].items()
            if key.startswith("FP4TUNE_")
        }
        Settings(**ours)


def test_build_arguments_are_those_of_the_dockerfiles():
    for name, service in config()["services"].items():
        if "build" in service:
            path = ROOT / service["build"]["dockerfile"]
            assert path in DOCKERFILES
            arguments = {a for stage in steps(path) for step in stage if step.word == "ARG" for a in step.pairs}
            assert set(service["build"]["args"]) <= arguments, name
            base = last(steps(path)[0], "ARG").pairs["BASE_IMAGE"]
            assert service["build"]["args"]["BASE_IMAGE"] == base, "the same default in both"
            assert Path(service["build"]["context"]).resolve() == ROOT


def test_every_variable_is_explained_with_its_default():
    used = dict(re.findall(r"\$\{([A-Z0-9_]+):-([^}]*)\}", TEXT))
    assert set(used) == set(re.findall(r"\$\{?([A-Z0-9_]+)", TEXT)), "each has a default, so that none is missed"
    example = (DOCKER / "env.example").read_text(encoding="utf-8")
    named = dict(re.findall(r"^#([A-Z0-9_]+)=(.*)$", example, re.MULTILINE))
    assert named == used
    assert "version" not in yaml.safe_load(TEXT), "Compose v2 calls it obsolete"
