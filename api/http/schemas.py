"""The JSON that goes in and out, as pydantic models: the batch question is validated by them, the rest described.

Answers are built as plain JSON values (`api/documents.py`, `listings.py`) and rendered once; the tests hold them
against these models through the OpenAPI document.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from ...db.records import Origin, Policy, RunStatus, Source, TrialStatus
from ...kernels.problem import MAX_DIM, MAX_EXPERTS, Format, Op, OutDtype, Routing
from .questions import MAX_SHAPE_TEXT, MAX_TEXT

MAX_SHAPES = 10_000
"""Most shapes in one POST /v1/best-configs."""

MAX_VERSIONS = 64
"""Most versions that a question may send."""

Size = Annotated[int, Field(strict=True, ge=1, le=MAX_DIM)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_EXPERTS)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
ConfigValue = str | int | float | bool
Us = Annotated[float, Field(gt=0, description="microseconds")]


class Strict(BaseModel):
    """A model that takes no field it does not know."""

    model_config = ConfigDict(extra="forbid")


class ShapeQuestion(Strict):
    """One problem: `shape`, or m, n and k; the rest as in GET /best-config."""

    shape: (
        Annotated[
            str,
            Field(max_length=MAX_SHAPE_TEXT, description="MxNxK, [moe:]e<experts>[of<experts_total>]k<top_k>:MxNxK"),
        ]
        | None
    ) = None
    m: Size | None = None
    n: Size | None = None
    k: Size | None = None
    op: Op | None = None
    experts: Count | None = None
    experts_total: Count | None = None
    top_k: Count | None = None
    routing: Routing | None = None
    format: Format | None = None
    out_dtype: OutDtype | None = None


class VersionsQuestion(Strict):
    """An environment, given by what it consists of."""

    versions: dict[
        Annotated[str, Field(max_length=MAX_TEXT)], Annotated[str, Field(max_length=MAX_TEXT)]
    ] = Field(max_length=MAX_VERSIONS, description="name -> version, as `fp4tune doctor` prints them")  # fmt: skip


def _kind(value: object) -> str | None:
    """Whether a question's value is a text or an object, so that a fault is reported for that and not for both."""
    if isinstance(value, str):
        return "text"
    return "object" if isinstance(value, dict | BaseModel) else None


class BatchQuestion(Strict):
    """Many problems on one device in one environment."""

    shapes: list[
        Annotated[
            Annotated[str, Field(max_length=MAX_SHAPE_TEXT), Tag("text")] | Annotated[ShapeQuestion, Tag("object")],
            Discriminator(_kind),
        ]
    ] = Field(max_length=MAX_SHAPES)
    device: Text | None = Field(default=None, description="fingerprint, its first 8 or more digits, or the exact name")
    environment: (
        Annotated[Annotated[Text, Tag("text")] | Annotated[VersionsQuestion, Tag("object")], Discriminator(_kind)]
        | None
    ) = Field(default=None, description="fingerprint, its first 8 or more digits, or the versions")
    policy: Policy | None = Field(
        default=None, description="only winners that were measured so; left out, cuda.graph before cuda.eager"
    )
    routing: Routing | None = Field(default=None, description="for grouped and moe shapes that do not say")
    format: Format | None = Field(default=None, description="for shapes that do not say")
    out_dtype: OutDtype | None = Field(default=None, description="for shapes that do not say")


class ProblemModel(Strict):
    """One GEMM problem: D[M,N] = A[M,K] · B[N,K]ᵀ, per expert if grouped; or a fused mixture-of-experts layer."""

    op: Op
    m: int
    n: int
    k: int
    experts: int = Field(description="experts on this rank; 0 if dense")
    experts_total: int = Field(description="experts over all ranks; 0 if dense")
    top_k: int = Field(description="experts a token is sent to; 0 if dense")
    routing: Routing
    format: Format
    out_dtype: OutDtype
    shape: str = Field(description="short text form")
    key: str = Field(description="full, unique text form")


class DeviceModel(Strict):
    """A device."""

    fingerprint: str
    kind: str = Field(description="cpu or cuda")
    name: str
    compute_capability: str
    sms: int = Field(description="streaming multiprocessors, or cores of a CPU")
    memory_bytes: int
    l2_bytes: int
    power_limit_w: float = Field(description="watts; 0 if unknown")


class EnvironmentModel(Strict):
    """The versions of what runs on a device."""

    fingerprint: str
    versions: dict[str, str]


class ChoiceModel(Strict):
    """A backend, a config, and its time."""

    backend: str
    config: dict[str, ConfigValue] = Field(description="parameter -> value, by name")
    time_us: Us
    time_us_low: Us
    time_us_high: Us


