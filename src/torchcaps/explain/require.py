"""Checks that a model offers what an explanation needs."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

from torch import nn

from torchcaps.errors import UserError
from torchcaps.models import CapsuleModel, PoseCaps

WITH_LAYERS = {"segmentation": "segcaps", "synthesis": "capspix2pix"}  # task → the model whose layers can be shown


def has_placement(model: nn.Module) -> TypeGuard[PoseCaps]:
    """Tell whether a model reads the placement (position, angle, scale) of each class."""
    return getattr(model, "reads_placement", False)


def require_capsules(model: nn.Module, what: str) -> CapsuleModel:
    """Return the model if it routes a grid of primary capsules to class capsules, as CapsNet does; else raise."""
    if not getattr(model, "routes_grid", False):
        raise UserError(
            f"{what}: a {type(model).__name__} has no capsules that are routed on a grid; train a CapsNet "
            "(`torchcaps train folder --data FOLDER` for a folder of images)"
        )
    return cast(CapsuleModel, model)


def require_decoder(model: nn.Module, what: str) -> CapsuleModel:
    """Return the model if it routes a grid of capsules and has a decoder; else raise."""
    capsules = require_capsules(model, what)
    if capsules.decoder is None:
        raise UserError(
            f"{what}: this {type(model).__name__} has no decoder; train one with model.decoder=dense or conv"
        )
    return capsules


def require_layers(model: nn.Module, task: str) -> Any:
    """Return the model if it has this task and convolutional capsule layers; else raise."""
    if getattr(model, "task", None) != task or getattr(model, "capsule_layers", None) is None:
        raise UserError(f"explain: a {type(model).__name__} has no capsules to show; use {WITH_LAYERS[task]}")
    return model
