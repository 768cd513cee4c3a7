"""Muon (Jordan et al. 2024): orthogonalised momentum for weights that are matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.layers import ConvCaps2d, DeconvCaps2d, DenseCaps
from torchcaps.layers.routings import ROUTINGS

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a quintic that takes singular values in (0, 1] to about 1 in five rounds
ROUNDS = 5
LIKE_ADAM = 0.2  # root mean square of a step of Adam, in learning rates


class Muon(torch.optim.AdamW):
    """Orthogonalised momentum for groups with "rows", the axes of a weight that are the rows of a matrix; AdamW for the
    rest. A step has the length of an AdamW step, so learning rates are those of AdamW. The first beta is also the
    momentum of the matrices.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], **options: Any):
        super().__init__([{"rows": ()} | group for group in groups], **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        gradients = [(p, p.grad, g) for g in self.param_groups if g["rows"] for p in g["params"] if p.grad is not None]
        for weight, gradient, group in gradients:
            self._turn(weight, gradient, group)
            weight.grad = None  # AdamW skips weights without a gradient
        loss = super().step(closure)
        for weight, gradient, _ in gradients:
            weight.grad = gradient
        return loss

    def _turn(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        momentum, rate = group["betas"][0], group["lr"]
        state = self.state[weight]
        bad = getattr(self, "found_inf", None)  # as for the fused AdamW: 1 in a step that must be skipped
        if "mean" not in state:
            state["mean"], state["step"] = torch.zeros_like(weight), torch.zeros(())  # AdamW looks for the latter
        if bad is not None:
            gradient = torch.where(bad > 0, state["mean"], gradient)  # the mean stays as it is, and finite
            rate = rate * (1 - bad)
        state["mean"].lerp_(gradient, 1 - momentum)
        ahead = gradient.lerp(state["mean"], momentum)
        if group["weight_decay"]:
            weight.mul_(1 - rate * group["weight_decay"])
        order = _matrix_order(weight, group["rows"])
        matrix = ahead.permute(order).flatten(0, len(group["rows"]) - 1).flatten(1)
        left, right = factors(matrix, rate * LIKE_ADAM * math.sqrt(max(matrix.shape)))
        target = weight.permute(order)
        if target.is_contiguous():
            target.view(matrix.shape).addmm_(left, right, alpha=-1)
        else:
            target.sub_((left @ right).view(target.shape))


def _matrix_order(weight: Tensor, rows: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a weight, rows first; columns in memory order, so that a convolution's need not be copied."""
    columns = [axis for axis in range(weight.ndim) if axis not in rows]
    return (*rows, *sorted(columns, key=weight.stride, reverse=True))


def factors(matrix: Tensor, scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """The matrix and a smaller one, in the order in which their product is about orthogonal: the nearest matrix whose
    singular values are all 1, times scale."""
    wide = matrix.shape[0] <= matrix.shape[1]
    smaller = scale * to_orthogonal(matrix if wide else matrix.T)
    return (smaller, matrix) if wide else (matrix, smaller)


def to_orthogonal(x: Tensor) -> Tensor:
    """The symmetric matrix by which X, with no more rows than columns, is multiplied to become about orthogonal.

    Newton–Schulz: every round is a polynomial of the Gram matrix G = X Xᵀ times X, so all products are taken on G,
    which has the shorter side. They blow up what is small: G must not be rounded to less than float32.
    """
    a, b, c = NEWTON_SCHULZ
    gram, eye = x @ x.T, torch.eye(len(x), device=x.device, dtype=x.dtype)
    squared = gram.trace().clamp_min(1e-14)  # the squared norm of X
    gram, whole = gram / squared, eye
    with _exact_products():
        for _ in range(ROUNDS):
            factor = a * eye + torch.addmm(gram, gram, gram, beta=b, alpha=c)
            gram, whole = factor @ gram @ factor, factor @ whole
    return whole / squared.sqrt()


@contextmanager
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def by_shape(model: nn.Module) -> list[dict[str, Any]]:
    """A model's weights in groups by which of their axes are rows, that is, what a layer puts out; last the rest."""
    groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            rows = _rows(module) if name == "weight" and weight.ndim == 4 else ()
            groups.setdefault(rows, []).append(weight)
    return [{"params": groups[rows], "rows": rows} for rows in sorted(groups, reverse=True)]


@singledispatch
def _rows(module: nn.Module) -> tuple[int, ...]:
    """The axes of a layer's weight that are outputs; none for layers whose weight is not orthogonalised."""
    return ()


@_rows.register
def _(module: DenseCaps) -> tuple[int, ...]:
    return () if ROUTINGS[module.routing].matrix else (1, 2)


@_rows.register(nn.ConvTranspose2d)
@_rows.register(DeconvCaps2d)
def _(module: nn.Module) -> tuple[int, ...]:
    return (1,)


@_rows.register(nn.Conv2d)
@_rows.register(ConvCaps2d)
def _(module: nn.Module) -> tuple[int, ...]:
    return (0,)
