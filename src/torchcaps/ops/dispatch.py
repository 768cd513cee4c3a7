"""Which implementation runs. Nothing here imports Triton or breaks a graph that torch.compile traces."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchcaps.errors import UserError, did_you_mean

T = TypeVar("T")
ORDINARY = (Tensor, torch.nn.Parameter)
BACKENDS = ("reference", "chunked", "fused")
VARIABLE = "TORCHCAPS_BACKEND"
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
log = logging.getLogger("torchcaps")
_override: contextvars.ContextVar[str | None] = contextvars.ContextVar("torchcaps_backend", default=None)


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Use one backend inside a `with` block, in this thread only.

    A graph that torch.compile or torch.export traced inside the block keeps its backend.

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
    """Return the backend that `using`, the environment or else the device asks for, whether or not it can serve x.

    Exported programs get the reference, unless `using` says otherwise: other runtimes do not know our operators.
    """
    name = _overridden() or ("reference" if exporting() else os.environ.get(VARIABLE))
    name = name or ("fused" if x.is_cuda else "chunked")
    if name not in BACKENDS:
        raise UserError(f"{VARIABLE}={name} is not a backend: {did_you_mean(name, BACKENDS)}")
    return name


def constant(function: Callable[[], T]) -> Callable[[], T]:
    """Make torch.compile call the function while it traces, and take the result as a constant.

    torch.compiler.assume_constant_result does just this, but imports Dynamo, which takes longer than the first step.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant
def _overridden() -> str | None:
    return _override.get()  # Dynamo cannot trace it


@constant
def exporting() -> bool:
    """Return whether torch.export or torch.onnx.export is tracing.

    While torch.compile traces, torch.compiler.is_exporting itself would always be true.
    """
    return torch.compiler.is_exporting() or (torch.jit.is_tracing() and torch.onnx.is_in_onnx_export())


@constant
def transformed() -> bool:
    """Return whether a transform of torch.func, or forward-mode differentiation, is active.

    Operators with a hand-written gradient support neither; the reference does.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def choose(routing: str, *tensors: Tensor, limit: str | None = None) -> str:
    """Return the backend that runs: the requested one, if it can serve the arguments.

    Under transforms of torch.func and forward-mode differentiation that is the reference, and chunked where the fused
    kernels cannot serve the arguments.

    Args:
        routing: its name, for the log message when the requested backend cannot run.
        tensors: the children's poses first; the kernels need each on a GPU, in float32, bfloat16 or float16.
        limit: why the sizes are beyond what the kernels serve, or None.
    """
    name = requested(tensors[0])
    if name != "reference" and transformed():
        _log_fallback(routing, "reference", name, "torch.func and forward-mode differentiation need plain operations")
        return "reference"
    if name != "fused":
        return name
    reason = "the batch is empty" if tensors[0].numel() == 0 else limit
    for x in reversed(tensors):
        reason = _not_for_triton(x) or reason
    if reason is None:
        return "fused"
    _log_fallback(routing, "chunked", name, reason)
    return "chunked"


def _not_for_triton(x: Tensor) -> str | None:
    if not HAS_TRITON:
        return "Triton is not installed"
    if not (x.is_cuda or INTERPRETED):
        return f"tensors are on {x.device.type}"
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"{x.dtype} is not float32, bfloat16 or float16"
    return None


def _log_fallback(*message: str) -> None:
    if not torch.compiler.is_compiling():  # a log line would break the graph
        _log_once(*message)


@functools.cache
def _log_once(routing: str, used: str, wanted: str, reason: str) -> None:
    log.warning("%s runs on the %s path, not the %s one: %s", routing, used, wanted, reason)


def eager(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether ordinary tensors are computed at once: nothing traces, counts, fakes or transforms operations.

    Then PyTorch's dispatcher need not know what an operation is called.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    return not transformed() and all(x is None or (type(x) in ORDINARY and (x.is_cpu or x.is_cuda)) for x in tensors)


def float32_precision() -> str:
    """Return the setting of torch.set_float32_matmul_precision: highest, high or medium.

    Where the newer settings for each device are in use, PyTorch refuses to return it; then those decide.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return {"tf32": "high", "bf16": "medium"}.get(torch.backends.cuda.matmul.fp32_precision, "highest")
