"""The base class of models that classify every pixel."""

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
    """Base class of models that predict a map (B, K, H, W) for images (B, C, H, W) of any size.

    With two classes, background and foreground, K is 1; with more, K is their number.

    Args:
        image_shape: (C, H, W) of the training images; other heights and widths are accepted.
        num_classes: J, including the background.
        **kwargs: arguments of `ImageModel`.
    """

    task = "segmentation"
    any_size = True
    objective = "cross_entropy"
    multiple = 1  # the layers need heights and widths that are multiples of this; `pad` provides them
    margin = 0  # pixels that the receptive field extends around a pixel; see `predict_tiled`

    def __init__(self, image_shape: Sequence[int], num_classes: int, **kwargs: Any):
        super().__init__(image_shape, num_classes, **kwargs)
        if num_classes < 2:
            raise UserError(
                f"{type(self).__name__}: num_classes includes the background: it must be at least 2, got {num_classes}"
            )

    @property
    def maps(self) -> int:
        """K, the number of maps that the model predicts."""
        return 1 if self.num_classes <= 2 else self.num_classes

    def pad(self, images: Tensor) -> Tensor:
        """Pad images at the bottom and on the right to a multiple of `multiple`.

        Args:
            images: (B, C, H, W); padded by reflection, or by replication if they are too small for that.
        """
        below, right = (-side % self.multiple for side in images.shape[-2:])
        if not (below or right):
            return images
        reflects = below < images.shape[-2] and right < images.shape[-1]
        return functional.pad(images, (0, right, 0, below), mode="reflect" if reflects else "replicate")

    def class_masks(self, ids_BHW: Tensor) -> Tensor:
        """Like the function `class_masks`, for this model's K."""
        return class_masks(ids_BHW, self.maps)


def to_mask(presence_BKHW: Tensor) -> Tensor:
    """Convert predicted maps (B, K, H, W) to the class ids (B, H, W) of the pixels."""
    return (presence_BKHW[:, 0] > 0.5).long() if presence_BKHW.shape[1] == 1 else presence_BKHW.argmax(1)


def class_masks(ids_BHW: Tensor, maps: int) -> Tensor:
    """Convert class ids to one boolean mask per class.

    Args:
        ids_BHW: (B, H, W) class ids; the background (0) and ignored pixels (255) belong to no mask.
        maps: K, the number of classes; 1 for a single mask of all classes.

    Returns:
        (B, K, H, W).
    """
    if maps == 1:
        return ((ids_BHW > 0) & (ids_BHW != IGNORED))[:, None]
    classes_K = torch.arange(maps, device=ids_BHW.device)
    return (ids_BHW[:, None] == classes_K[:, None, None]) & (classes_K[:, None, None] > 0)