class AnswerModel(ChoiceModel):
    """What to run, why, and what it is worth."""

    match: Literal["exact", "compatible", "bucket"]
    reasons: list[str]
    problem: ProblemModel
    tuned_problem: ProblemModel | None = Field(
        default=None, description="what was measured; only there if it differs (bucket)"
    )  # fmt: skip
    default: ChoiceModel = Field(description="the fastest default of any backend, measured beside the winner")
    speedup: float = Field(gt=0, description="default time over served time")
    tie_set_size: int = Field(ge=1, description="configs that cannot be told apart from the fastest")
    device: DeviceModel
    environment: EnvironmentModel
    measured_at: datetime
    run_id: str
    n_trials: int
    policy: str = Field(description="how it was measured; times of two policies are never compared")
    source: Source


class PublishedModel(Strict):
    """A latency that somebody else measured, or the interpolation of two of them."""

    precision: str = Field(description="as published: nvfp4, fp8, fp8_block, bfloat16, ...")
    framework: str
    framework_version: str
    kernel_source: str = Field(description="what the publisher calls the kernel; no backend of fp4tune")
    time_us: Us
    time_us_low: Us
    time_us_high: Us
    interpolated: bool = Field(
        description="this M is not published, or is suspect: worked out from its neighbours, of the same kernel"
    )
    includes_act_quant: bool = Field(description="quantising the activations is part of the time")
    l2_hot_risk: bool = Field(description="the weights may have come from L2, where a server's do not")


class PublishedOn(Strict):
    """The card that something was published of."""

    system: str = Field(description="the publisher's name")
    device: str = Field(description="as its driver reports it")


class ReferenceModel(PublishedModel):
    """The fastest published kernel for a problem on a card."""

    suspect: str = Field(description="published times beside this M that were not used, and why; else empty")
    published_on: PublishedOn
    attribution: str = Field(description="whose figures these are, and under which licence")
    nvfp4_is_fastest: bool = Field(description="NVFP4 is published, and no other precision was faster")
    nvfp4_over_fastest: float | None = Field(
        gt=0,
        description="time of NVFP4's fastest over time_us; null if none is published, below 1 only for bf16",
    )
    not_l2_hot: PublishedModel | None = Field(
        description="the fastest without l2_hot_risk; null if this one is, or none is"
    )
    alternatives: list[PublishedModel] = Field(description="the fastest of each other precision, fastest first")


class ReferenceAnswerModel(Strict):
    """What others published where nothing that was measured here fits: nothing to serve. Counted as a miss."""

    match: Literal["reference"]
    reasons: list[str] = Field(min_length=1)
    problem: ProblemModel
    backend: None
    config: None
    device: DeviceModel | None = Field(description="the card that was asked about, if it is known here")
    source: Literal["reference"]
    reference: ReferenceModel


class NoneModel(Strict):
    """A shape of a batch without an answer."""

    match: Literal["none"]
    type: Literal["urn:fp4tune:problem:not-tuned", "urn:fp4tune:problem:invalid-input"]
    reasons: list[str] = Field(min_length=1)
    problem: ProblemModel | None = Field(description="null if the shape is not a valid problem")


class BatchAnswer(Strict):
    """Answers in the order of the shapes."""

    answers: list[AnswerModel | ReferenceAnswerModel | NoneModel]
    found: int = Field(ge=0, description="how many have a config to serve")
    references: int = Field(ge=0, description="how many have a published time instead")


class RunModel(Strict):
    """One execution of the tuning job."""

    id: str
    status: RunStatus
    checkpoint: str
    settings: dict[str, Any]
    seed: int
    host: str
    pid: int
    version: str
    device_fingerprint: str
    device_name: str
    environment_fingerprint: str
    started_at: datetime
    heartbeat_at: datetime
    finished_at: datetime | None
    n_problems: int
    n_done: int
    n_trials: int
    error: str


class RunProblemModel(Strict):
    """A problem of a run."""

    position: int
    problem: ProblemModel
    role: str
    phases: list[str]
    layers: int
    done: bool
    outcome: str


class RunDetailModel(RunModel):
    """A run with its problems."""

    problems: list[RunProblemModel]


class ConditionsModel(Strict):
    """What a GPU was like while one config was measured, as NVML says; null where it does not."""

    sm_clock_mhz: tuple[int, int] | None = Field(description="lowest and highest seen")
    memory_clock_mhz: tuple[int, int] | None = Field(description="lowest and highest seen")
    temperature_c: int | None = Field(description="highest seen, degrees Celsius")
    power_w: float | None = Field(description="highest board power seen, watts")
    throttle_reasons: list[str] = Field(description="what held the clocks back, as NVML calls it")
    throttled_samples: list[int] = Field(description="indices into samples_us during or after which one was on")


