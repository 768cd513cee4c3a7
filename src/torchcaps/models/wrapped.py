"""Any module as a classifier, so that `fit` can train it."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.models.base import ImageModel, Output

Answers = Literal["lengths", "logits"]


class WrappedModule(ImageModel):
    """A module of a user's own; its parameters are those of the module.

    Args:
        module: called with the inputs, and with `targets` if it has such an argument.
        example: (B, …) a few inputs, with which it is tried.
        answers: what a (B, J) tensor that it returns holds.
        multi_label: whether an input may have several classes.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Tensor,
        *,
        answers: Answers | None = None,
        multi_label: bool = False,
    ):
        output = as_output(_tried(module, example), answers, multi_label)
        super().__init__((1, 1, 1), output.lengths.shape[1])
        self.image_shape = tuple(example.shape[1:])  # type: ignore[assignment]
        self.resize_to = self.image_shape[1:]
        self.module, self.answers, self.multi_label = module, answers, multi_label
        self.objective = "margin" if output.logits is None else "cross_entropy"
        self.draws = output.reconstruction is not None
        self._takes_targets = "targets" in inspect.signature(module.forward).parameters

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Call the module.

        Args:
            images: (B, …).
            targets: (B,) or (B, J), passed on if the module takes them.
            each: is ignored.
        """
        found = self.module(images, targets=targets) if self._takes_targets else self.module(images)
        return as_output(found, self.answers, self.multi_label)


def _tried(module: nn.Module, example: Tensor) -> Any:
    """What a module returns for a few inputs."""
    device = next((each.device for each in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    was_training = module.training
    try:
        with torch.no_grad():
            return module.eval()(example.to(device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(example.shape)
        last = "; if these are (N, H, W, C), move the last axis to the second place" if len(shape) == 4 else ""
        raise UserError(f"fit: the module cannot be called with inputs of shape {shape}{last}: {error}") from error
    finally:
        module.train(was_training)


def as_output(found: Any, answers: Answers | None = None, multi_label: bool = False) -> Output:
    """What a module returned, as an Output.

    Args:
        found: an Output; Capsules, or their poses (B, J, D), whose lengths are the answers; or (B, J).
        answers: what (B, J) holds: "logits", the default, or "lengths" in [0, 1].
        multi_label: whether logits are of a sigmoid for each class; else of a softmax.
    """
    if answers not in (None, "lengths", "logits"):
        raise UserError(f"fit: answers must be 'lengths' or 'logits', got {answers!r}")
    if isinstance(found, Output):
        return found
    if isinstance(found, Capsules) or (torch.is_tensor(found) and found.ndim == 3):
        capsules = found if isinstance(found, Capsules) else Capsules(found)
        return Output(capsules.activation, capsules.pose)
    if not torch.is_tensor(found) or found.ndim != 2:
        what = f"a tensor {tuple(found.shape)}" if torch.is_tensor(found) else f"a {type(found).__name__}"
        raise UserError(f"fit: the module returned {what}; return Output, Capsules, or a tensor (B, J)")
    if answers == "lengths":
        return Output(found)
    return Output(found.sigmoid() if multi_label else found.softmax(-1), logits=found)
