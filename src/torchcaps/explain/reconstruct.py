"""Reconstructions from the capsule of one class or another (figures 3 and 5 of Sabour et al. 2017)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.explain.require import require_decoder
from torchcaps.losses import multi_hot
from torchcaps.metrics.classification import predicted_classes
from torchcaps.models.evaluating import evaluating


class Reconstructions(NamedTuple):
    """Images reconstructed from their true, their predicted and a wrong class.

    Attributes:
        lengths: (B, J) lengths of the class capsules.
        true: (B, J) bool; None without targets, and so is from_true.
        predicted: (B, J) bool: the longest capsule; with multi-hot targets, all of length 0.5 or more.
        wrong: (B, J) bool, the runner-up: the longest capsule that is neither true nor predicted; if there is none,
            the longest that is not true; no class if all are true.
        from_true, from_predicted, from_wrong: (B, C, H, W) reconstructions.
    """

    lengths: Tensor
    true: Tensor | None
    predicted: Tensor
    wrong: Tensor
    from_true: Tensor | None
    from_predicted: Tensor
    from_wrong: Tensor

    @property
    def predictions(self) -> Tensor:
        """(B,) the class of the longest capsule."""
        return self.lengths.argmax(-1)


def reconstructions(model: nn.Module, images: Tensor, targets: Tensor | None = None) -> Reconstructions:
    """Decode each image from its true, its predicted and a wrong class.

    Args:
        model: routes a grid of primary capsules and has a decoder.
        images: (B, C, H, W) in [0, 1].
        targets: (B,) class ids, (B, J) multi-hot, or None if unknown.
    """
    capsnet = require_decoder(model, "reconstructions")
    with evaluating(model):
        parents = capsnet.classes(capsnet.children_of(images.to(capsnet.device)))
        lengths = parents.activation
        predicted = predicted_classes(lengths, several=targets is not None and targets.ndim == 2)
        true = None if targets is None else multi_hot(targets.to(lengths.device), lengths.shape[-1]).bool()
        wrong = _runner_up(lengths, predicted if true is None else true, predicted)

        def draw(classes_BJ: Tensor) -> Tensor:
            return capsnet.decoder(parents.pose * classes_BJ[..., None])  # type: ignore[misc]

        from_true = None if true is None else draw(true)
        return Reconstructions(lengths, true, predicted, wrong, from_true, draw(predicted), draw(wrong))


def correlation(images: Tensor, drawn: Tensor) -> Tensor:
    """Compute how well each reconstruction follows its image: Pearson's r over all pixels and channels.

    Args:
        images, drawn: (B, C, H, W).

    Returns:
        (B,) from −1 to 1; 0 where either has the same value everywhere.
    """
    one, other = (each.to(drawn.device).double().flatten(1) for each in (images, drawn))
    one, other = one - one.mean(1, keepdim=True), other - other.mean(1, keepdim=True)
    sizes = one.norm(dim=1) * other.norm(dim=1)
    return (one * other).sum(1) / sizes.clamp_min(1e-12)


def _runner_up(lengths_BJ: Tensor, true_BJ: Tensor, predicted_BJ: Tensor) -> Tensor:
    neither = ~(true_BJ | predicted_BJ)
    # Of two classes, one true and the other predicted, neither is left: then the prediction is the wrong class.
    eligible = torch.where(neither.any(-1, keepdim=True), neither, ~true_BJ)
    longest = lengths_BJ.masked_fill(~eligible, -1).argmax(-1)
    return multi_hot(longest, lengths_BJ.shape[-1]).bool() & eligible
