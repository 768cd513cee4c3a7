"""Dynamic routing alone: every backend on the same workload, one axis varied at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.bench.timing import by_turns, extra_memory, recorded
from torchcaps.ops.dispatch import backend as backend_for
from torchcaps.ops.dynamic import reference
from torchcaps.ops.dynamic.operators import route

REPEATS = 10  # calls in one CUDA graph


class Workload(NamedTuple):
    """The paper's routing, MNIST's primary capsules to ten classes, unless told otherwise."""

    B: int = 128
    I: int = 1152
    K: int = 8
    J: int = 10
    D: int = 16
    R: int = 3

    @property
    def operations(self) -> int:
        """Floating-point operations that the passes of README.md need, forward and backward."""
        return (
            2
            * self.B
            * self.I
            * self.K
            * self.J
            * self.D
            * (1 + 2 * (self.R - 1) + 3 * (self.R - 1) + 2 * (2 * self.R - 1))
        )


AXES: dict[str, list[int]] = {
    "B": [1, 16, 64, 128, 256, 512, 1024],
    "I": [64, 256, 1152, 4096, 16384],
    "J": [2, 10, 100, 1000],
    "R": [1, 2, 3, 4, 5],
}
SMALL_AXES: dict[str, list[int]] = {"B": [1, 8, 32], "I": [64, 256, 1152], "J": [2, 10, 50], "R": [1, 3, 5]}


class Row(NamedTuple):
    """What was measured: milliseconds of the forward pass, and of forward and backward; extra memory of the latter."""

    workload: Workload
    backend: str
    precision: str
    error: float  # relative, of the worst of poses and gradients, against float64
    forward_ms: float
    both_ms: float
    extra_mib: float | None


def workloads(base: Workload, axes: dict[str, list[int]]) -> Iterator[Workload]:
    yield base
    for axis, values in axes.items():
        for value in values:
            if value != getattr(base, axis):
                # 1,000 classes and 16,384 children are asked for at batch 64.
                yield base._replace(**{axis: value}, **({"B": min(base.B, 64)} if axis in "IJ" else {}))


def measure(workload: Workload, backends: list[str], device: torch.device, rounds: int = 11) -> list[Row]:
    """Time every backend that can serve the workload, after checking it against float64."""
    u, weight, direction = _inputs(workload, device)
    # Where votes would take gigabytes, the chunked path in float64 stands in for the reference it is tested against.
    yardstick = reference_routing if _fits(workload) else _routing("chunked")
    exact = _run(yardstick, u.double(), weight.double(), direction.double(), workload.R)
    rows = []
    for backend in backends:
        if backend == "fused" and _chosen(u, weight, workload.R) != "fused":
            continue
        if backend.startswith("reference") and not _fits(workload):
            continue  # its votes alone would take gigabytes
        routing = _routing(backend)
        outputs = _run(routing, u, weight, direction, workload.R)
        errors = [_relative(a, b) for a, b in zip(outputs, exact)]
        allowed = 1e-2 if _precision(device) == "tf32" else 1e-5
        if not all(error <= allowed for error in errors):  # so put that NaN does not pass
            raise AssertionError(f"{backend} is wrong by {errors} on {workload}: nothing is timed")
        error = max(errors)
        forward = lambda: routing(u, weight, workload.R)  # noqa: E731, B023
        both = lambda: _run(routing, u, weight, direction, workload.R)  # noqa: E731, B023
        extra = extra_memory(both, device)
        calls = {"forward": forward, "both": both}
        repeats = 1
        if device.type == "cuda":
            repeats = REPEATS
            calls = {name: recorded(call, REPEATS) for name, call in calls.items()}
        with torch.no_grad():
            seconds = by_turns(calls, device, rounds)
        rows.append(
            Row(
                workload,
                backend,
                _precision(device),
                error,
                seconds["forward"] / repeats * 1e3,
                seconds["both"] / repeats * 1e3,
                None if extra is None else extra / 2**20,
            )
        )
    return rows


def reference_routing(u: Tensor, weight: Tensor, iterations: int) -> Tensor:
    return reference.dynamic_routing(u, weight, iterations, None, False)[0]


def _routing(backend: str) -> Callable[[Tensor, Tensor, int], Tensor]:
    if backend == "reference":
        return reference_routing
    if backend == "reference compiled":
        return torch.compile(reference_routing, dynamic=False)
    return lambda u, weight, iterations: route(backend, u, weight, iterations, None, False, False)[0]


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


def _chosen(u: Tensor, weight: Tensor, iterations: int) -> str:
    return backend_for(u, weight, iterations)


def _precision(device: torch.device) -> str:
    tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if tf32 else "fp32"


def _relative(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm().clamp_min(1e-30))
