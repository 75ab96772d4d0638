"""What the tests of FlashInfer's backends share: cards that are not here, and the installed FlashInfer if there is one."""

from __future__ import annotations

import os

import pytest
from fp4tune.kernels.device import Device
from fp4tune.kernels.flashinfer_gemm.versions import installed_version

WANTED = os.environ.get("FP4TUNE_TEST_FLASHINFER", "")
"""The release that `make test-flashinfer` says is installed; another one, or none, fails the run."""


def pytest_collection_modifyitems():
    if WANTED and installed_version() != WANTED:
        pytest.exit(f"FlashInfer {WANTED} was to be tested, and {installed_version() or 'none'} is installed.", 3)


@pytest.fixture(scope="session")
def flashinfer(tmp_path_factory):
    """The seam over the installed FlashInfer, whose cache is a temporary folder; without one the test is skipped."""
    if not installed_version():
        pytest.skip("FlashInfer is not installed; make test-flashinfer installs it")
    os.environ["FLASHINFER_WORKSPACE_BASE"] = str(tmp_path_factory.mktemp("flashinfer"))
    from fp4tune.kernels.flashinfer_gemm.seam import seam

    return seam()


def card(capability: str = "12.0", sms: int = 188) -> Device:
    """A card that is not here. 188 SMs: RTX PRO 6000; 170: RTX 5090; 48 with 12.1: GB10; 148 with 10.0: B200."""
    return Device("cuda", f"card of {capability} with {sms} SMs", capability, sms, 96 << 30, 128 << 20, 600.0)


@pytest.fixture
def rtx_pro_6000():
    return card()


@pytest.fixture
def with_cudnn(flashinfer, monkeypatch):
    """As if the cuDNN library were here: its frontend is, and only says so when it is asked for the library's version."""
    import cudnn

    monkeypatch.setattr(cudnn, "backend_version", lambda: 92301)
