"""Placement of classes in an image (position, angle, scale): readings, aligned views, reconstructions, sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import length
from torchcaps.errors import UserError
from torchcaps.explain.sweep import SWEEP, shifts
from torchcaps.geometry import Affine, view
from torchcaps.models import Placement, PoseCaps
from torchcaps.models.evaluating import evaluating

BATCH = 64  # images; each is transformed by every pose of the lattice
_STEPS = range(-5, 6)
_FACTORS = tuple(2 ** (step / 10) for step in _STEPS)  # 0.71 … 1.41, by equal factors
POSE_SWEEP: dict[str, tuple[float, ...]] = {
    "angle": tuple(8.0 * step for step in _STEPS),  # added: −40 … 40 degrees
    "scale": _FACTORS,  # multiplied
    "x": tuple(1.2 * step for step in _STEPS),  # added: −6 … 6 pixels
    "y": tuple(1.2 * step for step in _STEPS),
    "stretch": _FACTORS,
    "shear": tuple(0.08 * step for step in _STEPS),
}


class PoseReading(NamedTuple):
    """Lengths, capsules and placements of all classes in N images.

    Attributes:
        lengths: (N, J) of the class capsules.
        capsules: (N, J, D).
        placement: of each class, each field (N, J).
    """

    lengths: Tensor
    capsules: Tensor
    placement: Placement


class PlacementReading(NamedTuple):
    """Length, capsule and placement of one class in each of N images.

    Attributes:
        images: (N, C, H, W).
        classes: (N,) class ids.
        lengths: (N,) of their capsules.
        capsules: (N, D).
        placement: of that class, each field (N,).
    """

    images: Tensor
    classes: Tensor
    lengths: Tensor
    capsules: Tensor
    placement: Placement


def lattice_lengths(model: PoseCaps, image: Tensor) -> Tensor:
    """Measure the lengths of the class capsules at every pose of the lattice, even if the model itself searches fewer.

    Args:
        model: with A angles and S scales in its lattice.
        image: (C, H, W) in [0, 1].

    Returns:
        (A, S, J) lengths, the maximum over stretches and shears if the lattice has any.
    """
    with evaluating(model):
        batch = image[None].to(model.device)
        seen = model.encode_views(batch, model.lattice.poses().to(batch))
        return length(seen.capsules)[0].unflatten(0, model.lattice.shape).amax((2, 3))


def read_poses(model: PoseCaps, images: Tensor) -> PoseReading:
    """Read lengths, capsules and placements of all classes in images (N, C, H, W); nothing is reconstructed."""
    parts = []
    with evaluating(model):
        for batch in images.split(BATCH):
            seen = model.encode(batch.to(model.device))
            weights_BGJ, lengths_BJ, capsules_BJD = model.aggregate(seen)
            parts.append(PoseReading(lengths_BJ, capsules_BJD, model.read_placement(seen, weights_BGJ)))
    lengths, capsules, placements = zip(*parts)
    placement = Placement._make(None if part[0] is None else torch.cat(part) for part in zip(*placements))
    return PoseReading(torch.cat(lengths), torch.cat(capsules), placement)


def read_placements(model: PoseCaps, images: Tensor, classes: Tensor | None = None) -> PlacementReading:
    """Read the placement of one class in each image.

    Args:
        model: reads placements.
        images: (N, C, H, W) in [0, 1].
        classes: (N,) class ids; by default the longest capsule's of each image.
    """
    images = images.to(model.device)
    seen = read_poses(model, images)
    classes = seen.lengths.argmax(-1) if classes is None else classes.to(model.device)
    each = torch.arange(len(images), device=model.device), classes
    placement = _map(seen.placement, lambda part: part[each])
    return PlacementReading(images, classes, seen.lengths[each], seen.capsules[each], placement)


def runner_up(lengths_J: Tensor, shown: int) -> int | None:
    """Return the class of the longest capsule other than the one shown; None if there is no other."""
    others = lengths_J.argsort(descending=True, stable=True).tolist()
    return next((index for index in others if index != shown), None)


def canonical_views(model: PoseCaps, reading: PlacementReading) -> Tensor:
    """Undo the placement: (N, C, H, W) with each class upright, centred and of mean size."""
    with evaluating(model):
        pose = model.affine(reading.placement)
        through = Affine(pose.linear[:, None], pose.shift[:, None])
        return view(reading.images, through, model.image_shape[1:])[:, 0]


def draw_upright(model: PoseCaps, reading: PlacementReading) -> Tensor:
    """Reconstruct each capsule upright, before its placement is applied: (N, C, H, W)."""
    _check_draws(model, "draw_upright")
    with evaluating(model):
        return model.draw_upright(reading.capsules, reading.classes)


def draw_placed(model: PoseCaps, reading: PlacementReading) -> Tensor:
    """Reconstruct each capsule in its placement: (N, C, H, W)."""
    _check_draws(model, "draw_placed")
    with evaluating(model):
        return model.draw(reading.capsules, reading.classes, model.affine(reading.placement))


def sweep_pose(
    model: PoseCaps, image: Tensor, target: int | None = None, sweeps: dict[str, tuple[float, ...]] = POSE_SWEEP
) -> dict[str, Tensor]:
    """Reconstruct a class with one part of its placement changed at a time.

    Args:
        model: with a decoder.
        image: (C, H, W) in [0, 1].
        target: the class; by default that of the longest capsule.
        sweeps: V values for each part. Scale and stretch are multiplied by them; they are added to the others.

    Returns:
        (V, C, H, W) for each part that the model reads.
    """
    _check_draws(model, "sweep_pose")
    seen = _read_one(model, image, target)
    drawn = {}
    with evaluating(model):
        for name, values in sweeps.items():
            now = getattr(seen.placement, name)
            if now is None:
                continue
            by = torch.tensor(values).to(now)
            moved = seen.placement._replace(**{name: now * by if name in ("scale", "stretch") else now + by})
            capsules, classes = seen.capsules.expand(len(by), -1), seen.classes.expand(len(by))
            drawn[name] = model.draw(capsules, classes, model.affine(moved))
    return drawn


def sweep_capsule(model: PoseCaps, image: Tensor, target: int | None = None, values: Sequence[float] = SWEEP) -> Tensor:
    """Change one dimension of a class capsule at a time, and reconstruct it in its placement.

    Args:
        model: with a decoder.
        image: (C, H, W) in [0, 1].
        target: the class; by default that of the longest capsule.
        values: V shares of the capsule's length, each added to each of the D dimensions in turn.

    Returns:
        (D, V, C, H, W).
    """
    _check_draws(model, "sweep_capsule")
    seen = _read_one(model, image, target)
    with evaluating(model):
        D, V = seen.capsules.shape[-1], len(values)
        changed = seen.capsules + seen.lengths * shifts(values, D).to(seen.capsules).flatten(0, 1)
        pose = model.affine(_map(seen.placement, lambda part: part.expand(D * V)))
        return model.draw(changed, seen.classes.expand(D * V), pose).unflatten(0, (D, V))


def _read_one(model: PoseCaps, image: Tensor, target: int | None) -> PlacementReading:
    return read_placements(model, image[None], None if target is None else torch.tensor([target]))


def _map(placement: Placement, change: Callable[[Tensor], Tensor]) -> Placement:
    return Placement._make(None if part is None else change(part) for part in placement)


def _check_draws(model: PoseCaps, what: str) -> None:
    if model.decoder is None:
        raise UserError(f"{what}: this {type(model).__name__} has no decoder; train one with model.decoder=dense")
