"""The base class of networks that end in global average pooling and one linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from torchcaps.models.base import ImageModel, Output
from torchcaps.ops.squash import at_least_float32


class MeanPooled(ImageModel):
    """Convolutions, global average pooling, one linear layer, softmax; for multiple labels a sigmoid per class."""

    objective = "cross_entropy"
    layers: nn.Module
    head: nn.Linear
    multi_label: bool

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Classify images.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot, which do not change anything.
            each: (B, M) class ids, which do not either.
        """
        self.check_targets(images, targets, each)
        features = self.layers(self.normalise(images)).mean((-2, -1))
        logits = at_least_float32(self.head(features))
        return Output(logits.sigmoid() if self.multi_label else logits.softmax(-1), logits=logits)
