"""Which implementation runs. Nothing here imports Triton or breaks a graph that torch.compile traces."""

from __future__ import annotations

import contextlib
import contextvars
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
_override: contextvars.ContextVar[str | None] = contextvars.ContextVar("torchcaps_backend", default=None)


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Use one backend inside a `with` block, in this thread only.

    Exporters use the reference: other runtimes do not know the operators of the fast backends. A graph that
    torch.compile traced inside the block keeps its backend.

    Args:
        name: "reference", "chunked" or "fused".
    """
    if name not in BACKENDS:
        raise UserError(f"using: {name} is not a backend: {did_you_mean(name, BACKENDS)}")
    token = _override.set(name)
    try:
        yield
    finally:
        _override.reset(token)


def requested(x: Tensor) -> str:
    """Return the backend that `using`, the environment or else the device asks for, whether or not it can serve x."""
    name = _overridden() or os.environ.get(VARIABLE) or ("fused" if x.is_cuda else "chunked")
    if name not in BACKENDS:
        raise UserError(f"{VARIABLE}={name} is not a backend: {did_you_mean(name, BACKENDS)}")
    return name


def _overridden() -> str | None:
    return _override.get()


# Dynamo cannot trace ContextVar.get; so marked, the function is called while tracing and its result is a constant.
# torch.compiler.assume_constant_result does just this, but imports Dynamo, which takes longer than importing torchcaps.
_overridden._dynamo_marked_constant = True  # type: ignore[attr-defined]


def choose(routing: str, *tensors: Tensor, limit: str | None = None) -> str:
    """Return the backend that runs: the requested one, or chunked where the fused kernels cannot serve the arguments.

    Args:
        routing: its name, for the log message when fused was requested and cannot run.
        tensors: the children's poses first; the kernels need each on a GPU, in float32, bfloat16 or float16.
        limit: why the sizes are beyond what the kernels serve, or None.
    """
    name = requested(tensors[0])
    if name != "fused":
        return name
    reason = "the batch is empty" if tensors[0].numel() == 0 else limit
    for x in reversed(tensors):
        reason = _not_for_triton(x) or reason
    if reason is None:
        return "fused"
    if not torch.compiler.is_compiling():  # a log line would break the graph
        _log_once(routing, reason)
    return "chunked"


def _not_for_triton(x: Tensor) -> str | None:
    if not HAS_TRITON:
        return "Triton is not installed"
    if not (x.is_cuda or INTERPRETED):
        return f"tensors are on {x.device.type}"
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"{x.dtype} is not float32, bfloat16 or float16"
    return None


@functools.cache
def _log_once(routing: str, reason: str) -> None:
    log.warning("%s runs on the chunked path, not the fused one: %s", routing, reason)


def eager_inference(x: Tensor) -> bool:
    """Return whether nothing will be differentiated, traced or transformed.

    Then an operator is called as a plain function: PyTorch's dispatcher takes a large share of the time of routing a
    single image.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    ordinary = type(x) in (Tensor, torch.nn.Parameter) and (x.is_cpu or x.is_cuda)
    return ordinary and torch._C._functorch.peek_interpreter_stack() is None


def float32_precision() -> str:
    """Return the setting of torch.set_float32_matmul_precision: highest, high or medium.

    Where the newer settings for each device are in use, PyTorch refuses to return it; then those decide.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return {"tf32": "high", "bf16": "medium"}.get(torch.backends.cuda.matmul.fp32_precision, "highest")
