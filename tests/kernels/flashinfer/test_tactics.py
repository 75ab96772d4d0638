"""Codecs, which need no FlashInfer."""

from __future__ import annotations

import pytest
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm.cutlass_tiles import tiles_of_header
from fp4tune.kernels.flashinfer_gemm.tactics import (
    DEFAULT,
    TILES,
    B12xCodec,
    CudnnCodec,
    CuteDslCodec,
    CutlassCodec,
    TrtllmCodec,
    plain,
)
from hypothesis import given
from hypothesis import strategies as st

CODECS = [CutlassCodec(), B12xCodec(), CudnnCodec(), CuteDslCodec(), TrtllmCodec("abc/gemm-1")]

RAW = ("raw", 64, 32, 8, False, True, 256, True, False, False, False)

EXAMPLES = [
    (CutlassCodec(), 0, {"tile_m": 128, "tile_n": 32, "tile_k": 128, "swap_ab": True, "scheduler": "static"}),
    (CutlassCodec(), 21, {"tile_m": 128, "tile_n": 128, "tile_k": 256, "swap_ab": False, "scheduler": "static"}),
    (CutlassCodec(), 26, {"tile_m": 256, "tile_n": 128, "tile_k": 128, "swap_ab": True, "scheduler": "stream_k"}),
    (CutlassCodec(), 31, {"tile_m": 128, "tile_n": 256, "tile_k": 128, "swap_ab": False, "scheduler": "stream_k"}),
    (
        B12xCodec(),
        ((64, 32), (1, 1), True, False, "sm120", None),
        {"tile_m": 64, "tile_n": 32, "cluster": "1x1", "swap_ab": True, "prefetch": False},
    ),
    (CudnnCodec(), (4, ((2, 1), (13, 0))), {"engine": 4, "knobs": "2=1,13=0"}),
    (CudnnCodec(), (0, ()), {"engine": 0, "knobs": ""}),
    (TrtllmCodec("abc/gemm-1"), 17, {"artifact": "abc/gemm-1", "kernel": 17}),
]


@pytest.mark.parametrize(("codec", "tactic", "config"), EXAMPLES)
def test_a_tactic_is_told_by_name_and_back(codec, tactic, config):
    assert config_key(codec.decode(tactic)) == config_key(config)
    assert codec.encode(config) == tactic


def test_a_raw_kernel_of_cute_dsl_is_told_field_by_field():
    config = CuteDslCodec().decode(RAW)
    assert config["kernel"] == "raw"
    assert (config["epi_m"], config["epi_n"], config["tile_k"], config["internal_swap"]) == (64, 32, 256, True)
    assert CuteDslCodec().encode(config) == RAW


def test_kernels_of_cute_dsl_without_fields_say_that_they_have_none():
    config = CuteDslCodec().decode(("independent_tma",))
    assert config.pop("kernel") == "independent_tma"
    assert set(config.values()) == {"none"}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.runner)
def test_flashinfers_own_choice_is_default_everywhere(codec):
    config = codec.decode(-1)
    assert tuple(config) == codec.parameters
    assert set(config.values()) == {DEFAULT}
    assert codec.encode(config) == -1


def test_every_index_of_cutlass_is_another_config():
    codec = CutlassCodec()
    configs = [codec.decode(index) for index in range(32)]
    assert len({config_key(config) for config in configs}) == 32
    assert [codec.encode(config) for config in configs] == list(range(32))


@given(
    st.integers(0, 1 << 20),
    st.dictionaries(st.integers(0, 40), st.integers(-1, 1 << 16), max_size=6),
)
def test_cudnns_engine_and_knobs_survive(engine, knobs):
    tactic = (engine, tuple(sorted(knobs.items())))
    assert CudnnCodec().encode(CudnnCodec().decode(tactic)) == tactic


