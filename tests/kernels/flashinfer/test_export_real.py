"""An exported cache file, loaded by the really installed FlashInfer.

The winners are made up: no SM120 card was there to measure one. What is tested is the format: that FlashInfer takes the
file, that every call finds its entry, and that the tactic that comes back is the one that was chosen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from export_store import CARD, Ran, Tuned, environment, make
from fp4tune.api.cli.app import run
from fp4tune.api.formats import flashinfer as exporter
from fp4tune.api.formats.flashinfer_child import Child
from fp4tune.api.formats.trial_export import trial_export
from fp4tune.db.records import Origin
from fp4tune.kernels.cards import CARDS
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.flashinfer_gemm.backends import DSL, B12x, Cudnn, CuteDsl, Cutlass
from fp4tune.kernels.flashinfer_gemm.cutlass_moe import CutlassMoe
from fp4tune.kernels.flashinfer_gemm.tactics import B12xCodec, CudnnCodec, CuteDslCodec, CutlassCodec
from fp4tune.kernels.flashinfer_gemm.versions import installed_version
from fp4tune.kernels.problem import OutDtype, parse_shape
from fp4tune.tuner.executor import Candidate
from fp4tune.tuner.selftest import Outcome

B12X_TACTIC = ((64, 128), (1, 1), False, True, "sm120", None)
RAW_TACTIC = ("raw", 64, 32, 8, False, True, 128, False, False, False, False)
COLD = ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]
EAGER_HOT = ["cuda_graph_profile_replays", None, "l2_cache_policy", "hot"]
BACKENDS = {backend.name: backend() for backend in (B12x, CuteDsl, Cutlass, Cudnn, CutlassMoe)}
MOE = "moe:e8k2:16x512x1024"
FUSED = {
    "gemm1_tile": "128x128x128", "gemm1_swap_ab": False, "gemm2_tile": "128x128x256", "gemm2_swap_ab": True,
    "finalize": "fused",
}  # fmt: skip

LOOK_UP = """
import json, sys
from flashinfer import autotune
from flashinfer.autotuner import AutoTuner, _collect_metadata
from fp4tune.kernels.flashinfer_gemm import arguments
from fp4tune.kernels.flashinfer_gemm.seam import seam
from fp4tune.kernels.flashinfer_gemm.stand_ins import replaced_everywhere
from fp4tune.kernels.problem import parse_shape

class Enough(Exception): pass

path, metadata, asked = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
flashinfer, answers = seam(), []
choose_one = AutoTuner.choose_one

def spy(self, *args, **kwargs):
    runner, tactic = choose_one(self, *args, **kwargs)
    answers.append([type(runner).__name__, tactic])
    raise Enough

with replaced_everywhere(_collect_metadata, lambda: dict(metadata)), autotune(False, cache=path):
    AutoTuner.choose_one = spy
    for shape, backend, alpha_shape in asked:
        problem = parse_shape(shape)
        with flashinfer.on((12, 0), 188):
            a = arguments.stand_ins(problem, problem.m, alpha_shape=tuple(alpha_shape))
            try:
                flashinfer.mm_fp4(a.a, a.b.T, a.a_scale, a.b_scale.T, a.alpha, a.out.dtype, a.out, backend=backend)
            except Enough:
                pass
