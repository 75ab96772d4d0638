"""What others published, over HTTP: only where nothing measured here fits, and it stays a miss."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fp4tune.api.http.lookups import answer_batch
from fp4tune.api.index import WinnerIndex, followed
from fp4tune.api.lookup import Answer, NoAnswer, find, locate
from fp4tune.api.references import ReferenceAnswer, References
from fp4tune.db import Store
from fp4tune.db.records import WinnerFilter
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import StoreError
from fp4tune.kernels.problem import parse_shape
from http_server import Running, Serve, assert_problem, wait_until
from published_rows import ATTRIBUTION, CARD, SYSTEM, publish
from winner_factory import VERSIONS, device, environment, new_run, new_winner

SHAPE = "16x2048x7168"
MOE = "moe:e512k10:16x128x4096"
HERE = environment(device(CARD))


def tune(store: Store, *shapes: str, policy: str = "cuda.graph", at: Any = HERE) -> None:
    run = store.create_run(new_run(at, shapes))
    store.add_winners([new_winner(run, shape, at, policy=policy) for shape in shapes])


@pytest.fixture
def published(store: Store, serve: Serve) -> Running:
    """A server on day one: published times, and nothing that was measured here."""
    publish(store)
    return serve(store)


def test_a_server_on_a_published_card_gets_an_answer_on_day_one(published: Running):
    response = published.best(SHAPE, device=CARD)
    assert response.status_code == 200
    answer = response.json()
    assert answer["match"] == "reference"
    assert (answer["backend"], answer["config"], answer["device"]) == (None, None, None)
    assert answer["source"] == "reference"
    assert "time_us" not in answer  # never where a measured time stands
    said = answer["reference"]
    assert (said["precision"], said["framework"], said["framework_version"]) == ("fp8", "vllm", "0.24.0")
    assert said["kernel_source"] == "CutlassFP8ScaledMMLinearKernel"
    assert said["time_us_low"] < said["time_us"] < said["time_us_high"]
    assert said["time_us"] == pytest.approx(14.09, abs=0.01)
    assert (said["interpolated"], said["includes_act_quant"], said["l2_hot_risk"]) == (False, True, True)
    assert said["published_on"] == {"system": SYSTEM, "device": CARD}
    assert said["attribution"] == ATTRIBUTION
    assert said["suspect"] == ""
    assert not said["nvfp4_is_fastest"]
    assert said["nvfp4_over_fastest"] == pytest.approx(2.02, abs=0.01)
    assert said["not_l2_hot"]["precision"] == "bfloat16"
    assert [one["precision"] for one in said["alternatives"]] == ["bfloat16", "nvfp4"]
    assert any("NVFP4's fastest (SGLang 0.5.14) takes 28.4 µs, 2.02x as long" in reason for reason in answer["reasons"])


def test_a_batch_says_the_same_and_counts_it_apart(published: Running):
    asked = [SHAPE, "24x2048x7168", "16x16x16", MOE, "e512k10:16x256x4096"]
    document = published.batch(*asked, device=CARD).json()
    assert [answer["match"] for answer in document["answers"]] == [
        "reference",
        "reference",
        "none",
        "reference",
        "none",
    ]
    assert (document["found"], document["references"]) == (0, 3)
    for shape, answer in zip(asked, document["answers"], strict=True):
        single = published.best(shape, device=CARD).json()
        assert answer["reasons"] == single["reasons"]
        if answer["match"] == "reference":
            assert answer == single


def test_it_answers_never_above_a_measurement(store: Store, serve: Serve):
    publish(store)
    tune(store, SHAPE)
    server = serve(store)
    assert server.best(SHAPE).json()["match"] == "exact"
    assert server.best("12x2048x7168").json()["match"] == "bucket"
    assert server.best("48x2048x7168").json()["match"] == "reference"
    other_driver = {"versions": VERSIONS | {"driver": "600"}}
    assert server.batch(SHAPE, environment=other_driver).json()["answers"][0]["match"] == "compatible"


def test_a_stale_winner_is_no_answer_and_is_named_before_what_is_published(store: Store, serve: Serve):
    publish(store)
    tune(store, SHAPE)
    newer = {"versions": VERSIONS | {"torch": "9"}}
    (answer,) = serve(store).batch(SHAPE, device=CARD, environment=newer).json()["answers"]
    assert answer["match"] == "reference"
    assert "is stale: torch" in answer["reasons"][0]
    assert "fastest published kernel" in answer["reasons"][1]
    assert answer["device"]["name"] == CARD


def test_what_is_tuned_under_another_policy_is_not_answered_by_others(store: Store, serve: Serve):
    publish(store)
    tune(store, SHAPE, policy="cuda.eager")
    server = serve(store)
    reasons = assert_problem(server.best(SHAPE, policy="cuda.graph"), 404, "not-tuned")["reasons"]
    assert not any("published" in reason for reason in reasons)


def test_eager_times_are_not_published(published: Running):
    reasons = assert_problem(published.best(SHAPE, device=CARD, policy="cuda.eager"), 404, "not-tuned")["reasons"]
    assert reasons[-1] == "published times are of CUDA graph replays, and not of cuda.eager"
    assert published.best(SHAPE, device=CARD, policy="cuda.graph").json()["match"] == "reference"


def test_it_is_demand_all_the_same(store: Store, serve: Serve):
    """A card that has no winner yet has no fingerprint here: its misses are those of no device, which tune works off."""
    publish(store)
    tune(store, "512x512x512")
    server = serve(store)
    assert server.best("48x2048x7168").json()["match"] == "reference"
    assert server.batch(MOE).json()["references"] == 1
    wait_until(lambda: len(store.misses(device_fingerprint=HERE.device.fingerprint)) == 2)
    for _ in range(3):
        server.best("48x2048x7168")
    wait_until(lambda: store.misses(device_fingerprint=HERE.device.fingerprint)[0].count == 4)
    assert server.metric("fp4tune_lookups_total", match="reference") == 5


def test_demand_of_a_card_known_by_name_alone_is_counted(published: Running, store: Store):
    published.best(SHAPE, device=CARD)
    wait_until(lambda: [miss.problem.shape for miss in store.misses(device_fingerprint="")] == [SHAPE])
    published.best(SHAPE, device="Some Other Card")
    dropped = "fp4tune_misses_dropped_total"
    wait_until(lambda: published.metric(dropped, reason="unattributed") == 1)


def test_another_card_is_not_answered(published: Running):
    (reason,) = assert_problem(published.best(SHAPE, device="NVIDIA H200"), 404, "not-tuned")["reasons"]
    assert reason.endswith(f"others published measurements of {CARD}: ask for a device of this name to be told of them")


def test_without_a_device_it_is_told_which_one_to_name(published: Running):
    reasons = assert_problem(published.best(SHAPE), 404, "not-tuned")["reasons"]
    hint = f"others published measurements of {CARD}: ask for a device of this name to be told of them"
    assert reasons == [f"no winner is stored yet; {hint}"]


def test_a_variant_of_the_card_is_answered_with_a_word_about_it(published: Running):
    answer = published.best(SHAPE, device=CARD.replace("Server", "Workstation")).json()
    assert answer["match"] == "reference"
    assert any("another variant of" in reason for reason in answer["reasons"])


def test_a_grouped_gemm_hears_of_the_fused_layer_and_gets_no_time(published: Running):
    document = assert_problem(published.best("e512k10:16x256x4096", device=CARD), 404, "not-tuned")
    assert any(f"do not answer it: {MOE} asks for them" in reason for reason in document["reasons"])
    assert "reference" not in document
    assert published.best(MOE, device=CARD).json()["reference"]["precision"] == "nvfp4"
    asked = {"op": "moe", "m": 16, "n": 128, "k": 4096, "experts": 512, "top_k": 10}
    assert published.get("/best-config", device=CARD, **asked).json() == published.best(MOE, device=CARD).json()


def test_routing_chooses_the_published_distribution(published: Running):
    even, skewed = (
        published.best(MOE, device=CARD, routing=how).json()["reference"] for how in ("uniform", "power_law")
    )
    assert (round(even["time_us"]), round(skewed["time_us"])) == (213, 178)
    reasons = assert_problem(published.best(MOE, device=CARD, routing="one_hot"), 404, "not-tuned")["reasons"]
    assert reasons[-1].endswith("none of one_hot routing")


def test_a_fused_layer_that_is_tuned_is_served(store: Store, serve: Serve):
    publish(store)
    tune(store, MOE)
    server = serve(store)
    assert server.best(MOE).json()["match"] == server.batch(MOE).json()["answers"][0]["match"] == "exact"


# What may be kept


def test_the_etag_moves_when_something_is_published(store: Store, serve: Serve):
    tune(store, "512x512x512")
    server = serve(store)
    assert server.best(SHAPE).status_code == 404
    before = server.batch(SHAPE)
    publish(store)
    wait_until(lambda: server.best(SHAPE).status_code == 200)
    first = server.best(SHAPE)
    held = {"if-none-match": first.headers["etag"]}
    assert server.client.get(f"/best-config?shape={SHAPE}", headers=held).status_code == 304
    moved = server.client.post(
        "/v1/best-configs", json={"shapes": [SHAPE]}, headers={"if-none-match": before.headers["etag"]}
    )
    assert moved.status_code == 200
    publish(store, faster=2)
    wait_until(lambda: server.client.get(f"/best-config?shape={SHAPE}", headers=held).status_code == 200)
    assert server.best(SHAPE).json()["reference"]["time_us"] == pytest.approx(
        first.json()["reference"]["time_us"] / 2
    )  # fmt: skip


class Counting:
    """A store whose queries for published rows are counted, and fail when they are told to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asked: list[tuple[Any, ...]] = []
        self.broken = False

    def reference_layers(self, systems: Any) -> Any:
        return self._answer("reference_layers", systems)

    def reference_rows(self, *layer: Any) -> Any:
        return self._answer("reference_rows", *layer)

    def _answer(self, question: str, *arguments: Any) -> Any:
        self.asked.append((question, *arguments))
        if self.broken:
            raise StoreError("The database is gone.")
        return getattr(self.store, question)(*arguments)


