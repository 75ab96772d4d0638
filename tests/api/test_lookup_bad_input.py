"""Questions about devices and environments that cannot be told apart, do not exist, or contradict each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fp4tune.api.index import WinnerIndex
from fp4tune.api.lookup import AmbiguousDeviceError, Answer, NoAnswer, find, locate
from fp4tune.kernels.errors import InvalidInputError
from fp4tune.kernels.problem import parse_shape
from winner_factory import device, entry, environment

SHAPE = "16x2048x4096"
PROBLEM = parse_shape(SHAPE)
ONE, OTHER = device("Card One"), device("Card Two")


@pytest.fixture(scope="module")
def two_devices() -> WinnerIndex:
    return WinnerIndex().with_entries(
        [entry(SHAPE, environment(ONE), number=1), entry(SHAPE, environment(OTHER), number=2, day=1)],
        [environment(ONE), environment(OTHER)],
    )


def test_no_device_named_and_several_known(two_devices: WinnerIndex):
    with pytest.raises(AmbiguousDeviceError, match="2 devices") as caught:
        locate(two_devices)
    assert set(caught.value.devices) == {ONE, OTHER}
    assert caught.value.slug == "ambiguous-device"
    assert caught.value.http_status == 409
    assert ONE.fingerprint in str(caught.value)
    assert "Card Two" in str(caught.value)


def test_name_that_two_devices_share():
    twins = [device("Twin", sms=100), device("Twin", sms=200)]
    index = WinnerIndex().with_entries(
        [entry(SHAPE, environment(d), number=i) for i, d in enumerate(twins, 1)], [environment(d) for d in twins]
    )
    with pytest.raises(AmbiguousDeviceError, match="'Twin' names 2 devices"):
        locate(index, "Twin")
    assert locate(index, twins[1].fingerprint).device == twins[1]
    assert locate(index, "Twin", environment(twins[1]).fingerprint).device == twins[1], "the environment decides"


def test_unknown_device_is_no_answer_and_says_which_there_are(two_devices: WinnerIndex):
    place = locate(two_devices, "Card Three")
    missing = find(two_devices, PROBLEM, place)
    assert isinstance(missing, NoAnswer)
    assert "'Card Three'" in missing.reasons[0]
    assert "Card One" in missing.reasons[0]
    assert not place.countable, "a name that fits no device belongs to nobody's demand"


@pytest.mark.parametrize("text", ["", " ", "card one", ONE.fingerprint[:7], ONE.fingerprint.upper(), "\x00", "ü" * 500])
def test_what_is_no_name_and_no_prefix_finds_nothing(two_devices: WinnerIndex, text: str):
    assert isinstance(find(two_devices, PROBLEM, locate(two_devices, text)), NoAnswer)


def test_unknown_whole_fingerprint_is_demand_of_that_device(two_devices: WinnerIndex):
    place = locate(two_devices, "0123456789abcdef")
    assert place.countable
    assert place.device_fingerprint == "0123456789abcdef"


def test_environment_of_another_device_is_refused(two_devices: WinnerIndex):
    with pytest.raises(InvalidInputError, match="belongs to device"):
        locate(two_devices, ONE.fingerprint, environment(OTHER).fingerprint)


def test_unknown_environment_is_no_answer_and_says_what_to_do(two_devices: WinnerIndex):
    place = locate(two_devices, ONE.fingerprint, "0123456789abcdef")
    missing = find(two_devices, PROBLEM, place)
    assert isinstance(missing, NoAnswer)
    assert any("send its versions" in reason for reason in missing.reasons)
    assert any("cannot be compared" in reason for reason in missing.reasons)
    assert place.environment_fingerprint == "0123456789abcdef"
    assert not locate(two_devices, ONE.fingerprint, "not-hex").countable


def test_prefix_of_two_environments_is_refused():
    # Two environments whose fingerprints share 8 digits cannot be had by chance, so the table is filled by hand.
    at, later = environment(ONE), environment(ONE, torch="2.13.0")
    index = WinnerIndex().with_entries([entry(SHAPE, at)], [at])
    index = replace(index, environments={"aaaaaaaa00000000": at, "aaaaaaaa11111111": later})
    with pytest.raises(InvalidInputError, match="beginning of several"):
        locate(index, None, "aaaaaaaa")


def test_empty_store():
    place = locate(WinnerIndex())
    missing = find(WinnerIndex(), PROBLEM, place)
    assert isinstance(missing, NoAnswer)
    assert missing.reasons == ("no winner is stored yet",)
    assert place.countable


def test_empty_versions_are_an_environment_in_which_everything_is_absent(two_devices: WinnerIndex):
    missing = find(two_devices, PROBLEM, locate(two_devices, "Card One", {}))
    assert isinstance(missing, NoAnswer)
    assert missing.reasons == ("a winner of 2026-11-02 is stale: torch 2.11.0 -> absent; triton 3.6.0 -> absent",)


def test_right_question_about_the_same_store_is_answered(two_devices: WinnerIndex):
    assert isinstance(find(two_devices, PROBLEM, locate(two_devices, "Card One")), Answer)
