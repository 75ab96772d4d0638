"""The cache, the retry and the sentences, with a compiler that does what it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from fp4tune.kernels.cards import card_for
from fp4tune.kernels.cutlass_gemm import backend, builder
from fp4tune.kernels.cutlass_gemm.backend import Cutlass
from fp4tune.kernels.cutlass_gemm.build_config import BuildConfig
from fp4tune.kernels.cutlass_gemm.builder import ensure_built, first_error, key_of
from fp4tune.kernels.cutlass_gemm.space import default_config
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.problem import OutDtype, parse_shape

BUILD = BuildConfig.of(default_config(), OutDtype.BF16, "sm_120a")


def leftovers(cache) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name.startswith(".build-")]


def test_what_is_built_once_is_found_the_second_time(fake_nvcc, fake_tools, cache):
    first = ensure_built(BUILD, fake_tools)
    second = ensure_built(BUILD, fake_tools)
    assert (first.was_cached, second.was_cached) == (False, True)
    assert first.library == second.library
    assert first.library.read_text() == "code\n"
    assert len(fake_nvcc.calls) == 1
    record = json.loads((first.folder / builder.BUILD_RECORD).read_text())
    assert record["build"] == "128x128x128 cooperative persistent bf16 for sm_120a"
    assert (record["cutlass"], record["nvcc"]) == ("4.5.0", "13.0.88")
    assert record["seconds"] >= 0
    assert not leftovers(cache)


def test_a_config_is_compiled_once_its_shared_object_is_there(fake_tools, cache, monkeypatch):
    """Asked before a compiler is given minutes and gigabytes; what is passed at run time makes no difference."""
    monkeypatch.setattr(backend, "toolchain", lambda target: fake_tools)
    problem, card, config = parse_shape("16x4096x4096"), card_for("sm_120a"), default_config()
    assert not Cutlass().is_compiled(problem, card, config)
    entry = ensure_built(BUILD, fake_tools)
    assert Cutlass().is_compiled(problem, card, config)
    assert Cutlass().is_compiled(parse_shape("999x8x32"), card, {**config, "pad_m": 128, "raster": "along_n"})
    assert not Cutlass().is_compiled(problem, card, {**config, "swap_ab": True})
    entry.library.unlink()
    assert not Cutlass().is_compiled(problem, card, config)


def test_the_compiler_is_told_the_config_in_numbers(fake_nvcc, fake_tools, cache):
    build = replace(
        BUILD, tile="128x32x256", schedule="pingpong", scheduler="stream_k", swap_ab=True, out_dtype=OutDtype.FP32,
        target="sm_121a",
    )  # fmt: skip
    ensure_built(build, fake_tools)
    (call,) = fake_nvcc.calls
    for word in (
        "-DFP4TUNE_TILE_M=128", "-DFP4TUNE_TILE_N=32", "-DFP4TUNE_TILE_K=256", "-DFP4TUNE_PINGPONG=1",
        "-DFP4TUNE_STREAM_K=1", "-DFP4TUNE_SWAP_AB=1", "-DFP4TUNE_OUT=2", "arch=compute_121a,code=sm_121a",
    ):  # fmt: skip
        assert f"{word} " in call, word
    assert f"-I{fake_tools.headers.include} " in call


def test_everything_that_decides_the_code_is_in_the_key(fake_tools, monkeypatch):
    keys = {key_of(BUILD, fake_tools)}
    for change in (
        {"tile": "128x128x64"}, {"schedule": "pingpong"}, {"scheduler": "stream_k"}, {"swap_ab": True},
        {"out_dtype": OutDtype.FP16}, {"target": "sm_121a"},
    ):  # fmt: skip
        keys.add(key_of(replace(BUILD, **change), fake_tools))
    keys.add(key_of(BUILD, replace(fake_tools, nvcc_build="13.0.90")))
    keys.add(key_of(BUILD, replace(fake_tools, headers=replace(fake_tools.headers, version=(4, 2, 0)))))
    monkeypatch.setattr(builder, "_source_hash", lambda: "other sources")
    keys.add(key_of(BUILD, fake_tools))
    monkeypatch.undo()
    monkeypatch.setattr(builder, "_FLAGS", (*builder._FLAGS, "-lineinfo"))
    keys.add(key_of(BUILD, fake_tools))
    assert len(keys) == 11
    monkeypatch.undo()
    elsewhere = replace(fake_tools, headers=replace(fake_tools.headers, include=fake_tools.headers.include / "x"))
    assert key_of(BUILD, elsewhere) == key_of(BUILD, fake_tools), "where the headers lie decides nothing"


def test_a_build_that_fails_once_is_run_again(fake_nvcc, fake_tools, cache):
    fake_nvcc.will("echo Compilation terminated. >&2; exit 4", "echo code > $OUT")
    assert ensure_built(BUILD, fake_tools).library.read_text() == "code\n"
    assert len(fake_nvcc.calls) == 2


ASSERTION = (
    "/opt/include/cutlass/sm120_mma.hpp(180): error: static assertion failed with "
    '"SmemLayoutAtom must evenly divide tile shape."'
)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"echo '/x/y.hpp(1): warning: w'; echo '{ASSERTION}' >&2; echo 'z(2): error: second' >&2; exit 2",
         'static assertion failed with "SmemLayoutAtom must evenly divide tile shape."'),
        ("echo 'ptxas error   : Entry function uses too much shared data (0x1a000 bytes, 0x18c00 max)'; exit 255",
         "Entry function uses too much shared data (0x1a000 bytes, 0x18c00 max)."),
        ("echo 'kernel.cu:3:10: fatal error: cute/tensor.hpp: No such file or directory'; exit 1",
         "cute/tensor.hpp: No such file or directory."),
        ("echo Compilation terminated. >&2; exit 4", "Compilation terminated (exit status 4)."),
        ("exit 1", "it says nothing (exit status 1)."),
    ],
)  # fmt: skip
def test_a_build_that_fails_twice_becomes_one_sentence(fake_nvcc, fake_tools, cache, script, reason):
    fake_nvcc.will(script)
    with pytest.raises(UnsupportedError) as caught:
        ensure_built(BUILD, fake_tools)
    assert str(caught.value) == (
        "nvcc 13.0.88 with CUTLASS 4.5.0 does not compile 128x128x128 cooperative persistent bf16 for sm_120a: "
        f"{reason}"
    )
    assert len(fake_nvcc.calls) == builder.ATTEMPTS == 2
    assert not leftovers(cache)
    fake_nvcc.will("echo code > $OUT")
    assert not ensure_built(BUILD, fake_tools).was_cached, "a failure is not kept"


def test_a_compiler_that_was_killed_is_called_that(fake_nvcc, fake_tools, cache):
    fake_nvcc.will("echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\" >&2; exit 9")
    with pytest.raises(UnsupportedError, match=r"A compiler \(cicc\) was killed, as happens for want of memory"):
        ensure_built(BUILD, fake_tools)


def test_a_compiler_that_is_gone_is_a_sentence(fake_nvcc, fake_tools, cache):
    fake_nvcc.path.unlink()
    with pytest.raises(UnsupportedError, match=r"/nvcc does not run \(No such file or directory\)\.$"):
        ensure_built(BUILD, fake_tools)


def test_a_compiler_that_hangs_is_ended_with_what_it_started(fake_nvcc, fake_tools, cache, tmp_path):
    fake_nvcc.will(f"(echo $$ > {tmp_path}/outer; sh -c 'echo $$ > {tmp_path}/inner; sleep 600'; true); true")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"took longer than 1 s and was ended\.$"):
        ensure_built(BUILD, fake_tools, timeout_s=1)
    assert time.monotonic() - began < 20
    assert len(fake_nvcc.calls) == 1, "nobody waits for it twice"
    for name in ("outer", "inner"):
        stat = Path(f"/proc/{int((tmp_path / name).read_text())}/stat")
        assert not stat.exists() or stat.read_text().split()[2] == "Z"
    assert not leftovers(cache)


def test_two_who_ask_at_once_build_once(fake_nvcc, fake_tools, cache):
    """Threads take the lock of a file each for itself, as processes do."""
    fake_nvcc.will("sleep 0.5; echo code > $OUT")
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: ensure_built(BUILD, fake_tools), range(4)))
    assert len(fake_nvcc.calls) == 1
    assert sorted(one.was_cached for one in built) == [False, True, True, True]


def test_others_are_not_waited_for(fake_nvcc, fake_tools, cache):
    fake_nvcc.will("sleep 1; echo code > $OUT")
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda b: ensure_built(b, fake_tools), [BUILD, replace(BUILD, swap_ab=True)]))
    assert time.monotonic() - began < 1.9
    assert len(fake_nvcc.calls) == 2


def test_a_build_that_was_killed_leaves_the_lock_and_no_entry(fake_nvcc, fake_tools, cache, tmp_path):
    fake_nvcc.will(f"touch {tmp_path}/began; sleep 600", "echo code > $OUT")
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from fp4tune.kernels.cutlass_gemm.builder import ensure_built\n"
        "from fp4tune.kernels.cutlass_gemm.build_config import BuildConfig\n"
        "from fp4tune.kernels.cutlass_gemm.space import default_config\n"
        "from fp4tune.kernels.cutlass_gemm.toolchain import Headers, Toolchain\n"
        "from fp4tune.kernels.problem import OutDtype\n"
        "ensure_built(BuildConfig.of(default_config(), OutDtype.BF16, 'sm_120a'),"
        " Toolchain(Headers(Path('.'), (4, 5, 0)), Path(sys.argv[1]), '13.0', '13.0.88'))\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", code, str(fake_nvcc.path)], start_new_session=True)
    try:
        for _ in range(600):
            if (tmp_path / "began").exists():
                break
            time.sleep(0.05)
        assert (tmp_path / "began").exists()
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    assert ensure_built(BUILD, fake_tools).library.read_text() == "code\n"
    assert len(fake_nvcc.calls) == 2


def test_an_entry_without_its_library_is_built_again(fake_nvcc, fake_tools, cache):
    ensure_built(BUILD, fake_tools).library.unlink()
    assert ensure_built(BUILD, fake_tools).library.exists()
    assert len(fake_nvcc.calls) == 2


def test_a_cache_that_cannot_be_written_is_a_sentence(fake_nvcc, fake_tools, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(builder.CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(UnsupportedError, match=r"cannot be used \(Not a directory\); set FP4TUNE_CUTLASS_CACHE_DIR to"):
        ensure_built(BUILD, fake_tools)
    assert not fake_nvcc.calls


def test_the_cache_is_below_the_home_directory_unless_it_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv(builder.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert builder.cache_folder() == tmp_path / ".cache/fp4tune/cutlass"


def test_the_first_error_is_found_among_warnings_and_context():
    said = (
        "a.h(3): warning #20012-D: x\n          detected during\nb.h(4): error: no instance\n  of it\nc.h(5): error: y"
    )
    assert first_error(said, 2) == "no instance."
