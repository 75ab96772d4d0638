"""Spaces made of what FlashInfer offers, which need no FlashInfer."""

from __future__ import annotations

import pytest
from fp4tune.kernels.backend import config_key
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm.offers import Offers
from fp4tune.kernels.flashinfer_gemm.tactics import B12xCodec, CuteDslCodec

PLAIN = ((64, 64), (1, 1), False, True, "sm120", None)
SWAPPED = ((64, 32), (1, 1), True, False, "sm120", None)


@pytest.fixture
def offers():
    return Offers(B12xCodec(), "0.7.4", {0: [PLAIN, SWAPPED], 128: [PLAIN]})


def test_a_space_holds_what_is_offered_and_nothing_else(offers):
    configs = list(offers.space)
    assert [offers.tactic_of(config) for config in configs] == [
        (0, -1), (0, PLAIN), (0, SWAPPED), (128, -1), (128, PLAIN),
    ]  # fmt: skip
    assert offers.space.size == 5
    assert all(config in offers.space for config in configs)
    swapped_and_padded = {**B12xCodec().decode(SWAPPED), "pad_m": 128}
    assert swapped_and_padded not in offers.space
    assert {**configs[1], "tile_n": 32} not in offers.space
    assert {**configs[1], "tile_n": "default"} not in offers.space


def test_the_default_leaves_everything_to_flashinfer_without_padding(offers):
    assert offers.default in offers.space
    assert offers.tactic_of(offers.default) == (0, -1)


def test_every_parameter_can_say_default_and_is_sorted(offers):
    values = {parameter.name: parameter.values for parameter in offers.space.parameters}
    assert values["tile_n"] == ("default", 32, 64)
    assert values["swap_ab"] == ("default", False, True)
    assert values["cluster"] == ("default", "1x1")
    assert values["pad_m"] == (0, 128)


def test_a_space_of_many_fields_is_listed_and_not_multiplied():
    raw = ("raw", 64, 32, 8, False, True, 128, False, False, False, False)
    space = Offers(CuteDslCodec(), "0.7.4", {0: [("independent",), ("independent_tma",), raw]}).space
    assert space.size == len(list(space)) == 4


def test_a_tactic_offered_twice_is_one_config():
    assert Offers(B12xCodec(), "0.7.4", {0: [PLAIN, list(PLAIN)]}).space.size == 2


def test_a_config_without_pad_m_is_refused(offers):
    config = B12xCodec().decode(PLAIN)
    with pytest.raises(UnsupportedError, match="needs pad_m") as caught:
        offers.tactic_of(config)
    assert config_key(config) in str(caught.value)