def missing(index: WinnerIndex, shape: str, name: str = CARD) -> NoAnswer:
    found = find(index, parse_shape(shape), locate(index, name))
    assert not isinstance(found, Answer)
    return found


def test_a_layer_is_read_once_for_all_its_m(store: Store):
    publish(store)
    index = followed(WinnerIndex(), store)
    counting = Counting(store)
    references = References(counting, index)
    for m in (1, 16, 24, 100, 100_000):
        asked = missing(index, f"{m}x2048x7168")
        assert references.is_read(asked) == (m > 1)
        assert isinstance(references.answer(asked), ReferenceAnswer) == (m < 100_000)
    for n in (16, 32):  # what nobody published is known
        unpublished = missing(index, f"16x{n}x16")
        assert references.is_read(unpublished)
        assert isinstance(references.answer(unpublished), NoAnswer)
    assert [question for question, *_ in counting.asked] == ["reference_layers", "reference_rows"]


def test_thousands_of_layers_that_nobody_published_take_one_query(store: Store):
    publish(store)
    index = followed(WinnerIndex(), store)
    counting = Counting(store)
    shapes = [f"16x{16 * n}x48" for n in range(1, 3001)]
    body = json.dumps({"shapes": shapes, "device": CARD}).encode()
    _, matches = answer_batch(index, References(counting, index), body, lambda _: None)
    assert matches == {"none": len(shapes)}
    assert len(counting.asked) == 1


