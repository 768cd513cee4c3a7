"""Votes of one image in a plane for each of the longest classes, and the class capsule among them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.votes import RoutingTrace
from torchcaps.models import CapsuleModel

MAX_PARTS = 120
MAX_CLASSES = 3


class VotePlane(NamedTuple):
    """A plane for each class. x is along its class capsule after the model's own number of iterations, so votes further
    right support it more; y is the first principal component of what that leaves of the votes shown. 0 is no vote.

    Attributes:
        classes: (M,) the longest classes after those iterations, longest first.
        parts: (N,) primary capsules whose votes are shown, those that see most ink first.
        ink: (N,) ink in the middle of what each of them sees, 1 for the most of all.
        votes: (N, M, 2) their votes.
        capsules: (R, M, 2) class capsules.
        agreement: (R, M) mean cosine of all votes and the class capsule, by their couplings and lengths.
        kept: (M,) share of the squared length of the votes shown that lies in the plane.
    """

    classes: Tensor
    parts: Tensor
    ink: Tensor
    votes: Tensor
    capsules: Tensor
    agreement: Tensor
    kept: Tensor


def ink_at_parts(model: CapsuleModel, image_CHW: Tensor) -> Tensor:
    """Measure how much the middle of each place's receptive field differs from the image's border.

    Args:
        model: routes a grid of primary capsules.
        image_CHW: (C, H, W) in [0, 1].

    Returns:
        (H', W') from 0 to 1, 1 at the place with the most.
    """
    grey_HW = image_CHW.mean(0)
    border = torch.cat([grey_HW[0], grey_HW[-1], grey_HW[:, 0], grey_HW[:, -1]]).median()
    down, across = (_middles(model, axis).to(grey_HW) for axis in (0, 1))
    ink = down @ (grey_HW - border).abs() @ across.T
    return ink / ink.max().clamp_min(1e-12)


def _middles(model: CapsuleModel, axis: int) -> Tensor:
    """(places, pixels) weights of the middle half of each receptive field, summing to 1."""
    start, stride, field = receptive_field(model, axis)
    centres = torch.arange(model.grid[axis]).float() * stride + start + (field - 1) / 2
    pixels = torch.arange(model.image_shape[1 + axis])
    near = (1 - (pixels - centres[:, None]).abs() / max(1.0, field / 4)).clamp_min(0)
    return near / near.sum(1, keepdim=True).clamp_min(1e-12)


def vote_plane(model: CapsuleModel, image_CHW: Tensor, trace: RoutingTrace) -> VotePlane:
    """Project the votes of the parts that see ink for the longest classes onto a plane.

    Args:
        model: routes a grid of primary capsules.
        image_CHW: (C, H, W) in [0, 1].
        trace: of this model and image.
    """
    places = model.grid[0] * model.grid[1]
    ink_I = ink_at_parts(model, image_CHW).flatten().repeat(len(trace.parts) // places)
    order = (ink_I * trace.parts).argsort(descending=True, stable=True)[:MAX_PARTS]
    parts = order[ink_I[order].argsort(descending=True, stable=True)]
    last = min(model.classes.iterations, len(trace.lengths)) - 1
    classes = trace.lengths[last].argsort(descending=True, stable=True)[:MAX_CLASSES]
    votes_NMD = trace.votes[parts][:, classes]
    couplings_RIM = trace.couplings[..., classes]
    lengths_IM = trace.votes[:, classes].norm(dim=-1)
    weights_RIM = couplings_RIM * lengths_IM
    agreement_RM = (weights_RIM * trace.agreement[..., classes]).sum(1) / weights_RIM.sum(1).clamp_min(1e-12)
    axes_MD2 = torch.stack(
        [_axes(votes_NMD[:, m], trace.poses[last, index]) for m, index in enumerate(classes.tolist())]
    )
    flat_NM2 = torch.einsum("nmd,mdx->nmx", votes_NMD, axes_MD2)
    kept_M = flat_NM2.square().sum((0, 2)) / votes_NMD.square().sum((0, 2)).clamp_min(1e-12)
    capsules_RM2 = torch.einsum("rmd,mdx->rmx", trace.poses[:, classes], axes_MD2)
    return VotePlane(classes, parts, ink_I[parts], flat_NM2, capsules_RM2, agreement_RM, kept_M)


def _axes(votes_ND: Tensor, pose_D: Tensor) -> Tensor:
    """(D, 2): the direction of the pose, and the first principal component of what is left of the votes."""
    along_D = torch.nn.functional.normalize(pose_D, dim=0)
    rest_ND = votes_ND - (votes_ND @ along_D)[:, None] * along_D
    _, _, axes = torch.linalg.svd((rest_ND - rest_ND.mean(0)).double(), full_matrices=False)
    across_D = axes[0] - (axes[0] @ along_D.double()) * along_D
    across_D = torch.nn.functional.normalize(across_D, dim=0)
    across_D = across_D * across_D[across_D.abs().argmax()].sign()  # else the picture could be mirrored by chance
    return torch.stack([along_D, across_D.to(along_D)], dim=1)
