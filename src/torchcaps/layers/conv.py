"""Convolutional capsules: capsules at every place of a map, routed at each place by itself (LaLonde & Bagci 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.errors import UserError
from torchcaps.ops import Window, local_routing

ROUTINGS = ("dynamic", "uniform")  # those of the family that are defined at a place; em has layers of its own


class _Local(nn.Module):
    """What both layers have in common. A convolution makes votes; routing decides among the parent types of a place."""

    def __init__(
        self,
        in_types: int,
        in_dim: int,
        out_types: int,
        out_dim: int,
        kernel: int,
        window: Window,
        *,
        routing: str,
        iterations: int,
        shared: bool,
        bias: bool,
    ):
        super().__init__()
        name = type(self).__name__
        if min(in_types, in_dim, out_types, out_dim, kernel, window.stride, window.dilation) < 1:
            raise UserError(f"{name}: types, dimensions, kernel, stride and dilation must be positive")
        if iterations < 1:
            raise UserError(f"{name}: iterations must be at least 1, got {iterations}")
        if routing not in ROUTINGS:
            other = "; MatrixConvCaps2d routes by em" if routing == "em" else ""
            raise UserError(f"{name}: {routing} is not defined at a place: choose one of {', '.join(ROUTINGS)}{other}")
        self.in_types, self.in_dim, self.out_types, self.out_dim = in_types, in_dim, out_types, out_dim
        self.routing, self.iterations = routing, iterations
        self.window = window
        votes = (in_dim, out_types * out_dim) if window.transposed else (out_types * out_dim, in_dim)
        self.weight = nn.Parameter(torch.empty(*([] if shared else [in_types]), *votes, kernel, kernel))
        summed = (
            in_dim * (kernel / window.stride if window.transposed else kernel) ** 2
        )  # numbers that make one of a vote
        nn.init.normal_(self.weight, std=math.sqrt(2 / summed))
        self.bias = nn.Parameter(torch.full((out_types, out_dim), 0.1)) if bias else None

    def forward(
        self, children: Capsules | Tensor, *, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor]:
        pose = as_capsules(children).pose
        if pose.ndim != 5 or pose.shape[1:3] != (self.in_types, self.in_dim):
            raise ValueError(
                f"{type(self).__name__}({self.extra_repr()}): expected a pose of shape "
                f"(B, {self.in_types}, {self.in_dim}, H, W), got {tuple(pose.shape)}"
            )
        bias = self.weight.new_zeros(self.out_types, self.out_dim) if self.bias is None else self.bias
        iterations = 1 if self.routing == "uniform" else self.iterations
        if return_couplings:
            poses, couplings = local_routing(pose, self.weight, bias, iterations, self.window, return_couplings=True)
            return Capsules(poses), couplings
        return Capsules(local_routing(pose, self.weight, bias, iterations, self.window))

    def extra_repr(self) -> str:
        return (
            f"{self.in_types}×{self.in_dim} → {self.out_types}×{self.out_dim}, kernel={self.weight.shape[-1]}, "
            f"stride={self.window.stride}, routing={self.routing}, iterations={self.iterations}"
        )


class ConvCaps2d(_Local):
    """Capsules of a map from those of another, each looking at a window of every child type.

    in_types, in_dim    T child types of D dimensions
    out_types, out_dim  J parent types of E dimensions
    kernel, stride, padding, dilation  of the convolution; by default an odd kernel with a stride of 1 keeps the size
    routing             "dynamic", or "uniform": every child counts for every parent alike
    shared              one convolution for all child types, or one for each
    bias                a learned (J, E) inside routing, 0.1 at first

    input    pose (B, T, D, H, W), as Capsules or as a plain tensor
    returns  pose (B, J, E, Y, X); with return_couplings also (B, T, J, Y, X)
    """

    def __init__(
        self,
        in_types: int,
        in_dim: int,
        out_types: int,
        out_dim: int,
        kernel: int = 5,
        stride: int = 1,
        padding: int | None = None,
        dilation: int = 1,
        *,
        routing: str = "dynamic",
        iterations: int = 3,
        shared: bool = True,
        bias: bool = True,
    ):
        super().__init__(
            in_types,
            in_dim,
            out_types,
            out_dim,
            kernel,
            Window(stride, dilation * (kernel - 1) // 2 if padding is None else padding, dilation),
            routing=routing,
            iterations=iterations,
            shared=shared,
            bias=bias,
        )


class DeconvCaps2d(_Local):
    """The same with a transposed convolution: a larger map of capsules from a smaller one.

    kernel, stride, padding, output_padding  by default 4, 2 and 1: exactly twice the size
    """

    def __init__(
        self,
        in_types: int,
        in_dim: int,
        out_types: int,
        out_dim: int,
        kernel: int = 4,
        stride: int = 2,
        padding: int = 1,
        output_padding: int = 0,
        *,
        routing: str = "dynamic",
        iterations: int = 3,
        shared: bool = True,
        bias: bool = True,
    ):
        super().__init__(
            in_types,
            in_dim,
            out_types,
            out_dim,
            kernel,
            Window(stride, padding, transposed=True, output_padding=output_padding),
            routing=routing,
            iterations=iterations,
            shared=shared,
            bias=bias,
        )
