"""Train a model on arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.train.callbacks import Callback
from torchcaps.train.distributed import make_fabric
from torchcaps.train.loop import train as run_loop
from torchcaps.train.recipe import make_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded


class Fitted(NamedTuple):
    """A trained model, and one dict of figures for each epoch."""

    model: ImageModel
    history: list[dict[str, float]]


def fit(
    model: str,
    images: Any,
    labels: Any,
    *,
    epochs: int = 5,
    batch_size: int = 128,
    lr: float = 1e-3,
    validation: float = 0.1,
    seed: int = 0,
    device: str = "auto",
    class_names: tuple[str, ...] | list[str] | None = None,
    settings: dict[str, Any] | None = None,
    **model_options: Any,
) -> Fitted:
    """Train a model of `torchcaps.list_models()` on arrays.

    Args:
        model: a name of `torchcaps.list_models()`.
        images: (N, H, W), (N, C, H, W) or (N, H, W, C) with C 1 or 3; uint8, or floats in [0, 1].
        labels: (N,) class ids from 0, or (N, J) multi-hot.
        epochs: passes over the images.
        batch_size: images in a batch.
        lr: the learning rate.
        validation: share, or number, of images to hold out.
        seed: of the split, the weights, the order and the augmentation.
        device: auto, cpu, cuda or mps.
        class_names: one for each class; by default their numbers.
        settings: more settings of a recipe: {"augment": {"shift": 2}, "train": {"ema": 0.99}}.
        **model_options: options of the model.

    Returns:
        The trained model and its history.

    Example:
        model, history = torchcaps.fit("capsnet_small", images, labels, epochs=5)
    """
    tree: dict[str, Any] = {"name": "fit", **{name: dict(section) for name, section in (settings or {}).items()}}
    tree["model"] = {"name": model, **tree.get("model", {}), **model_options}
    tree["train"] = {"epochs": epochs, "batch_size": batch_size, "seed": seed, **tree.get("train", {})}
    tree["optim"] = {"lr": lr, **tree.get("optim", {})}
    recipe = make_recipe(tree)
    if "data" in tree or recipe.train.select == "best":
        raise UserError("fit: settings of data and train.select=best are for recipes only; use validation=")
    dataset = as_dataset(images, labels, class_names)
    train, held_out, _ = split_dataset(dataset, None, None, SplitOptions(validation, test=0, seed=recipe.train.seed))
    fabric = make_fabric(device, recipe.train.precision)
    with seeded(recipe.train.seed, fabric.device):
        state, task = make_state(recipe, train, fabric.device)
        run_loop(state, train, held_out, task, recipe, fabric, Callback())
    trained = state.final.eval()
    trained.trained_by = {"recipe": "fit", "seed": recipe.train.seed, "multi_label": dataset.multi_label}
    return Fitted(trained, state.history)


def as_dataset(images: Any, labels: Any, class_names: tuple[str, ...] | list[str] | None = None) -> Dataset:
    """Make a Dataset of arrays, and name every mistake in them."""
    pixels, targets = _as_tensor("images", images), _as_tensor("labels", labels)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim == 2 and not bool(((targets == 0) | (targets == 1)).all()):
        raise UserError("fit: labels of several classes must be 0 or 1, one column a class")
    if len(pixels) != len(targets) or len(pixels) == 0:
        raise UserError(f"fit: {len(pixels)} images and {len(targets)} labels were given; give one label an image")
    if targets.ndim == 1:
        if targets.is_floating_point() and not bool((targets == targets.round()).all()):
            raise UserError("fit: labels must be whole numbers, or an (N, J) multi-hot array")
        targets = targets.long()
        if int(targets.min()) < 0:
            raise UserError(f"fit: labels must be class ids from 0, got {int(targets.min())}")
    count = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    names = tuple(class_names) if class_names else tuple(str(index) for index in range(count))
    return Dataset(_as_pixels(pixels), targets if targets.ndim == 1 else targets.float(), names)


def _as_tensor(what: str, values: Any) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    except (TypeError, ValueError) as error:
        raise UserError(f"fit: {what} must be numbers, in one array: {error}") from error
    return tensor.to(torch.int32) if tensor.dtype == torch.uint16 else tensor


def _as_pixels(images: Tensor) -> Tensor:
    """(N, C, H, W), uint8 or float32 in [0, 1]."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise UserError(f"fit: images must be (N, H, W), (N, C, H, W) or (N, H, W, C), got {tuple(images.shape)}")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2).contiguous()
    if images.dtype == torch.bool:
        return images.float()
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        if int(images.min()) < 0 or int(images.max()) > 255:
            raise UserError("fit: integer images must be in 0…255")
        return images.to(torch.uint8)
    if not bool(images.isfinite().all()):
        bad = int((~images.isfinite()).flatten(1).any(1).nonzero()[0])
        raise UserError(f"fit: image {bad} holds NaN or infinity; clean the data first")
    if float(images.min()) < 0 or float(images.max()) > 1:
        raise UserError(
            f"fit: float images must be in [0, 1], these range from {float(images.min()):.4g} to "
            f"{float(images.max()):.4g}; divide by 255, or undo a normalisation (model options mean and std do that)"
        )
    return images.float()