def test_a_new_winner_forgets_nothing_that_was_read_and_a_new_file_does(store: Store):
    publish(store)
    index = followed(WinnerIndex(), store)
    references = References(store, index)
    asked = missing(index, SHAPE)
    references.answer(asked)
    tune(store, "512x512x512")
    index = followed(index, store)
    later = references.following(index)
    assert later.is_read(asked)
    publish(store, faster=2)
    assert not later.following(followed(index, store)).is_read(asked)


def test_where_nothing_is_published_nothing_is_read(store: Store):
    tune(store, "512x512x512")
    index = followed(WinnerIndex(), store)
    counting = Counting(store)
    asked = missing(index, SHAPE)
    assert References(counting, index).is_read(asked)
    assert References(counting, index).answer(asked) is asked
    assert counting.asked == []


def test_a_database_that_is_gone_costs_the_published_time_alone(
    published: Running, monkeypatch: pytest.MonkeyPatch, store: Store
):
    broken = Counting(store)
    broken.broken = True
    references = published.service.live.served.references
    monkeypatch.setattr(references, "_store", broken)
    for _ in range(2):
        document = assert_problem(published.best(SHAPE, device=CARD), 404, "not-tuned")
        assert not any("published" in reason for reason in document["reasons"])
    batch = published.batch(SHAPE, "24x2048x7168", device=CARD).json()
    assert [answer["match"] for answer in batch["answers"]] == ["none", "none"]
    assert len(broken.asked) == 1  # it is left alone for a while
    broken.broken = False
    monkeypatch.setattr(references, "_retry_at", 0.0)  # and such an answer is not kept
    assert published.best(SHAPE, device=CARD).json()["match"] == "reference"


