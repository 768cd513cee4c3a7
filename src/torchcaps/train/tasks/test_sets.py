"""The test data of a saved model: its own, or what a user names."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from torchcaps.data import MASK_SOURCES, Dataset, SegmentationDataset, Splits, load_data, named_data
from torchcaps.errors import UserError
from torchcaps.losses import multi_hot
from torchcaps.models import ImageModel, SegmentationModel


def classification_test_set(model: ImageModel, data: str | None = None) -> tuple[Dataset, str]:
    """Images with classes, numbered as the model numbers them, and the name of the data.

    Args:
        model: a classifier.
        data: an image folder, a CSV or a name; by default the model's own test split.
    """
    settings, name = _image_settings(model, data)
    if settings["source"] in MASK_SOURCES:
        raise UserError(f"{name} has masks, but this model classifies whole images")
    return _in_model_order(_test_part(model, data, load_data(**settings)), model), name


def segmentation_test_set(model: SegmentationModel, data: str | None = None) -> tuple[SegmentationDataset, str]:
    """Images with masks whose ids mean what they did in training, and the name of the data."""
    settings, name = _mask_settings(model, data)
    segments: SegmentationDataset = _test_part(model, data, load_data(**settings))
    if segments.num_classes != model.num_classes:
        raise UserError(f"{name} has {segments.num_classes} classes, but the model has {model.num_classes}")
    return segments, name


def own_test_set(model: ImageModel, data: str | None = None) -> tuple[Any, str]:
    """The test data of a task of a user's own, as its source gives it, and the name of the data."""
    if data is None:
        settings, name = _own_data(model), None
    else:
        source, path = named_data(data)
        settings, name = {"source": source, "path": path}, data
    return _test_part(model, data, load_data(**settings)), name or settings["path"] or settings["source"]


def warn_if_changed(model: ImageModel, splits: Splits[Any]) -> None:
    """Warn if a model's own data is not what it was when the model was trained."""
    known = model.trained_by.get("fingerprint")
    if known is not None and known != splits.fingerprint():
        warnings.warn("the data has changed since training: its test split may hold training images", stacklevel=5)


def _test_part(model: ImageModel, data: str | None, splits: Splits[Any]) -> Any:
    """The test images, or all where a user names data without a test split."""
    if data is None and splits.test is None:
        raise UserError("this model's data has no test set: give one with --data")
    if data is None:
        warn_if_changed(model, splits)
    return splits.test if splits.test is not None else splits.train


def _own_data(model: ImageModel) -> dict[str, Any]:
    if "data" not in model.trained_by:
        raise UserError("this model does not record its training data: give a test set with --data")
    return model.trained_by["data"]


def _image_settings(model: ImageModel, data: str | None) -> tuple[dict[str, Any], str]:
    """Arguments of load_data that give images as the model takes them."""
    channels = model.image_shape[0]
    # Two channels are a stereo pair, which only its own source has.
    shape = {"image_size": tuple(model.resize_to), "channels": channels if channels in (1, 3) else None}
    if data is None:
        own = _own_data(model)
        return {**own, **shape}, own["path"] or own["source"]
    source, path = named_data(data)
    # Of a folder or of shards everything, or its test split if it has one.
    whole = {"validation": 0, "test": 0, "storage": "auto"} if path is not None else {}
    return {"source": source, "path": path, **whole, **shape}, data


def _mask_settings(model: SegmentationModel, data: str | None) -> tuple[dict[str, Any], str]:
    """Arguments of load_data that give masks whose ids mean what they did in training."""
    if data is None:
        own = _own_data(model)
        return {**own, "channels": model.image_shape[0]}, own["path"] or own["source"]
    trained_on: dict[str, Any] | None = model.trained_by.get("data")
    source, path = named_data(data)
    if source not in MASK_SOURCES:
        raise UserError(f"--data {data}: this model segments images; give a folder of images and masks")
    settings = {"source": source, "path": path, "channels": model.image_shape[0]}
    if trained_on is not None and path is None and (trained_on["source"], trained_on["path"]) == (source, None):
        return {**trained_on, "channels": model.image_shape[0]}, data  # with the test images it was not trained on
    if source != "axons":
        positive = (trained_on or {}).get("positive")
        meaning = {"positive": positive} if positive is not None else {"num_classes": model.num_classes}
        settings |= {"validation": 0, "test": 0, **meaning}
    return settings, data


def _in_model_order(dataset: Dataset, model: ImageModel) -> Dataset:
    """The same images with targets numbered as the model numbers its classes, multi-hot for a multi-label model."""
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
