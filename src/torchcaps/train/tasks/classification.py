"""What is learned: which losses, what counts as right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from torchcaps import losses
from torchcaps.data import Dataset, class_weights
from torchcaps.errors import UserError
from torchcaps.explain import predicted_classes
from torchcaps.models import ImageModel, Output
from torchcaps.train.recipe import LossSection

PAPER_RECONSTRUCTION = 0.0005 * 28 * 28  # the paper's weight, for images of any size: divided by the number of values

SPREAD = (0.2, 0.9)  # the margin of the spread loss at the start and at the end of training


class Task(Protocol):
    """What the loop asks of whatever is learned."""

    @property
    def weights(self) -> dict[str, float]: ...
    @property
    def measure(self) -> str: ...
    def terms(self, output: Output, images: Tensor, targets: Tensor, /) -> dict[str, Tensor]: ...
    def anneal(self, progress: float) -> None: ...
    def example_weights(self, targets: Tensor, /) -> Tensor | None: ...
    def correct(self, lengths: Tensor, targets: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class ClassificationTask:
    """One class an image (targets (B,)), or any number of them (targets (B, J) multi-hot)."""

    weights: dict[str, float]  # of the loss terms
    class_weights_J: Tensor | None = None
    labels_each: int | None = None  # how many classes every image has, where that is known
    spread_margin: Tensor = field(default_factory=lambda: torch.tensor(SPREAD[1]))  # a recorded step knows its place

    measure = "accuracy"  # what `correct` is called, averaged over examples

    @staticmethod
    def for_model(model: ImageModel, train: Dataset, section: LossSection) -> ClassificationTask:
        names = ("margin", "spread", "reconstruction", "cross_entropy", "disagreement", "absence")
        given = {name: getattr(section, name) for name in names}
        usual = dict.fromkeys(given, 0.0) | {model.objective: 1.0, **model.own_losses}
        draws = getattr(model, "decoder", None) is not None
        if draws:
            usual["reconstruction"] = PAPER_RECONSTRUCTION / torch.Size(model.image_shape).numel()
        if given["reconstruction"] and not draws:
            raise UserError("loss.reconstruction: this model has no decoder; leave it out, or set model.decoder")
        for name, needed in (("disagreement", "model.name=posecaps"), ("absence", "posecaps with model.negatives")):
            if given[name] and name not in model.own_losses:
                raise UserError(f"loss.{name}: only pose capsules ({needed}) have it; omit it")
        if given["cross_entropy"] and model.objective != "cross_entropy":
            raise UserError(f"loss.cross_entropy: capsule lengths are no logits; use loss.{model.objective}")
        weights = {name: usual[name] if weight is None else weight for name, weight in given.items()}
        weights = {name: weight for name, weight in weights.items() if weight}
        if not weights:
            raise UserError("loss: every weight is 0, so there is nothing to learn")
        if "spread" in weights and train.multi_label:
            raise UserError("loss.spread: it is for one class an image; use loss.margin for several")
        weights_J = class_weights(train) if section.class_weights else None
        return ClassificationTask(weights, weights_J, train.labels_each, torch.tensor(SPREAD[1], device=model.device))

    def terms(self, output: Output, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Each loss that has a weight, one value per example."""
        terms = {}
        if "margin" in self.weights:
            terms["margin"] = losses.margin_loss(output.lengths, targets)
        if "spread" in self.weights:
            terms["spread"] = losses.spread_loss(output.lengths, targets, self.spread_margin)
        if "reconstruction" in self.weights and output.reconstruction is not None:
            terms["reconstruction"] = losses.reconstruction_loss(output.reconstruction, images)
        if "disagreement" in self.weights and output.disagreement is not None:
            terms["disagreement"] = output.disagreement
        if "absence" in self.weights:  # in evaluation no images of nothing are shown
            nothing = torch.zeros_like(output.lengths[:, 0])
            terms["absence"] = nothing if output.absence is None else output.absence
        if "cross_entropy" in self.weights and output.logits is not None:
            terms["cross_entropy"] = losses.cross_entropy(output.logits, targets)
        return terms

    def anneal(self, progress: float) -> None:
        """Set what changes in the course of training, 0 to 1: the margin of the spread loss."""
        if "spread" in self.weights:
            self.spread_margin.fill_(SPREAD[0] + (SPREAD[1] - SPREAD[0]) * progress)

    def example_weights(self, targets: Tensor) -> Tensor | None:
        """(B,) weights that make rare classes count more."""
        if self.class_weights_J is None:
            return None
        weights_J = self.class_weights_J.to(targets.device)
        if targets.ndim == 1:
            return weights_J[targets]
        return (targets * weights_J).sum(-1) / targets.sum(-1).clamp_min(1)

    def correct(self, lengths: Tensor, targets: Tensor) -> Tensor:
        """(B,) 1 where the answer is right; for several labels, where exactly the right classes are found: the longest,
        if it is known how many there are, else those longer than PRESENT."""
        if targets.ndim == 1:
            return (lengths.argmax(-1) == targets).float()
        return (predicted_classes(lengths, several=True, each=self.labels_each) == (targets > 0)).all(-1).float()
