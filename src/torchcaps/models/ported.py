"""CapsNet as popular ports compute it, so that weights trained with them give the same output here.

It departs from the paper and is not meant for training: `torchcaps convert` makes it, `create_model` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.layers import DenseCaps
from torchcaps.models.capsnet import CapsNet, published_std
from torchcaps.models.registry import register_model
from torchcaps.ops.squash import squash


@register_model
class PortedCapsNet(CapsNet):
    """A CapsNet with a port's departures from the paper.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        order: "channels": a primary capsule is `dim` neighbouring channels at one position, as in the paper; "memory":
            `dim` neighbours in memory, which are positions of one channel (a reshape without a transpose).
        compete: the axis over which couplings sum to 1: "parents", as in the paper, or "children".
        logits: whether routing starts from learned logits instead of zeros.
        **kwargs: arguments of `CapsNet`.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        num_classes: int,
        *,
        order: Literal["channels", "memory"] = "channels",
        compete: Literal["parents", "children"] = "parents",
        logits: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        self.order = order
        self.classes = _PortedCaps(self.classes, compete, logits)
        if order == "memory":
            self.grid = (1, 1)  # capsules have no position

    def children_of(self, images: Tensor) -> Capsules:
        if self.order == "channels":
            return super().children_of(images)
        maps = self.primary.conv(functional.relu(self.conv(self.normalise(images))))
        return Capsules(squash(maps.flatten(1).unflatten(1, (-1, self.primary.dim))))


class _PortedCaps(DenseCaps):
    """Class capsules with a port's routing."""

    def __init__(self, layer: DenseCaps, compete: str, logits: bool):
        sizes = layer.in_capsules, layer.in_dim, layer.out_capsules, layer.out_dim
        super().__init__(*sizes, iterations=layer.iterations, std=published_std(sizes[0], *sizes[2:]))
        self.compete = compete
        self.logits = nn.Parameter(torch.zeros(layer.in_capsules, layer.out_capsules)) if logits else None

    def forward(
        self, children: Capsules | Tensor, *, iterations: int | None = None, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor | None]:
        iterations = self.iterations if iterations is None else iterations
        votes_BIJD = torch.einsum("ijdk,bik->bijd", self.weight, as_capsules(children, "DenseCaps").pose)
        logits_BIJ = torch.zeros_like(votes_BIJD[..., 0])
        if self.logits is not None:
            logits_BIJ = logits_BIJ + self.logits
        for iteration in range(iterations):
            couplings_BIJ = logits_BIJ.softmax(1 if self.compete == "children" else 2)
            poses_BJD = squash(torch.einsum("bij,bijd->bjd", couplings_BIJ, votes_BIJD))
            if iteration < iterations - 1:
                logits_BIJ = logits_BIJ + torch.einsum("bijd,bjd->bij", votes_BIJD, poses_BJD)
        return (Capsules(poses_BJD), couplings_BIJ) if return_couplings else Capsules(poses_BJD)
