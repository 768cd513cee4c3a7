"""Dynamic routing alone: every backend on the same workload, with one axis varied at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.bench.timing import Call, device_seconds, extra_mib
from torchcaps.ops import dynamic_routing
from torchcaps.ops.dispatch import using
from torchcaps.ops.dynamic import backend_for, reference


class Workload(NamedTuple):
    """Sizes of a routing; by default the paper's, from MNIST's primary capsules to ten classes."""

    B: int = 128
    I: int = 1152
    K: int = 8
    J: int = 10
    D: int = 16
    R: int = 3

    @property
    def operations(self) -> int:
        """Floating-point operations that the passes of ops/dynamic/README.md need, forward and backward."""
        B, I, K, J, D, R = self
        return 2 * B * I * K * J * D * (1 + 2 * (R - 1) + 3 * (R - 1) + 2 * (2 * R - 1))

    @property
    def numbers(self) -> int:
        """Numbers that must be moved, forward and backward: u and W are read twice, and their gradients written."""
        B, I, K, J, D, _ = self
        return 3 * (B * I * K + I * J * D * K)


# For each precision of products: the dtype of the inputs, and the largest relative error allowed.
PRECISIONS: dict[str, tuple[torch.dtype, float]] = {
    "fp32": (torch.float32, 1e-5),
    "tf32": (torch.float32, 1e-2),
    "bf16": (torch.bfloat16, 3e-2),
}

AXES: dict[str, list[int]] = {
    "B": [1, 16, 64, 128, 256, 512, 1024],
    "I": [64, 256, 1152, 4096, 16384],
    "J": [2, 10, 100, 1000],
    "R": [1, 2, 3, 4, 5],
}
SMALL_AXES: dict[str, list[int]] = {"B": [1, 8, 32], "I": [64, 256, 1152], "J": [2, 10, 50], "R": [1, 3, 5]}


class Row(NamedTuple):
    """Run time of the forward pass, and of forward and backward; extra memory of the latter."""

    workload: Workload
    backend: str
    precision: str
    error: float  # relative, of the worst of poses and gradients, against float64
    forward_ms: float
    both_ms: float
    extra_mib: float | None


def workloads(base: Workload, axes: dict[str, list[int]]) -> Iterator[Workload]:
    for axis, values in axes.items():
        for value in values:
            if value != getattr(base, axis):
                # Many classes or children are measured with batch 64.
                yield base._replace(**{axis: value}, **({"B": min(base.B, 64)} if axis in "IJ" else {}))


def measure(
    workload: Workload, backends: list[str], device: torch.device, precision: str = "fp32", rounds: int = 11
) -> list[Row]:
    """Check every backend that supports the workload against float64, then time it."""
    dtype, allowed = PRECISIONS[precision]
    u, weight, direction = (x.to(dtype) for x in _inputs(workload, device))
    # If the votes would take gigabytes, the chunked backend in float64 replaces the reference.
    exact_routing = reference_routing if _fits(workload) else _routing("chunked")
    exact = _run(exact_routing, u.double(), weight.double(), direction.double(), workload.R)
    rows = []
    with matmul_precision(precision):
        for backend in backends:
            if backend == "fused" and backend_for(u, weight, workload.R) != "fused":
                continue
            if backend.startswith("reference") and not _fits(workload):
                continue  # its votes alone would take gigabytes
            routing = _routing(backend)
            errors = [relative_error(a, b) for a, b in zip(_run(routing, u, weight, direction, workload.R), exact)]
            if not all(error <= allowed for error in errors):  # written so that NaN fails
                raise AssertionError(f"{backend} is wrong by {errors} on {workload}; nothing was timed")
            calls: dict[str, Call] = {
                "forward": partial(routing, u, weight, workload.R),
                "both": partial(_run, routing, u, weight, direction, workload.R),
            }
            mib = extra_mib(calls["both"], device)
            with torch.no_grad():
                seconds = device_seconds(calls, device, rounds)
            forward, both = (seconds[name] * 1e3 for name in ("forward", "both"))
            rows.append(Row(workload, backend, precision, max(errors), forward, both, mib))
    return rows


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Compute float32 matrix products in full precision, or in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def reference_routing(u: Tensor, weight: Tensor, iterations: int) -> Tensor:
    return reference.dynamic_routing(u, weight, iterations, None, False)[0]


def _routing(backend: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    if backend == "reference":
        return reference_routing
    if backend == "reference compiled":
        return torch.compile(reference_routing, dynamic=False)

    def routing(u: Tensor, weight: Tensor, iterations: int) -> Tensor:
        with using(backend):
            return dynamic_routing(u, weight, iterations).poses

    return routing


def _run(
    routing: Callable[[Tensor, Tensor, int], Tensor], u: Tensor, weight: Tensor, direction: Tensor, iterations: int
) -> list[Tensor]:
    """Poses, and the gradients of u and weight."""
    with torch.enable_grad():
        u, weight = u.detach().requires_grad_(), weight.detach().requires_grad_()
        poses = routing(u, weight, iterations)
        return [poses.detach(), *torch.autograd.grad(poses, (u, weight), direction)]


def _inputs(workload: Workload, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    B, I, K, J, D, _ = workload
    random = torch.Generator().manual_seed(0)
    u = torch.randn(B, I, K, generator=random) * 0.3
    weight = torch.randn(I, J, D, K, generator=random) * 0.1
    return u.to(device), weight.to(device), torch.randn(B, J, D, generator=random).to(device)


def _fits(workload: Workload) -> bool:
    return workload.B * workload.I * workload.J * workload.D <= 2**28


def relative_error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm().clamp_min(1e-30))
