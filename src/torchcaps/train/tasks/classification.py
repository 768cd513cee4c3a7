"""Classification: one class an image, or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps import losses
from torchcaps.data import Dataset, batches, centre_crop, class_weights
from torchcaps.data.augment import MIXING
from torchcaps.data.loader import plain_loader
from torchcaps.errors import UserError
from torchcaps.explain.familiarity import count_rejected, familiarity_threshold, score_images
from torchcaps.losses import combine
from torchcaps.metrics.baselines import measure_baselines
from torchcaps.metrics.classification import predicted_classes
from torchcaps.metrics.summary import summary_measures
from torchcaps.models import ImageModel, Output
from torchcaps.models.registry import accepts_option
from torchcaps.train.calibrate import calibrate_thickness, none_threshold
from torchcaps.train.failures import is_out_of_memory
from torchcaps.train.recipe import AugmentSection, LossSection, Recipe
from torchcaps.train.reports.answer import answer_sections
from torchcaps.train.reports.classification import classification_sections
from torchcaps.train.reports.page import Report
from torchcaps.train.reports.report_data import PreparedImages, ReportData
from torchcaps.train.tasks.base import EVALUATION_BATCH, Task
from torchcaps.train.tasks.test_sets import classification_test_set
from torchcaps.train.totals import Totals

PAPER_RECONSTRUCTION = 0.0005 * 28 * 28  # the paper's weight, for images of any size: divided by the number of values
SPREAD = (0.2, 0.9)  # the margin of the spread loss at the start and at the end of training
EVALUATION_PIXELS = EVALUATION_BATCH * 96 * 96  # in a batch
TERMS = ("margin", "spread", "reconstruction", "cross_entropy", "disagreement", "absence")


class ClassificationResult(NamedTuple):
    """The evaluation of a classifier.

    Attributes:
        lengths: (N, J) in the order of the data.
        loss, score: means over the data; the score is the accuracy.
    """

    lengths: Tensor
    loss: float
    score: float


@dataclass(frozen=True)
class ClassificationTask(Task):
    """One class an image (targets (B,)), or any number of them (targets (B, J) multi-hot)."""

    weights: dict[str, float]
    class_weights_J: Tensor | None = None
    labels_each: int | None = None  # how many classes every image has, where that is known
    squared_lengths: bool = False  # the form of the margin loss
    one_class: bool = False  # whether targets (B, J) are shares of one class, as of mixed images
    spread_margin: Tensor = field(default_factory=lambda: torch.tensor(SPREAD[1]))  # a recorded step knows its address

    measure = "accuracy"
    learns_from = "images with a class each"
    loss_settings = (*TERMS, "squared_lengths", "class_weights")

    @classmethod
    def make(cls, model: ImageModel, data: Dataset, section: LossSection) -> ClassificationTask:
        cls.check_settings(section)
        given = {name: getattr(section, name) for name in TERMS}
        defaults = dict.fromkeys(given, 0.0) | {model.objective: 1.0, **model.own_losses}
        draws = getattr(model, "draws", getattr(model, "decoder", None) is not None)
        if draws:
            defaults["reconstruction"] = PAPER_RECONSTRUCTION / torch.Size(model.image_shape).numel()
        if given["reconstruction"] and not draws:
            raise UserError("loss.reconstruction: this model has no decoder; omit it, or set model.decoder")
        for name, needed in (("disagreement", "model.name=posecaps"), ("absence", "posecaps with model.negatives")):
            if given[name] and name not in model.own_losses:
                raise UserError(f"loss.{name}: only pose capsules ({needed}) have it; omit it")
        if given["cross_entropy"] and model.objective != "cross_entropy":
            raise UserError(f"loss.cross_entropy: capsule lengths are not logits; use loss.{model.objective}")
        weights = {name: defaults[name] if weight is None else weight for name, weight in given.items()}
        weights = {name: weight for name, weight in weights.items() if weight}
        if not weights:
            raise UserError("loss: every weight is 0, so there is nothing to learn")
        if "spread" in weights and data.multi_label:
            raise UserError("loss.spread: it is for one class an image; use loss.margin for several")
        if section.squared_lengths and "margin" not in weights:
            raise UserError("loss.squared_lengths: it is a form of the margin loss; set loss.margin, too")
        weights_J = class_weights(data) if section.class_weights else None
        margin = torch.tensor(SPREAD[1], device=model.device)
        return cls(weights, weights_J, data.labels_each, section.squared_lengths, not data.multi_label, margin)

    @classmethod
    def model_options(cls, recipe: Recipe, data: Dataset) -> dict[str, Any]:
        if data.self_augmenting and recipe.augment != AugmentSection():
            raise UserError("augment: pairs of digits are moved by their own data set; omit augment")
        channels, height, width = data.image_shape
        crop = recipe.augment.crop
        if crop > min(height, width):
            raise UserError(f"augment.crop is {crop}, but the images are only {height}×{width}")
        if recipe.augment.turn and not crop and height != width:
            raise UserError(f"augment.turn: images of {height}×{width} are not square; set augment.crop")
        options: dict[str, Any] = {"image_shape": (channels, crop or height, crop or width)}
        if crop:
            options["resize_to"] = (height, width)
        if data.multi_label and accepts_option(recipe.model.name, "multi_label"):
            options["multi_label"] = True
        return options

    def terms(self, output: Output, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        terms = {}
        if "margin" in self.weights:
            terms["margin"] = losses.margin_loss(output.lengths, targets, squared_lengths=self.squared_lengths)
        if "spread" in self.weights:
            terms["spread"] = losses.spread_loss(output.lengths, targets, self.spread_margin)
        if "reconstruction" in self.weights and output.reconstruction is not None:
            terms["reconstruction"] = losses.reconstruction_loss(output.reconstruction, images)
        if "disagreement" in self.weights and output.disagreement is not None:
            terms["disagreement"] = output.disagreement
        if "absence" in self.weights:  # an evaluation shows no images of nothing
            nothing = torch.zeros_like(output.lengths[:, 0])
            terms["absence"] = nothing if output.absence is None else output.absence
        if "cross_entropy" in self.weights and output.logits is not None:
            terms["cross_entropy"] = losses.cross_entropy(output.logits, targets, shares=self.one_class)
        return terms

    def check_augment(self, section: AugmentSection, channels: int) -> None:
        """Mixed images have no single class, which the spread loss needs."""
        super().check_augment(section, channels)
        for name in MIXING:
            if getattr(section, name) and "spread" in self.weights:
                raise UserError(
                    f"augment.{name}: the spread loss needs one class an image; use loss.margin=1 with loss.spread=0"
                )

    def anneal(self, progress: float) -> None:
        """Set the margin of the spread loss."""
        if "spread" in self.weights:
            self.spread_margin.fill_(SPREAD[0] + (SPREAD[1] - SPREAD[0]) * progress)

    def example_weights(self, targets: Tensor) -> Tensor | None:
        """(B,) weights by which rare classes count more."""
        if self.class_weights_J is None:
            return None
        weights_J = self.class_weights_J.to(targets.device)
        if targets.ndim == 1:
            return weights_J[targets]
        return (targets * weights_J).sum(-1) / targets.sum(-1).clamp_min(1)

    def correct(self, lengths: Tensor, targets: Tensor) -> Tensor:
        """(B,) 1 where the answer is right. With several labels all of them must be found, and no other: the longest
        where their number is known, else those longer than PRESENT. Of a mixed image the larger share must be found."""
        if targets.ndim == 2 and self.one_class:
            targets = targets.argmax(-1)
        if targets.ndim == 1:
            return (lengths.argmax(-1) == targets).float()
        return (predicted_classes(lengths, several=True, each=self.labels_each) == (targets > 0)).all(-1).float()

    def evaluate(self, model: ImageModel, data: Dataset, views: bool = False) -> ClassificationResult:
        """Evaluate in float32, on centre crops, in batches that fit into memory.

        Args:
            model: a classifier.
            data: images with classes.
            views: answer by the mean over nine views of each image, moved by up to a pixel. The loss is that of the
                image itself.
        """
        was_training, size = model.training, 1 if data.batched else _evaluation_batch(data.image_shape)
        model.eval()
        try:
            while True:
                try:
                    return self._evaluate_batches(model, data, views, size)
                except RuntimeError as error:
                    if size == 1 or not is_out_of_memory(error):
                        raise
                size //= 2
        finally:
            model.train(was_training)

    @torch.no_grad()
    def _evaluate_batches(self, model: ImageModel, dataset: Dataset, views: bool, size: int) -> ClassificationResult:
        loader = plain_loader(dataset, model.device)
        totals, lengths = Totals(model.device, self.measure), []
        for images, targets in batches(loader, size, device=model.device, seed=0, epoch=0, shuffle=False):
            crop = 0 if images.shape[1:] == model.image_shape else model.image_shape[1]
            images = centre_crop(images, crop)
            output = model(images, targets)
            terms = self.terms(output, images, targets)
            answers = output.lengths
            if views:
                answers = torch.stack([model(view).lengths for view in moved_views(images)]).mean(0)
            totals.add(combine(terms, self.weights), terms, self.correct(answers, targets))
            lengths.append(answers)
        means = totals.means()
        return ClassificationResult(torch.cat(lengths).cpu(), means["loss"], means[self.measure])

    @classmethod
    def evaluate_saved(cls, model: ImageModel, data: str | None, views: bool, rejection: bool) -> dict[str, Any]:
        dataset, name = classification_test_set(model, data)
        task = cls.make(model, dataset, LossSection())
        result = task.evaluate(model, dataset, views)
        figures = {
            "data": name,
            "accuracy": result.score,
            "error": 1 - result.score,
            "loss": result.loss,
            "n": len(dataset),
        }
        threshold = familiarity_threshold(model) if rejection else None
        if threshold is not None:
            familiar = score_images(model, dataset.images).scores["familiarity"]
            correct = task.correct(result.lengths, dataset.targets) == 1
            figures["none_of_these"] = count_rejected(familiar, correct, threshold)
        return figures

    def calibrate(self, model: ImageModel, data: Dataset, validation: Dataset | None) -> dict[str, Any]:
        """Set the rejection threshold, and fit how stroke thickness is read, on validation images."""
        model.none_below = none_threshold(model, validation)
        thickness = calibrate_thickness(model, data, validation)
        if thickness:
            model.trained_by["thickness"] = thickness
        found = {} if model.none_below is None else {"none_below": model.none_below}
        return found | ({"thickness": thickness} if thickness else {})

    def origin(self, recipe: Recipe, data: Dataset) -> dict[str, Any]:
        return {"multi_label": data.multi_label, "labels_each": data.labels_each}

    def summarise(
        self, results: Mapping[str, ClassificationResult], parts: Mapping[str, Dataset], model: Any
    ) -> dict[str, Any]:
        """Measures of each class, calibration, and an interval of the accuracy."""
        figures: dict[str, Any] = {}
        for short, name in (("val", "validation"), ("test", "test")):
            if name in results and len(parts[name]):
                data = parts[name]
                found = summary_measures(results[name].lengths, data.targets, model.class_names, data.labels_each)
                figures |= {f"{short}_{measure}": value for measure, value in found.items()}
        return figures

    def baselines(self, train: Dataset, held_out: Dataset) -> dict[str, Any]:
        """Chance, the majority class, and HOG features with a linear SVM, where every image has one class."""
        return {} if train.multi_label or not len(held_out) else measure_baselines(train, held_out).as_dict()

    def write_report(self, report: Report, part: Dataset, result: ClassificationResult | None) -> Path:
        model = report.model
        images = PreparedImages(model, part.images)
        lengths = torch.zeros(0, model.num_classes) if result is None else result.lengths
        data = ReportData(images, part.targets, lengths, list(model.class_names), part.labels_each)
        return report.write(classification_sections(model, data), answer_sections(report.summary, data))


def _evaluation_batch(shape: Sequence[int]) -> int:
    """The images of an evaluation batch: fewer where they are large, so that activations stay as small."""
    return max(1, min(EVALUATION_BATCH, EVALUATION_PIXELS // math.prod(shape[-2:])))


def moved_views(images: Tensor) -> list[Tensor]:
    """Nine views of each image: moved by one pixel in every direction, with a black border, and not moved."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (1, 1, 1, 1))
    return [padded[..., y : y + height, x : x + width] for y in range(3) for x in range(3)]
