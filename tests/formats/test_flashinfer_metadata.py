"""The metadata of an exported cache file: exact, or open where that says nothing about the tactics."""

from __future__ import annotations

import pytest
from fp4tune.api.formats.flashinfer_metadata import FIELDS, MetadataMode, file_metadata
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.device import Environment
from fp4tune.kernels.errors import UnsupportedError

CARD = CARDS["rtx-pro-6000"]
HERE = {
    "flashinfer_version": "0.7.4", "cuda_version": "13.0", "cublas_version": "13.1.0", "cudnn_version": "91500",
    "cudnn_frontend_version": "1.32.0", "cutlass_dsl_version": "nvidia-cutlass-dsl==4.3.0:0a;torch==2.11.0:ab12", "gpu": CARD.name,
}  # fmt: skip
MEASURED = Environment(CARD, {"driver": "580.95", "flashinfer": "0.7.4", "cuda": "13.0", "cudnn": "9.15.0"})
NOTHING_KNOWN = {"flashinfer_version": "0.7.4"} | dict.fromkeys(FIELDS[1:], "unknown")
EXACT, WILDCARD = MetadataMode.EXACT, MetadataMode.WILDCARD


def test_exact_is_what_flashinfer_says_of_the_environment():
    assert file_metadata(MEASURED, HERE, ["flashinfer.b12x"], EXACT) == HERE
    assert tuple(file_metadata(MEASURED, HERE, ["flashinfer.b12x"], EXACT)) == FIELDS


def test_the_card_is_the_one_that_was_measured_on_not_the_first_of_this_machine():
    assert file_metadata(MEASURED, HERE | {"gpu": "NVIDIA H200"}, ["flashinfer.b12x"], EXACT)["gpu"] == CARD.name


@pytest.mark.parametrize(
    ("backends", "open_fields"),
    [
        (["flashinfer.b12x"], {"cublas_version", "cudnn_version", "cudnn_frontend_version"}),
        (["flashinfer.cute_dsl"], {"cublas_version", "cudnn_version", "cudnn_frontend_version"}),
        (["flashinfer.cutlass"], set(FIELDS) - {"flashinfer_version", "gpu"}),
        (["flashinfer.cutlass", "flashinfer.b12x"], {"cublas_version", "cudnn_version", "cudnn_frontend_version"}),
        (["flashinfer.cudnn"], set()),
        (["flashinfer.cutlass", "flashinfer.cudnn"], set()),
        (["flashinfer.trtllm"], set()),
    ],
)
def test_a_wildcard_is_where_it_says_nothing_about_any_tactic_of_the_file(backends, open_fields):
    found = file_metadata(MEASURED, HERE, backends, WILDCARD)
    assert {field for field, value in found.items() if value == "*"} == open_fields
    assert {f: v for f, v in found.items() if v != "*"} == {f: HERE[f] for f in FIELDS if f not in open_fields}


@pytest.mark.parametrize("mode", [EXACT, WILDCARD])
def test_another_release_of_flashinfer_is_refused_whatever_is_left_open(mode):
    with pytest.raises(UnsupportedError, match=r"measured with FlashInfer 0\.7\.4, and 0\.7\.2 is installed here"):
        file_metadata(MEASURED, HERE | {"flashinfer_version": "0.7.2"}, ["flashinfer.cutlass"], mode)


def test_a_version_that_contradicts_is_refused_and_may_be_left_open_where_that_is_safe():
    other = HERE | {"cudnn_version": "91400"}
    with pytest.raises(UnsupportedError, match=r"cudnn_version was 9\.15\.0 .* is 91400 .* or use --metadata wildcard"):
        file_metadata(MEASURED, other, ["flashinfer.cutlass"], EXACT)
    assert file_metadata(MEASURED, other, ["flashinfer.cutlass"], WILDCARD)["cudnn_version"] == "*"
    for mode in (EXACT, WILDCARD):
        with pytest.raises(UnsupportedError, match=r"export in the environment of the winners\.$"):
            file_metadata(MEASURED, other, ["flashinfer.cudnn"], mode)


@pytest.mark.parametrize("versions", [{"cutlass_dsl": "4.2.1"}, {"cutlass_dsl": "4.3.0", "torch": "2.13.0"}])
def test_another_compiler_stack_is_refused_where_its_kernels_are_carried(versions):
    measured = Environment(CARD, {"flashinfer": "0.7.4", **versions})
    with pytest.raises(UnsupportedError, match="cutlass_dsl_version was "):
        file_metadata(measured, HERE, ["flashinfer.b12x"], WILDCARD)
    assert file_metadata(measured, HERE, ["flashinfer.cutlass"], WILDCARD)["cutlass_dsl_version"] == "*"
    measured = Environment(CARD, {"flashinfer": "0.7.4", "cutlass_dsl": "4.3.0", "torch": "2.11.0"})
    assert file_metadata(measured, HERE, ["flashinfer.b12x"], EXACT) == HERE


def test_a_field_that_nobody_knows_is_never_written_as_unknown():
    """FlashInfer ignores a file with `unknown` wherever it knows better, for ever."""
    with pytest.raises(UnsupportedError, match="without cublas_version, cudnn_frontend_version, cutlass_dsl_version"):
        file_metadata(MEASURED, NOTHING_KNOWN, ["flashinfer.cutlass"], EXACT)
    found = file_metadata(MEASURED, NOTHING_KNOWN, ["flashinfer.cutlass"], WILDCARD)
    assert "unknown" not in found.values()
    with pytest.raises(UnsupportedError, match=r"cutlass_dsl_version.*export on the machine with NVIDIA RTX PRO 6000"):
        file_metadata(MEASURED, NOTHING_KNOWN, ["flashinfer.b12x"], WILDCARD)
