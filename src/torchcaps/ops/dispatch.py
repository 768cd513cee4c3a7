"""Which implementation of a routing runs."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean

BACKENDS = ("reference", "chunked", "fused")
log = logging.getLogger("torchcaps")


def backend(u_BIK: Tensor, weight_IJDK: Tensor, iterations: int) -> str:
    """`fused` on CUDA where the kernels can serve the arguments, `chunked` elsewhere.

    The environment variable TORCHCAPS_BACKEND names another, for tests and comparisons.
    """
    asked = os.environ.get("TORCHCAPS_BACKEND") or ("fused" if u_BIK.is_cuda else "chunked")
    if asked not in BACKENDS:
        raise UserError(f"TORCHCAPS_BACKEND={asked} is not a backend: {did_you_mean(asked, BACKENDS)}")
    if asked != "fused":
        return asked
    reason = "Triton is not installed"
    if importlib.util.find_spec("triton") is not None:
        from torchcaps.ops.dynamic import fused

        reason = fused.reason_not(u_BIK, weight_IJDK, iterations) or ""
    if not reason:
        return "fused"
    _say_once(reason)
    return "chunked"


def triton_kernels(x: Tensor) -> bool:
    """Whether Triton kernels serve x: on CUDA, or interpreted, if asked for by TORCHCAPS_BACKEND=fused."""
    asked = os.environ.get("TORCHCAPS_BACKEND") or ("fused" if x.is_cuda else "chunked")
    known = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    here = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return asked == "fused" and known and here and importlib.util.find_spec("triton") is not None


@functools.cache
def _say_once(reason: str) -> None:
    log.warning("dynamic routing runs on the chunked path, not the fused one: %s", reason)
