"""What an explanation needs of a model."""

from __future__ import annotations

from typing import cast

from torch import nn

from torchcaps.errors import UserError
from torchcaps.models import CapsuleModel


def needs_capsules(model: nn.Module, what: str) -> CapsuleModel:
    """The model, if it routes primary capsules on a grid to class capsules, as CapsNet does."""
    if not all(hasattr(model, name) for name in ("children_of", "classes", "grid")):
        raise UserError(
            f"{what}: a {type(model).__name__} has no capsules that are routed on a grid; use one that has (capsnet)"
        )
    return cast(CapsuleModel, model)


def needs_decoder(model: nn.Module, what: str) -> CapsuleModel:
    """The model, if it can draw what a capsule saw."""
    capsules = needs_capsules(model, what)
    if getattr(model, "decoder", None) is None:
        raise UserError(
            f"{what}: this {type(model).__name__} has no decoder; train one with model.decoder=dense or conv"
        )
    return capsules
