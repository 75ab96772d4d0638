"""What a callable does around the kernel, with a stand-in for the kernel, which needs a card; and files that are none."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fp4tune.kernels.cards import card_for
from fp4tune.kernels.cutlass_gemm import facts, launch, library
from fp4tune.kernels.cutlass_gemm.backend import Cutlass, build_of
from fp4tune.kernels.cutlass_gemm.library import PLAN_ALIGNMENT, Plan, Product
from fp4tune.kernels.cutlass_gemm.space import default_config
from fp4tune.kernels.device import Device
from fp4tune.kernels.errors import UnsupportedError
from fp4tune.kernels.operands import Operands, make_operands
from fp4tune.kernels.problem import OutDtype, parse_shape

PROBLEM = parse_shape("5x24x96")
CPU = Device("cpu", "CPU", "", 1, 1 << 34, 0, 0.0)


class StandIn:
    """Writes the first byte of a row of A all over the same row of D."""

    def __init__(self, workspace: int = 0) -> None:
        self.needs, self.products, self.streams = workspace, [], []

    def workspace_bytes(self, product: Product) -> int:
        return self.needs

    def plan(self, product: Product) -> Product:
        self.products.append(product)
        return product

    def run(self, plan: Product, stream: int) -> None:
        self.streams.append(stream)
        row_a, row_out = plan.k // 2, 2 * plan.n
        for row in range(plan.m):
            (code,) = ctypes.string_at(plan.a + row * row_a, 1)
            ctypes.memset(plan.out + row * row_out, code, row_out)


@pytest.fixture
def operands() -> Operands:
    return make_operands(PROBLEM, CPU, 0)


def prepared(monkeypatch, operands: Operands, stand_in: StandIn, **change):
    config = {**default_config(), **change}
    monkeypatch.setattr(launch, "load", lambda path: stand_in)
    monkeypatch.setattr(launch, "toolchain", lambda target: None)
    monkeypatch.setattr(launch, "ensure_built", lambda build, tools: SimpleNamespace(library=None))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77 + index, raising=False)
    return launch.prepare_launch(operands, config, build_of(PROBLEM, card_for("sm_120a"), config), sms=170)


def first_codes(operands: Operands) -> list[int]:
    return operands.a.packed[:, 0].tolist()


def out_bytes(operands: Operands) -> torch.Tensor:
    return operands.out.view(torch.uint8)


@pytest.mark.parametrize("pad_m", [0, 32, 128])
def test_every_row_comes_from_the_operands_as_they_are_at_the_call(monkeypatch, operands, pad_m):
    stand_in = StandIn()
    call = prepared(monkeypatch, operands, stand_in, pad_m=pad_m)
    for change in (0, 1):
        operands.a.packed[:, 0] += change
        operands.out.fill_(float("nan"))
        call()
        assert out_bytes(operands)[:, 0].tolist() == first_codes(operands)
        assert bool((out_bytes(operands) == out_bytes(operands)[:, :1]).all())
    (product,) = stand_in.products
    assert product.m == (pad_m or 5)
    assert (product.out == operands.out.data_ptr()) is (pad_m == 0)
    assert stand_in.streams == [77, 77]


@pytest.mark.parametrize("needed", [0, 4096])
def test_a_workspace_is_there_if_it_is_needed(monkeypatch, operands, needed):
    stand_in = StandIn(needed)
    prepared(monkeypatch, operands, stand_in, scheduler="stream_k")()
    (product,) = stand_in.products
    assert bool(product.workspace) is bool(needed)
    assert product.workspace_bytes == needed


def test_operands_on_a_cpu_are_refused(operands):
    with pytest.raises(UnsupportedError, match="cutlass runs on CUDA devices, and the operands are elsewhere"):
        Cutlass().prepare(PROBLEM, operands, default_config())


def test_plans_are_aligned():
    assert all(Plan(n).address.value % PLAN_ALIGNMENT == 0 for n in (1, 64, 2688))


HEADER = Path(library.__file__).with_name("abi.h").read_text()
IN_C = {ctypes.c_int32: "int32_t", ctypes.c_int64: "int64_t", ctypes.c_void_p: "*"}


def fields_in_header(struct: str) -> list[tuple[str, str]]:
    """(name, type) of every field as abi.h declares it, in order; every pointer is `*`."""
    (body,) = re.findall(rf"struct {struct} {{\n(.*?)\n}};", HEADER, re.DOTALL)
    found = []
    for declaration in re.sub(r"//.*", "", body).split(";"):
        *words, last = [part.strip() for part in declaration.split(",")]
        if not last:
            continue
        kind, name = (words[0] if words else last).rsplit(" ", 1)
        found += [(one, "*" if "*" in kind else kind) for one in (name, *words[1:], *([last] if words else []))]
    return found


@pytest.mark.parametrize(
    ("mirror", "struct"), [(library.Description, "Fp4tuneDescription"), (library.Product, "Fp4tuneProduct")]
)
def test_the_mirror_has_the_fields_of_the_header(mirror, struct):
    assert [(name, IN_C[kind]) for name, kind in mirror._fields_] == fields_in_header(struct)


def test_the_mirror_has_the_layout_of_the_header():
    """By hand: int32 fields first, then what takes eight bytes; ctypes pads as C does."""
    assert (library.Description.plan_bytes.offset, ctypes.sizeof(library.Description)) == (48, 56)
    assert library.Product.a.offset == 32
    assert ctypes.sizeof(library.Product) == 32 + 7 * 8 + 8


def test_the_mirror_has_the_numbers_and_the_functions_of_the_header():
    numbers = {name: int(value) for name, value in re.findall(r"FP4TUNE_(\w+) (?:= )?(\d+)", HEADER)}
    assert (numbers.pop("ABI"), numbers.pop("PLAN_ALIGNMENT")) == (library.ABI, PLAN_ALIGNMENT)
    assert numbers == {f"RASTER_{name.upper()}": value for value, name in enumerate(library.RASTERS)}
    declared = re.findall(r"^FP4TUNE_EXPORT .*?\bfp4tune_(\w+)\((.*)\);$", HEADER, re.MULTILINE)
    assert [(name, len(arguments.split(","))) for name, arguments in declared] == [
        (name, len(arguments)) for name, _, arguments in library._FUNCTIONS
    ]


@pytest.mark.parametrize("out_dtype", [OutDtype.BF16, OutDtype.FP32])
def test_a_product_is_made_from_operands(out_dtype):
    """On the CPU, whose addresses do for this."""
    problem = parse_shape("5x24x96", out_dtype=out_dtype)
    operands = make_operands(problem, CPU, 0)
    config = {**default_config(), "splits": 4, "max_swizzle": 2, "raster": "along_n"}
    made = launch.product_of(operands, config, sms=170)
    assert (made.m, made.n, made.k, made.splits, made.max_swizzle, made.raster) == (5, 24, 96, 4, 2, 2)
    assert (made.sms, made.device, made.workspace, made.workspace_bytes) == (170, 0, None, 0)
    assert (made.a, made.b) == (operands.a.packed.data_ptr(), operands.b.packed.data_ptr())
    assert (made.a_scale, made.b_scale) == (operands.a.scale_128x4.data_ptr(), operands.b.scale_128x4.data_ptr())
    assert (made.alpha, made.out) == (operands.alpha.data_ptr(), operands.out.data_ptr())
    strided = replace(operands, out=operands.out.t())
    with pytest.raises(UnsupportedError, match="needs out contiguous"):
        launch.product_of(strided, config, sms=170)


@pytest.mark.parametrize(("contents", "why"), [(b"", "cannot be loaded"), (None, "cannot be loaded")])
def test_a_file_that_is_no_kernel_is_refused(tmp_path, contents, why):
    path = tmp_path / "kernel.so"
    if contents is not None:
        path.write_bytes(contents)
    with pytest.raises(UnsupportedError, match=why):
        library.Library(path)


def test_a_file_without_machine_code_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no machine code"):
        facts.kernel_cubin(Path(ctypes.__file__).read_bytes())
    with pytest.raises(UnsupportedError, match="cannot be read"):
        facts.read_facts(tmp_path / "none.so", "sm_120a")
