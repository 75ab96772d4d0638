"""docker/systemd: verified by systemd itself. It exits with 0 on an unknown key, so what counts is that it says nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_tools import DOCKER, program
from fp4tune.api.settings import Settings
from fp4tune.tuner.workers import caches

SYSTEMD = DOCKER / "systemd"
INSTALLED = "/opt/fp4tune/bin/fp4tune"
UNITS = ("fp4tune.service", "fp4tune-tune@misses.service", "fp4tune-tune@misses.timer")
# Out of 10; lower is better. Nothing of this is measured: it counts what the unit forbids.
EXPOSURE = {"fp4tune.service": 2.0, "fp4tune-tune@.service": 4.5}


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as they are, but for where fp4tune is: verify wants its program to be there."""
    for path in SYSTEMD.iterdir():
        shutil.copy(path, tmp_path)
    here = Path(sys.executable).parent / "fp4tune"
    for path in tmp_path.glob("*.service"):
        text = path.read_text(encoding="utf-8")
        assert len(re.findall(rf"^ExecStart={INSTALLED} ", text, re.MULTILINE)) == 1
        path.write_text(text.replace(INSTALLED, str(here)), encoding="utf-8")
    return tmp_path


def analyze(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [program("systemd-analyze"), "--no-pager", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say(unit: str, units: Path):
    assert analyze(units, "verify", "--man=no", f"./{unit}") == (0, "")


@pytest.mark.parametrize(
    ("line", "word"), [("ProtectSytem=strict", "Unknown key"), ("ProtectSystem=sometimes", "Failed to parse")]
)
def test_the_check_above_sees_a_mistake(line: str, word: str, units: Path):
    unit = units / "fp4tune.service"
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", line))
    assert word in analyze(units, "verify", "--man=no", "./fp4tune.service")[1]


@pytest.mark.parametrize("unit", EXPOSURE)
def test_the_units_forbid_what_they_do_not_need(unit: str, units: Path):
    code, out = analyze(units, "security", "--offline=yes", f"--threshold={int(EXPOSURE[unit] * 10)}", f"./{unit}")
    assert code == 0, out.splitlines()[-1]


@pytest.mark.parametrize("name", ["fp4tune.service", "fp4tune-tune@.service"])
def test_what_the_units_set_is_a_setting_and_lies_where_they_may_write(name: str):
    text = (SYSTEMD / name).read_text(encoding="utf-8")
    known = {f"FP4TUNE_{field.upper()}" for field in Settings.model_fields} | {c.variable for c in caches._CACHES}
    for variable, value in re.findall(r"^Environment=(\w+)=(\S+)$", text, re.MULTILINE):
        assert variable in known | {"HOME", "PYTHONUNBUFFERED", "CUDA_CACHE_PATH"}, variable
        if value.startswith("/"):
            assert value.startswith(("/var/lib/fp4tune", "/var/cache/fp4tune")), variable
    assert "StateDirectory=fp4tune\n" in text
    assert ("CacheDirectory=fp4tune\n" in text) == ("/var/cache/" in text)


def test_the_tuning_unit_moves_every_cache():
    text = (SYSTEMD / "fp4tune-tune@.service").read_text(encoding="utf-8")
    for cache in caches._CACHES:
        assert f"Environment={cache.variable}=/var/cache/fp4tune" in text


def test_the_environment_file_holds_settings_only():
    text = (SYSTEMD / "fp4tune.env.example").read_text(encoding="utf-8")
    names = set(re.findall(r"^#?([A-Z][A-Z0-9_]+)=", text, re.MULTILINE))
    assert names - {"PGPASSWORD"} <= {f"FP4TUNE_{field.upper()}" for field in Settings.model_fields}
    assert "EnvironmentFile=-/etc/fp4tune/fp4tune.env" in (SYSTEMD / "fp4tune.service").read_text(encoding="utf-8")


def test_the_user_of_the_units_can_be_made():
    done = subprocess.run(
        [program("systemd-sysusers"), "--dry-run", str(SYSTEMD / "fp4tune.sysusers.conf")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("fp4tune.service", "fp4tune-tune@.service"):
        assert "User=fp4tune\nGroup=fp4tune\n" in (SYSTEMD / name).read_text(encoding="utf-8")
