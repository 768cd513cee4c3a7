"""The views of an image that pose capsules are given, and the poses that they predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.geometry import Affine, Lattice
from torchcaps.layers.stem import STRIDE

EPS = 1e-6
FIRST_VIEW_RANGE = 0.125  # of a training image's first view: the share of the lattice's range it is drawn from
UNITS = {"angle": 15.0, "scale": 0.2, "stretch": 0.2, "shear": 0.2}  # degrees, logarithms, pixels per pixel


class Views(NamedTuple):
    """What the network computes from an image in each of G poses.

    Attributes:
        poses: (G) or (B, G) maps from view coordinates to image coordinates.
        primary: (B, G, T·K, h, w) the primary capsules, T types of K dimensions.
        capsules: (B, G, J, D) the class capsules.
        offsets: (B, G, J, P) the pose of each class relative to the pose of the view, in UNITS.
    """

    poses: Affine
    primary: Tensor
    capsules: Tensor
    offsets: Tensor

    def select(self, ids_BGM: Tensor) -> Views:
        """The views of these classes only."""
        parts = (part.gather(2, ids_BGM[..., None].expand(-1, -1, -1, part.shape[-1])) for part in self[2:])
        return Views(self.poses, self.primary, *parts)


def random_poses(images: Tensor, lattice: Lattice, count: int) -> Affine:
    """Draw (B, count) poses: the first of each image near the identity, the others anywhere in the lattice's range.

    All are shifted by a fraction of a pixel. An unshifted view would be sharper than all others, and the network would
    learn to recognise it by that.
    """
    B, device = images.shape[0], images.device
    unit = 2 * torch.rand(4, B, count, device=device) - 1
    unit = unit * torch.cat([unit.new_full((1,), FIRST_VIEW_RANGE), unit.new_ones(count - 1)])
    shift = torch.rand(2, B, count, device=device) - 0.5
    low, high = ([axis[end] for axis in _log_axes(lattice)] for end in (0, -1))
    angle, scale, stretch, shear = (
        torch.where(part < 0, part * -lowest, part * highest) for part, lowest, highest in zip(unit, low, high)
    )
    return Affine.of(x=shift[0], y=shift[1], angle=angle, scale=scale.exp(), stretch=stretch.exp(), shear=shear)


def _log_axes(lattice: Lattice) -> list[list[float]]:
    """Angles, logarithms of scales and of stretches, and shears."""
    factors = [[math.log(value) for value in axis] for axis in (lattice.scales, lattice.stretches)]
    angles = [-180.0, 180.0] if lattice.full_circle else list(lattice.angles)
    return [angles, *factors, list(lattice.shears)]


def pose_votes(views: Views, parts: Sequence[str]) -> dict[str, Tensor]:
    """The pose of each class that each view votes for: its own pose plus the offset.

    Args:
        views: of J classes, with one offset for each part.
        parts: names of the parts of a pose, in the order of the offsets.

    Returns:
        (B, G, J) for each part, in degrees, logarithms, or pixels per pixel.
    """
    poses = views.poses.parts()._asdict()
    votes = {}
    for index, name in enumerate(parts):
        own = poses[name].log() if name in ("scale", "stretch") else poses[name]
        votes[name] = own[..., None] + UNITS[name] * views.offsets[..., index]  # (G, 1) or (B, G, 1)
    return votes


def class_centres(
    views: Views, weights: Tensor, vote_weight: Tensor, view_size: tuple[int, int], classes: Tensor | None
) -> Tensor:
    """The mean position of each class, weighted by how much the votes of a position lengthen the class capsule.

    Args:
        views: of J classes, or of the M chosen ones.
        weights: (B, G, J) or (B, G, M) weights of the views.
        vote_weight: (T, J, D, K) matrices from primary to class capsules.
        view_size: height and width of a view.
        classes: (B, M) ids of the chosen classes; None for all.

    Returns:
        (B, J, 2) or (B, M, 2) x and y in pixels from the centre of the image.
    """
    direction = F.normalize(views.capsules, dim=-1, eps=EPS)
    if classes is None:
        along = torch.einsum("bgjd,tjdk->bgjtk", direction, vote_weight).flatten(3)
    else:
        # A product instead of an index: the gradient of an index is summed in no fixed order.
        hot_BMJ = F.one_hot(classes, vote_weight.shape[1]).to(direction)
        chosen = torch.einsum("bmj,tjdk->bmtdk", hot_BMJ, vote_weight)
        along = torch.einsum("bgmd,bmtdk->bgmtk", direction, chosen).flatten(3)
    h, w = views.primary.shape[-2:]
    share = (along @ views.primary.flatten(3)).relu()
    share = (share / (share.sum(-1, keepdim=True) + EPS)).unflatten(-1, (h, w))
    x, y = (
        torch.arange(count, dtype=share.dtype, device=share.device) * STRIDE - (side - 1) / 2
        for count, side in ((w, view_size[1]), (h, view_size[0]))
    )
    centre = torch.stack([(share.sum(-2) * x).sum(-1), (share.sum(-1) * y).sum(-1)], dim=-1)
    poses = views.poses.to(share)
    in_image = Affine(poses.linear[..., None, :, :], poses.shift[..., None, :])(centre)
    return (weights[..., None] * in_image).sum(1)
