"""SegCaps: Capsules for Object Segmentation (LaLonde & Bagci 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.losses import check_masks
from torchcaps.models.base import SegmentationOutput
from torchcaps.models.capsule_unet import CapsuleUNet, Routing
from torchcaps.models.registry import register_model
from torchcaps.models.segmentation import SegmentationModel, to_mask


class SegCaps(CapsuleUNet, SegmentationModel):
    """A U-Net of capsule layers: three times to half the resolution and back, with skip connections.

    Args:
        image_shape: (C, H, W) of the training images.
        num_classes: J, including the background.
        routing: "r3": three iterations everywhere but in the first capsules; "r1": one where the resolution stays,
            three where it changes.
        channels: of the first convolution, and dimensions of the first capsules.
        width: number of capsule types relative to the paper; 1 for its 1.4 million parameters.
        decoder: whether to reconstruct the image where the mask is positive, from the capsules there.
        **kwargs: arguments of `ImageModel`.
    """

    multiple = 8
    margin = 72

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 512, 512),
        num_classes: int = 2,
        *,
        routing: Routing = "r3",
        channels: int = 16,
        width: float = 1.0,
        decoder: bool = True,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        colours, dim = self.image_shape[0], channels
        self.make_layers(colours, self.maps, dim, width, routing)
        self.decoder = _decoder([self.maps * dim, 4 * dim, 8 * dim], colours) if decoder else None

    def layers(self, images: Tensor) -> dict[str, Capsules]:
        """Compute the capsules of every layer.

        Args:
            images: (B, C, H, W), H and W multiples of 8, see `pad`.

        Returns:
            The capsules by the name of the layer, in order.
        """
        return self.run_layers(self.normalise(images))

    def forward(
        self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None
    ) -> SegmentationOutput:
        """Segment images.

        Args:
            images: (B, C, H, W) in [0, 1], of any size.
            targets: (B, H, W) class ids of the pixels to reconstruct; by default the predicted ones.
            each: is ignored.

        Returns:
            (B, K, H, W) probabilities, (B, K, D, H, W) poses and, with a decoder, a reconstruction (B, C, H, W).
        """
        self.check_images(images)  # before they are padded
        if targets is not None:
            check_masks("SegCaps", images, targets)
        height, width = images.shape[-2:]
        capsules = self.layers(self.pad(images))["classes"]
        poses = capsules.pose[..., :height, :width]
        lengths = capsules.activation[..., :height, :width]
        if self.decoder is None:
            return SegmentationOutput(lengths, poses)
        ids = to_mask(lengths) if targets is None else targets
        masked = poses * self.class_masks(ids)[:, :, None].to(poses.dtype)
        return SegmentationOutput(lengths, poses, self.decoder(masked.flatten(1, 2)).float())


@register_model
def segcaps(image_shape: Sequence[int] = (1, 512, 512), num_classes: int = 2, **options: Any) -> SegCaps:
    """Build the network of the paper: 1,425,649 parameters for grey images and one class besides the background."""
    return SegCaps(image_shape, num_classes, **options)


def _decoder(widths: list[int], colours: int) -> nn.Sequential:
    """1×1 convolutions from the capsules of the classes to channels in [0, 1]."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], colours, 1), nn.Sigmoid())
