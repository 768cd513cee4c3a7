"""Capsules that get a vote from every capsule below."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.errors import UserError, did_you_mean
from torchcaps.layers.routings import ROUTINGS


class DenseCaps(nn.Module):
    """Every child votes for every parent with a matrix of its own; routing decides which votes count.

    Args:
        in_capsules: I children.
        in_dim: K dimensions of a child's pose; for matrix capsules the P·P of a pose.
        out_capsules: J parents.
        out_dim: D dimensions of a parent's pose; for matrix capsules the P·P of a pose.
        routing: a name in ROUTINGS.
        iterations: number of routing iterations.
        bias: learn a bias (J, D) inside routing, 0.1 at first, as in the authors' code.
        leaky: let a child that fits no parent keep part of its coupling.
        std: of the initial weight; by default parents start with a length of about a half.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        *,
        routing: str = "dynamic",
        iterations: int = 3,
        bias: bool = False,
        leaky: bool = False,
        std: float | None = None,
    ):
        super().__init__()
        if routing not in ROUTINGS:
            raise UserError(f"DenseCaps: no routing is called {routing!r}: {did_you_mean(routing, ROUTINGS)}")
        if iterations < 1:
            raise UserError(f"DenseCaps: iterations must be at least 1, got {iterations}")
        if min(in_capsules, in_dim, out_capsules, out_dim) < 1:
            raise UserError(f"DenseCaps: sizes must be positive: {in_capsules}×{in_dim} → {out_capsules}×{out_dim}")
        kind = ROUTINGS[routing]
        side = math.isqrt(in_dim)
        if kind.matrix and not side * side == in_dim == out_dim:
            raise UserError(
                f"DenseCaps: {routing} routes matrices: in_dim and out_dim must be the same square number, such as 16, "
                f"got {in_dim} and {out_dim}"
            )
        if not kind.biased and (bias or leaky):
            raise UserError(f"DenseCaps: {routing} routing supports neither bias nor leaky: omit both")
        self.in_capsules, self.in_dim = in_capsules, in_dim
        self.out_capsules, self.out_dim = out_capsules, out_dim
        self.routing, self.iterations, self.leaky = routing, iterations, leaky
        if std is None:
            # With couplings 1/J, children of length a half and random matrices, |s| = std · √(I·D) / (2J): make it 1.
            std = 2 * out_capsules / math.sqrt(in_capsules * out_dim)
        shape = (side, side) if kind.matrix else (out_dim, in_dim)
        self.weight = nn.Parameter(torch.empty(in_capsules, out_capsules, *shape))
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        self.bias = nn.Parameter(torch.full((out_capsules, out_dim), 0.1)) if bias else None
        learned = kind.learns(in_capsules, out_capsules, out_dim)
        for name, values in learned.items():
            self.register_parameter(name, nn.Parameter(values))
        self._names = ("weight", *(["bias"] if bias else []), *learned)

    def forward(
        self, children: Capsules | Tensor, *, iterations: int | None = None, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor | None]:
        """Route the children to the parents.

        Args:
            children: pose (B, I, K), as Capsules or as a plain tensor.
            iterations: instead of the layer's own number.
            return_couplings: also return the couplings of the last iteration.

        Returns:
            pose (B, J, D); with return_couplings a tuple of that and the couplings (B, I, J).
        """
        children = as_capsules(children)
        u = children.pose
        if u.ndim != 3 or u.shape[1:] != (self.in_capsules, self.in_dim):
            raise ValueError(
                f"DenseCaps({self.extra_repr()}): expected a pose of shape (B, {self.in_capsules}, {self.in_dim}), "
                f"got {tuple(u.shape)}; set in_capsules and in_dim to the output sizes of the layer below"
            )
        routing = ROUTINGS[self.routing]
        count = self.iterations if iterations is None else iterations
        arguments = routing.arguments(children, self.weights, count, self.leaky)
        routed = routing.function(**arguments, return_couplings=return_couplings)
        parents = Capsules(routed.poses, routed.activation)
        return (parents, routed.couplings) if return_couplings else parents

    @property
    def weights(self) -> dict[str, Tensor]:
        """All learned tensors by name, as routing uses them: after pruning or parametrisation, if there is any."""
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        return (
            f"{self.in_capsules}×{self.in_dim} → {self.out_capsules}×{self.out_dim}, "
            f"routing={self.routing}, iterations={self.iterations}"
        )
