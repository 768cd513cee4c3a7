"""A saved model measured on a test set."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchcaps.data import MASK_SOURCES, Dataset, SegmentationDataset, Splits, load_data, named_data
from torchcaps.errors import UserError
from torchcaps.explain.familiarity import count_rejected, familiarity_threshold, score_images
from torchcaps.losses import multi_hot
from torchcaps.metrics.segmentation import score
from torchcaps.models import ImageModel, SegmentationModel, SynthesisModel
from torchcaps.train import loop
from torchcaps.train.recipe import LossSection
from torchcaps.train.tasks.classification import ClassificationTask
from torchcaps.train.tasks.segmentation import SegmentationTask, evaluate_masks


def evaluate_model(
    model: ImageModel, data: str | None = None, *, views: bool = False, rejection: bool = False
) -> dict[str, Any]:
    """Accuracy, error, loss and n on the model's own test set, or on `data`: an image folder, a CSV, or a name.

    Of masks: Dice, IoU, 95 % Hausdorff distance (pixels) and the share of wrong pixels; also by class, and by image.

    views      answer by the mean over nine slightly moved views of each image
    rejection  of a model with `none_below`, also `none_of_these`: what `count_rejected` returns. Takes a
               second pass over the images, which are scored as they are, without views.
    """
    if isinstance(model, SynthesisModel):
        raise UserError(
            "this model draws images: they are judged by `torchcaps.train.experiments.judge`, or `torchcaps eval`"
        )
    if isinstance(model, SegmentationModel):
        if views:
            raise UserError("--views: it is for models that name a class, not for those that find masks")
        return _evaluate_pixels(model, data)
    dataset, name = images_to_test_on(model, data)
    task = ClassificationTask.for_model(model, dataset, LossSection())
    result = loop.evaluate(model, dataset, task, views)
    figures = {
        "data": name,
        "accuracy": result.right,
        "error": 1 - result.right,
        "loss": result.loss,
        "n": len(dataset),
    }
    threshold = familiarity_threshold(model) if rejection else None
    if threshold is not None:
        familiar = score_images(model, dataset.images).scores["familiarity"]
        correct = task.correct(result.lengths, dataset.targets) == 1
        figures["none_of_these"] = count_rejected(familiar, correct, threshold)
    return figures


def evaluate_together(models: Sequence[ImageModel]) -> dict[str, Any]:
    """The same for several models of one kind that answer together, by the mean of their lengths."""
    dataset, name = images_to_test_on(models[0])
    task = ClassificationTask.for_model(models[0], dataset, LossSection())
    lengths = torch.stack([loop.evaluate(model, dataset, task).lengths for model in models]).mean(0)
    accuracy = task.correct(lengths, dataset.targets).mean().item()
    return {"data": name, "accuracy": accuracy, "error": 1 - accuracy, "n": len(dataset)}


def images_to_test_on(model: ImageModel, data: str | None = None) -> tuple[Dataset, str]:
    """The model's own test set, or `data`, with targets numbered as the model numbers its classes; and its name."""
    settings, name = _settings(model, data)
    if settings["source"] in MASK_SOURCES:
        raise UserError(f"{name} has masks, and this model names one class for a whole image")
    return _in_model_order(_part_to_test_on(model, data, load_data(**settings)), model), name


def _part_to_test_on(model: ImageModel, data: str | None, splits: Splits[Any]) -> Any:
    """The test images, or all where a user names data without a test split."""
    if data is None and splits.test is None:
        raise UserError("this model's data has no test set: give one with --data")
    if data is None:
        warn_if_changed(model, splits)
    return splits.test if splits.test is not None else splits.train


def warn_if_changed(model: ImageModel, splits: Splits[Any]) -> None:
    """Say so where a model's own data is not what it was when the model was trained."""
    known = model.trained_by.get("fingerprint")
    if known is not None and known != splits.fingerprint():
        warnings.warn("the data has changed since training: its test split may hold images trained on", stacklevel=5)


def _evaluate_pixels(model: SegmentationModel, data: str | None) -> dict[str, Any]:
    settings, name = _mask_settings(model, data)
    segments: SegmentationDataset = _part_to_test_on(model, data, load_data(**settings))
    if segments.num_classes != model.num_classes:
        raise UserError(
            f"{name} has {segments.num_classes} classes, the model {model.num_classes}: they do not compare"
        )
    result = evaluate_masks(model, segments, SegmentationTask.for_model(model, LossSection()))
    scores = score(result.found, segments, model.class_names)
    figures = {**scores.means(), "loss": result.loss, "n": len(segments)}
    return {"data": name, **figures, "per_class": scores.per_class(), "images": scores.rows()}


def _mask_settings(model: SegmentationModel, data: str | None) -> tuple[dict[str, Any], str]:
    """Arguments of load_data that give masks whose values mean what they did in training."""
    own = model.trained_by.get("data")
    if data is None:
        if own is None:
            raise UserError("this model does not say what it was trained on: give a test set with --data")
        return {**own, "channels": model.image_shape[0]}, own["path"] or own["source"]
    source, path = named_data(data)
    if source not in MASK_SOURCES:
        raise UserError(f"--data {data}: this model finds masks; give a folder with images and masks in it")
    settings = {"source": source, "path": path, "channels": model.image_shape[0]}
    if own is not None and path is None and (own["source"], own["path"]) == (source, None):
        return {**own, "channels": model.image_shape[0]}, data  # with the test images it was not trained on
    if source != "axons":
        positive = (own or {}).get("positive")
        meaning = {"positive": positive} if positive is not None else {"num_classes": model.num_classes}
        settings |= {"validation": 0, "test": 0, **meaning}
    return settings, data


def _settings(model: ImageModel, data: str | None) -> tuple[dict[str, Any], str]:
    """Arguments of load_data that give images as the model wants them."""
    channels = model.image_shape[0]
    # Two are a stereo pair, which only its own source has.
    shape = {"image_size": tuple(model.resize_to), "channels": channels if channels in (1, 3) else None}
    if data is None:
        own = model.trained_by.get("data")
        if own is None:
            raise UserError("this model does not say what it was trained on: give a test set with --data")
        return {**own, **shape}, own["path"] or own["source"]
    source, path = named_data(data)
    # Of a folder everything, or its test split if it has one.
    whole = {"validation": 0, "test": 0} if source == "folder" else {}
    return {"source": source, "path": path, **whole, **shape}, data


def _in_model_order(dataset: Dataset, model: ImageModel) -> Dataset:
    """The same images with targets numbered as the model numbers its classes, multi-hot if it finds several."""
    if model.trained_by.get("multi_label") and not dataset.multi_label:
        hot = multi_hot(dataset.targets, dataset.num_classes)
        dataset = replace(dataset, targets=hot)
    if dataset.class_names == model.class_names:
        return dataset
    unknown = sorted(set(dataset.class_names) - set(model.class_names))
    if unknown:
        raise UserError(
            f"the data has classes the model does not know: {', '.join(unknown[:5])}; "
            f"the model knows {', '.join(model.class_names[:10])}"
        )
    places = torch.tensor([model.class_names.index(name) for name in dataset.class_names])
    if dataset.multi_label:
        targets = torch.zeros(len(dataset), model.num_classes)
        targets[:, places] = dataset.targets
    else:
        targets = places[dataset.targets]
    return replace(dataset, targets=targets, class_names=model.class_names)
