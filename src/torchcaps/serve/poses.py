"""Placements of models of kind `poses`: conversion from and to request and response bodies, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.placement import POSE_SWEEP, PlacementReading
from torchcaps.models import Output, Placement, PoseCaps
from torchcaps.serve import requests, responses
from torchcaps.serve.pictures import data_url, strip
from torchcaps.serve.responses import numbers

FACTORS = ("scale", "stretch")  # a sweep multiplies these; it adds to the other parameters


def placements_of(placement: Placement) -> list[responses.Placements]:
    """Convert the placements (B, J) of B images to plain numbers."""
    parts = {name: None if part is None else numbers(part) for name, part in placement._asdict().items()}
    count = len(placement.x)
    return [
        responses.Placements(**{name: part and part[index] for name, part in parts.items()}) for index in range(count)
    ]


def standing_of(image: Tensor, output: Output, classes: Sequence[int]) -> PlacementReading:
    """Select M classes, with their capsules and placements, from a model's output for an image (C, H, W)."""
    assert output.placement is not None
    assert output.poses is not None
    chosen = torch.tensor(classes)
    placement = Placement._make(None if part is None else part[0, chosen] for part in output.placement)
    images = image.expand(len(classes), -1, -1, -1)
    return PlacementReading(images, chosen, output.lengths[0, chosen], output.poses[0, chosen], placement)


def placement_from(request: requests.PlacementRequest | None, model: PoseCaps) -> Placement:
    """Convert a requested placement, by default upright in the centre; each parameter (1,).

    Args:
        request: The client's placement.
        model: The model that draws. Parameters that it does not predict must have their neutral value.
    """
    _, height, width = model.image_shape
    given = request or requests.PlacementRequest(x=(width - 1) / 2, y=(height - 1) / 2)
    parts = {name: torch.tensor([value]) for name, value in given.model_dump().items()}
    for name, neutral in (("stretch", 1.0), ("shear", 0.0)):
        if name not in model.pose_parts and parts.pop(name) != neutral:
            raise UserError(f"placement.{name}: this model does not predict it; omit it")
    return Placement(**parts, spread=torch.zeros(1))


def sweep_placement(
    model: PoseCaps, capsule_D: Tensor, index: int, placement: Placement
) -> list[responses.PlacementSweep]:
    """Draw a capsule with each placement parameter varied in turn.

    Args:
        model: The model that draws.
        capsule_D: (D,) class capsule.
        index: Its class.
        placement: (1,) each, the placement to vary.
    """
    sweeps = []
    for name, values in POSE_SWEEP.items():
        now = getattr(placement, name)
        if now is None:
            continue
        by = torch.tensor(values)
        changed = placement._replace(**{name: now * by if name in FACTORS else now + by})
        pictures = model.draw(capsule_D.expand(len(by), -1), torch.full((len(by),), index), model.affine(changed))
        sweeps.append(responses.PlacementSweep(name=name, values=list(values), picture=data_url(strip(pictures[None]))))
    return sweeps
