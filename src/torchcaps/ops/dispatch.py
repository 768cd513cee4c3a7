"""Which implementation runs. Nothing here imports Triton or breaks a graph that torch.compile traces."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Iterator

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean

BACKENDS = ("reference", "chunked", "fused")
VARIABLE = "TORCHCAPS_BACKEND"
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
log = logging.getLogger("torchcaps")


def backend(u_BIK: Tensor, weight_IJDK: Tensor, iterations: int) -> str:
    """`fused` on CUDA where the kernels can serve the arguments, `chunked` elsewhere.

    The environment variable TORCHCAPS_BACKEND names another, for tests and comparisons.
    """
    name = asked(u_BIK)
    if name != "fused":
        return name
    B, I, K = u_BIK.shape
    D = weight_IJDK.shape[2]
    reason = _why_not_triton(u_BIK) or _why_not_triton(weight_IJDK)
    if reason is None and (B == 0 or I == 0):
        reason = "there is nothing to route"
    if reason is None and (K > 64 or D > 128 or iterations > 8):
        reason = f"K={K}, D={D}, {iterations} iterations are beyond K=64, D=128, 8 iterations"
    return _fused_unless(reason, "dynamic routing")


def em_backend(pose_BID: Tensor, weight_NJPP: Tensor) -> str:
    """The same for EM routing, whose kernels compute in float32 and serve poses of 1×1, 2×2 and 4×4."""
    name = asked(pose_BID)
    if name != "fused":
        return name
    size = weight_NJPP.shape[-1]
    reason = _why_not_triton(pose_BID) or _why_not_triton(weight_NJPP)
    if reason is None and pose_BID.numel() == 0:
        reason = "there is nothing to route"
    if reason is None and size not in (1, 2, 4):
        reason = f"poses are {size}×{size}, not 1×1, 2×2 or 4×4"
    return _fused_unless(reason, "EM routing")


def local_backend(pose_BTDHW: Tensor, bias_JE: Tensor) -> str:
    """The same for routing at each position; the bias has the type that is routed in."""
    name = asked(pose_BTDHW)
    if name != "fused":
        return name
    reason = _why_not_triton(pose_BTDHW) or _why_not_triton(bias_JE)
    if reason is None and pose_BTDHW.numel() == 0:
        reason = "there is nothing to route"
    return _fused_unless(reason, "routing at each position")


def _fused_unless(reason: str | None, what: str) -> str:
    if reason is None:
        return "fused"
    if not torch.compiler.is_compiling():  # a log line would break the graph
        _say_once(what, reason)
    return "chunked"


def triton_kernels(x: Tensor) -> bool:
    """Whether Triton kernels serve x: by default on CUDA."""
    return asked(x) == "fused" and _why_not_triton(x) is None and x.numel() > 0


def asked(x: Tensor) -> str:
    """The backend by device, or by name in the environment, whether or not it can serve x."""
    name = os.environ.get(VARIABLE) or ("fused" if x.is_cuda else "chunked")
    if name not in BACKENDS:
        raise UserError(f"{VARIABLE}={name} is not a backend: {did_you_mean(name, BACKENDS)}")
    return name


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Within, this backend runs: the reference while a model is traced for runtimes that know none of our operators."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def eager_inference(x: Tensor) -> bool:
    """Whether nothing will be differentiated, traced or transformed. Then an operator is called as the plain function
    that it is: passing through PyTorch's dispatcher takes a good part of the time of routing a single image.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    ordinary = type(x) in (Tensor, torch.nn.Parameter) and x.device.type in ("cpu", "cuda")
    return ordinary and torch._C._functorch.peek_interpreter_stack() is None


def float32_precision() -> str:
    """What torch.set_float32_matmul_precision says: highest, high or medium. Where the newer settings by device are in
    use, which make PyTorch refuse the question, what those say.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return {"tf32": "high", "bf16": "medium"}.get(torch.backends.cuda.matmul.fp32_precision, "highest")


def _why_not_triton(x: Tensor) -> str | None:
    if not HAS_TRITON:
        return "Triton is not installed"
    if not (x.is_cuda or INTERPRETED):
        return f"tensors are on {x.device.type}"
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"{x.dtype} is not float32, bfloat16 or float16"
    return None


@functools.cache
def _say_once(what: str, reason: str) -> None:
    log.warning("%s runs on the chunked path, not the fused one: %s", what, reason)
