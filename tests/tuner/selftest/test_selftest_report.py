"""The selftest's report: it may be shown to anybody, and says the same as the objects it is made of."""

from __future__ import annotations

import getpass
import json
import platform
from datetime import UTC, datetime

import pytest
from fp4tune.db.records import TrialStatus
from fp4tune.kernels.device import Environment, detect
from fp4tune.tuner.checkup import Check
from fp4tune.tuner.selftest import report as report_module
from fp4tune.tuner.selftest.report import Checked, Finding, LeftOut, Outcome, Report, document, scrub

CPU = detect("cpu")


@pytest.fixture
def names(monkeypatch):
    """A host and a user with names that are no words."""
    monkeypatch.setattr(platform, "node", lambda: "gpubox7.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    report_module._own_names.cache_clear()
    yield
    report_module._own_names.cache_clear()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot write /users/anna/.cache/fp4tune/x.so (No space)", "cannot write …/x.so (No space)"),
        ("cache:/users/anna/.cache/a", "cache:…/a"),
        ("in '~/models/secret-model/config.json'", "in '…/config.json'"),
        ("file:///srv/models/a/b.py line 3", "…/b.py line 3"),
        ("/srv/models/a/ is full", "…/ is full"),
        (
            "held by fp4tune tune (pid 3, user anna, host gpubox7)",
            "held by fp4tune tune (pid 3, user <user>, host <host>)",
        ),
        ("on gpubox7.lab.example", "on <host>"),
        ("GPU-0a000000-0000-0000-0000-000000000000 is busy", "<uuid> is busy"),
        # What is no path and no name stays.
        ("12.0 / 4 and/or 16x2048x4096 N/A 1/2", "12.0 / 4 and/or 16x2048x4096 N/A 1/2"),
        ("annabelle uses triton.native", "annabelle uses triton.native"),
    ],
)
def test_folders_hosts_users_and_uuids_are_taken_out(names, text, shown):
    assert scrub(text) == shown


def full_report():
    return Report(
        fp4tune="0.1.0",
        started_at=datetime(2026, 11, 30, 8, tzinfo=UTC),
        environment=Environment(CPU, {"torch": "2.11.0"}),
        card="NVIDIA RTX PRO 6000",
        ran_on_card=False,
        wall_s=12.345,
        checks=[
            Check("nvcc", ok=True, text="/usr/local/cuda/bin/nvcc, CUDA 12.9"),
            Check("other processes", ok=False, text="in use by their-engine (pid 4, 12.0 GiB)"),
        ],
        findings=[
            Finding("numerics", "a 1x2x16", Outcome.OK, "1 of 1 configs right"),
            Finding("export", "flashinfer", Outcome.NOT_RUN, "not installed"),
        ],
        checked=[
            Checked("dense:1x2x16:uniform:nvfp4:bf16", "a", {"tile": 8}, is_default=True, status=TrialStatus.OK,
                    rel_error=0.001, error=""),
        ],
        left_out=[LeftOut("dense:1x2x16:uniform:nvfp4:bf16", "a", 2, "time ran out", [{"tile": 1}, {"tile": 2}])],
    )  # fmt: skip


def test_the_document_has_everything_but_what_is_private(names):
    found = document(full_report())
    text = json.dumps(found)
    assert json.loads(text) == found
    assert (found["kind"], found["version"], found["ok"], found["wall_s"]) == ("fp4tune-selftest", 1, True, 12.3)
    assert found["checks"][0] == {"name": "nvcc", "ok": True, "text": "…/nvcc, CUDA 12.9"}
    assert found["checks"][1:] == [
        {"name": "other processes", "ok": False, "text": "not as it should be; `fp4tune doctor` says why"}
    ]
    for private in ("anna", "their-engine", "/usr/local", "gpubox7"):
        assert private not in text
    assert found["findings"][1] == {
        "step": "export", "subject": "flashinfer", "outcome": "not run", "text": "not installed",
    }  # fmt: skip
    assert found["checked"][0]["config"] == {"tile": 8}
    assert found["left_out"][0]["configs"] == [{"tile": 1}, {"tile": 2}]
    assert found["device"]["name"] == CPU.name
    assert "index" in found["device"]


def test_only_what_is_wrong_makes_it_fail():
    report = full_report()
    assert report.ok
    assert [one.subject for one in report.not_run] == ["flashinfer"]
    report.findings.append(Finding("compile", "b", Outcome.WRONG, "no"))
    assert not report.ok
    assert not document(report)["ok"]
