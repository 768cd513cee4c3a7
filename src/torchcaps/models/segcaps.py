"""SegCaps: Capsules for Object Segmentation (LaLonde & Bagci 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.models.base import Output
from torchcaps.models.capsule_u import CapsuleU, Routing
from torchcaps.models.registry import register_model
from torchcaps.models.segmentation import SegmentationModel, to_mask


class SegCaps(CapsuleU, SegmentationModel):
    """A U of capsule layers: three times to half the size, three times back, with what was seen at each size.

    routing  "r3": three iterations everywhere but in the first capsules; "r1": one where the size stays, three where
             it changes
    width    of every layer, as a multiple of the paper's types; 1 for its 1.4 million parameters
    decoder  draw the image where the mask is positive, from the capsules there
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
        self.make_u(colours, self.maps, dim, width, routing)
        self.decoder = _decoder([self.maps * dim, 4 * dim, 8 * dim], colours) if decoder else None

    def layers(self, images: Tensor) -> dict[str, Capsules]:
        """The capsules of every layer, by name, in their order; the images padded to a multiple of 8."""
        return self.through_u(self.normalise(images))

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """images (B, C, H, W) in [0, 1], of any size; targets (B, H, W), class ids, say where the decoder looks, else
        what was found does.

        lengths (B, K, H, W), poses (B, K, D, H, W), reconstruction (B, C, H, W) of what is not background
        """
        height, width = images.shape[-2:]
        capsules = self.layers(self.padded(images))["classes"]
        poses = capsules.pose[..., :height, :width]
        lengths = capsules.activation[..., :height, :width]
        if self.decoder is None:
            return Output(lengths, poses)
        ids = to_mask(lengths) if targets is None else targets
        masked = poses * self.where(ids)[:, :, None].to(poses.dtype)
        return Output(lengths, poses, self.decoder(masked.flatten(1, 2)).float())


@register_model
def segcaps(image_shape: Sequence[int] = (1, 512, 512), num_classes: int = 2, **options: Any) -> SegCaps:
    """The paper's network: 1,425,649 parameters for grey images and one class beside the background."""
    return SegCaps(image_shape, num_classes, **options)


def _decoder(widths: list[int], colours: int) -> nn.Sequential:
    """Pixel by pixel, from the capsules of the classes to colours in [0, 1]."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], colours, 1), nn.Sigmoid())
