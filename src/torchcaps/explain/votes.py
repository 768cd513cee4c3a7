"""What every part says for every class while routing goes on, and where in the image it looks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.explain.needs import needs_capsules
from torchcaps.layers.routings import ROUTINGS
from torchcaps.models import CapsuleModel
from torchcaps.models.evaluating import evaluating


class RoutingTrace(NamedTuple):
    """Routing of one image, step by step.

    parts      (I,)       the primary capsules' lengths; types first, then rows, then columns of the model's grid
    votes      (I, J, D)  what part i predicts for class j
    couplings  (R, I, J)  of iterations 1 to R
    poses      (R, J, D)  what the classes became by them
    lengths    (R, J)
    """

    parts: Tensor
    votes: Tensor
    couplings: Tensor
    poses: Tensor
    lengths: Tensor

    @property
    def support(self) -> Tensor:
        """(R, I, J): coupling × how far the vote goes in the class's direction; negative where it speaks against."""
        directions_RJD = nn.functional.normalize(self.poses, dim=-1)
        return self.couplings * torch.einsum("ijd,rjd->rij", self.votes, directions_RJD)

    @property
    def agreement(self) -> Tensor:
        """(R, I, J): cosine of each vote and what the class became."""
        directions_RJD = nn.functional.normalize(self.poses, dim=-1)
        return torch.einsum("ijd,rjd->rij", nn.functional.normalize(self.votes, dim=-1), directions_RJD)

    @property
    def entropy(self) -> Tensor:
        """(R,): how undecided the parts are, a long part counting more; 1 when all couple alike, 0 when all chose.

        What a leaky coupling keeps to itself counts as one more class.
        """
        kept = (1 - self.couplings.sum(-1, keepdim=True)).clamp_min(0)
        places = self.couplings.shape[-1] + int(bool((kept > 1e-3).any()))
        nats_RI = torch.special.entr(torch.cat([self.couplings, kept], dim=-1)).sum(-1)
        return (self.weigh(nats_RI, dim=1) / math.log(max(2, places))).clamp(0, 1)

    def weigh(self, values: Tensor, dim: int) -> Tensor:
        """The mean over parts, each counting as much as it is long."""
        shares = self.parts / self.parts.sum().clamp_min(torch.finfo(self.parts.dtype).tiny)
        return torch.tensordot(values, shares, dims=([dim], [0]))


def routing_trace(model: nn.Module, image_CHW: Tensor, iterations: int | None = None) -> RoutingTrace:
    """Who votes for what in an image (C, H, W) in [0, 1], and who is heard, iteration by iteration."""
    capsnet = needs_votes(model, "routing_trace")
    layer = capsnet.classes
    with evaluating(capsnet):
        children = capsnet.children_of(image_CHW[None].to(capsnet.device))
        votes_IJD = torch.einsum("ijdk,ik->ijd", layer.weight, children.pose[0])
        counts = range(1, (iterations or layer.iterations) + 1)
        steps = [layer(children, iterations=count, return_couplings=True) for count in counts]
    couplings = [coupled[0] for _, coupled in steps if coupled is not None]
    poses, lengths = ([part[0] for part in parts] for parts in zip(*(tuple(parents) for parents, _ in steps)))
    return RoutingTrace(
        children.activation[0], votes_IJD, torch.stack(couplings), torch.stack(poses), torch.stack(lengths)
    )


def needs_votes(model: nn.Module, what: str) -> CapsuleModel:
    """The model, if its votes are vectors, which can be compared with the pose of a class."""
    capsnet = needs_capsules(model, what)
    if ROUTINGS[capsnet.classes.routing].matrix:
        raise UserError(
            f"{what}: {capsnet.classes.routing} routing has votes that are matrices, and cannot be shown; "
            "use a model with routing=dynamic"
        )
    return capsnet


class View(NamedTuple):
    """Where the parts look, along one axis: part n at pixels start + n · stride up to, not including, + field."""

    start: int
    stride: int
    field: int

    def of(self, place: int, side: int) -> tuple[int, int]:
        """Half-open range [start, stop) of pixels, clipped to an image of this side."""
        first = self.start + place * self.stride
        return max(0, first), min(side, first + self.field)


def view(model: CapsuleModel, axis: int) -> View:
    """axis  0 for rows, 1 for columns"""
    start, stride, field = 0, 1, 1
    for conv in model.convolutions:
        start -= int(conv.padding[axis]) * stride
        field += (conv.kernel_size[axis] - 1) * stride
        stride *= conv.stride[axis]
    return View(start, stride, field)