class StaticFactsModel(Strict):
    """What the compiler says of a config; source `compiled`."""

    target: str = Field(description="what it was compiled for, sm_120a for one")
    registers: int = Field(description="a thread")
    stack_bytes: int = Field(description="a thread, spills included")
    shared_bytes: int = Field(description="shared memory a block, static and dynamic")
    instructions: dict[str, int] = Field(description="matrix instructions in the machine code, by opcode")


class WinnerModel(ChoiceModel):
    """A winner, served now or superseded."""

    id: int
    run_id: str
    problem: ProblemModel
    default: ChoiceModel
    speedup: float
    tie_set: list[ChoiceModel]
    depends_on: list[str] = Field(description="versions that decide whether it is still valid")
    device: DeviceModel
    environment: EnvironmentModel
    n_trials: int
    policy: str = Field(description="how it was measured; times of two policies are never compared")
    source: Source
    created_at: datetime
    superseded_at: datetime | None
    compile_s: float | None = Field(description="seconds of compiler for the trial that measured it; null without it")
    conditions: ConditionsModel | None = Field(description="while it was measured")
    roof_share: float | None = Field(description="time that the card's roofs allow at least, over time_us")
    facts: StaticFactsModel | None


class TrialModel(Strict):
    """One config that was tried."""

    id: int
    run_id: str
    problem: ProblemModel
    device_fingerprint: str
    environment_fingerprint: str
    number: int
    backend: str
    config: dict[str, ConfigValue]
    origin: Origin
    status: TrialStatus
    time_us: Us | None
    time_us_low: Us | None
    time_us_high: Us | None
    samples_us: list[float]
    n_samples: int
    error: str
    rel_error: float | None = Field(description="relative Frobenius error; null if unknown or not finite")
    seed: int
    optimizer: str
    optimizer_version: str
    started_at: datetime
    wall_s: float
    policy: str
    source: Source
    compile_s: float = Field(ge=0, description="seconds of compiler, not part of wall_s; 0 if nothing was compiled")
    conditions: ConditionsModel | None = Field(description="null on a CPU or if nothing was timed")
    roof_share: float | None = Field(
        description="time that the card's roofs allow at least, over time_us; null without roofs or timing"
    )
    facts: StaticFactsModel | None


class KnownDevice(DeviceModel):
    """A device in the database."""

    first_seen_at: datetime


class KnownEnvironment(EnvironmentModel):
    """An environment in the database."""

    device: DeviceModel
    created_at: datetime
    n_trials: int
    n_winners: int


class MissModel(Strict):
    """A shape that was asked for and not found."""

    problem: ProblemModel
    device_fingerprint: str = Field(description="empty if the question named none and none could be assumed")
    environment_fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime


class RunPage(Strict):
    """Runs, newest first."""

    items: list[RunModel]
    next_cursor: str | None = Field(description="give it as `cursor` for the next page; null on the last")


class WinnerPage(Strict):
    """Winners, by id."""

    items: list[WinnerModel]
    next_cursor: str | None


class TrialPage(Strict):
    """Trials, by id."""

    items: list[TrialModel]
    next_cursor: str | None


class DeviceList(Strict):
    """All devices."""

    items: list[KnownDevice]


class EnvironmentList(Strict):
    """All environments."""

    items: list[KnownEnvironment]


class MissList(Strict):
    """Misses, most wanted first."""

    items: list[MissModel]


class Health(Strict):
    """The process answers."""

    status: Literal["ok"]
    version: str


class Readiness(Strict):
    """The service can answer well."""

    status: Literal["ready"]
    winners: int = Field(description="winners in the index")
    schema_revision: str


class Problem(BaseModel):
    """RFC 9457 problem details; some types add members."""

    type: str = Field(pattern="^urn:fp4tune:problem:[a-z-]+$")
    title: str
    status: int
    detail: str


class FaultModel(Strict):
    """One fault of a request."""

    loc: list[str]
    message: str


class InvalidInput(Problem):
    """The request is wrong."""

    errors: list[FaultModel] = Field(default=[], description="where, if it is about a body or a listing's parameters")


class NotTuned(Problem):
    """Nothing valid is stored for the question."""

    match: Literal["none"]
    reasons: list[str] = Field(min_length=1)
    problem: ProblemModel
    nearest: list[ProblemModel] = Field(max_length=5, description="nearest tuned shapes, by log distance")


class AmbiguousDevice(Problem):
    """Several devices fit."""

    devices: list[DeviceModel]


class NotReady(Problem):
    """The service cannot answer well."""

    reasons: list[str]
