"""Local routing as in the paper: each position of a map by itself.

It is dynamic routing of dense capsules, but the children of a position are the T types there, and a convolution makes
their votes. Parents of the J types compete for a child: the softmax is over J. Further axes: T child types, D and E
dimensions of children and parents, Y×X positions of parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.ops.squash import squash


class Window(NamedTuple):
    """The convolution that makes votes from a map.

    Attributes:
        stride: of the convolution.
        padding: of the convolution.
        dilation: of the convolution.
        transposed: use a transposed convolution, which makes the map larger.
        output_padding: of a transposed convolution.
    """

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False
    output_padding: int = 0

    def size(self, pose_BTDHW: Tensor, weight: Tensor) -> tuple[int, int]:
        """Height and width of the output."""
        reach = self.dilation * (weight.shape[-1] - 1) + 1
        height, width = (
            (side - 1) * self.stride - 2 * self.padding + reach + self.output_padding
            if self.transposed
            else (side + 2 * self.padding - reach) // self.stride + 1
            for side in pose_BTDHW.shape[3:]
        )
        return height, width

    def convolve(self, pose_BTDHW: Tensor, weight: Tensor) -> Tensor:
        """Compute votes (B, T, J·E, Y, X) with one weight for all child types, or one for each."""
        maps, kernel, groups = self._fold(pose_BTDHW, weight)
        if self.transposed:
            rest = self.stride, self.padding, self.output_padding, groups, self.dilation
            votes = functional.conv_transpose2d(maps, kernel, None, *rest)
        else:
            votes = functional.conv2d(maps, kernel, None, self.stride, self.padding, self.dilation, groups)
        B, T = pose_BTDHW.shape[:2]
        return votes.unflatten(0, (B, T)) if weight.ndim == 4 else votes.unflatten(1, (T, -1))

    def gradients(
        self, d_votes: Tensor, pose_BTDHW: Tensor, weight: Tensor, needs: Sequence[bool] = (True, True)
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradients of poses and weight, empty where none is needed, from that of the votes
        (B, T, …, Y, X)."""
        maps, kernel, groups = self._fold(pose_BTDHW, weight)
        d_maps, d_kernel, _ = torch.ops.aten.convolution_backward(
            d_votes.flatten(2, -3).flatten(*((0, 1) if weight.ndim == 4 else (1, 2))),
            maps,
            kernel,
            None,
            [self.stride] * 2,
            [self.padding] * 2,
            [self.dilation] * 2,
            self.transposed,
            [self.output_padding] * 2,
            groups,
            [*needs[:2], False],
        )
        none = d_votes.new_empty(0)
        return (
            d_maps.reshape(pose_BTDHW.shape) if needs[0] else none,
            d_kernel.reshape(weight.shape) if needs[1] else none,
        )

    @staticmethod
    def _fold(pose_BTDHW: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, int]:
        """Types as examples, where they share a weight, or as groups of channels, where each has its own."""
        if weight.ndim == 4:
            return pose_BTDHW.flatten(0, 1), weight, 1
        return pose_BTDHW.flatten(1, 2), weight.flatten(0, 1), pose_BTDHW.shape[1]


def local_routing(
    pose_BTDHW: Tensor, weight: Tensor, iterations: int, bias_JE: Tensor, window: Window
) -> tuple[Tensor, Tensor]:
    """Poses (B, J, E, Y, X) and the couplings of the last iteration (B, T, J, Y, X), which sum to 1 over J."""
    return route_votes(votes_of(pose_BTDHW, weight, bias_JE.shape, window), iterations, bias_JE)


def votes_of(pose_BTDHW: Tensor, weight: Tensor, parents: torch.Size, window: Window) -> Tensor:
    """Votes (B, T, J, E, Y, X) of each child for each parent type at each position.

    Args:
        pose_BTDHW: (B, T, D, H, W).
        weight: (J·E, D, k, k) for all child types, or (T, J·E, D, k, k); transposed (…D, J·E, k, k).
        parents: J and E.
        window: of the convolution.
    """
    return window.convolve(pose_BTDHW, weight).unflatten(2, parents)


def route_votes(votes_BTJEYX: Tensor, iterations: int, bias_JE: Tensor) -> tuple[Tensor, Tensor]:
    logits_BTJYX = torch.zeros_like(votes_BTJEYX[:, :, :, 0])
    for iteration in range(iterations):
        couplings_BTJYX = logits_BTJYX.softmax(2)
        sums_BJEYX = (couplings_BTJYX[:, :, :, None] * votes_BTJEYX).sum(1) + bias_JE[..., None, None]
        poses_BJEYX = squash(sums_BJEYX, dim=2)
        if iteration < iterations - 1:
            logits_BTJYX = logits_BTJYX + (votes_BTJEYX * poses_BJEYX[:, None]).sum(3)
    return poses_BJEYX, couplings_BTJYX
