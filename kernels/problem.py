"""What a GEMM problem is: its fields, its text forms, and what it costs in bytes and operations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from .errors import InvalidInputError

MAX_DIM = 1 << 24
"""Largest M, N or K accepted: far above any real layer, far below where byte counts overflow 64 bits."""

MAX_EXPERTS = 1 << 16
"""Largest number of experts accepted."""

NVFP4_GROUP = 16
"""K elements that share one E4M3 scale in NVFP4."""


class Op(StrEnum):
    """What is computed: one GEMM, one GEMM per expert, or a whole fused mixture-of-experts layer."""

    DENSE = "dense"
    GROUPED = "grouped"
    MOE = "moe"


class Format(StrEnum):
    """Operand format: NVFP4 weights and activations (W4A4), NVFP4 weights with BF16 activations, or BF16."""

    NVFP4 = "nvfp4"
    NVFP4_W4A16 = "nvfp4_w4a16"
    BF16 = "bf16"


class OutDtype(StrEnum):
    """Dtype of D."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Routing(StrEnum):
    """How tokens are spread over experts in a grouped or moe problem."""

    UNIFORM = "uniform"
    POWER_LAW = "power_law"
    ONE_HOT = "one_hot"


_MOE_HEAD = "moe:"
_OUT_BYTES = {OutDtype.BF16: 2, OutDtype.FP16: 2, OutDtype.FP32: 4}
_SHAPE = re.compile(
    r"(?:(?P<moe>moe:)?e(?P<experts>[0-9]{1,9})(?:of(?P<total>[0-9]{1,9}))?k(?P<top_k>[0-9]{1,9}):)?"
    r"(?P<m>[0-9]{1,9})x(?P<n>[0-9]{1,9})x(?P<k>[0-9]{1,9})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One GEMM: D[M,N] = A[M,K] · B[N,K]ᵀ, or for `grouped` one such product per expert on this rank.

    `moe` is a fused mixture-of-experts layer: D[M,K] = the sum over a token's experts on this rank of
    weight · W2[K,N] · (silu(W1[N,K] · x) * W3[N,K] · x), x quantised before the first product and the intermediate
    before the second if the format has quantised activations (`docs/moe.md`).

    Attributes:
        op: dense, grouped or moe.
        m: rows of A. For grouped and moe, tokens before routing.
        n: rows of B (columns of D), per expert for grouped. For moe, the intermediate size on this rank.
        k: the contracted dimension, in elements (not bytes). For moe, the hidden size.
        experts: experts on this rank; 0 for dense.
        experts_total: experts of the layer over all ranks; 0 for dense.
        top_k: experts that each token is sent to; 0 for dense.
        routing: how tokens are spread over experts; `uniform` for dense.
        format: operand format.
        out_dtype: dtype of D.

    Raises:
        InvalidInputError: a field is out of range, or K (for moe also N) is no multiple of 16 with an NVFP4 format.
    """

    m: int
    n: int
    k: int
    op: Op = Op.DENSE
    experts: int = 0
    experts_total: int = 0
    top_k: int = 0
    routing: Routing = Routing.UNIFORM
    format: Format = Format.NVFP4
    out_dtype: OutDtype = OutDtype.BF16

    def __post_init__(self) -> None:
        """Check every invariant, so that a Problem that exists is a valid one."""
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_DIM:
                raise InvalidInputError(f"{name.upper()} must be between 1 and {MAX_DIM}, and is {value}.")
        if self.format is not Format.BF16 and self.k % NVFP4_GROUP:
            raise InvalidInputError(
                f"K must be a multiple of {NVFP4_GROUP} for {self.format.value}, because one scale covers "
                f"{NVFP4_GROUP} elements of K, and is {self.k}."
            )
        if self.op is Op.MOE and self.format is not Format.BF16 and self.n % NVFP4_GROUP:
            raise InvalidInputError(
                f"N must be a multiple of {NVFP4_GROUP} for a moe problem in {self.format.value}, because the second "
                f"product contracts over N and one scale covers {NVFP4_GROUP} elements of it, and is {self.n}."
            )
        if self.op is Op.DENSE:
            if self.experts or self.experts_total or self.top_k or self.routing is not Routing.UNIFORM:
                raise InvalidInputError("A dense problem has no experts, top_k or routing.")
            return
        if not 1 <= self.experts <= self.experts_total <= MAX_EXPERTS:
            raise InvalidInputError(
                f"A {self.op.value} problem needs 1 <= experts <= experts_total <= {MAX_EXPERTS}, and has "
                f"experts {self.experts}, experts_total {self.experts_total}."
            )
        if not 1 <= self.top_k <= self.experts_total:
            raise InvalidInputError(
                f"top_k must be between 1 and experts_total ({self.experts_total}), and is {self.top_k}."
            )

    @property
    def shape(self) -> str:
        """The short text form: `16x2048x4096`, `e64of512k10:16x2048x4096` or `moe:e512k10:16x128x4096`."""
        mnk = f"{self.m}x{self.n}x{self.k}"
        if self.op is Op.DENSE:
            return mnk
        of = "" if self.experts == self.experts_total else f"of{self.experts_total}"
        return f"{_MOE_HEAD if self.op is Op.MOE else ''}e{self.experts}{of}k{self.top_k}:{mnk}"

    @property
    def key(self) -> str:
        """The full, unique text form: op, shape, routing, format and output dtype. Stable; stored."""
        shape = self.shape.removeprefix(_MOE_HEAD)
        return f"{self.op.value}:{shape}:{self.routing.value}:{self.format.value}:{self.out_dtype.value}"

    @property
    def rows(self) -> int:
        """Rows that experts compute on this rank: M, or M·top_k·experts/experts_total rounded up (the average)."""
        if self.op is Op.DENSE:
            return self.m
        return -(-self.m * self.top_k * self.experts // self.experts_total)

    @property
    def flops_per_row(self) -> int:
        """Multiply and add operations for one row: 2·N·K, three times that for moe (gate, up and down)."""
        return (6 if self.op is Op.MOE else 2) * self.n * self.k

    @property
    def flops(self) -> int:
        """Multiply and add operations of the products: rows · flops_per_row."""
        return self.rows * self.flops_per_row

    @property
    def expert_bytes(self) -> int:
        """Bytes of the weights of one expert (of B for dense) in their format: for moe W1, W3 and W2."""
        quantised = self.format is not Format.BF16
        if self.op is Op.MOE:
            return _matrix_bytes(2 * self.n, self.k, quantised=quantised) + _matrix_bytes(
                self.k, self.n, quantised=quantised
            )
        return _matrix_bytes(self.n, self.k, quantised=quantised)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in their format: of all experts of this rank."""
        return max(1, self.experts) * self.expert_bytes

    @property
    def operand_bytes(self) -> int:
        """Bytes of the input, the weights and D together, each once, in their formats. A moe's input is BF16."""
        out_bytes = _OUT_BYTES[self.out_dtype]
        if self.op is Op.MOE:
            return self.weight_bytes + self.m * self.k * (2 + out_bytes)
        a = _matrix_bytes(self.rows, self.k, quantised=self.format is Format.NVFP4)
        return a + self.weight_bytes + self.rows * self.n * out_bytes


def _matrix_bytes(rows: int, k: int, *, quantised: bool) -> int:
    """Bytes of a [rows, K] operand: half a byte an element plus one scale per 16, or two bytes an element."""
    return rows * (k // 2 + k // NVFP4_GROUP) if quantised else rows * k * 2


def parse_shape(
    text: str,
    *,
    routing: Routing = Routing.UNIFORM,
    format: Format = Format.NVFP4,  # noqa: A002 - the field's name everywhere
    out_dtype: OutDtype = OutDtype.BF16,
) -> Problem:
    """Read a shape string.

    Args:
        text: `MxNxK`, or `e<experts>[of<experts_total>]k<top_k>:MxNxK` for a grouped problem, and the same after
            `moe:` for a fused mixture-of-experts layer.
        routing: routing of a grouped or moe problem; ignored for dense.
        format: operand format.
        out_dtype: dtype of D.

    Raises:
        InvalidInputError: the text is not a shape, or the problem it names is not valid.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise InvalidInputError(
            f"{shown!r} is not a shape: write MxNxK (16x2048x4096) for dense, "
            "e<experts>[of<total>]k<top_k>:MxNxK (e512k10:16x256x4096) for grouped, "
            "or moe: and the same for a fused layer."
        )
    m, n, k = int(match["m"]), int(match["n"]), int(match["k"])
    if match["experts"] is None:
        return Problem(m, n, k, format=format, out_dtype=out_dtype)
    experts = int(match["experts"])
    return Problem(
        m, n, k, Op.MOE if match["moe"] else Op.GROUPED, experts, int(match["total"] or experts), int(match["top_k"]),
        routing, format, out_dtype,
    )  # fmt: skip


def parse_key(key: str) -> Problem:
    """The problem that `Problem.key` names: the inverse of that property.

    Raises:
        InvalidInputError: the text is no key, or the problem it names is not valid.
    """
    try:
        op, rest = key.split(":", 1)
        shape, routing, format_, out_dtype = rest.rsplit(":", 3)
        head = _MOE_HEAD if op == Op.MOE else ""
        problem = parse_shape(
            head + shape, routing=Routing(routing), format=Format(format_), out_dtype=OutDtype(out_dtype)
        )  # fmt: skip
    except ValueError:
        problem, op = None, ""
    if problem is None or problem.op.value != op or problem.key != key:
        shown = key if len(key) <= 80 else key[:77] + "..."
        raise InvalidInputError(f"{shown!r} is not the key of a problem, such as {Problem(16, 2048, 4096).key!r}.")
    return problem
