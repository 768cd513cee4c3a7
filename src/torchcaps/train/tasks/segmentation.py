"""Segmentation: what is learned of masks, what counts as right, and whole images answered by tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps import losses
from torchcaps.data import SegmentationDataset
from torchcaps.errors import UserError
from torchcaps.losses import IGNORED, combine
from torchcaps.models import Output, SegmentationModel
from torchcaps.models.segmentation import to_mask
from torchcaps.models.tiles import predict_map
from torchcaps.train.recipe import LossSection


@dataclass(frozen=True)
class SegmentationTask:
    """A class for every pixel: targets (B, H, W), class ids, 255 where nothing is known."""

    weights: dict[str, float]  # of the loss terms
    num_classes: int
    positive_weight: float = 1.0

    measure = "dice"  # what `correct` is called, averaged over examples

    @staticmethod
    def for_model(model: SegmentationModel, section: LossSection) -> SegmentationTask:
        if section.spread or section.class_weights:
            raise UserError("loss.spread and loss.class_weights are not for masks; loss.positive_weight may be")
        names = ("cross_entropy", "dice", "margin", "reconstruction")
        given = {name: getattr(section, name) for name in names}
        draws = getattr(model, "decoder", None) is not None
        if given["reconstruction"] and not draws:
            raise UserError("loss.reconstruction: this model has no decoder; leave it out")
        chosen = any(given[name] for name in ("cross_entropy", "dice", "margin"))
        usual = {"cross_entropy": 0.0 if chosen else 1.0, "dice": 0.0, "margin": 0.0, "reconstruction": float(draws)}
        weights = {name: usual[name] if weight is None else weight for name, weight in given.items()}
        if not any(weights[name] for name in ("cross_entropy", "dice", "margin")):
            raise UserError("loss: of cross_entropy, dice and margin at least one must count")
        weights["dice_loss"] = weights.pop("dice")  # the measure is called dice
        return SegmentationTask({k: v for k, v in weights.items() if v}, model.num_classes, section.positive_weight)

    def terms(self, output: Output, images: Tensor, masks: Tensor) -> dict[str, Tensor]:
        """Each loss that has a weight, one value per example; of a reconstruction only where there is one."""
        terms = {}
        if "cross_entropy" in self.weights:
            terms["cross_entropy"] = losses.mask_cross_entropy(
                output.lengths, masks, self.positive_weight, output.logits
            )
        if "dice_loss" in self.weights:
            terms["dice_loss"] = losses.dice_loss(output.lengths, masks)
        if "margin" in self.weights:
            terms["margin"] = losses.mask_margin_loss(output.lengths, masks)
        if "reconstruction" in self.weights and output.reconstruction is not None:
            terms["reconstruction"] = losses.masked_reconstruction_loss(output.reconstruction, images, masks)
        return terms

    def anneal(self, progress: float) -> None:
        """Nothing changes in the course of training."""

    def example_weights(self, masks: Tensor) -> Tensor | None:
        return None

    def correct(self, presence_BKHW: Tensor, masks_BHW: Tensor) -> Tensor:
        """(B,): Dice of what was found, the mean over all classes but the background; 1 for one that is nowhere."""
        found = to_mask(presence_BKHW)
        counted = masks_BHW != IGNORED
        each = []
        for index in range(1, self.num_classes):
            here, there = (found == index) & counted, masks_BHW == index
            both, sizes = (here & there).flatten(1).sum(1), (here.flatten(1).sum(1) + there.flatten(1).sum(1))
            each.append(torch.where(sizes > 0, 2 * both / sizes.clamp_min(1), 1.0))
        return torch.stack(each).mean(0)


class Masks(NamedTuple):
    """What an evaluation gives: the class of each pixel (H, W) of every image, and means over images.

    right  mean Dice
    """

    found: list[Tensor]
    loss: float
    right: float


@torch.no_grad()
def evaluate_masks(model: SegmentationModel, segments: SegmentationDataset, task: SegmentationTask) -> Masks:
    """A model's masks of whole images, as they are: the loss is that of the masks, not of a reconstruction."""
    weights = {name: weight for name, weight in task.weights.items() if name != "reconstruction"}
    found, loss, right = [], 0.0, 0.0
    was_training = model.training
    model.eval()
    try:
        for image, mask in zip(segments.images, segments.masks):
            presence = predict_map(model, image)[None]
            masks = mask.to(presence.device).long()[None]
            loss += combine(task.terms(Output(presence), presence, masks), weights).item()
            right += task.correct(presence, masks).item()
            found.append(to_mask(presence)[0].to("cpu", torch.uint8))
    finally:
        model.train(was_training)
    count = max(1, len(segments))
    return Masks(found, loss / count, right / count)
