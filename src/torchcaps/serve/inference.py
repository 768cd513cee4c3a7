"""Run one model on one request: predictions, the predicted classes, and reconstructions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.placement import draw_placed, draw_upright
from torchcaps.explain.require import has_placement
from torchcaps.explain.sweep import SWEEP, shifts
from torchcaps.models import CapsuleModel, ImageModel, Output
from torchcaps.predict import decide_classes
from torchcaps.serve import requests, responses
from torchcaps.serve.pictures import coloured, data_url
from torchcaps.serve.poses import placement_from, standing_of, sweep_placement
from torchcaps.serve.responses import numbers
from torchcaps.serve.served_models import ServedModel


class Prediction(NamedTuple):
    """What a model predicts for one image.

    Attributes:
        output: The model's output, for a batch of one.
        decoded: The M classes that were decoded.
        reconstructions: (M, C, H, W) each class decoded alone; None without a decoder.
        upright: (M, C, H, W) the same before they are placed; None unless the model predicts placements.
    """

    output: Output
    decoded: list[int]
    reconstructions: Tensor | None = None
    upright: Tensor | None = None


def predict(served: ServedModel, image: Tensor, request: requests.PredictRequest) -> Prediction:
    """Run a model on an image (C, H, W), and decode the longest classes or the requested ones."""
    model, iterations = served.model, request.iterations
    if has_placement(model):
        if iterations is not None:
            raise UserError(f"iterations: {served.name} has no routing; omit it")
        output = model(image[None])
        classes = request.decode or longest(output.lengths[0], request.top)
        if model.decoder is None:
            return Prediction(output, classes)
        standing = standing_of(image, output, classes)
        return Prediction(output, classes, draw_placed(model, standing), draw_upright(model, standing))
    if request.decode is None and iterations is None and not isinstance(model, CapsuleModel):
        return Prediction(model(image[None]), [])
    capsules = served.capsules
    parents = capsules.classes(capsules.children_of(image[None]), iterations=iterations)
    classes = request.decode or longest(parents.activation[0], request.top)
    pictures = capsules.reconstruct_each(parents, torch.tensor([classes]))[0]  # type: ignore[index]
    return Prediction(Output(parents.activation, parents.pose), classes, pictures)


def predicted_classes(
    model: ImageModel, image: Tensor, output: Output, reject: float | None
) -> tuple[list[int], float | None]:
    """The classes that `torchcaps predict` would return, longest first, and the familiarity if it was thresholded."""
    found, familiar = decide_classes(model, image[None], output, reject)
    classes = [index for index in longest(output.lengths[0], output.lengths.shape[1]) if index in found]
    return classes, round(familiar["familiarity"], 6) if familiar else None


def decoded_classes(prediction: Prediction) -> list[responses.Decoded]:
    """The decoded classes, each with its capsule and reconstructions."""
    output, decoded = prediction.output, []
    for rank, index in enumerate(prediction.decoded):
        picture = None if prediction.reconstructions is None else prediction.reconstructions[rank]
        decoded.append(
            responses.Decoded(
                class_=index,
                length=numbers(output.lengths[0, index]),
                pose=numbers(output.poses[0, index]),  # type: ignore[index]
                reconstruction=None if picture is None else data_url(picture),
                coloured=None if picture is None else data_url(coloured(picture.mean(0), rank)),
                upright=None if prediction.upright is None else data_url(prediction.upright[rank]),
            )
        )
    return decoded


def longest(lengths_J: Tensor, top: int) -> list[int]:
    """The classes of the longest capsules, longest first."""
    return lengths_J.argsort(descending=True, stable=True)[:top].tolist()


class Reconstruction(NamedTuple):
    """What a decoder draws from a capsule.

    Attributes:
        pictures: (1 or 1 + D·V, C, H, W) the capsule as it is; for a sweep then each dimension varied in turn.
        upright: (C, H, W) before it is placed; None unless the model predicts placements.
        parts: For a sweep, each placement parameter varied in turn; empty unless the model predicts placements.
    """

    pictures: Tensor
    upright: Tensor | None
    parts: list[responses.PlacementSweep]


def reconstruct(served: ServedModel, request: requests.ReconstructRequest) -> Reconstruction:
    """Decode the capsule in a request."""
    model = served.model
    D = model.class_dim if has_placement(model) else served.capsules.classes.out_dim
    if len(request.pose) != D:
        raise UserError(f"pose: a capsule of {served.name} has {D} dimensions, got {len(request.pose)}")
    changes = torch.zeros(1, D)
    if request.sweep:
        changes = torch.cat([changes, shifts(SWEEP, D).to(changes).flatten(0, 1)])
    capsules_ND = torch.tensor(request.pose) + changes
    if has_placement(model):
        if model.decoder is None:
            raise UserError(f"{served.name} has no decoder and cannot reconstruct images")
        placement = placement_from(request.placement, model)
        classes = torch.full((len(changes),), request.class_)
        upright = model.draw_upright(capsules_ND[:1], classes[:1])[0]
        pose = model.affine(placement)[torch.zeros(len(changes), dtype=torch.long)]  # the same for each
        pictures = model.draw(capsules_ND, classes, pose)
        parts = sweep_placement(model, capsules_ND[0], request.class_, placement) if request.sweep else []
        return Reconstruction(pictures, upright, parts)
    if request.placement is not None:
        raise UserError(f"placement: {served.name} does not predict placements; omit it")
    masked = torch.zeros(len(changes), model.num_classes, D)
    masked[:, request.class_] = capsules_ND
    return Reconstruction(served.capsules.decoder(masked), None, [])  # type: ignore[misc]
