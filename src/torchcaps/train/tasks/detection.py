"""Detection: the objects of an image, each with class, position, angle and scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data import ObjectDataset, make_loader
from torchcaps.errors import UserError
from torchcaps.losses import combine
from torchcaps.metrics.objects import Matches, boxes_of, match_objects, mean_average_precision
from torchcaps.models import SceneCaps, SceneOutput
from torchcaps.train.recipe import LossSection, Recipe
from torchcaps.train.reports.detection import detection_sections
from torchcaps.train.reports.page import Report
from torchcaps.train.tasks.base import Task
from torchcaps.train.tasks.test_sets import own_test_set

BATCH = 64  # images evaluated at once
WEIGHTS = {"presence": 1.0, "pose": 1.0, "layout": 0.1}
PIXEL_WEIGHT = 0.01  # of the squared error of a pixel of the reconstruction


class DetectionResult(NamedTuple):
    """The evaluation of a model that finds objects.

    Attributes:
        matches: of each image.
        loss, score: mean of the losses, and F1.
        average_precision: of upright boxes at an IoU of one half; None for wholes, whose size is not known.
    """

    matches: Matches
    loss: float
    score: float
    average_precision: float | None = None

    def figures(self) -> dict[str, float]:
        """All measures but the score."""
        figures = {name: value for name, value in self.matches.summary().items() if name != "f1"}
        return figures if self.average_precision is None else {**figures, "map_50": self.average_precision}


@dataclass(frozen=True)
class DetectionTask(Task):
    """The objects of an image: targets (B, N, 8), rows of an `ObjectDataset`."""

    weights: dict[str, float]

    measure = "f1"
    learns_from = "images with objects"
    loss_settings = ("reconstruction",)

    @classmethod
    def make(cls, model: SceneCaps, data: ObjectDataset | None, section: LossSection) -> DetectionTask:
        cls.check_settings(section)
        weights = {name: weight for name, weight in WEIGHTS.items() if name != "layout" or len(model.wholes)}
        if model.decoder is not None:
            weights["reconstruction"] = PIXEL_WEIGHT if section.reconstruction is None else section.reconstruction
        elif section.reconstruction:
            raise UserError("loss.reconstruction: this model has no decoder; omit it, or set model.decoder")
        return cls({name: weight for name, weight in weights.items() if weight})

    @classmethod
    def model_options(cls, recipe: Recipe, data: ObjectDataset) -> dict[str, Any]:
        """What the data knows: names, members and symmetries."""
        return {
            "image_shape": data.image_shape,
            "levels": data.levels,
            "members": data.members,
            "symmetry": data.symmetry,
        }

    def terms(self, output: SceneOutput, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        assert output.losses is not None
        return {name: output.losses[name] for name in self.weights}

    def answers(self, output: SceneOutput) -> Tensor:
        assert output.part_f1 is not None
        return output.part_f1

    def correct(self, part_f1: Tensor, targets: Tensor) -> Tensor:
        """(B,) F1 of the parts, which is what a step knows; `evaluate` has that of the objects."""
        return part_f1

    @torch.no_grad()
    def evaluate(self, model: SceneCaps, data: ObjectDataset) -> DetectionResult:
        """F1 of the objects of the last level."""
        loader, was_training = make_loader(data, model.device), model.training
        model.eval()
        outputs, loss = [], 0.0
        try:
            for indices in torch.arange(len(data)).split(BATCH):
                images, targets = loader.take(indices.to(loader.index_device))[:2]
                output = model(images, targets)
                loss += combine(self.terms(output, images, targets), self.weights).item() * len(images)
                outputs.append(
                    [*output[1:3], output.label, output.parts.pose, output.parts.presence, output.parts.size]
                )
        finally:
            model.train(was_training)
        poses, presence, label, part_pose, part_presence, size = (torch.cat(each) for each in zip(*outputs))
        matches = match_objects(label, presence, poses, data.objects, len(data.levels) - 1)
        precision = None
        if len(data.levels) == 1:
            boxes = boxes_of(part_pose, size)
            precision = mean_average_precision(label, part_presence, boxes, data.objects, data.num_classes)
        return DetectionResult(matches, loss / max(1, len(data)), matches.f1(), precision)

    @classmethod
    def evaluate_saved(cls, model: SceneCaps, data: str | None, views: bool, rejection: bool) -> dict[str, Any]:
        if views:
            raise UserError("--views is for classifiers; this model finds objects")
        examples, name = own_test_set(model, data)
        if not isinstance(examples, ObjectDataset) or examples.levels != model.level_names:
            raise UserError(f"{name} does not have the objects that this model finds: {', '.join(model.class_names)}")
        result = cls.make(model, examples, LossSection()).evaluate(model, examples)
        return {"data": name, "f1": result.score, **result.figures(), "loss": result.loss, "n": len(examples)}

    def summarise(self, results: Mapping[str, DetectionResult], parts: Mapping[str, Any], model: Any) -> dict[str, Any]:
        """Precision, recall and median errors."""
        return {
            f"{short}_{name}": value
            for short, part in (("val", "validation"), ("test", "test"))
            if part in results
            for name, value in results[part].figures().items()
        }

    def write_report(self, report: Report, part: ObjectDataset, result: DetectionResult | None) -> Path:
        assert isinstance(report.model, SceneCaps)
        return report.write(detection_sections(report.model, part, result is not None))
