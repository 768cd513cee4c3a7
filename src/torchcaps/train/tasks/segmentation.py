"""Segmentation: a class for every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchcaps import losses
from torchcaps.data import SegmentationDataset
from torchcaps.data.mixing import check_masks_unmixed
from torchcaps.errors import UserError
from torchcaps.io.atomic import write_text
from torchcaps.losses import combine
from torchcaps.metrics.segmentation import as_csv, dice, score
from torchcaps.models import SegmentationModel, SegmentationOutput
from torchcaps.models.segmentation import to_mask
from torchcaps.models.tiles import predict_map
from torchcaps.train.recipe import AugmentSection, LossSection, Recipe
from torchcaps.train.reports.page import Report
from torchcaps.train.reports.segmentation import segmentation_sections
from torchcaps.train.tasks.base import Task
from torchcaps.train.tasks.test_sets import segmentation_test_set

TERMS = ("cross_entropy", "dice", "margin", "reconstruction")
MIN_STD = 1 / 255  # for constant images: rounding must not be amplified


class SegmentationResult(NamedTuple):
    """The evaluation of a segmentation model.

    Attributes:
        masks: the predicted class ids (H, W) of every image.
        loss, score: means over images; the score is the Dice coefficient.
    """

    masks: list[Tensor]
    loss: float
    score: float


@dataclass(frozen=True)
class SegmentationTask(Task):
    """A class for every pixel: targets (B, H, W), class ids, 255 where the class is unknown."""

    weights: dict[str, float]
    num_classes: int
    positive_weight: float = 1.0

    measure = "dice"
    learns_from = "images with masks"
    loss_settings = (*TERMS, "positive_weight")

    @classmethod
    def make(cls, model: SegmentationModel, data: SegmentationDataset | None, section: LossSection) -> SegmentationTask:
        cls.check_settings(section)
        given = {name: getattr(section, name) for name in TERMS}
        draws = getattr(model, "decoder", None) is not None
        if given["reconstruction"] and not draws:
            raise UserError("loss.reconstruction: this model has no decoder; omit it")
        chosen = any(given[name] for name in ("cross_entropy", "dice", "margin"))
        defaults = {"cross_entropy": 0.0 if chosen else 1.0, "dice": 0.0, "margin": 0.0, "reconstruction": float(draws)}
        weights = {name: defaults[name] if weight is None else weight for name, weight in given.items()}
        if not any(weights[name] for name in ("cross_entropy", "dice", "margin")):
            raise UserError("loss: at least one of cross_entropy, dice and margin needs a weight above 0")
        weights["dice_loss"] = weights.pop("dice")  # the measure is called dice
        return cls({k: v for k, v in weights.items() if v}, model.num_classes, section.positive_weight)

    @classmethod
    def model_options(cls, recipe: Recipe, data: SegmentationDataset) -> dict[str, Any]:
        """The window size, and mean and std: a squash hides faint inputs, so dark images would teach the first layers
        little."""
        side = data.window(recipe.augment.crop)
        mean, deviation = data.brightness()
        return {
            "image_shape": (data.channels, side, side),
            "mean": [round(value, 4) for value in mean],
            "std": [max(round(value, 4), MIN_STD) for value in deviation],
        }

    def check_augment(self, section: AugmentSection, channels: int) -> None:
        super().check_augment(section, channels)
        check_masks_unmixed(section.mixup)

    def terms(self, output: SegmentationOutput, images: Tensor, masks: Tensor) -> dict[str, Tensor]:
        """Each loss that has a weight; the reconstruction only where there is one."""
        terms = {}
        if "cross_entropy" in self.weights:
            terms["cross_entropy"] = losses.mask_cross_entropy(
                output.probabilities, masks, self.positive_weight, output.logits
            )
        if "dice_loss" in self.weights:
            terms["dice_loss"] = losses.dice_loss(output.probabilities, masks)
        if "margin" in self.weights:
            terms["margin"] = losses.mask_margin_loss(output.probabilities, masks)
        if "reconstruction" in self.weights and output.reconstruction is not None:
            terms["reconstruction"] = losses.masked_reconstruction_loss(output.reconstruction, images, masks)
        return terms

    def answers(self, output: SegmentationOutput) -> Tensor:
        return output.probabilities

    def correct(self, probabilities_BKHW: Tensor, masks_BHW: Tensor) -> Tensor:
        """(B,) Dice coefficient, the mean over all classes but the background; 1 for a class in neither mask."""
        return dice(to_mask(probabilities_BKHW), masks_BHW, self.num_classes)[1:].mean(0)

    @torch.no_grad()
    def evaluate(self, model: SegmentationModel, data: SegmentationDataset) -> SegmentationResult:
        """Evaluate on whole images; the loss is without the reconstruction."""
        weights = {name: weight for name, weight in self.weights.items() if name != "reconstruction"}
        predicted, loss, score_sum = [], 0.0, 0.0
        was_training = model.training
        model.eval()
        try:
            for image, mask in zip(data.images, data.masks):
                probabilities = predict_map(model, image)[None]
                masks = mask.to(probabilities.device).long()[None]
                loss += combine(self.terms(SegmentationOutput(probabilities), probabilities, masks), weights).item()
                score_sum += self.correct(probabilities, masks).item()
                predicted.append(to_mask(probabilities)[0].to("cpu", torch.uint8))
        finally:
            model.train(was_training)
        count = max(1, len(data))
        return SegmentationResult(predicted, loss / count, score_sum / count)

    @classmethod
    def evaluate_saved(cls, model: SegmentationModel, data: str | None, views: bool, rejection: bool) -> dict[str, Any]:
        if views:
            raise UserError("--views is for classifiers; this model segments images")
        segments, name = segmentation_test_set(model, data)
        result = cls.make(model, segments, LossSection()).evaluate(model, segments)
        scores = score(result.masks, segments, model.class_names)
        figures = {**scores.means(), "loss": result.loss, "n": len(segments)}
        return {"data": name, **figures, "per_class": scores.per_class(), "images": scores.rows()}

    def summarise(
        self, results: Mapping[str, SegmentationResult], parts: Mapping[str, SegmentationDataset], model: Any
    ) -> dict[str, Any]:
        """IoU, Hausdorff distance and pixel error, and all measures per class."""
        figures: dict[str, Any] = {}
        for short, name in (("val", "validation"), ("test", "test")):
            if name in results:
                scores = score(results[name].masks, parts[name], model.class_names)
                means = scores.means()
                figures |= {f"{short}_{measure}": value for measure, value in means.items() if measure != "dice"}
                figures[f"{short}_per_class"] = scores.per_class()
        return figures

    def write_report(self, report: Report, part: SegmentationDataset, result: SegmentationResult | None) -> Path:
        """Write report.html, and images.csv with the scores of every image."""
        model = cast(SegmentationModel, report.model)
        if result is None:
            return report.write(segmentation_sections(model, part, [], None))
        scores = score(result.masks, part, model.class_names)
        write_text(report.path.with_name("images.csv"), as_csv(scores))
        return report.write(segmentation_sections(model, part, result.masks, scores))