@pytest.mark.parametrize(
    ("codec", "tactic"),
    [
        (CutlassCodec(), 32),
        (CutlassCodec(), -2),
        (CutlassCodec(), True),
        (CutlassCodec(), (0,)),
        (B12xCodec(), ((64, 64), (1, 1), False, True, "sm100", None)),
        (B12xCodec(), ((64, 64), (1, 1), False, True, "sm120", True)),
        (B12xCodec(), ((64, 64), (1, 1), False, True)),
        (B12xCodec(), 3),
        (CudnnCodec(), 3),  # a plan's index means another plan in the next cuDNN
        (CudnnCodec(), (3, ((13, 0), (2, 1)))),
        (CudnnCodec(), (3, ((2, 1), (2, 1)))),
        (CuteDslCodec(), ("independent", 1)),
        (CuteDslCodec(), ("persistent",)),
        (CuteDslCodec(), RAW[:-1]),
        (CuteDslCodec(), (*RAW[:4], 0, *RAW[5:])),
        (TrtllmCodec("a"), (1, 2)),
    ],
)
def test_a_tactic_of_another_form_is_refused_and_shown(codec, tactic):
    with pytest.raises(UnsupportedError, match="form that fp4tune does not know") as caught:
        codec.decode(tactic)
    assert repr(tactic) in str(caught.value)


@pytest.mark.parametrize(
    ("codec", "change"),
    [
        (CutlassCodec(), {"tile_k": 512}),
        (CutlassCodec(), {"swap_ab": 1}),
        (CutlassCodec(), {"scheduler": "split_k"}),
        (CutlassCodec(), {"tile_m": DEFAULT}),
        (B12xCodec(), {"cluster": "1"}),
        (B12xCodec(), {"prefetch": "yes"}),
        (CudnnCodec(), {"knobs": "13=0,2=1"}),
        (CudnnCodec(), {"knobs": "x"}),
        (CuteDslCodec(), {"kernel": "independent"}),
        (TrtllmCodec("abc/gemm-1"), {"artifact": "another"}),
    ],
)
def test_a_config_that_is_no_tactic_is_refused(codec, change):
    tactic = {
        "CutlassFp4GemmRunner": 21,
        "B12xFp4GemmRunner": ((64, 64), (1, 1), False, True, "sm120", None),
        "CudnnFp4GemmRunner": (4, ((2, 1), (13, 0))),
        "Sm12xCuTeFp4GemmRunner": RAW,
        "TrtllmGemmRunner": 17,
    }[codec.runner]
    config = {**codec.decode(tactic), **change}
    with pytest.raises(UnsupportedError, match="has no tactic for the config"):
        codec.encode(config)
    with pytest.raises(UnsupportedError, match="has no tactic for the config"):
        codec.encode({})


def test_what_json_and_c_make_of_a_tactic_is_put_right():
    class Index:
        def __index__(self):
            return 7

    assert plain([[64, 32], [1, 1], True, False, "sm120", None]) == ((64, 32), (1, 1), True, False, "sm120", None)
    assert plain([Index(), [[Index(), 1]]]) == (7, ((7, 1),))
    with pytest.raises(UnsupportedError, match=r"1\.5"):
        plain([1.5])


HEADER = """
  std::vector<CutlassTileConfigSM120> tiles = {
      CutlassTileConfigSM120::CtaShape128x32x64B, CutlassTileConfigSM120::CtaShape256x128x128B,
  };
  for (auto const& tile_config : tiles) {
"""
PUSH = """configs.push_back(CutlassGemmConfig(tile_config, MainloopScheduleType::AUTO,
    EpilogueScheduleType::AUTO, clusterShape, {}, {}));
"""
ORDER = [("true", "false"), ("false", "false"), ("true", "true"), ("false", "true")]


def test_tiles_are_read_from_a_header_in_elements(tmp_path):
    header = tmp_path / "tiles.h"
    header.write_text(HEADER + "".join(PUSH.format(*flags) for flags in ORDER))
    assert tiles_of_header(header, "0.7.4") == [(128, 32, 128), (256, 128, 256)]


@pytest.mark.parametrize("order", [ORDER[::-1], ORDER[:3], [*ORDER, ORDER[0]]])
def test_a_header_that_numbers_otherwise_is_refused(tmp_path, order):
    header = tmp_path / "tiles.h"
    header.write_text(HEADER + "".join(PUSH.format(*flags) for flags in order))
    with pytest.raises(UnsupportedError, match="in a way that fp4tune does not know"):
        tiles_of_header(header, "0.7.9")


def test_a_header_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UnsupportedError, match=r"lacks the header gone\.h"):
        tiles_of_header(tmp_path / "gone.h", "0.7.4")


def test_known_tiles_are_eight_different_ones():
    assert len(set(TILES)) == len(TILES) == 8
