"""Decodes NVFP4 in registers: four bytes, eight E2M1 codes, become eight 16-bit floats times their group's scale.

Importing this imports Triton.

E2M1 is s|ee|m. Moved to the right place, its three low bits are exponent and mantissa of an FP16 (bits 11 to 9) or BF16
(bits 8 to 6) number that is the value times 2^-14 or 2^-126: the difference of the exponents' biases. Zero and the one
subnormal (0.5) come out right, too, because both formats have subnormals. What is missing is put into the scale, which
is multiplied anyhow; to stay in range all but 2^7 of it, which is left for the GEMM's alpha (`SCALED_BY` an operand).

Exact: a code has 2 significant bits and an E4M3 scale 4, so a product has at most 6 and fits both formats.
FP16: |code·scale·2^-7| is at most 6·448/128 = 21, and a multiple of 2^-1·2^-9·2^-7 = 2^-17, above FP16's least 2^-24.
BF16: the scale times 2^119 is at most 2^127.8, and BF16 ends at 2^128; the least product but 0 is normal, too.
Scales have no sign: that is NVFP4's rule. E4M3's NaN (0x7F), which no quantiser writes, would be read as 480.

A word's codes come out in pairs that lie 16 bits apart, the bytes in the order 0, 2, 1, 3, which costs the fewest
instructions. The order of K does not matter as long as A and B share it, and where the layout says which four bytes a
thread takes together, they do (`FRAGMENT_*`). Where the compiler chooses (`TILE_*`), every element must come out at its
own place and take its own scale: one more instruction a word.
"""

# A kernel's parameters are Triton's, typed where it is compiled; constants that are no parameter of a config are in
# capitals, as everywhere in Triton.
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SCALED_BY = gl.constexpr(128.0)
"""What a product of an operand decoded here must be multiplied with."""

_FP16_WORD = """
shl.b32 s0, w, 12; shl.b32 v0, w, 9;
shl.b32 s1, w, 4;  shl.b32 v1, w, 1;
shl.b32 s2, w, 8;  shl.b32 v2, w, 5;
shr.b32 v3, w, 3;
and.b32 s0, s0, 0x80008000; and.b32 s1, s1, 0x80008000; and.b32 s2, s2, 0x80008000; and.b32 s3, w, 0x80008000;
lop3.b32 s0, v0, 0x0E000E00, s0, 0xEA;
lop3.b32 s1, v1, 0x0E000E00, s1, 0xEA;
lop3.b32 s2, v2, 0x0E000E00, s2, 0xEA;
lop3.b32 s3, v3, 0x0E000E00, s3, 0xEA;
"""
_BF16_WORD = """
shl.b32 s0, w, 12; shl.b32 v0, w, 6;
shl.b32 s1, w, 4;  shr.b32 v1, w, 2;
shl.b32 s2, w, 8;  shl.b32 v2, w, 2;
shr.b32 v3, w, 6;
and.b32 s0, s0, 0x80008000; and.b32 s1, s1, 0x80008000; and.b32 s2, s2, 0x80008000; and.b32 s3, w, 0x80008000;
lop3.b32 s0, v0, 0x01C001C0, s0, 0xEA;
lop3.b32 s1, v1, 0x01C001C0, s1, 0xEA;
lop3.b32 s2, v2, 0x01C001C0, s2, 0xEA;
lop3.b32 s3, v3, 0x01C001C0, s3, 0xEA;
"""
_REGISTERS = ".reg .b32 w, s0, s1, s2, s3, v0, v1, v2, v3, zero; mov.b32 zero, 0x80008000;"
"""`zero` is -0 twice: a product in BF16 is an fma, because SM80 multiplies BF16 in no other way."""
_IN_REGISTER_ORDER = "mov.b32 w, $4;"
_IN_ORDER = "prmt.b32 w, $4, 0, 0x3120;"


