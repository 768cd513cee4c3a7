"""Convolutional capsules: each position of a map is routed by itself (LaLonde & Bagci 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers.bridges import as_vectors
from torchcaps.layers.initial import CHILD, dynamic_sum
from torchcaps.ops import Window, local_routing

ROUTINGS = ("dynamic", "uniform")  # EM has layers of its own, in matrix.py
HINT = "; PrimaryCaps(…, maps=True) returns maps, and maps do not follow dense capsules"


class _Local(nn.Module):
    """Base of both layers. A convolution makes votes; at each position routing decides among the parent types.

    Couplings get no gradient: the backward pass of `local_routing` does not keep them.
    """

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
        std: float | None,
    ):
        super().__init__()
        name = type(self).__name__
        check_whole(name, in_types=in_types, in_dim=in_dim, out_types=out_types, out_dim=out_dim)
        check_whole(name, kernel=kernel, stride=window.stride, dilation=window.dilation, iterations=iterations)
        check_whole(name, 0, padding=window.padding, output_padding=window.output_padding)
        if routing not in ROUTINGS:
            other = "; MatrixConvCaps2d uses EM routing" if routing == "em" else ""
            raise UserError(f"{name} supports dynamic or uniform routing, got {routing!r}{other}")
        self.in_types, self.in_dim, self.out_types, self.out_dim = in_types, in_dim, out_types, out_dim
        self.routing, self.iterations = routing, iterations
        self.window = window
        votes = (in_dim, out_types * out_dim) if window.transposed else (out_types * out_dim, in_dim)
        self.weight = nn.Parameter(torch.empty(*([] if shared else [in_types]), *votes, kernel, kernel))
        if std is None:
            # As for dense capsules, whose children are the types at one position; how many products make a value of a
            # vote does not change its size if all positions of a window are alike.
            first = dynamic_sum(out_types, out_dim, 1 if routing == "uniform" else iterations)
            reach = kernel / window.stride if window.transposed else kernel
            std = first * out_types / (CHILD * math.sqrt(in_types * out_dim) * reach)
        nn.init.normal_(self.weight, std=std)
        self.bias = nn.Parameter(torch.full((out_types, out_dim), 0.1)) if bias else None

    def forward(
        self, children: Capsules | Tensor, *, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor | None]:
        """Route the children to the parents.

        Args:
            children: pose (B, T, D, H, W), as Capsules or as a plain tensor. Where children have an activation of
                their own, as those of EM routing, they are read as vectors of that length.
            return_couplings: also return the couplings of the last iteration, without a gradient.

        Returns:
            pose (B, J, E, Y, X); with return_couplings a tuple of that and the couplings (B, T, J, Y, X).
        """
        children = as_capsules(children, type(self).__name__)
        pose = children.pose
        if pose.ndim != 5 or pose.shape[1:3] != (self.in_types, self.in_dim):
            raise ValueError(
                f"{type(self).__name__}({self.extra_repr()}): expected a pose of shape "
                f"(B, {self.in_types}, {self.in_dim}, H, W), got {tuple(pose.shape)}"
                f"{HINT if pose.ndim == 3 else ''}"
            )
        pose = as_vectors(children).pose
        bias = self.weight.new_zeros(self.out_types, self.out_dim) if self.bias is None else self.bias
        iterations = 1 if self.routing == "uniform" else self.iterations
        routed = local_routing(pose, self.weight, bias, iterations, self.window, return_couplings=return_couplings)
        parents = Capsules(routed.poses)
        return (parents, routed.couplings) if return_couplings else parents

    def extra_repr(self) -> str:
        return (
            f"{self.in_types}×{self.in_dim} → {self.out_types}×{self.out_dim}, kernel={self.weight.shape[-1]}, "
            f"stride={self.window.stride}, routing={self.routing}, iterations={self.iterations}"
        )


class ConvCaps2d(_Local):
    """Capsules of a map from those of another; each parent gets votes from a window of every child type.

    Args:
        in_types: T child types.
        in_dim: D dimensions of a child's pose.
        out_types: J parent types.
        out_dim: E dimensions of a parent's pose.
        kernel: of the convolution.
        stride: of the convolution.
        padding: of the convolution; by default an odd kernel with a stride of 1 keeps the size.
        dilation: of the convolution.
        routing: "dynamic", or "uniform", where all couplings are equal.
        iterations: number of routing iterations.
        shared: use one convolution for all child types, instead of one for each.
        bias: learn a bias (J, E) inside routing, 0.1 at first.
        std: of the initial weight; by default parents of children 0.7 long start about a half long
            (layers/initial.py).
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
        std: float | None = None,
    ):
        check_whole("ConvCaps2d", kernel=kernel, dilation=dilation)
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
            std=std,
        )


class DeconvCaps2d(_Local):
    """As ConvCaps2d with a transposed convolution: a larger map of capsules from a smaller one.

    The defaults double the size exactly.

    Args:
        in_types: T child types.
        in_dim: D dimensions of a child's pose.
        out_types: J parent types.
        out_dim: E dimensions of a parent's pose.
        kernel: of the convolution.
        stride: of the convolution.
        padding: of the convolution.
        output_padding: of the convolution.
        routing: "dynamic", or "uniform", where all couplings are equal.
        iterations: number of routing iterations.
        shared: use one convolution for all child types, instead of one for each.
        bias: learn a bias (J, E) inside routing, 0.1 at first.
        std: of the initial weight; by default parents of children 0.7 long start about a half long
            (layers/initial.py).
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
        std: float | None = None,
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
            std=std,
        )
