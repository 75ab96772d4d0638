"""What each release of Humming has, and the sentences for what is not there."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.humming_gemm import seam, versions
from fp4tune.kernels.humming_gemm.backend import Humming, known
from fp4tune.kernels.humming_gemm.schedule import KNOBS, decode, encode, has_knob
from fp4tune.kernels.problem import Format, parse_shape
from humming_cases import DEVICES, EXPECTED, draw, forget_folders

H200 = DEVICES["h200"]
CONFIG = {
    "mma": "mma", "warp_m": 16, "m_warps": 1, "warp_n": 32, "n_warps": 4, "warp_k": 64, "k_warps": 2, "stages": 4,
    "ctas_per_sm": 1, "stream_k": True, "load": "async",
}  # fmt: skip


@pytest.fixture
def calls_itself(tmp_path, monkeypatch):
    """A function that puts a distribution of Humming with another version before the installed one."""

    def put(version):
        info = tmp_path / f"humming_kernels-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: humming-kernels\nVersion: {version}\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    return put


@pytest.fixture
def reloaded():
    """`load` looks again, now and after the test."""
    seam.load.cache_clear()
    yield
    seam.load.cache_clear()


def test_the_release_under_test_is_the_one_that_was_asked_for(humming):
    assert versions.installed_version() == os.environ.get(EXPECTED, versions.installed_version())


def test_the_table_is_what_the_release_has(humming):
    from humming.config import TuningConfig

    found = frozenset(field.name for field in dataclasses.fields(TuningConfig))
    assert versions.FIELDS[versions.installed_version()] == found


@pytest.mark.parametrize("version", ["0.1.11", "0.1.15", "0.1.21", "1.0.0"])
def test_another_release_is_refused_with_the_range(calls_itself, reloaded, version):
    calls_itself(version)
    sentence = f"It knows Humming 0.1.12, 0.1.19 and 0.1.20, and {version} is installed."
    assert Humming().probe(H200).reason == sentence
    assert all(known_version in versions.RANGE for known_version in versions.FIELDS)
    for ask in (Humming().space, Humming().default):
        with pytest.raises(UnsupportedError, match="^humming cannot be used. " + sentence.replace(".", r"\.")):
            ask(parse_shape("3x4096x7168"), H200)
    assert Humming().versions(H200) == {}


def test_none_at_all(monkeypatch, reloaded):
    monkeypatch.setattr(versions, "DISTRIBUTION", "humming-kernels-that-nobody-has")
    assert Humming().probe(H200).reason.startswith("Humming is not installed; install humming-kernels")


def test_a_build_that_is_not_the_release_it_says_it_is(humming, calls_itself, reloaded):
    """The version's table and the package's fields are compared before anything is asked of it."""
    here = versions.installed_version()
    other = "0.1.19" if here == "0.1.20" else "0.1.20"
    calls_itself(other)
    with pytest.raises(UnsupportedError, match=rf"Humming (calls itself )?{other} .*(has|lacks|cannot be imported) "):
        seam.load()


def test_what_a_build_has_more_or_less_is_named():
    fields = versions.FIELDS["0.1.20"]
    assert versions.unfit_fields("0.1.20", fields) == ""
    assert versions.unfit_fields("0.1.20", (fields | {"use_magic"}) - {"use_pdl"}) == (
        "The installed Humming calls itself 0.1.20 and is not that release: its schedule has use_magic and lacks use_pdl."
    )


def test_a_release_that_cannot_be_imported(calls_itself, monkeypatch, reloaded):
    calls_itself("0.1.20")
    monkeypatch.setitem(sys.modules, "humming.config", None)  # how Python says that it cannot be imported
    with pytest.raises(UnsupportedError, match=r"^Humming 0.1.20 cannot be imported \(ModuleNotFoundError: .*\[cu13\]"):
        seam.load()


@pytest.mark.parametrize("version", versions.FIELDS)
def test_a_schedule_says_only_what_the_release_has(version):
    tuning = encode(CONFIG, fields=versions.FIELDS[version])
    assert set(tuning) <= versions.FIELDS[version]
    assert ("mma_type" in tuning) == (version != "0.1.12")
    assert decode(tuning, "dense", mma="mma", sms=132).items() >= CONFIG.items()


def test_reuse_has_two_spellings():
    for value in ("all_stages", "last_stage"):
        older = encode(CONFIG | {"reuse": value}, fields=versions.FIELDS["0.1.12"])
        newer = encode(CONFIG | {"reuse": value}, fields=versions.FIELDS["0.1.20"])
        assert older["reduce_overlap_last_stage_only"] == (newer["smem_reuse_mode"] == "last_stage")
        for tuning in (older, newer):
            assert decode(tuning, "dense", mma="mma", sms=132)["reuse"] == value


def test_what_a_release_has_no_field_for_is_refused():
    with pytest.raises(UnsupportedError, match="has no evict_weights_first, which evict_weights_first=True needs"):
        encode(CONFIG | {"evict_weights_first": True}, fields=versions.FIELDS["0.1.12"])
    with pytest.raises(UnsupportedError, match="sets use_magic=3, which fp4tune has no name for"):
        decode({"block_shape": (16, 128, 64), "warp_shape": (16, 32, 64), "use_magic": 3}, "dense", mma="mma", sms=1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_space_has_no_parameter_that_the_release_lacks(humming, device):
    for shape in ("16x4096x7168", "e64k8:256x2048x4096"):
        found = known(parse_shape(shape, format=Format.NVFP4_W4A16), DEVICES[device])
        for parameter in found.space.parameters:
            assert parameter.name not in KNOBS or parameter.name == "store" or has_knob(parameter.name, humming.fields)
        for config in draw(found.space, 20):
            assert set(encode(config, fields=humming.fields)) <= humming.fields | {"num_sms"}


def test_a_release_whose_layer_holds_the_instruction_searches_one(humming):
    found = known(parse_shape("16x4096x7168"), H200)
    (mma,) = [p.values for p in found.space.parameters if p.name == "mma"]
    assert set(mma) == ({"wgmma", "wgmma_split", "mma"} if "mma_type" in humming.fields else {"wgmma"})


def test_a_card_that_the_release_does_not_know_is_refused(humming):
    """SM110 came after 0.1.12, and no heuristic asserts for cards that do not exist."""
    thor = dataclasses.replace(DEVICES["b200"], compute_capability="13.0", name="NVIDIA Nonesuch")
    with pytest.raises(UnsupportedError, match=r"has no schedule for .*2x4096x7168.* on NVIDIA Nonesuch \("):
        Humming().space(parse_shape("2x4096x7168"), thor)


def test_folders_that_cannot_be_written(humming, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for name in ("CACHE", "TMP"):
        with monkeypatch.context() as patch:
            patch.setenv("HUMMING_CACHE_DIR", str(tmp_path))
            patch.setenv("HUMMING_TMP_DIR", str(tmp_path))
            patch.setenv(f"HUMMING_{name}_DIR", str(tmp_path / "file" / "below"))
            forget_folders()
            sentence = rf"^Humming's folder {tmp_path}/file/below cannot be written \(Not a directory\); set HUMMING_{name}_DIR"
            problem = parse_shape("16x4096x7168")
            with pytest.raises(UnsupportedError, match=sentence):
                Humming().compile(problem, H200, Humming().default(problem, H200))
        forget_folders()


def test_no_compiler(humming, tmp_path):
    """Neither NVRTC nor a toolkit. Humming looks for both in one list, which is empty in a process of its own."""
    script = tmp_path / "script.py"
    script.write_text(NO_COMPILER)
    environment = os.environ | {"HUMMING_CACHE_DIR": str(tmp_path), "HUMMING_TMP_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    nvrtc, nvcc, versions_ = done.stdout.splitlines()
    for sentence in (nvrtc, nvcc):
        assert re.match(
            r"Humming finds no compiler \((No suitable|Failure finding) .*; install humming-kernels\[cu13\] or ",
            sentence,
        )
    assert versions_ == "{}"


NO_COMPILER = """
import os
os.environ["HUMMING_DISABLE_PARALLEL_BUILD"] = "1"
import humming.utils.cuda
humming.utils.cuda.find_all_cuda_paths = list
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.humming_gemm.backend import Humming
from fp4tune.kernels.problem import parse_shape
from humming_cases import DEVICES
problem, device = parse_shape("16x4096x7168"), DEVICES["h200"]
for name in ("nvrtc", "nvcc"):
    os.environ["HUMMING_COMPILER"] = name
    try:
        Humming().compile(problem, device, Humming().default(problem, device))
    except UnsupportedError as error:
        print(error)
print(Humming().versions(device))
"""
