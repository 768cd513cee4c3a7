"""SegCaps: Capsules for Object Segmentation (LaLonde & Bagci 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import ConvCaps2d, DeconvCaps2d
from torchcaps.models.base import Output
from torchcaps.models.pixels import PixelModel, found_in
from torchcaps.ops.squash import at_least_float32, no_autocast


class SegCaps(PixelModel):
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
        routing: Literal["r1", "r3"] = "r3",
        channels: int = 16,
        width: float = 1.0,
        decoder: bool = True,
        **about: Any,
    ):
        super().__init__(image_shape, num_classes, **about)
        if routing not in ("r1", "r3"):
            raise UserError(f"segcaps: routing must be 'r1' or 'r3', got {routing!r}")
        colours, dim = self.image_shape[0], channels
        two, four, eight = (max(1, round(types * width)) for types in (2, 4, 8))
        stay = 1 if routing == "r1" else 3  # iterations where the size stays
        self.conv = nn.Conv2d(colours, dim, 5, padding=2)
        self.primary = ConvCaps2d(1, dim, two, dim, stride=2, iterations=1)
        self.at_half = ConvCaps2d(two, dim, four, dim, iterations=stay)
        self.to_quarter = ConvCaps2d(four, dim, four, 2 * dim, stride=2)
        self.at_quarter = ConvCaps2d(four, 2 * dim, eight, 2 * dim, iterations=stay)
        self.to_eighth = ConvCaps2d(eight, 2 * dim, eight, 4 * dim, stride=2)
        self.at_eighth = ConvCaps2d(eight, 4 * dim, eight, 2 * dim, iterations=stay)
        self.back_to_quarter = DeconvCaps2d(eight, 2 * dim, eight, 2 * dim)
        self.again_at_quarter = ConvCaps2d(2 * eight, 2 * dim, four, 2 * dim, iterations=stay)
        self.back_to_half = DeconvCaps2d(four, 2 * dim, four, dim)
        self.again_at_half = ConvCaps2d(2 * four, dim, four, dim, iterations=stay)
        self.back_to_full = DeconvCaps2d(four, dim, two, dim)
        self.classes = ConvCaps2d(two + 1, dim, self.maps, dim, kernel=1, iterations=stay)
        self.decoder = _decoder([self.maps * dim, 4 * dim, 8 * dim], colours) if decoder else None

    @property
    def capsule_layers(self) -> list[tuple[str, ConvCaps2d | DeconvCaps2d]]:
        """By name, in their order."""
        kinds = (ConvCaps2d, DeconvCaps2d)
        return [(name, layer) for name, layer in self.named_children() if isinstance(layer, kinds)]

    def layers(self, images: Tensor) -> dict[str, Capsules]:
        """The capsules of every layer, by name, in their order; the images padded to a multiple of 8."""
        seen = Capsules(functional.relu(self.conv(self.normalise(images)))[:, None])
        found = {"conv": seen}
        for name in ("primary", "at_half", "to_quarter", "at_quarter", "to_eighth", "at_eighth", "back_to_quarter"):
            found[name] = seen = getattr(self, name)(seen)
        found["again_at_quarter"] = seen = self.again_at_quarter(_beside(seen, found["at_quarter"]))
        found["back_to_half"] = seen = self.back_to_half(seen)
        found["again_at_half"] = seen = self.again_at_half(_beside(seen, found["at_half"]))
        found["back_to_full"] = seen = self.back_to_full(seen)
        # Lengths of poses that were rounded to half precision may exceed 1: the last layer is not left to autocast.
        last = _beside(seen, found["conv"]).pose
        with no_autocast(last):
            found["classes"] = self.classes(at_least_float32(last))
        return found

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
        ids = found_in(lengths) if targets is None else targets
        masked = poses * self.where(ids)[:, :, None].to(poses.dtype)
        return Output(lengths, poses, self.decoder(masked.flatten(1, 2)).float())


def segcaps(image_shape: Sequence[int] = (1, 512, 512), num_classes: int = 2, **options: Any) -> SegCaps:
    """The paper's network: 1,425,649 parameters for grey images and one class beside the background."""
    return SegCaps(image_shape, num_classes, **options)


def _beside(*capsules: Capsules) -> Capsules:
    """The types of all of them; the upward path's first."""
    poses = [each.pose for each in capsules]
    if not poses[0].is_cuda:
        return Capsules(torch.cat(poses, dim=1))
    maps = torch.cat([pose.permute(0, 1, 3, 4, 2) for pose in poses], dim=1)  # as they lie there, dimensions last
    return Capsules(maps.permute(0, 1, 4, 2, 3))


def _decoder(widths: list[int], colours: int) -> nn.Sequential:
    """Pixel by pixel, from the capsules of the classes to colours in [0, 1]."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], colours, 1), nn.Sigmoid())
