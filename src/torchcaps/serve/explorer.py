"""The explorer's API without the web: takes request bodies, runs the models and returns response bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from torchcaps.errors import UserError, did_you_mean
from torchcaps.explain.placement import lattice_lengths, read_poses
from torchcaps.explain.require import has_placement
from torchcaps.explain.sweep import SWEEP
from torchcaps.explain.vote_plane import vote_plane
from torchcaps.explain.votes import routing_trace
from torchcaps.models import CapsuleModel, ImageModel, Placement
from torchcaps.robustness.perturb import affine
from torchcaps.serve import requests, responses
from torchcaps.serve.inference import decoded_classes, longest, predict, predicted_classes, reconstruct
from torchcaps.serve.pictures import coloured, data_url, missing, strip
from torchcaps.serve.poses import placements_of
from torchcaps.serve.responses import numbers
from torchcaps.serve.routing import check_part, routing_response
from torchcaps.serve.routing_responses import RoutingResponse
from torchcaps.serve.served_models import ServedModel

MAX_CURVE_PICTURES = 7  # pictures per curve
MAX_BATCH_IMAGES = 8  # images of a curve per batch; other requests may run between batches
MAX_BATCH_VIEWS = 24  # the same, counted in views, for models that compute many views of each image


class Explorer:
    """Answers requests about the served models. It keeps no state between requests.

    Args:
        served_models: The models; the first is the default.
    """

    def __init__(self, served_models: Sequence[ServedModel]):
        self.served_models = {served.name: served for served in served_models}
        self.default = served_models[0].name
        self._lock = Lock()  # a model uses all cores, so running two at once gains nothing

    def models(self) -> responses.ModelsResponse:
        models = [served.describe() for served in self.served_models.values()]
        return responses.ModelsResponse(default=self.default, models=models)

    def predict(self, request: requests.PredictRequest) -> responses.PredictResponse:
        """Classify an image, and reconstruct it from its capsules."""
        served = self._find(request.model)
        _check_classes(request.decode or [], served.model)
        image = served.preprocess(request.image)
        with self._inference():
            found = predict(served, image, request)
            classes, familiarity = predicted_classes(served.model, image, found.output, request.reject)
        lengths, placement = found.output.lengths[0], found.output.placement
        together = difference = error = None
        if found.reconstructions is not None:
            whole = found.reconstructions.sum(0).clamp(max=1)
            colours = [coloured(picture.mean(0), index) for index, picture in enumerate(found.reconstructions)]
            together = data_url(torch.stack(colours).sum(0))
            difference = data_url(missing(image.mean(0), whole.mean(0)))
            error = numbers((image - whole).square().mean())
        return responses.PredictResponse(
            model=served.name,
            seen=data_url(image),
            lengths=numbers(lengths),
            winners=longest(lengths, request.top),
            classes=classes,
            familiarity=familiarity,
            placements=None if placement is None else placements_of(placement)[0],
            decoded=decoded_classes(found),
            together=together,
            missing=difference,
            error=error,
        )

    def reconstruct(self, request: requests.ReconstructRequest) -> responses.ReconstructResponse:
        """Decode a pose; on request also with each dimension varied in turn."""
        served = self._find(request.model)
        _check_classes([request.class_], served.model)
        image = None if request.compare is None else served.preprocess(request.compare)
        with self._inference():
            found = reconstruct(served, request)
        picture = found.pictures[0]
        return responses.ReconstructResponse(
            reconstruction=data_url(picture),
            upright=None if found.upright is None else data_url(found.upright),
            difference=None if image is None else data_url(missing(image.mean(0), picture.mean(0))),
            sweep=_sweep(found.pictures[1:], len(request.pose), found.parts) if request.sweep else None,
        )

    def lattice(self, request: requests.LatticeRequest) -> responses.LatticeResponse:
        """Compute the length of each class capsule in each view of an image."""
        served = self._find(request.model)
        model, image = served.poses, served.preprocess(request.image)
        with self._inference():
            lengths_ASJ, read = lattice_lengths(model, image), read_poses(model, image[None])
        return responses.LatticeResponse(
            model=served.name,
            seen=data_url(image),
            angles=list(model.lattice.angles),
            scales=list(model.lattice.scales),
            lengths=numbers(lengths_ASJ.movedim(-1, 0)),
            presence=numbers(read.lengths[0]),
            placements=placements_of(read.placement)[0],
        )

    def routing(self, request: requests.RoutingRequest) -> RoutingResponse:
        """Compute which parts support which class, for each iteration of routing."""
        served = self._find(request.model)
        check_part(served, request.part)
        image = served.preprocess(request.image)
        with self._inference():
            trace = routing_trace(served.capsules, image, request.iterations)
            plane = vote_plane(served.capsules, image, trace)
        return routing_response(served, image, trace, plane, request.part)

    def transform(self, request: requests.TransformRequest) -> responses.TransformResponse:
        """Transform an image and predict it again; on request also along a curve of one parameter."""
        served = self._find(request.model)
        other = self._comparison_model(served)
        image = served.preprocess(request.image)[None]
        setting = {name: getattr(request, name) for name in requests.TRANSFORM_RANGES}
        values = [] if request.along is None else _curve_values(request.along, request.steps)
        settings = [setting, *({**setting, request.along: value} for value in values)]
        images = torch.cat([affine(image, **each) for each in settings])
        # The single image shares a batch with the curve: a batch of its own would take twice as long.
        lengths_BJ, placement = self._read(served, images)
        lengths, placements = numbers(lengths_BJ), None if placement is None else placements_of(placement)
        probabilities = None if other is None else numbers(self._read(other, images)[0])
        curve = None
        if request.along is not None:
            shown = torch.linspace(0, len(values) - 1, min(MAX_CURVE_PICTURES, len(values))).round().int().tolist()
            curve = responses.Curve(
                along=request.along,
                values=values,
                lengths=lengths[1:],
                comparison=probabilities and probabilities[1:],
                placements=placements and placements[1:],
                pictures=[data_url(images[1 + index]) for index in shown],
                pictured=[values[index] for index in shown],
            )
        return responses.TransformResponse(
            model=served.name,
            seen=data_url(images[0]),
            lengths=lengths[0],
            placements=placements and placements[0],
            comparison=other
            and probabilities
            and responses.Comparison(name=other.name, probabilities=probabilities[0]),
            curve=curve,
        )

    def _find(self, name: str | None) -> ServedModel:
        found = self.served_models.get(self.default if name is None else name)
        if found is None:
            raise UserError(f"model: {did_you_mean(name or '', self.served_models)}")
        return found

    def _comparison_model(self, served: ServedModel) -> ServedModel | None:
        """The model to compare with, if it takes images of the same size."""
        others = (other for other in self.served_models.values() if other.role == "comparison" and other is not served)
        return next((other for other in others if other.model.image_shape == served.model.image_shape), None)

    def _read(self, served: ServedModel, images: Tensor) -> tuple[Tensor, Placement | None]:
        """Lengths and placements, each (B, J). Runs in small batches, so that other requests need not wait long."""
        model, lengths, placements = served.model, [], []
        for batch in images.split(max(1, min(MAX_BATCH_IMAGES, MAX_BATCH_VIEWS // served.num_views))):
            with self._inference():  # without the decoder, whose output is not used
                if has_placement(model):
                    read = read_poses(model, batch)
                    lengths.append(read.lengths)
                    placements.append(read.placement)
                elif isinstance(model, CapsuleModel):
                    lengths.append(model.classes(model.children_of(batch)).activation)
                else:
                    lengths.append(model(batch).lengths)
        parts = [None if part[0] is None else torch.cat(part) for part in zip(*placements)]
        return torch.cat(lengths), Placement._make(parts) if placements else None

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with self._lock, torch.inference_mode():
            yield


def _check_classes(classes: Sequence[int], model: ImageModel) -> None:
    if any(index >= model.num_classes for index in classes):
        raise UserError(f"class: the model has {model.num_classes} classes, numbered from 0")


def _curve_values(parameter: str, steps: int) -> list[float]:
    """Evenly spaced values over a parameter's range; scales are spaced evenly on a logarithmic axis."""
    low, high = requests.TRANSFORM_RANGES[parameter]
    if parameter == "scale":
        return torch.logspace(-2, 2, steps, base=2, dtype=torch.float64).tolist()
    return torch.linspace(low, high, steps, dtype=torch.float64).tolist()


def _sweep(pictures: Tensor, dimensions: int, parts: list[responses.PlacementSweep]) -> responses.Sweep:
    """Arrange pictures with one row per dimension and one column per value."""
    rows = strip(pictures.unflatten(0, (dimensions, len(SWEEP))))
    height, width = pictures.shape[-2:]
    sizes = {"dimensions": dimensions, "height": height, "width": width}
    return responses.Sweep(values=list(SWEEP), picture=data_url(rows), parts=parts, **sizes)
