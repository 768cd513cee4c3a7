"""From a recipe and its data to a model, an optimiser and a task, ready for the first step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torchcaps.data import Dataset, SegmentationDataset
from torchcaps.data.datasets.multimnist import Digits
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps
from torchcaps.models import Discriminator, ImageModel, SegmentationModel, SynthesisModel, create_model
from torchcaps.models.registry import accepts_option
from torchcaps.train.checkpoint import State
from torchcaps.train.optim.muon import Muon, by_shape
from torchcaps.train.recipe import AugmentSection, OptimSection, Recipe
from torchcaps.train.tasks.classification import ClassificationTask, Task
from torchcaps.train.tasks.segmentation import SegmentationTask
from torchcaps.train.tasks.synthesis import SynthesisTask

FAINTEST = 1 / 255  # contrast: of images that show none, rounding is not to be blown up
LARGE = 20_000_000  # parameters of one capsule layer: a hundred times what 32×32 images give


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Everything inside starts from this seed; the caller's random numbers go on as if nothing had happened."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def make_state(
    recipe: Recipe, data: Dataset | SegmentationDataset, device: torch.device, home: torch.device | None = None
) -> tuple[State, Task]:
    """A new model for this data, with optimiser and random state, on the device; and what it is to learn.

    home  where the weights are, if they are not on the device
    """
    if isinstance(data, Digits) and recipe.augment != AugmentSection():
        raise UserError("augment: pairs of digits move by their own data set's shift; leave augment away")
    generator = torch.Generator(device).manual_seed(recipe.train.seed)
    device = home or device
    model = make_model(recipe, data).to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(model, recipe.optim, device)
    average = copy.deepcopy(model).requires_grad_(False) if recipe.train.ema else None
    state = State(model, optimizer, generator, average)
    if isinstance(model, SynthesisModel):
        if recipe.optim.sharpness:
            raise UserError("optim.sharpness is not for drawn images: two networks share one loss; leave it away")
        state.discriminator = _make_discriminator(model, recipe).to(device)
        state.discriminator_optimizer = make_optimizer(
            state.discriminator, recipe.optim, device, recipe.discriminator.lr
        )
    return state, _task(model, data, recipe)


def make_optimizer(
    network: nn.Module, optim: OptimSection, device: torch.device, share: float = 1.0, in_pieces: bool = False
) -> torch.optim.Optimizer:
    """
    share      its learning rate, as a multiple of the recipe's; `set_learning_rate` keeps to it
    in_pieces  each process has a piece of every weight; then steps are not recorded
    """
    cuda = device.type == "cuda" and not in_pieces
    lr = torch.tensor(optim.lr, device=device) if cuda else optim.lr  # a tensor, so that a recorded step can follow it
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}[optim.name]
    groups = by_shape(network) if kind is Muon else [{"params": list(network.parameters())}]
    groups = [group | {"share": share} for group in groups]
    fused = None if in_pieces else True
    return kind(groups, lr=lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=fused, capturable=cuda)


def _make_discriminator(model: SynthesisModel, recipe: Recipe) -> Discriminator:
    side = min(model.image_shape[1:])
    needed = 3 * 2**recipe.discriminator.depth  # so that something is left of it for the last layers
    if side < needed:
        raise UserError(
            f"discriminator.depth={recipe.discriminator.depth}: it needs windows of at least {needed} pixels, these "
            f"have {side}; give a smaller depth, or a larger augment.crop"
        )
    options = recipe.discriminator.model_dump(exclude={"lr"})
    return Discriminator(model.num_classes - 1 + model.image_shape[0], **options)


def _task(model: ImageModel, data: Dataset | SegmentationDataset, recipe: Recipe) -> Task:
    if isinstance(model, SynthesisModel):
        return SynthesisTask.for_model(model, recipe.loss)
    if isinstance(model, SegmentationModel):
        return SegmentationTask.for_model(model, recipe.loss)
    assert isinstance(data, Dataset)  # make_model has seen to it
    return ClassificationTask.for_model(model, data, recipe.loss)


def make_model(recipe: Recipe, data: Dataset | SegmentationDataset) -> ImageModel:
    """The recipe's model, its shapes and class names taken from the data unless the recipe gives them."""
    options = {"num_classes": data.num_classes, "class_names": data.class_names}
    options |= (
        _shape_of_windows(recipe, data) if isinstance(data, SegmentationDataset) else _shape_of_images(recipe, data)
    )
    model = create_model(recipe.model.name, **options | recipe.model.options)
    if isinstance(model, (SegmentationModel, SynthesisModel)) != isinstance(data, SegmentationDataset):
        has, want = (
            ("masks", "a class for each of them")
            if isinstance(data, SegmentationDataset)
            else ("a class each", "masks")
        )
        raise UserError(
            f"model.name={recipe.model.name}: it learns from images with {want}, and these have {has}; "
            "choose another model (segcaps and unet find masks, capspix2pix draws from them), or other data"
        )
    _warn_if_large(model)
    return model


def _shape_of_images(recipe: Recipe, data: Dataset) -> dict[str, Any]:
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


def _shape_of_windows(recipe: Recipe, data: SegmentationDataset) -> dict[str, Any]:
    """Also the usual brightness: a squash hides what is faint, so dark images would teach the first layers little."""
    side = data.window(recipe.augment.crop)
    mean, deviation = data.brightness()
    return {
        "image_shape": (data.channels, side, side),
        "mean": [round(value, 4) for value in mean],
        "std": [max(round(value, 4), FAINTEST) for value in deviation],
    }


def _warn_if_large(model: ImageModel) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, DenseCaps) and layer.weight.numel() > LARGE:
            _, height, width = model.image_shape
            warnings.warn(
                f"images of {height}×{width} give the capsule layer {name!r} {layer.in_capsules:,} children and "
                f"{layer.weight.numel():,} parameters: a smaller data.image_size (32 is usual) trains faster and "
                "needs less memory",
                stacklevel=3,
            )