print("ANSWERS" + json.dumps(answers))
"""
"""What an engine does: FlashInfer's own context with the file, FlashInfer's own call. Nothing of the exporter is used."""


def config(codec, tactic):
    return {**codec.decode(tactic), "pad_m": 0}


def won(shape, backend, codec, tactic, *others, **stated):
    ran = Ran(backend, config(codec, tactic), 8.0, Origin.FINAL)
    return Tuned(parse_shape(shape, **stated), ran, others)


TUNED = [
    won("16x6144x4096", "flashinfer.b12x", B12xCodec(), B12X_TACTIC),
    won("8x6144x4096", "flashinfer.b12x", B12xCodec(), -1),
    won("4x2048x4096", "flashinfer.cutlass", CutlassCodec(), 7),
    won("32x2048x4096", "flashinfer.cute_dsl", CuteDslCodec(), ("independent",)),
    won("256x2048x4096", "flashinfer.cute_dsl", CuteDslCodec(), RAW_TACTIC),
    # Another backend won, and a tactic of FlashInfer beats FlashInfer's default.
    Tuned(
        "64x2048x4096",
        Ran("triton.native", {"block_m": 64}, 8.0, Origin.FINAL),
        [
            Ran("flashinfer.cutlass", config(CutlassCodec(), 21), 9.0),
            Ran("flashinfer.cutlass", config(CutlassCodec(), -1), 12.0, Origin.DEFAULT),
        ],
    ),
]
LAYER = Tuned(MOE, Ran("flashinfer.cutlass_moe", FUSED, 30.0, Origin.FINAL))
REFUSED = [
    won("4x2048x4096", "flashinfer.cutlass", CutlassCodec(), 9, out_dtype=OutDtype.FP16),
    won("17x2048x4096", "flashinfer.cutlass", CutlassCodec(), 7),
    # The codec takes it, and only the card knows cuDNN's plans; FlashInfer refuses the call without the library.
    won("2x2048x4096", "flashinfer.cudnn", CudnnCodec(), (3, ((2, 1),))),
    Tuned("e8k2:16x512x1024", Ran("triton.dequant", {"block_m": 64}, 8.0)),
]


def measured_here():
    """An environment with the card, and with what is installed here."""
    dsl = installed_version(DSL)
    return environment(flashinfer=installed_version(), cutlass_dsl=dsl)


@pytest.fixture(scope="module")
def exported(flashinfer, tmp_path_factory):
    """(folder, what `fp4tune export --json` said)"""
    folder = tmp_path_factory.mktemp("export")
    make(folder / "e.db", [*TUNED, LAYER, *REFUSED], measured_here())
    command = ["export", "--format", "flashinfer", "--db", str(folder / "e.db"), "--out", str(folder / "f.json")]
    with pytest.MonkeyPatch.context() as patched, (folder / "said.json").open("w") as said:
        patched.setattr(exporter, "load_backends", lambda: BACKENDS)
        patched.setattr(sys, "stdout", said)
        assert run([*command, "--json"]) == 0
    return folder, json.loads((folder / "said.json").read_text())


def looked_up(path, metadata, *asked):
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, str(path), json.dumps(metadata), json.dumps(asked)],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("ANSWERS", 1)[1])


def test_the_file_has_one_runner_a_shape_and_both_shapes_of_alpha(exported):
    folder, said = exported
    document = json.loads((folder / "f.json").read_text())
    assert document.pop("_metadata") == said["metadata"]
    assert len(document) == len(said["entries"]) == 2 * len(TUNED) + 2
    layer = {key: document.pop(key) for key in list(document) if "fused_moe" in key}
    assert all(value[2] == COLD for value in document.values())
    profile = "(({m}, 2048), (2048, 6144), (-1, 256), (256, 6144), {alpha}, (0,), (-1, 6144), (0,), (0,), (-1,)), ())"
    for alpha in ("()", "(1,)"):
        key = "('fp4_gemm', 'B12xFp4GemmRunner', " + profile.format(m=16, alpha=alpha)
        assert document[key] == ["B12xFp4GemmRunner", [[64, 128], [1, 1], False, True, "sm120", None], COLD]
        key = "('fp4_gemm', 'B12xFp4GemmRunner', " + profile.format(m=8, alpha=alpha)
        assert document[key] == ["B12xFp4GemmRunner", -1, COLD]
    shapes = {key.split("((", 1)[1] for key in document}
    assert len(shapes) == len(document), "no shape has two runners"
    # A fused layer: an entry for each of its two products, absolute indices, measured as FlashInfer measures it.
    tactics, fused = CutlassMoe().tactics().encode(FUSED)
    assert fused
    assert sorted(key.split("'")[1] for key in layer) == ["trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"]
    assert [layer[key] for key in sorted(layer)] == [["MoERunner", tactic, EAGER_HOT] for tactic in tactics]


def test_what_is_not_in_it_is_said(exported):
    _, said = exported
    left_out = {(one["problem"]["m"], one["problem"]["out_dtype"]): one["why"] for one in said["left_out"]}
    assert len(left_out) == len(REFUSED)
    assert left_out[4, "fp16"] == "Its key is that of output bf16, which the file carries."
    assert "M = 17 is no bucket of FlashInfer's" in left_out[17, "bf16"]
    assert "flashinfer.cudnn has no entry for it. FlashInfer" in left_out[2, "bf16"]
    assert "the cache has no entries for grouped problems" in left_out[16, "bf16"]
    winners = {one["problem"]["m"]: one["is_winner"] for one in said["carried"]}
    assert winners == {16: True, 8: True, 4: True, 32: True, 256: True, 64: False}, "16 of a dense and of a fused layer"


def test_the_metadata_is_of_the_environment_of_the_winners(exported):
    _, said = exported
    assert said["metadata"]["gpu"] == CARD.name
    assert said["metadata"]["flashinfer_version"] == installed_version()
    assert said["metadata"]["cudnn_version"] == "91500"
    assert f"=={installed_version(DSL)}" in said["metadata"]["cutlass_dsl_version"]
    assert not {"unknown", "*", ""} & set(said["metadata"].values())
    assert said["verified_as_if"], "this machine has no such card"


def test_flashinfer_itself_finds_every_entry_and_tactic(exported):
    """Through `autotune(False, cache=...)` and `mm_fp4`, for every M of a bucket, whichever shape alpha has."""
    folder, said = exported
    expected = {
        ("6144x4096", "b12x", (9, 16)): ["B12xFp4GemmRunner", [[64, 128], [1, 1], False, True, "sm120", None]],
        ("2048x4096", "cutlass", (3, 4)): ["CutlassFp4GemmRunner", 7],
        ("2048x4096", "cute-dsl", (17, 32)): ["Sm12xCuTeFp4GemmRunner", ["independent"]],
        ("2048x4096", "cute-dsl", (256,)): ["Sm12xCuTeFp4GemmRunner", list(RAW_TACTIC)],
        ("2048x4096", "cutlass", (33, 64)): ["CutlassFp4GemmRunner", 21],
        # Beyond the bucket: FlashInfer's own choice.
        ("6144x4096", "b12x", (17, 2)): ["B12xFp4GemmRunner", -1],
        # A bucket's `raw` kernel does not take an M that is no multiple of 128: FlashInfer says so, and uses its own.
        ("2048x4096", "cute-dsl", (200,)): ["Sm12xCuTeFp4GemmRunner", -1],
    }
    asked, wanted = [], []
    for (nk, backend, ms), answer in expected.items():
        for m in ms:
            for alpha_shape in ([1], []):
                asked.append((f"{m}x{nk}", backend, alpha_shape))
                wanted.append(answer)
    assert looked_up(folder / "f.json", said["metadata"], *asked) == wanted


def test_flashinfer_ignores_the_file_on_another_card(exported):
    folder, said = exported
    metadata = said["metadata"] | {"gpu": CARDS["rtx-5090"].name}
    assert looked_up(folder / "f.json", metadata, ("4x2048x4096", "cutlass", [1])) == [["CutlassFp4GemmRunner", -1]]


def test_a_file_for_an_engine_that_pins_a_backend_and_leaves_versions_open(exported, monkeypatch, capsys):
    """CUTLASS's tactics depend on FlashInfer's release alone, so everything but it and the card may be open."""
    folder, _ = exported
    monkeypatch.setattr(exporter, "load_backends", lambda: BACKENDS)
    out = folder / "cutlass.json"
    out.write_text("old")
    command = ["export", "--format", "flashinfer", "--db", str(folder / "e.db"), "--out", str(out), "--force"]
    assert run([*command, "--backend", "flashinfer.cutlass", "--metadata", "wildcard"]) == 0
    document = json.loads(out.read_text())
    metadata = document.pop("_metadata")
    assert {field for field, value in metadata.items() if value != "*"} == {"flashinfer_version", "gpu"}
    assert {value[0] for value in document.values()} == {"CutlassFp4GemmRunner"}
    printed = capsys.readouterr().out
    assert "has 4 entries for 2 problems" in printed
    assert "answered as if it were" in printed


def test_a_file_that_fails_to_verify_leaves_the_old_one(exported, monkeypatch, capsys):
    """FlashInfer does not find what another key says: the file is not the one that was captured."""
    folder, _ = exported
    monkeypatch.setattr(exporter, "load_backends", lambda: BACKENDS)
    right = exporter.text_of
    monkeypatch.setattr(
        exporter, "text_of", lambda metadata, entries: right(metadata, [replace(entries[0], key="a key")])
    )
    out = folder / "old.json"
    out.write_text("old")
    before = {path.name for path in folder.iterdir()}
    command = ["export", "--format", "flashinfer", "--db", str(folder / "e.db"), "--out", str(out), "--force"]
    assert run([*command, "--backend", "flashinfer.cutlass"]) == 1
    assert "FlashInfer loaded the exported file and found no entry for" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert {path.name for path in folder.iterdir()} == before


def test_another_release_than_the_winners_is_refused(flashinfer, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exporter, "load_backends", lambda: BACKENDS)
    make(tmp_path / "e.db", TUNED[:1], environment(flashinfer="0.7.3"))
    command = ["export", "--format", "flashinfer", "--db", str(tmp_path / "e.db"), "--out", str(tmp_path / "f.json")]
    assert run(command) == 4
    assert f"measured with FlashInfer 0.7.3, and {installed_version()} is installed here" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["e.db"]


def test_a_release_that_cannot_look_up_an_entry_is_refused_before_anything_is_asked(flashinfer, monkeypatch):
    monkeypatch.delattr("flashinfer.autotuner.AutoTuner.search_cache")
    with pytest.raises(
        UnsupportedError, match=r"lacks AutoTuner\.search_cache in flashinfer\.autotuner, which fp4tune"
    ):
        Child(CARD, {})


def test_the_export_step_of_the_selftest(flashinfer):
    """Without a card, some tactic of each backend that FlashInfer offers for one; with one, what passed the gate."""
    found = {one.subject.split()[0]: one for one in trial_export(BACKENDS, CARD, [])}
    for name in ("flashinfer.b12x", "flashinfer.cutlass", "flashinfer.cute_dsl", "flashinfer.cutlass_moe"):
        assert found[name].outcome is Outcome.OK, found[name].text
        assert "found 2 of 2 entries, serving and tuning" in found[name].text
    assert found["flashinfer.cudnn"].outcome is Outcome.NOT_RUN
    passed = [(parse_shape("4x2048x4096"), Candidate("flashinfer.cutlass", config(CutlassCodec(), t))) for t in (-1, 7)]
    found = {one.subject.split()[0]: one for one in trial_export(BACKENDS, CARD, passed)}
    assert "gave back fp4_gemm 7" in found["flashinfer.cutlass"].text
    assert found["flashinfer.b12x"].outcome is Outcome.NOT_RUN