def test_a_card_without_winners_is_known_by_its_fingerprint(store: Store):
    """A run was started there, so its device and environment are known."""
    publish(store)
    store.create_run(new_run(HERE, [SHAPE]))
    index = followed(WinnerIndex(), store)
    references = References(store, index)
    for name in (HERE.device.fingerprint, CARD):
        place = locate(index, name)
        assert place.countable
        assert place.reasons == (f"nothing that was measured on {CARD} is stored",)
        assert isinstance(references.answer(NoAnswer(parse_shape(SHAPE), place, ("asked",))), ReferenceAnswer)


def test_every_answer_fits_the_model(published: Running):
    from fp4tune.api.http.schemas import ReferenceAnswerModel

    for shape in (SHAPE, "24x2048x7168", MOE, "4096x4096x4096", "16x7168x16384"):
        ReferenceAnswerModel.model_validate_json(published.best(shape, device=CARD).content)


def test_fp4tune_best_prints_it_and_exits_well(store: Store, tmp_path, capsys: pytest.CaptureFixture[str]):
    from fp4tune.api.cli.app import run

    publish(store)
    arguments = ["best", "--db", str(tmp_path / "fp4tune.db"), "--device", CARD, "--shape", SHAPE]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert "Published by others, nothing to serve" in printed
    assert "2.02x" in printed
    assert ATTRIBUTION.partition(";")[0] in printed.replace("\n", " ")
    assert run([*arguments, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["match"] == "reference"
    assert run([*arguments, "--shape", "16x16x16"]) == 3


def test_doctor_puts_published_beside_measured(store: Store):
    from fp4tune.tuner.reference.beside import beside

    publish(store)
    tune(store, SHAPE, "24x2048x7168", "e64of512k10:16x256x4096", "16x16x16")
    card: Device = HERE.device
    found = beside(store, card)
    assert found.systems == (SYSTEM,)
    assert found.n_rows == sum(source.n_rows for source in store.reference_sources())
    assert set(found.frameworks) == {"SGLang 0.5.14", "TensorRT-LLM 1.3.0rc20", "vLLM 0.24.0"}
    assert [pair.problem.shape for pair in found.pairs] == [SHAPE, "24x2048x7168"]
    first, second = found.pairs
    assert (first.backend, first.time_us, first.policy) == ("triton.native", 10.0, "cuda.graph")
    assert first.published.curve.precision == "nvfp4"
    assert first.caveats == ("quantises activations", "may be L2-hot")
    assert second.caveats == ("interpolated", "quantises activations", "may be L2-hot")
    assert beside(store, replace(card, name="Test Card")).systems == ()
    workstation = beside(store, replace(card, name=CARD.replace("Server", "Workstation")))
    assert "another variant" in workstation.notes[0]
    assert workstation.pairs == ()
    assert store.winners(WinnerFilter(device_fingerprint=card.fingerprint)).items
