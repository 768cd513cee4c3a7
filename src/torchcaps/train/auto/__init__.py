"""The recipe for a folder of images: a plain function of the facts about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchcaps.data.checkup import check_folder
from torchcaps.data.split import SplitOptions
from torchcaps.train.auto.facts import FolderFacts, folder_facts
from torchcaps.train.recipe import DataSection, Recipe, make_recipe

__all__ = ["FolderFacts", "choose_recipe", "folder_facts", "recipe_for_folder"]

SIDES = ((40, 32), (112, 48), (1 << 30, 64))  # (longest median side, side to train at)
IMAGES_SEEN = 55_000  # in all epochs, at 32×32; fewer of larger images
EPOCHS = (12, 100)  # the fewest and the most
BATCH = 32
LARGE_BATCH, MANY_IMAGES = 128, 20_000  # from which the larger batch is used


def recipe_for_folder(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> tuple[Recipe, list[str]]:
    """Choose the recipe for a folder or a CSV file.

    Args:
        path: of the folder or the CSV file.
        overrides: settings to change, "section.field=value"; they count more than the choice.

    Returns:
        The recipe, and what to tell the user: what the check-up of the files found, the facts, and the choice.
    """
    given = make_recipe({"name": "folder"}, [each for each in overrides if each.strip().startswith("data.")]).data
    options = SplitOptions(given.validation, float(given.test), given.split_seed, given.limit, given.per_class)
    facts = folder_facts(path, options)
    tree = choose_recipe(facts, given)
    recipe = make_recipe({"name": "folder", **tree}, overrides, str(path))
    return recipe, [*check_folder(path, options).lines(), *describe_choice(facts, recipe)]


def choose_recipe(facts: FolderFacts, data: DataSection | None = None) -> dict[str, Any]:
    """Choose model, size, augmentation and length of training.

    Args:
        facts: about the training images.
        data: settings of the data that are given already.

    Returns:
        The sections of a recipe.
    """
    size = (data and data.image_size) or _side(facts)
    side = size if isinstance(size, int) else min(size)
    seen = IMAGES_SEEN * (32 / side) ** 1.5  # an epoch of larger images takes longer, and shows more
    epochs = min(max(round(seen / facts.images), EPOCHS[0]), EPOCHS[1])
    channels = (data.channels if data else None) or (3 if facts.colour else 1)
    held_out = data is None or data.validation > 0
    return {
        "description": f"Chosen for {facts.describe()}.",
        "data": {"source": "folder", "image_size": size, "channels": channels},
        "augment": _augment(facts, side),
        "model": _model(facts),
        "loss": {"class_weights": facts.uneven},
        "optim": {
            "name": "adamw",
            "lr": 0.002,
            "weight_decay": 0.05,
            "warmup_steps": 50,
            "schedule": "cosine",
            "clip": 5.0,
        },
        "train": {
            "epochs": epochs,
            "batch_size": BATCH if facts.images < MANY_IMAGES else LARGE_BATCH,
            "ema": 0.99,
            "select": "best",
            "patience": max(5, epochs // 2) if held_out else None,
            "baselines": not facts.several,
        },
    }


def _model(facts: FolderFacts) -> dict[str, Any]:
    """A small CNN; for images that look alike from every side, such as crops of cells, a capsule network: the CNN takes
    the mean over all places, and on such crops the middle counts more than what lies beside it."""
    if facts.turns and not facts.photographs and not facts.several:
        return {"name": "capsnet_small"}
    return {"name": "strong_cnn", "width": 16 if facts.images < MANY_IMAGES else 32}


def _side(facts: FolderFacts) -> int:
    longest = max(facts.height, facts.width)
    return next(side for bound, side in SIDES if longest <= bound)


def _augment(facts: FolderFacts, side: int) -> dict[str, Any]:
    """Only changes that leave the class as it is: a view that a simple classifier does not recognise is left out."""
    mirrors = facts.photographs if facts.mirrors is None else facts.mirrors
    turns = bool(facts.turns) and mirrors
    found: dict[str, Any] = {"shift": max(1, side // 8), "flip": mirrors, "flip_vertical": turns, "turn": turns}
    if facts.photographs:
        found |= {"brightness": 0.1, "contrast": 0.3}
    elif turns:  # as in microscopy, where the light differs from image to image
        found |= {"shift": max(1, side // 16), "brightness": 0.2, "contrast": 0.5}
    else:
        found |= {"shift": max(1, side // 16), "rotate": 10.0, "shear": 0.1}
    if facts.zooms is not False:
        found["scale"] = 0.1
    return found


def describe_choice(facts: FolderFacts, recipe: Recipe) -> list[str]:
    """Return one line about the facts, and one about the recipe that follows from them."""
    augment, train = recipe.augment, recipe.train
    size = recipe.data.image_size
    shown = f"{size}×{size}" if isinstance(size, int) else "×".join(map(str, size or ()))
    changes = [name for name in ("flip", "turn", "rotate", "scale", "brightness", "contrast") if getattr(augment, name)]
    flips = "" if augment.flip else ", no flips"
    if facts.mirrors is False and not augment.flip:
        flips += " (mirrored images are not recognised)"
    stop = f", ends after {train.patience} without a better validation {'result'}" if train.patience else ""
    return [
        f"folder: {facts.describe()}",
        f"chosen: {recipe.model.name} at {shown}, up to {train.epochs} epochs{stop}; augmentation: "
        f"{', '.join(['shift', *changes] if augment.shift else changes) or 'none'}{flips} (override with --set)",
    ]
