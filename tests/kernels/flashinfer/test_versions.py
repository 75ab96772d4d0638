from __future__ import annotations

import importlib
import os

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm import seam as seam_module
from fp4tune.kernels.flashinfer_gemm import versions
from fp4tune.tuner.workers.caches import _CACHES


@pytest.mark.parametrize("version", [*versions.KNOWN, "0.7.3.post2", "0.7.4+cu130"])
def test_releases_from_0_7_2_to_0_7_4_are_in_range(version):
    assert versions.in_range(version)


@pytest.mark.parametrize("version", ["0.7.1", "0.7.5", "0.6.18", "1.0.0", "0.7.4rc1", "0.7.4.dev20261101", "0.7", ""])
def test_everything_else_is_not(version):
    assert not versions.in_range(version)


def test_a_missing_flashinfer_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda: "")
    assert versions.unfit_version() == "FlashInfer is not installed; install flashinfer-python==0.7.4."


def test_a_release_outside_is_told_with_both_ends_of_the_range(monkeypatch):
    monkeypatch.setattr(versions, "installed_version", lambda: "0.8.0")
    assert versions.unfit_version() == "It knows FlashInfer 0.7.2 to 0.7.4, and 0.8.0 is installed."
    assert seam_module.why_not() == versions.unfit_version()
    with pytest.raises(UnsupportedError, match="0.8.0 is installed"):
        seam_module.seam.__wrapped__()


def test_a_cpu_is_refused_before_anything_is_imported(monkeypatch):
    from fp4tune.kernels.device import detect

    monkeypatch.setattr(seam_module, "seam", lambda: pytest.fail("imported"))
    assert seam_module.why_not(detect("cpu")) == "It needs a CUDA device."


def test_flashinfers_cache_is_looked_for_where_flashinfer_has_it(flashinfer):
    theirs = importlib.import_module("flashinfer.jit.env").FLASHINFER_CACHE_DIR
    assert [cache.directory(os.environ) for cache in _CACHES if cache.family == "flashinfer"] == [theirs]