def _assembly(order: str, word: str, multiply: str, second_scale: str) -> gl.constexpr:
    """Four bytes in $4, their scales in $5 and $6 (two each), to two pairs of even ($0, $1) and of odd elements.

    Args:
        order: brings the bytes into `w`.
        word: codes in `w` to values in s0 and s1 (even elements), s2 and s3 (odd ones).
        multiply: the instruction, with `{out}`, `{value}` and `{scale}`.
        second_scale: register of the scales of the second pair.
    """
    scales = ("$5", second_scale, "$5", second_scale)
    products = "".join(multiply.format(out=f"${i}", value=f"s{i}", scale=scale) for i, scale in enumerate(scales))
    return gl.constexpr("{" + _REGISTERS + order + word + products + "}")


_MULTIPLY_FP16 = "mul.f16x2 {out}, {value}, {scale};"
_MULTIPLY_BF16 = "fma.rn.bf16x2 {out}, {value}, {scale}, zero;"

FRAGMENT_FP16 = _assembly(_IN_REGISTER_ORDER, _FP16_WORD, _MULTIPLY_FP16, "$5")
FRAGMENT_BF16 = _assembly(_IN_REGISTER_ORDER, _BF16_WORD, _MULTIPLY_BF16, "$5")
FRAGMENT_PAIRS = gl.constexpr("""
prmt.b32 $0, $4, $6, 0x5410; prmt.b32 $1, $5, $7, 0x5410;
prmt.b32 $2, $4, $6, 0x7632; prmt.b32 $3, $5, $7, 0x7632;
""")
"""Four pairs of 16-bit values (even and odd elements of K) to four even and four odd ones, in the decoders' order."""

TILE_FP16 = _assembly(_IN_ORDER, _FP16_WORD, _MULTIPLY_FP16, "$6")
TILE_BF16 = _assembly(_IN_ORDER, _BF16_WORD, _MULTIPLY_BF16, "$6")
TILE_PAIRS = gl.constexpr("""
prmt.b32 $0, $4, $5, 0x5410; prmt.b32 $1, $6, $7, 0x5410;
prmt.b32 $2, $4, $5, 0x7632; prmt.b32 $3, $6, $7, 0x7632;
""")
"""The same element by element, for a compiler that is free to choose which four elements a thread takes together."""

FP16_SCALE = gl.constexpr(32768.0)
"""2^15: an E4M3 number's bits moved to FP16's place are the number times 2^-8, and 2^7 are wanted."""

BF16_SCALE = gl.constexpr(2.0**127)
"""The same, and 2^119 are wanted."""


@gluon.jit
def expand_scale(scale, TO_BF16: gl.constexpr):
    """E4M3 bits without a sign, uint8, to FP16 times 2^7 or BF16 times 2^119; exact, subnormal scales included."""
    as_fp16 = (scale.to(gl.uint16) << 7).to(gl.float16, bitcast=True)
    if TO_BF16:
        return (as_fp16.to(gl.float32) * BF16_SCALE).to(gl.bfloat16)
    else:  # noqa: RET505 - Gluon wants both branches of a constant condition
        return as_fp16 * FP16_SCALE


@gluon.jit
def decode(codes, scale, TO_BF16: gl.constexpr):
    """Even and odd elements of bytes of E2M1 codes, times their scale and 2^-7.

    Args:
        codes: uint8; four consecutive ones along K must be consecutive registers of a thread.
        scale: from `expand_scale`, of the shape and layout of `codes`, the same for those four.
        TO_BF16: BF16 instead of FP16.
    """
    if TO_BF16:
        return gl.inline_asm_elementwise(FRAGMENT_BF16, "=r,=r,=r,=r,r,r,r", [codes, scale],
                                         dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=4)  # fmt: skip
    else:  # noqa: RET505 - as above
        return gl.inline_asm_elementwise(FRAGMENT_FP16, "=r,=r,=r,=r,r,r,r", [codes, scale],
                                         dtype=(gl.float16, gl.float16), is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def take_pairs_apart(pairs):
    """Even and odd BF16 elements of int32 pairs, in `decode`'s order; four consecutive pairs must be a thread's own."""
    return gl.inline_asm_elementwise(FRAGMENT_PAIRS, "=r,=r,=r,=r,r,r,r,r", [pairs],
                                     dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=4)  # fmt: skip
