"""Classification by a loss of a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.models import Output
from torchcaps.train.tasks.classification import ClassificationTask


@dataclass(frozen=True)
class GivenLossTask(ClassificationTask):
    """Classification that minimises one function of the answers and the targets.

    Args:
        weights: of the only term, `criterion`.
        loss: (answers (B, J), targets) → (B,), or their mean; answers are logits if the model has any, else lengths.
    """

    loss: Callable[[Tensor, Tensor], Any] | None = None

    @classmethod
    def of(cls, loss: Callable[[Tensor, Tensor], Any], one_class: bool = False) -> GivenLossTask:
        """The task of a loss, for images of one class each or of several."""
        return cls({"criterion": 1.0}, one_class=one_class, loss=loss)

    def terms(self, output: Output, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        assert self.loss is not None
        value = self.loss(output.lengths if output.logits is None else output.logits, targets)
        if not torch.is_tensor(value) or value.shape not in ((), (len(targets),)):
            shape = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
            raise UserError(f"fit: the loss must return one value, or one for each example, got {shape}")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise UserError("fit: the loss has no gradient: compute it of the answers, without detach() and argmax()")
        return {"criterion": value.expand(len(targets))}
