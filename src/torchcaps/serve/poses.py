"""What models that say how classes stand are asked: placements as numbers, drawings by placement, sweeps of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.placement import POSE_SWEEP, Standing
from torchcaps.models import Output, Placement, PoseCaps
from torchcaps.serve import answers, requests
from torchcaps.serve.answers import numbers
from torchcaps.serve.pictures import data_url, strip

FACTORS = ("scale", "stretch")  # a sweep multiplies these; to other parts it adds


def placements_of(placement: Placement) -> list[answers.Placements]:
    """The placements (B, J) of B images as plain numbers."""
    parts = {name: None if part is None else numbers(part) for name, part in placement._asdict().items()}
    count = len(placement.x)
    return [
        answers.Placements(**{name: part and part[index] for name, part in parts.items()}) for index in range(count)
    ]


def standing_of(image: Tensor, output: Output, classes: Sequence[int]) -> Standing:
    """How these M classes stand in an image (C, H, W), by what a model answered to it."""
    assert output.placement is not None
    assert output.poses is not None
    chosen = torch.tensor(classes)
    placement = Placement._make(None if part is None else part[0, chosen] for part in output.placement)
    images = image.expand(len(classes), -1, -1, -1)
    return Standing(images, chosen, output.lengths[0, chosen], output.poses[0, chosen], placement)


def placement_from(question: requests.PlacementRequest | None, model: PoseCaps) -> Placement:
    """Where to draw a class, each part (1,): where a client says, or upright in the middle.

    Args:
        question: what a client asked for.
        model: what draws; the parts that it does not read may only have the value that changes nothing.
    """
    _, height, width = model.image_shape
    asked = question or requests.PlacementRequest(x=(width - 1) / 2, y=(height - 1) / 2)
    parts = {name: torch.tensor([value]) for name, value in asked.model_dump().items()}
    for name, neutral in (("stretch", 1.0), ("shear", 0.0)):
        if name not in model.pose_parts and parts.pop(name) != neutral:
            raise UserError(f"placement.{name}: this model does not read it; omit it")
    return Placement(**parts, spread=torch.zeros(1))


def sweep_parts(model: PoseCaps, capsule_D: Tensor, index: int, placement: Placement) -> list[answers.PartSweep]:
    """Draw a capsule with each part of its placement changed in turn.

    Args:
        model: what draws.
        capsule_D: (D,) the class capsule.
        index: its class.
        placement: each (1,), where it is drawn otherwise.
    """
    swept = []
    for name, values in POSE_SWEEP.items():
        now = getattr(placement, name)
        if now is None:
            continue
        by = torch.tensor(values)
        changed = placement._replace(**{name: now * by if name in FACTORS else now + by})
        drawn = model.draw(capsule_D.expand(len(by), -1), torch.full((len(by),), index), model.affine(changed))
        swept.append(answers.PartSweep(name=name, values=list(values), picture=data_url(strip(drawn[None]))))
    return swept
