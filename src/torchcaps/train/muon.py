"""Muon (Jordan et al. 2024): steps whose singular values are all alike, for weights that are matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.layers import ConvCaps2d, DeconvCaps2d, DenseCaps
from torchcaps.layers.routings import ROUTINGS

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a quintic that takes singular values in (0, 1] to about 1 in five rounds
ROUNDS = 5
LARGE = 512  # rows from which rounds in float32 may take longer than all else of a training step
LIKE_ADAM = 0.2  # root mean square of a step of Adam, in learning rates


class Muon(torch.optim.AdamW):
    """Momentum made orthogonal where a group has "rows", the axes of its weights that are rows of a matrix; the rest is
    AdamW. A step is as long as one of AdamW would be, so learning rates are those of AdamW.

    betas  the first is also the momentum of matrices
    """

    def __init__(self, groups: Iterable[dict[str, Any]], **options: Any):
        super().__init__([{"rows": ()} | group for group in groups], **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        gradients = [(p, p.grad, g) for g in self.param_groups if g["rows"] for p in g["params"] if p.grad is not None]
        for weight, gradient, group in gradients:
            self._turn(weight, gradient, group)
            weight.grad = None  # so that AdamW passes it over
        loss = super().step(closure)
        for weight, gradient, _ in gradients:
            weight.grad = gradient
        return loss

    def _turn(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        momentum, rate = group["betas"][0], group["lr"]
        state = self.state[weight]
        bad = getattr(self, "found_inf", None)  # as for the fused AdamW: 1 where a step is to change nothing
        if "mean" not in state:
            state["mean"], state["step"] = torch.zeros_like(weight), torch.zeros(())  # AdamW looks for the latter
        if bad is not None:
            gradient = torch.where(bad > 0, state["mean"], gradient)  # the mean stays, and stays a number
        state["mean"].lerp_(gradient, 1 - momentum)
        ahead = gradient.lerp(state["mean"], momentum)
        columns = tuple(axis for axis in range(weight.ndim) if axis not in group["rows"])
        order = (*group["rows"], *columns)
        sides = [ahead.shape[axis] for axis in order]
        rows = math.prod(sides[: len(group["rows"])])
        turned = orthogonal(ahead.permute(order).reshape(rows, -1))
        back = sorted(range(weight.ndim), key=order.__getitem__)
        scale = LIKE_ADAM * math.sqrt(max(turned.shape))
        if bad is not None:
            rate = rate * (1 - bad)
        weight.mul_(1 - rate * group["weight_decay"])
        weight.sub_(turned.reshape(sides).permute(back) * (rate * scale))


def orthogonal(matrix: Tensor) -> Tensor:
    """About the nearest matrix whose singular values are all 1, by products alone."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp_min(1e-7)
    wide = x.shape[1] >= 4 * x.shape[0]
    x = in_rounds(x) if wide or len(x) < LARGE else in_rough_rounds(x)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def in_rounds(x: Tensor) -> Tensor:
    """Every round is a polynomial of the Gram matrix G = X Xᵀ times X, so all but their last product are taken on
    G, which has the shorter side. They blow up what is small: G must not be rounded to less than float32."""
    a, b, c = NEWTON_SCHULZ
    gram, eye = x @ x.T, torch.eye(len(x), device=x.device, dtype=x.dtype)
    whole = eye
    with _exact_products():
        for _ in range(ROUNDS):
            factor = a * eye + torch.addmm(gram, gram, gram, beta=b, alpha=c)
            gram, whole = factor @ gram @ factor, factor @ whole
    return whole @ x


def in_rough_rounds(x: Tensor) -> Tensor:
    """The same rounds on X itself, which may be rounded: on an accelerator in bfloat16, as Muon was published."""
    a, b, c = NEWTON_SCHULZ
    rough = x.bfloat16() if x.is_cuda else x
    for _ in range(ROUNDS):
        gram = rough @ rough.T
        rough = torch.addmm(rough, torch.addmm(gram, gram, gram, beta=b, alpha=c), rough, beta=a)
    return rough.to(x.dtype)


@contextmanager
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def by_shape(model: nn.Module, linear: bool = False) -> list[dict[str, Any]]:
    """A model's weights in groups by which of their axes are rows, that is, what a layer puts out; last the rest.

    linear  weights of Linear layers have rows, too
    """
    groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            matrix = weight.ndim == 4 or (linear and isinstance(module, nn.Linear))
            rows = _rows(module) if name == "weight" and matrix else ()
            groups.setdefault(rows, []).append(weight)
    return [{"params": groups[rows], "rows": rows} for rows in sorted(groups, reverse=True)]


def _rows(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, DenseCaps):
        return () if ROUTINGS[module.routing].matrix else (1, 2)
    if isinstance(module, (nn.ConvTranspose2d, DeconvCaps2d)):
        return (1,)
    return (0,) if isinstance(module, (nn.Conv2d, ConvCaps2d, nn.Linear)) else ()
