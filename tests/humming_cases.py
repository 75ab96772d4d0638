"""Cards, problems and fixtures for the tests of the backend `humming`."""

from __future__ import annotations

import inspect
import os
import random

import pytest
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.humming_gemm import seam
from fp4tune.kernels.humming_gemm.versions import installed_version
from fp4tune.kernels.problem import Format, parse_shape

EXPECTED = "FP4TUNE_TEST_HUMMING"
"""Environment variable: the release that must be here. Without it tests skip where there is no Humming."""

GIB = 1 << 30
DEVICES = {
    "a100": Device("cuda", "NVIDIA A100-SXM4-80GB", "8.0", 108, 80 * GIB, 40 << 20, 400.0),
    "l40s": Device("cuda", "NVIDIA L40S", "8.9", 142, 48 * GIB, 96 << 20, 350.0),
    "h200": Device("cuda", "NVIDIA H200", "9.0", 132, 141 * GIB, 60 << 20, 700.0),
    "rtx_pro_6000": Device("cuda", "NVIDIA RTX PRO 6000 Blackwell", "12.0", 188, 96 * GIB, 128 << 20, 600.0),
    "gb10": Device("cuda", "NVIDIA GB10", "12.1", 48, 120 * GIB, 24 << 20, 0.0),
    "b200": Device("cuda", "NVIDIA B200", "10.0", 148, 180 * GIB, 126 << 20, 1000.0),
}
SHAPES = (
    ("16x4096x7168", Format.NVFP4),
    ("1x2048x4096", Format.NVFP4_W4A16),
    ("256x4096x7168", Format.NVFP4_W4A16),
    ("1024x24576x1536", Format.NVFP4),
    ("17x72x80", Format.NVFP4),
    ("e512k10:16x256x4096", Format.NVFP4),
    ("e512k10:4x4096x128", Format.NVFP4_W4A16),
    ("e64of512k10:256x2048x4096", Format.NVFP4),
)
CASES = [(device, shape, format_) for device in DEVICES for shape, format_ in SHAPES]


@pytest.fixture(scope="session")
def humming():
    """The installed library; its own tests skip where it is not installed."""
    expected = os.environ.get(EXPECTED)
    if expected:
        assert installed_version() == expected
        return seam.load()
    try:
        return seam.load()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cache(humming, tmp_path_factory):
    """An empty cache; Humming reads its folders once, so that what it keeps is forgotten before and after."""
    folder = tmp_path_factory.mktemp("humming")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CACHE", "TMP"):
            (folder / name).mkdir()
            patch.setenv(f"HUMMING_{name}_DIR", str(folder / name))
        forget_folders()
        yield folder / "CACHE"
    forget_folders()


def forget_folders():
    from humming.utils import jit

    for name in ("cache", "tmp", "lock", "module"):
        getattr(jit, f"get_humming_{name}_dir").cache_clear()
    getattr(jit.get_humming_lock_filename, "cache_clear", lambda: None)()


@pytest.fixture(scope="session")
def compiler(humming):
    """The compiler that Humming would use on an H200; tests that compile skip where there is none."""
    try:
        with humming.seen_as(DEVICES["h200"]):
            return humming.compiler()
    except UnsupportedError as error:
        if os.environ.get(EXPECTED):
            raise
        pytest.skip(str(error))


def problem_of(shape, format_):
    return parse_shape(shape, format=format_)


def heuristic_list(humming, plan, device):
    """What engines look up for a dense layer: [above M, up to M, schedule]. Within `seen_as`."""
    ask = humming._of["get_heuristics_config"]
    more = {"device": device.index} if "device" in inspect.signature(ask).parameters else {}
    return ask(humming.layer(plan), gemm_type="dense", **more)


def draw(space, n, seed=0):
    """Different legal configs at random."""
    rng, found = random.Random(seed), {}
    for _ in range(200 * n):
        config = {p.name: rng.choice(p.values) for p in space.parameters}
        if config in space:
            found[str(config)] = config
        if len(found) == n:
            break
    return list(found.values())
