"""CapsNet as popular ports of it compute it, so that weights trained by them answer here as they did there.

Not what the paper says, and not for training: `create_model` does not know it. `torchcaps convert` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.layers import DenseCaps
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.registry import register_model
from torchcaps.ops.squash import squash


@register_model
class PortedCapsNet(CapsNet):
    """A CapsNet that departs from the paper where a port does.

    order    "channels": a primary capsule is `dim` neighbouring channels at a position, as in the paper; "memory":
             `dim` neighbours in memory, which are positions of the same channel (a reshape without a transpose)
    compete  who shares out a coupling of 1: "parents", as in the paper, or "children"
    logits   routing starts from learned logits instead of zeros
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
            self.grid = (1, 1)  # a capsule is at no position

    def children_of(self, images: Tensor) -> Capsules:
        if self.order == "channels":
            return super().children_of(images)
        maps = self.primary.conv(functional.relu(self.conv(self.normalise(images))))
        return Capsules(squash(maps.flatten(1).unflatten(1, (-1, self.primary.dim))))


class _PortedCaps(DenseCaps):
    """Class capsules whose routing departs from the paper's."""

    def __init__(self, layer: DenseCaps, compete: str, logits: bool):
        sizes = layer.in_capsules, layer.in_dim, layer.out_capsules, layer.out_dim
        super().__init__(*sizes, iterations=layer.iterations)
        self.compete = compete
        self.logits = nn.Parameter(torch.zeros(layer.in_capsules, layer.out_capsules)) if logits else None

    def route(
        self, children: Capsules | Tensor, iterations: int, couplings: bool = False
    ) -> tuple[Capsules, Tensor | None]:
        votes_BIJD = torch.einsum("ijdk,bik->bijd", self.weight, as_capsules(children).pose)
        logits_BIJ = torch.zeros_like(votes_BIJD[..., 0])
        if self.logits is not None:
            logits_BIJ = logits_BIJ + self.logits
        for iteration in range(iterations):
            couplings_BIJ = logits_BIJ.softmax(1 if self.compete == "children" else 2)
            poses_BJD = squash(torch.einsum("bij,bijd->bjd", couplings_BIJ, votes_BIJD))
            if iteration < iterations - 1:
                logits_BIJ = logits_BIJ + torch.einsum("bijd,bjd->bij", votes_BIJD, poses_BJD)
        return Capsules(poses_BJD), couplings_BIJ if couplings else None
