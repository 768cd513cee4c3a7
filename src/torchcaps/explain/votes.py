"""Routing of one image, step by step: the vote of every primary capsule for every class."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.explain.require import require_capsules
from torchcaps.layers.routings import ROUTINGS
from torchcaps.models import CapsuleModel
from torchcaps.models.evaluating import evaluating

DECIDED = 0.5  # a part whose largest coupling is above has decided for a class
EQUAL = 1e-6  # couplings that differ by less are equal


class RoutingTrace(NamedTuple):
    """Routing of one image over R iterations.

    Attributes:
        parts: (I,) lengths of the primary capsules: types first, then rows, then columns of the model's grid.
        votes: (I, J, D) vote of primary capsule i for class j.
        couplings: (R, I, J) of iterations 1 to R.
        poses: (R, J, D) resulting class capsules.
        lengths: (R, J) their lengths.
    """

    parts: Tensor
    votes: Tensor
    couplings: Tensor
    poses: Tensor
    lengths: Tensor

    @property
    def support(self) -> Tensor:
        """(R, I, J) coupling × the vote's component along the class capsule; negative if the vote points away."""
        directions_RJD = nn.functional.normalize(self.poses, dim=-1)
        return self.couplings * torch.einsum("ijd,rjd->rij", self.votes, directions_RJD)

    @property
    def agreement(self) -> Tensor:
        """(R, I, J) cosine of each vote and the class capsule."""
        directions_RJD = nn.functional.normalize(self.poses, dim=-1)
        return torch.einsum("ijd,rjd->rij", nn.functional.normalize(self.votes, dim=-1), directions_RJD)

    @property
    def entropy(self) -> Tensor:
        """(R,) mean entropy of the couplings, weighted by capsule length: 1 if uniform, 0 if each chose one class.

        What leaky routing leaves uncoupled counts as one more class.
        """
        kept = (1 - self.couplings.sum(-1, keepdim=True)).clamp_min(0)
        places = self.couplings.shape[-1] + int(bool((kept > 1e-3).any()))
        nats_RI = torch.special.entr(torch.cat([self.couplings, kept], dim=-1)).sum(-1)
        return (self.weigh(nats_RI, dim=1) / math.log(max(2, places))).clamp(0, 1)

    @property
    def decided(self) -> Tensor:
        """(R,) share of the primary capsules that give more than half of their coupling to one class."""
        return (self.couplings.amax(-1) > DECIDED).float().mean(-1)

    @property
    def winners(self) -> list[int]:
        """The longest class of each iteration."""
        return self.lengths.argmax(-1).tolist()

    @property
    def starts_uniform(self) -> bool:
        """Whether the first iteration couples every part to all classes equally, as without routing."""
        return float(self.couplings[0].max() - self.couplings[0].min()) < EQUAL

    def weigh(self, values: Tensor, dim: int) -> Tensor:
        """Return the mean over primary capsules, weighted by their lengths."""
        shares = self.parts / self.parts.sum().clamp_min(torch.finfo(self.parts.dtype).tiny)
        return torch.tensordot(values, shares, dims=([dim], [0]))


def routing_trace(model: nn.Module, image_CHW: Tensor, iterations: int | None = None) -> RoutingTrace:
    """Record votes, couplings and class capsules of every routing iteration.

    Args:
        model: routes vector votes from a grid of primary capsules.
        image_CHW: (C, H, W) in [0, 1].
        iterations: R; by default the model's own number.
    """
    capsnet = require_vector_votes(model, "routing_trace")
    layer = capsnet.classes
    with evaluating(capsnet):
        children = capsnet.children_of(image_CHW[None].to(capsnet.device))
        votes_IJD = torch.einsum("ijdk,ik->ijd", layer.weights["weight"], children.pose[0])
        counts = range(1, (iterations or layer.iterations) + 1)
        steps = [layer(children, iterations=count, return_couplings=True) for count in counts]
    couplings = torch.stack([coupled[0] for _, coupled in steps if coupled is not None])
    poses = torch.stack([parents.pose[0] for parents, _ in steps])
    lengths = torch.stack([parents.activation[0] for parents, _ in steps])
    return RoutingTrace(children.activation[0], votes_IJD, couplings, poses, lengths)


def require_vector_votes(model: nn.Module, what: str) -> CapsuleModel:
    """Return the model if its votes are vectors, which can be compared with a class capsule; else raise."""
    capsnet = require_capsules(model, what)
    if ROUTINGS[capsnet.classes.routing].matrix:
        raise UserError(
            f"{what}: {capsnet.classes.routing} routing has votes that are matrices and cannot be shown; "
            "use a model with routing=dynamic"
        )
    return capsnet
