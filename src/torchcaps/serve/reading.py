"""What a model of any kind makes of one picture: its answer, what is found by it, what it draws."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.placement import draw_placed, draw_upright, has_placement
from torchcaps.explain.sweep import SWEEP, shifts
from torchcaps.models import CapsuleModel, ImageModel, Output
from torchcaps.predict import decide_classes
from torchcaps.serve import answers, requests
from torchcaps.serve.answers import numbers
from torchcaps.serve.pictures import coloured, data_url
from torchcaps.serve.poses import placement_from, standing_of, sweep_parts
from torchcaps.serve.served_models import ServedModel


class Seen(NamedTuple):
    """What a model makes of one picture.

    Attributes:
        output: its answer, for a batch of one.
        chosen: M classes.
        redrawn: (M, C, H, W) each drawn by itself; None without a decoder.
        upright: (M, C, H, W) the same before they are placed; None unless the model places them.
    """

    output: Output
    chosen: list[int]
    redrawn: Tensor | None = None
    upright: Tensor | None = None


def look(served: ServedModel, image: Tensor, question: requests.PredictRequest) -> Seen:
    """Ask a model about a picture (C, H, W), and have it draw the longest classes or those asked for."""
    model, iterations = served.model, question.iterations
    if has_placement(model):
        if iterations is not None:
            raise UserError(f"iterations: {served.name} does not route; omit it")
        output = model(image[None])
        chosen = question.decode or longest(output.lengths[0], question.top)
        if model.decoder is None:
            return Seen(output, chosen)
        stands = standing_of(image, output, chosen)
        return Seen(output, chosen, draw_placed(model, stands), draw_upright(model, stands))
    if question.decode is None and iterations is None and not isinstance(model, CapsuleModel):
        return Seen(model(image[None]), [])
    capsules = served.capsules
    parents, _ = capsules.classes.route(capsules.children_of(image[None]), iterations or capsules.classes.iterations)
    chosen = question.decode or longest(parents.activation[0], question.top)
    redrawn = capsules.reconstruct_each(parents, torch.tensor([chosen]))[0]  # type: ignore[index]
    return Seen(Output(parents.activation, parents.pose), chosen, redrawn)


def answered(model: ImageModel, image: Tensor, output: Output, reject: float | None) -> tuple[list[int], float | None]:
    """The classes that are answered, as `torchcaps predict` does, and how familiar the picture is if that decides."""
    found, familiar = decide_classes(model, image[None], output, reject)
    classes = [index for index in longest(output.lengths[0], output.lengths.shape[1]) if index in found]
    return classes, round(familiar["familiarity"], 6) if familiar else None


def decoded(seen: Seen) -> list[answers.Decoded]:
    """The chosen classes, each with its capsule and its drawings."""
    output = seen.output
    told = []
    for place, index in enumerate(seen.chosen):
        picture = None if seen.redrawn is None else seen.redrawn[place]
        told.append(
            answers.Decoded(
                class_=index,
                length=numbers(output.lengths[0, index]),
                pose=numbers(output.poses[0, index]),  # type: ignore[index]
                reconstruction=None if picture is None else data_url(picture),
                coloured=None if picture is None else data_url(coloured(picture.mean(0), place)),
                upright=None if seen.upright is None else data_url(seen.upright[place]),
            )
        )
    return told


def longest(lengths_J: Tensor, top: int) -> list[int]:
    """The classes of the longest capsules, longest first."""
    return lengths_J.argsort(descending=True, stable=True)[:top].tolist()


class Drawn(NamedTuple):
    """What a decoder makes of a capsule.

    Attributes:
        pictures: (1 or 1 + D·V, C, H, W) the capsule as it is; then, if asked for, its dimensions changed in turn.
        upright: (C, H, W) before it is placed; None unless the model places it.
        parts: of a sweep, the placement changed; empty unless the model places it.
    """

    pictures: Tensor
    upright: Tensor | None
    parts: list[answers.PartSweep]


def draw(served: ServedModel, question: requests.ReconstructRequest) -> Drawn:
    """Draw the capsule that a client gives."""
    model = served.model
    D = model.class_dim if has_placement(model) else served.capsules.classes.out_dim
    if len(question.pose) != D:
        raise UserError(f"pose: a capsule of {served.name} has {D} dimensions, got {len(question.pose)}")
    changes = torch.zeros(1, D)
    if question.sweep:
        changes = torch.cat([changes, shifts(SWEEP, D).to(changes).flatten(0, 1)])
    capsules_ND = torch.tensor(question.pose) + changes
    if has_placement(model):
        if model.decoder is None:
            raise UserError(f"{served.name} has no decoder: it cannot draw what a capsule saw")
        placement = placement_from(question.placement, model)
        classes = torch.full((len(changes),), question.class_)
        upright = model.draw_upright(capsules_ND[:1], classes[:1])[0]
        pose = model.affine(placement)[torch.zeros(len(changes), dtype=torch.long)]  # the same for each
        pictures = model.draw(capsules_ND, classes, pose)
        parts = sweep_parts(model, capsules_ND[0], question.class_, placement) if question.sweep else []
        return Drawn(pictures, upright, parts)
    if question.placement is not None:
        raise UserError(f"placement: {served.name} does not say how a class stands; omit it")
    masked = torch.zeros(len(changes), model.num_classes, D)
    masked[:, question.class_] = capsules_ND
    return Drawn(served.capsules.decoder(masked), None, [])  # type: ignore[misc]
