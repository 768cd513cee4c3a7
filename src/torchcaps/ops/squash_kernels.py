"""Squashing inside Triton kernels, over the second axis; see squash.py for the formulas."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _parts(s_ND):
    """1/√(1+|s|²) and |s|/√(1+|s|²) with D kept as 1, and s/|s|."""
    near = tl.expand_dims(tl.sqrt(tl.sum((s_ND / 256.0) * (s_ND / 256.0), axis=1)), 1) * 256.0
    unit = tl.where(near > 0, s_ND / tl.where(near > 0, near, 1.0), 0.0)
    # √(1+|s|²) without the square of a large |s|
    larger, smaller = tl.maximum(near, 1.0), tl.minimum(near, 1.0)
    hypotenuse = larger * tl.sqrt(1.0 + (smaller / larger) * (smaller / larger))
    return 1.0 / hypotenuse, near / hypotenuse, unit


@triton.jit
def squashed(s_ND):
    near, far, _ = _parts(s_ND)
    return s_ND * (near * far)


@triton.jit
def squash_gradient(s_ND, dv_ND):
    """The gradient at s, from that at squash(s)."""
    near, far, unit = _parts(s_ND)
    along = tl.expand_dims(tl.sum(unit * dv_ND, axis=1), 1)
    return (near * far) * (dv_ND + (near * near - far * far) * along * unit)
