"""How a class stands in an image, and what follows from it: views, drawings, sweeps in degrees and pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from torchcaps.capsules import length
from torchcaps.errors import UserError
from torchcaps.explain.sweep import SWEEP, shifts
from torchcaps.geometry import Affine, view
from torchcaps.models import Placement, PoseCaps
from torchcaps.models.evaluating import evaluating

LOOK_AT = 64  # images at once: each of them is seen through the whole lattice
_STEPS = range(-5, 6)
_FACTORS = tuple(2 ** (step / 10) for step in _STEPS)  # 0.71 … 1.41, by equal factors
POSE_SWEEP: dict[str, tuple[float, ...]] = {
    "angle": tuple(8.0 * step for step in _STEPS),  # −40 … 40 degrees more
    "scale": _FACTORS,  # times as large
    "x": tuple(1.2 * step for step in _STEPS),  # −6 … 6 pixels further
    "y": tuple(1.2 * step for step in _STEPS),
    "stretch": _FACTORS,
    "shear": tuple(0.08 * step for step in _STEPS),
}


class Read(NamedTuple):
    """What a model read in N images.

    Attributes:
        lengths: (N, J) how present each class is.
        capsules: (N, J, D).
        placement: each (N, J).
    """

    lengths: Tensor
    capsules: Tensor
    placement: Placement


class Standing(NamedTuple):
    """N classes as they stand, each in an image.

    Attributes:
        images: (N, C, H, W).
        classes: (N,) ids.
        lengths: (N,) how present each is.
        capsules: (N, D).
        placement: each (N,).
    """

    images: Tensor
    classes: Tensor
    lengths: Tensor
    capsules: Tensor
    placement: Placement


def has_placement(model: nn.Module) -> TypeGuard[PoseCaps]:
    """Tell whether a model sees images through a lattice of poses, and says how each class stands."""
    return all(hasattr(model, name) for name in ("lattice", "encode", "read_placement", "affine"))


def lattice_lengths(model: PoseCaps, image: Tensor) -> Tensor:
    """Measure the class capsules through each pose of the lattice, even if the model itself searches fewer.

    Args:
        model: it has A angles and S scales in its lattice.
        image: (C, H, W) in [0, 1].

    Returns:
        (A, S, J) lengths, the largest over stretches and shears where the lattice has those.
    """
    with evaluating(model):
        asked = image[None].to(model.device)
        seen = model.encode_views(asked, model.lattice.poses().to(asked))
        return length(seen.capsules)[0].unflatten(0, model.lattice.shape).amax((2, 3))


def read_poses(model: PoseCaps, images: Tensor) -> Read:
    """Read what is in images (N, C, H, W) and how it stands; nothing is drawn."""
    parts = []
    with evaluating(model):
        for some in images.split(LOOK_AT):
            seen = model.encode(some.to(model.device))
            weights_BGJ, lengths_BJ, capsules_BJD = model.aggregate(seen)
            parts.append(Read(lengths_BJ, capsules_BJD, model.read_placement(seen, weights_BGJ)))
    lengths, capsules, placements = zip(*parts)
    placement = Placement._make(None if part[0] is None else torch.cat(part) for part in zip(*placements))
    return Read(torch.cat(lengths), torch.cat(capsules), placement)


def stand(model: PoseCaps, images: Tensor, classes: Tensor | None = None) -> Standing:
    """Read how one class stands in each image.

    Args:
        model: what reads.
        images: (N, C, H, W) in [0, 1].
        classes: (N,) ids; by default the most present class of each image.
    """
    images = images.to(model.device)
    seen = read_poses(model, images)
    classes = seen.lengths.argmax(-1) if classes is None else classes.to(model.device)
    each = torch.arange(len(images), device=model.device), classes
    placement = _changed(seen.placement, lambda part: part[each])
    return Standing(images, classes, seen.lengths[each], seen.capsules[each], placement)


def runner_up(lengths_J: Tensor, shown: int) -> int | None:
    """The most present class beside the one shown; None if there is no other."""
    others = lengths_J.argsort(descending=True, stable=True).tolist()
    return next((index for index in others if index != shown), None)


def canonical_views(model: PoseCaps, stands: Standing) -> Tensor:
    """(N, C, H, W) the images as seen through the poses that were read: each class upright, in the middle."""
    with evaluating(model):
        pose = model.affine(stands.placement)
        through = Affine(pose.linear[:, None], pose.shift[:, None])
        return view(stands.images, through, model.image_shape[1:])[:, 0]


def draw_upright(model: PoseCaps, stands: Standing) -> Tensor:
    """(N, C, H, W) what the decoder makes of each capsule, before it is turned, enlarged and moved."""
    _check_draws(model, "draw_upright")
    with evaluating(model):
        return model.draw_upright(stands.capsules, stands.classes)


def draw_placed(model: PoseCaps, stands: Standing) -> Tensor:
    """(N, C, H, W) what the decoder makes of each capsule, where and how it stands."""
    _check_draws(model, "draw_placed")
    with evaluating(model):
        return model.draw(stands.capsules, stands.classes, model.affine(stands.placement))


def sweep_pose(
    model: PoseCaps, image: Tensor, target: int | None = None, sweeps: dict[str, tuple[float, ...]] = POSE_SWEEP
) -> dict[str, Tensor]:
    """Draw a class turned, enlarged and moved further than it stands.

    Args:
        model: what draws.
        image: (C, H, W) in [0, 1].
        target: the class; by default the most present one.
        sweeps: V values of each part of the pose. Scale and stretch are multiplied by them, to others they are added.

    Returns:
        (V, C, H, W) for each part that the model reads.
    """
    _check_draws(model, "sweep_pose")
    seen = _stand_alone(model, image, target)
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
    """Change one dimension of a class capsule at a time, and draw it where and how it stands.

    Args:
        model: what draws.
        image: (C, H, W) in [0, 1].
        target: the class; by default the most present one.
        values: V shares of the capsule's length, each added to each of the D dimensions in turn.

    Returns:
        (D, V, C, H, W).
    """
    _check_draws(model, "sweep_capsule")
    seen = _stand_alone(model, image, target)
    with evaluating(model):
        D, V = seen.capsules.shape[-1], len(values)
        changed = seen.capsules + seen.lengths * shifts(values, D).to(seen.capsules).flatten(0, 1)
        pose = model.affine(_changed(seen.placement, lambda part: part.expand(D * V)))
        return model.draw(changed, seen.classes.expand(D * V), pose).unflatten(0, (D, V))


def _stand_alone(model: PoseCaps, image: Tensor, target: int | None) -> Standing:
    return stand(model, image[None], None if target is None else torch.tensor([target]))


def _changed(placement: Placement, change: Callable[[Tensor], Tensor]) -> Placement:
    return Placement._make(None if part is None else change(part) for part in placement)


def _check_draws(model: PoseCaps, what: str) -> None:
    if model.decoder is None:
        raise UserError(f"{what}: this {type(model).__name__} has no decoder; train one with model.decoder=dense")
