"""Products on tensor cores, for Triton kernels.

PRODUCT says how: "bf16", "tf32" or "tf32x3" (three TF32 products, within rounding of float32). Sums are float32 always.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def multiply(a, b, PRODUCT: tl.constexpr):
    if PRODUCT == "bf16":
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
        # The interpreter's own products of bfloat16 are wrong.
        product = tl.dot(a.to(tl.float32), b.to(tl.float32)) if INTERPRETED else tl.dot(a, b)
    elif PRODUCT == "tf32x3":
        a_upper, b_upper = upper(a), upper(b)
        product = tl.dot(a_upper, b - b_upper, input_precision="tf32")
        product = tl.dot(a - a_upper, b_upper, product, input_precision="tf32")
        product = tl.dot(a_upper, b_upper, product, input_precision="tf32")
    else:
        product = tl.dot(_rounded(a), _rounded(b), input_precision="tf32")
    return product


@triton.jit
def _rounded(x):
    """Between a third and two thirds of TF32's last digit more: tensor cores cut a float32 off, so this rounds it, and
    unlike an addition to its bits it leaves NaN alone."""
    return cut(x + x * (1 / 3072))


@triton.jit
def cut(x):
    """A float32 without what tensor cores leave out of it in TF32: they do so themselves, the interpreter does not."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True) if INTERPRETED else x


@triton.jit
def times(x, u):
    """x·u, element by element, in u's type."""
    x = x.to(u.dtype)
    return (x.to(tl.float32) * u.to(tl.float32)).to(u.dtype) if INTERPRETED else x * u


@triton.jit
def upper(x):
    """A float32 rounded to what TF32 keeps of it, and nothing below."""
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


# The result of a product of float32 leaves columns 2n and 2n+1 with the thread that gives columns n and n+4 to the next
# product. Turned to that order, a result is the next product's left factor without moving between threads; the rows of
# its right factor are put in the same order.


@triton.jit
def turn(x_BX, TB: tl.constexpr, X: tl.constexpr):
    return tl.reshape(tl.permute(tl.reshape(x_BX, [TB, X // 8, 4, 2]), (0, 1, 3, 2)), [TB, X])


@triton.jit
def turned(x):
    """Which column of a result is the x-th after `turn`."""
    return x // 8 * 8 + x % 4 * 2 + x % 8 // 4
