"""What is set after training: where a model answers "none of these", and how it reads the width of strokes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.explain.familiarity import score_images
from torchcaps.explain.strokes import stroke_width
from torchcaps.metrics import rounded
from torchcaps.metrics.detection import KEPT
from torchcaps.metrics.predictions import BATCH
from torchcaps.models import ImageModel, PoseCaps
from torchcaps.models.evaluating import evaluating
from torchcaps.robustness import perturb

MIN_VALIDATION = 20  # validation images
STROKES = 0.9  # share of the training images that must show strokes
CARRIED = 0.5  # R² and slope from which on a reading of thickness is given
MAX_FITTED = 4000  # training images that thickness is fitted to, evenly spaced
MAX_HELD_OUT = 2000  # validation images that it is judged by
OTHERS = 0.1  # weight of the images of all other classes together, in the fit of one class
RIDGE = 1e-3  # weight of the squared factors, in units of the mean variance of what they multiply
THICKENED = (-0.5, 0.5, 1.0)  # steps of `perturb.thicken`
SCALED = (0.85, 1.15)  # factors of `perturb.scale`


def none_threshold(model: ImageModel, validation: Dataset | None, kept: float = KEPT) -> float | None:
    """Find the familiarity that a given share of the validation images reaches.

    Args:
        model: one with a method `familiarity`; others get None.
        validation: images of the known classes that the model was not trained on. None, or fewer than 20, give None.
        kept: the share that is to be kept.
    """
    if getattr(model, "familiarity", None) is None or validation is None or len(validation) < MIN_VALIDATION:
        return None
    scores = score_images(model, validation.images).scores["familiarity"]
    return round(torch.quantile(scores, 1 - kept).item(), 6)


def calibrate_thickness(model: Any, train: Dataset, validation: Dataset | None) -> dict[str, Any]:
    """Fit how the width of strokes is read, and have the model read it if it does so on images held out.

    The target is what `stroke_width` measures on the training images, as they are and each once more, made thicker,
    thinner, larger or smaller. It is divided by the scale that the model reads. The fit is a ridge regression for each
    class, from the mean primary capsules. No other weight of the model changes.

    Args:
        model: pose capsules; other models are left as they are.
        train, validation: images of one class each. At least 90 % of the training images must show bright strokes on a
            dark ground, and 20 validation images are needed; otherwise nothing is fitted.

    Returns:
        Nothing if nothing was fitted. Otherwise, for validation images:
        r2: the share of the variance within classes that the reading explains, in images as they are.
        slope: of the reading against the measured width, for an image made thicker and thinner.
        error: the median absolute error, in pixels, in images as they are.
        n: how many images were measured.
        given: whether r2 and slope reach 0.5. If so, the model now gives the reading as `Placement.thickness`.
    """
    if not model.reads_placement or validation is None:
        return {}
    model.set_thickness_weight(None)
    if train.multi_label or validation.multi_label or len(validation) < MIN_VALIDATION or not len(train):
        return {}
    images, classes = _some(model, train, MAX_FITTED)
    if stroke_width(images).isfinite().float().mean() < STROKES:
        return {}
    weight = _fit(model, torch.cat([images, _altered(images)]), classes.repeat(2))
    images, classes = _some(model, validation, MAX_HELD_OUT)
    thickened = [_observe(model, perturb.thicken(images, steps), classes) for steps in THICKENED]
    figures = _judge(weight, classes, _observe(model, images, classes), thickened)
    if figures["given"]:
        model.set_thickness_weight(weight)
    return figures


def _some(model: PoseCaps, data: Dataset, limit: int) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] and their classes, evenly spaced, at most so many; on the CPU."""
    every = -(-len(data) // limit)
    return model.prepare(data.images[::every]).cpu(), data.targets[::every].cpu()


class _Observed(NamedTuple):
    """N images of known classes.

    Attributes:
        primary: (N, X + 1) mean primary capsules, as the true class is seen, and a 1.
        scale: (N,) read, of the true class.
        width: (N,) of strokes, measured.
    """

    primary: Tensor
    scale: Tensor
    width: Tensor

    def readings(self, weight_JX: Tensor, classes: Tensor) -> Tensor:
        """(N,) pixels, as `PoseCaps` reads them."""
        return (self.primary * weight_JX[classes]).sum(1).relu() * self.scale


def _look(model: PoseCaps, images: Tensor) -> tuple[Tensor, Tensor]:
    """(B, J, X + 1) mean primary capsules and a 1, (B, J) scales, on the CPU in float64."""
    with evaluating(model):
        seen = model.encode(images.to(model.device))
        weights_BGJ, _, _ = model.aggregate(seen)
        primary, scale = model.mean_primary(seen, weights_BGJ), model.read_placement(seen, weights_BGJ).scale
    return F.pad(primary.double().cpu(), (0, 1), value=1.0), scale.double().cpu()


def _observe(model: PoseCaps, images: Tensor, classes: Tensor) -> _Observed:
    parts = []
    for batch, ids in zip(images.split(BATCH), classes.split(BATCH)):
        primary, scale = _look(model, batch)
        each = torch.arange(len(batch)), ids
        parts.append(_Observed(primary[each], scale[each], stroke_width(batch).double()))
    return _Observed(*map(torch.cat, zip(*parts)))


def _altered(images: Tensor) -> Tensor:
    """Each image made thicker, thinner, larger or smaller, in turn."""
    changes = [partial(perturb.thicken, steps=steps) for steps in THICKENED]
    changes += [partial(perturb.scale, factor=factor) for factor in SCALED]
    changed = torch.empty_like(images)
    for first, change in enumerate(changes):
        changed[first :: len(changes)] = change(images[first :: len(changes)])
    return changed


def _fit(model: PoseCaps, images: Tensor, classes: Tensor) -> Tensor:
    """(J, X + 1) for each class the factors and the constant of a ridge regression.

    Images of other classes count a little: a class that is not there is then read with about the right width, too.
    """
    J, X = model.num_classes, model.types * model.dim
    squares, products = torch.zeros(J, X + 1, X + 1).double(), torch.zeros(J, X + 1).double()
    for batch, ids in zip(images.split(BATCH), classes.split(BATCH)):
        width = stroke_width(batch).double()
        (primary, scale), there = _look(model, batch), width.isfinite()
        inputs, targets = primary[there], width[there, None] / scale[there]
        counts = torch.full((len(inputs), J), OTHERS / max(1, J - 1)).double()
        counts[torch.arange(len(inputs)), ids[there]] = 1.0
        squares += torch.einsum("bj,bjx,bjy->jxy", counts, inputs, inputs)
        products += torch.einsum("bj,bjx,bj->jx", counts, inputs, targets)
    total, sums = squares[:, -1, -1, None], squares[:, -1, :-1]
    variance = squares.diagonal(dim1=1, dim2=2)[:, :-1] / total - (sums / total).square()
    ridge = (RIDGE * total * variance.mean(1, keepdim=True)).clamp_min(1e-9).expand(-1, X)
    return torch.linalg.solve(squares + torch.diag_embed(F.pad(ridge, (0, 1))), products)


def _judge(weight: Tensor, classes: Tensor, plain: _Observed, thickened: list[_Observed]) -> dict[str, Any]:
    """How well readings agree with the measured width: see `calibrate_thickness`."""
    measured = plain.width.isfinite()
    _, label = classes[measured].unique(return_inverse=True)
    width, error = plain.width[measured], (plain.readings(weight, classes) - plain.width)[measured]
    if not len(width):
        return {"r2": 0.0, "slope": 0.0, "error": 0.0, "n": 0, "given": False}
    count = torch.bincount(label)
    about = width - (torch.zeros(len(count)).double().index_add(0, label, width) / count)[label]
    r2 = 1 - error.square().sum() / about.square().sum().clamp_min(1e-12)
    widths = torch.stack([each.width for each in (plain, *thickened)])
    readings = torch.stack([each.readings(weight, classes) for each in (plain, *thickened)])
    whole = widths.isfinite().all(0)
    widths, readings = (part[:, whole] - part[:, whole].mean(0) for part in (widths, readings))
    slope = (widths * readings).sum() / widths.square().sum().clamp_min(1e-12)
    figures = {"r2": rounded(r2), "slope": rounded(slope), "error": rounded(error.abs().median()), "n": len(width)}
    return {**figures, "given": bool(r2 >= CARRIED and slope >= CARRIED)}
