"""What models that answer for every pixel have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED
from torchcaps.models.base import ImageModel


class SegmentationModel(ImageModel):
    """Base of the models that segment: presence (B, K, H, W) of images (B, C, H, W) of any size.

    With two classes, background and what is looked for, K is 1; with more, K is their number.
    image_shape's height and width are only the size that it was trained on.
    """

    task = "segmentation"
    objective = "cross_entropy"
    multiple = 1  # height and width that it works on are multiples of this; `padded` sees to it
    margin = 0  # how far around a pixel it looks: `by_tiles` with this margin answers as for the whole image

    def __init__(self, image_shape: Sequence[int], num_classes: int, **kwargs: Any):
        super().__init__(image_shape, num_classes, **kwargs)
        if num_classes < 2:
            raise UserError(
                f"{type(self).__name__}: num_classes counts the background too: at least 2, got {num_classes}"
            )

    @property
    def maps(self) -> int:
        """K"""
        return 1 if self.num_classes <= 2 else self.num_classes

    def normalise(self, images: Tensor) -> Tensor:
        """Check a batch (B, C, H, W) of values in [0, 1]; bring it to the mean and std the model was trained with."""
        if images.ndim != 4 or images.shape[1] != self.image_shape[0]:
            raise ValueError(
                f"{type(self).__name__}: expected images of shape (B, {self.image_shape[0]}, H, W), "
                f"got {tuple(images.shape)}"
            )
        return self._scaled(images)

    def padded(self, images: Tensor) -> Tensor:
        """Larger at the bottom and on the right, by reflection; by repetition where an image is too small for that."""
        below, right = (-side % self.multiple for side in images.shape[-2:])
        if not (below or right):
            return images
        reflects = below < images.shape[-2] and right < images.shape[-1]
        return functional.pad(images, (0, right, 0, below), mode="reflect" if reflects else "replicate")

    def where(self, ids_BHW: Tensor) -> Tensor:
        """(B, K, H, W): where each class but the background is; what is ignored is nowhere."""
        return where_in(ids_BHW, self.maps)


def to_mask(presence_BKHW: Tensor) -> Tensor:
    """(B, H, W): the class of each pixel."""
    return (presence_BKHW[:, 0] > 0.5).long() if presence_BKHW.shape[1] == 1 else presence_BKHW.argmax(1)


def where_in(ids_BHW: Tensor, maps: int) -> Tensor:
    """(B, K, H, W): where each class but the background is; what is ignored is nowhere. K = 1 is any of them."""
    if maps == 1:
        return ((ids_BHW > 0) & (ids_BHW != IGNORED))[:, None]
    classes_K = torch.arange(maps, device=ids_BHW.device)
    return (ids_BHW[:, None] == classes_K[:, None, None]) & (classes_K[:, None, None] > 0)
