"""Train a model on arrays, on a torch Dataset or on a DataLoader."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.data import DataLoader

from torchcaps.data.arrays import as_dataset
from torchcaps.data.augment import LIGHTING
from torchcaps.data.given import Given, hold_out, open_data, read_data
from torchcaps.errors import UserError
from torchcaps.models import ImageModel
from torchcaps.models.wrapped import Answers, WrappedModule
from torchcaps.train.callbacks import Callback
from torchcaps.train.distributed import make_fabric
from torchcaps.train.loop import Interrupted
from torchcaps.train.loop import train as run_loop
from torchcaps.train.own import as_callback, choose_task, optimized_by
from torchcaps.train.recipe import Recipe, make_recipe
from torchcaps.train.setup import make_model, make_state, start_from
from torchcaps.train.state import State, seeded
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.register import find_task

__all__ = ["Fitted", "as_dataset", "fit"]

log = logging.getLogger("torchcaps")


class Fitted(NamedTuple):
    """A trained model, and one dict of figures for each epoch."""

    model: Any
    history: list[dict[str, float]]


def fit(
    model: str | nn.Module,
    images: Any,
    labels: Any = None,
    *,
    epochs: int = 5,
    batch_size: int = 128,
    lr: float = 1e-3,
    validation: Any = None,
    seed: int = 0,
    device: str = "auto",
    class_names: Sequence[str] | None = None,
    answers: Answers | None = None,
    loss: Callable[[Tensor, Tensor], Any] | None = None,
    task: str | type[Task] | Task | None = None,
    optimizer: Any = None,
    callbacks: Sequence[Callback] = (),
    settings: dict[str, Any] | None = None,
    from_: str | os.PathLike[str] | nn.Module | None = None,
    **model_options: Any,
) -> Fitted:
    """Train a model of `torchcaps.list_models()`, or any module, to classify images.

    Args:
        model: a name; or a module that returns `Output`, Capsules (their lengths are the answers) or a tensor (B, J).
        images: (N, H, W), (N, C, H, W) or (N, H, W, C), uint8 or floats in [0, 1]; or a source that is not loaded into
            memory: a torch Dataset of pairs (image, label); a DataLoader; an iterable data set; a data set of the
            library `datasets`; tar shards, "train-{000..009}.tar". Some are checked first, all in epoch 1.
        labels: of arrays: (N,) class ids from 0, or names, or (N, J) multi-hot.
        epochs: passes over the images.
        batch_size: images in a batch.
        lr: the learning rate.
        validation: share or number to hold out, by default 0.1 (of batches and iterables none); or any source of data.
        seed: of the split, the weights, the order and the augmentation.
        device: auto, cpu, cuda or mps.
        class_names: one for each class; by default the labels, or the attribute `classes` of the Dataset.
        answers: of a module's tensor (B, J): "logits", for cross-entropy, or "lengths" in [0, 1], for the margin loss.
        loss: minimised instead: called with the answers (B, J) and the targets, returns (B,) or their mean.
        task: learned instead: a `Task`, its class or its name.
        optimizer: a class of torch, called with parameters and lr; a function of the parameters; or an optimizer.
        callbacks: called after steps and epochs; one whose `should_stop` is True ends the training.
        settings: more settings of a recipe: {"augment": {"shift": 2}, "train": {"ema": 0.99}}.
        from_: a model to start from: its name, folder or file, or a module; the logger "torchcaps" says what is taken.
        **model_options: options of a named model.

    Returns:
        The trained model, or the module itself, in evaluation mode; and the history.
    """
    images, validation = open_data(images, batch_size), open_data(validation, batch_size)
    own = not isinstance(model, str) or any(each is not None for each in (loss, task, optimizer))
    recipe = _recipe(model, images, own, settings, model_options, epochs, batch_size, lr, seed)
    fabric = make_fabric(device, recipe.train.precision)
    with seeded(recipe.train.seed, fabric.device):
        train, held_out, network = _prepare(model, images, labels, validation, class_names, answers, recipe)
        network = _started(network, from_, recipe, train)
        make_task = partial(choose_task, loss, task, data=train, recipe=recipe)
        state, chosen = make_state(recipe, train, fabric.device, model=network, make_task=make_task)
        with optimized_by(optimizer, state, recipe.optim.lr), suppress(Interrupted):
            run_loop(state, train, held_out, chosen, recipe, fabric, as_callback(callbacks, chosen))
    return _finish(state, recipe, train)


def _started(network: ImageModel | None, source: Any, recipe: Recipe, data: Any) -> ImageModel | None:
    """The model with the weights that it starts from; None if a new one is to be made."""
    source = recipe.transfer.weights if source is None else source
    if source is None:
        return network
    network = make_model(recipe, data) if network is None else network
    found = start_from(network, source if isinstance(source, nn.Module) else os.fspath(source))
    log.log(logging.WARNING if "\n" in found else logging.INFO, found)
    return network


def _recipe(
    model: Any,
    images: Any,
    own: bool,
    settings: dict[str, Any] | None,
    model_options: dict[str, Any],
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> Recipe:
    if wrong := [name for name, section in (settings or {}).items() if not isinstance(section, dict)]:
        raise UserError(f"fit: settings[{wrong[0]!r}] must be a dict, such as {{'train': {{'ema': 0.99}}}}")
    tree: dict[str, Any] = {"name": "fit", **{name: dict(section) for name, section in (settings or {}).items()}}
    tree["train"] = {"epochs": epochs, "batch_size": batch_size, "seed": seed, **tree.get("train", {})}
    tree["optim"] = {"lr": lr, **tree.get("optim", {})}
    if isinstance(model, str):
        tree["model"] = {"name": model, **tree.get("model", {}), **model_options}
    elif not isinstance(model, nn.Module):
        raise UserError(f"fit: give the name of a model, or a module; this is a {type(model).__name__}")
    elif model_options or "model" in tree:
        raise UserError(f"fit: the module is built already, so omit {', '.join(model_options) or 'model'}")
    if isinstance(images, DataLoader):
        tree["train"]["batch_size"] = 1  # an example of the loop is a batch of the DataLoader
    if own:
        tree["train"].setdefault("fast", False)  # a CUDA graph would repeat no Python of the user's
    recipe = make_recipe(tree)
    if "data" in tree or recipe.train.select == "best":
        raise UserError("fit: settings of data and train.select=best are for recipes only; use validation=")
    return recipe


def _prepare(
    model: str | nn.Module,
    images: Any,
    labels: Any,
    validation: Any,
    class_names: Sequence[str] | None,
    answers: Answers | None,
    recipe: Recipe,
) -> tuple[Any, Any, ImageModel | None]:
    """Training and validation data, and the model if it is not made by name."""
    own = isinstance(model, nn.Module) and not isinstance(model, ImageModel)
    given = read_data(images, labels, class_names, scaled=not own)
    data, network = given.data, None
    if isinstance(model, nn.Module):
        network = _wrap(model, given, answers, own)
        data = _same_classes(data, network)
        if not recipe.augment.crop and network.image_shape != tuple(data.image_shape):
            raise UserError(f"fit: the model takes images of {network.image_shape}, these are {data.image_shape}")
        _check_augment(given, recipe)
    elif answers is not None:
        raise UserError("fit: answers is for a module of your own; omit it")
    if not data.class_names:
        raise UserError("fit: a Dataset or DataLoader does not say how many classes there are: give class_names")
    train, held_out = hold_out(given, data, validation, recipe.train.seed)
    if held_out is not None and tuple(held_out.image_shape) != tuple(train.image_shape):
        shapes = f"{tuple(held_out.image_shape)}, those for training {tuple(train.image_shape)}"
        raise UserError(f"fit: the validation images are of shape {shapes}; give both the same size")
    return train, held_out, network


def _wrap(model: nn.Module, given: Given, answers: Answers | None, own: bool) -> ImageModel:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("fit: the module has no parameter to train; unfreeze some with requires_grad_(True)")
    if own:
        return WrappedModule(model, given.example, answers=answers, multi_label=given.data.multi_label)
    network: Any = model
    if answers is not None:
        raise UserError(f"fit: a {type(model).__name__} says itself what it answers; omit answers")
    find_task(network.task, given.data, type(model).__name__)
    return network


def _check_augment(given: Given, recipe: Recipe) -> None:
    """Of images that are not in [0, 1], lighting, colours and noise would cut off the rest."""
    changed = [name for name in LIGHTING if getattr(recipe.augment, name)]
    if changed and not given.scaled:
        low, high = given.extremes()
        if low < 0 or high > 1:
            raise UserError(
                f"fit: augment.{changed[0]} is for images in [0, 1], these range from {low:.4g} to {high:.4g}; omit it"
            )


def _same_classes(data: Any, network: ImageModel) -> Any:
    """The data with as many classes as the model; names that the user gave count more than numbers."""
    unnamed = data.class_names == tuple(map(str, range(data.num_classes)))
    if unnamed and not data.multi_label and data.num_classes <= network.num_classes:
        return replace(data, class_names=network.class_names)  # some classes need not occur
    if data.num_classes != network.num_classes:
        raise UserError(
            f"fit: the model has {network.num_classes} classes, and the labels {data.num_classes}: make its last layer "
            "as wide, or correct labels and class_names"
        )
    network.class_names = data.class_names
    return data


def _finish(state: State, recipe: Recipe, data: Any) -> Fitted:
    if isinstance(state.model, WrappedModule):
        state.model.load_state_dict(state.final.state_dict())  # the averaged weights, if there are any
        return Fitted(state.model.module.eval(), state.history)
    trained = state.final.eval()
    trained.trained_by = {"recipe": "fit", "seed": recipe.train.seed, "multi_label": data.multi_label}
    return Fitted(trained, state.history)
