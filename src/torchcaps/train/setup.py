"""From a recipe and its data to a model, a state and a task, ready for the first step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchcaps.data import Examples
from torchcaps.layers import DenseCaps
from torchcaps.models import ImageModel, create_model, load
from torchcaps.models.transfer import take_weights
from torchcaps.train.optim.parts import Freezer
from torchcaps.train.recipe import Recipe
from torchcaps.train.state import State, make_optimizer
from torchcaps.train.tasks import TASKS, Task
from torchcaps.train.tasks.register import find_task

MAX_LAYER_PARAMETERS = 20_000_000  # without a warning: a hundred times what 32×32 images give one capsule layer


def make_state(
    recipe: Recipe,
    data: Examples,
    device: torch.device,
    home: torch.device | None = None,
    model: ImageModel | None = None,
    make_task: Callable[[ImageModel], Task] | None = None,
) -> tuple[State, Task]:
    """Make a new model for this data, with optimizer and random state, and its task.

    Args:
        recipe: the settings.
        data: the training data.
        device: where to train.
        home: where the weights are, if not on the device.
        model: by default a new one, of the recipe.
        make_task: by default makes the task that the model names.
    """
    generator = torch.Generator(device).manual_seed(recipe.train.seed)
    device = home or device
    model = (make_model(recipe, data) if model is None else model).to(device)
    Freezer(model, recipe.transfer)  # names mistakes before anything is written
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(model, recipe.optim, device, rates=recipe.transfer.lr)
    average = copy.deepcopy(model).requires_grad_(False) if recipe.train.ema else None
    state = State(model, optimizer, generator, average)
    task = TASKS[model.task].make(model, data, recipe.loss) if make_task is None else make_task(model)
    task.check_augment(recipe.augment, model.image_shape[0])
    task.prepare(state, recipe, device)
    return state, task


def start_from(model: ImageModel, source: str | nn.Module) -> str:
    """Give a new model the weights of another that fit it, and say which those are.

    Args:
        model: is changed in place.
        source: a module, or the name, folder or file of a saved model.
    """
    if isinstance(source, nn.Module):
        return take_weights(model, source).describe()
    return take_weights(model, load(source), source).describe()


def make_model(recipe: Recipe, data: Examples) -> ImageModel:
    """Make the recipe's model; its shapes and class names come from the data unless the recipe gives them."""
    options: dict[str, Any] = {"num_classes": data.num_classes, "class_names": data.class_names}
    options |= TASKS[recipe.task or data.tasks[0]].model_options(recipe, data)
    model = create_model(recipe.model.name, **options | recipe.model.options)
    model.task = recipe.task or model.task
    find_task(model.task, data, recipe.model.name)
    _warn_if_large(model)
    return model


def _warn_if_large(model: ImageModel) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, DenseCaps) and layer.weight.numel() > MAX_LAYER_PARAMETERS:
            _, height, width = model.image_shape
            warnings.warn(
                f"images of {height}×{width} give the capsule layer {name!r} {layer.in_capsules:,} children and "
                f"{layer.weight.numel():,} parameters: a smaller data.image_size (32 is usual) trains faster and "
                "needs less memory",
                stacklevel=3,
            )
