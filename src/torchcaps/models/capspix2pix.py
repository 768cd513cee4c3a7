"""CapsPix2Pix: Image Synthesis with a Convolutional Capsule Generative Adversarial Network (Bass et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.models.capsule_u import CapsuleU, Routing
from torchcaps.models.registry import register_model
from torchcaps.models.synthesis import Grain, SynthesisModel

REACH = 4.0  # length of the head's first weights: a capsule's is at most 1, and black and white are ±4 apart from grey


class CapsPix2Pix(CapsuleU, SynthesisModel):
    """The generator: the U of SegCaps on a label map and noise, and a pixel-wise convolution of its last capsules.

    noise     "broadcast": a channel beside the label map, its numbers spread over the pixels (see `Grain`);
              "linear": such a channel by one fully connected layer, as published, of H·W·(z + 1) parameters;
              "latent": one more capsule type in the lowest layer, the same at each place
    routing   as in SegCaps
    channels  of the first convolution, and dimensions of the first capsules
    width     of every layer, as a multiple of the paper's types; 1 for its 1.4 million parameters
    """

    multiple = 8

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 256, 256),
        num_classes: int = 2,
        *,
        z: int = 100,
        noise: Literal["broadcast", "linear", "latent"] = "broadcast",
        routing: Routing = "r3",
        channels: int = 16,
        width: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, z=z, **kwargs)
        if noise not in ("broadcast", "linear", "latent"):
            raise UserError(f"capspix2pix: noise must be 'broadcast', 'linear' or 'latent', got {noise!r}")
        colours, *sides = self.image_shape
        self.check_size(*sides)
        self.fixed_size, latent = noise == "linear", noise == "latent"
        self.noise = Grain(z) if noise == "broadcast" else nn.Linear(z, 2 * channels if latent else math.prod(sides))
        self.make_u(num_classes - 1 + (not latent), 1, channels, width, routing, below=int(latent))
        self.head = nn.Conv2d(channels, colours, 1)
        nn.init.normal_(self.head.weight, std=REACH / math.sqrt(channels))
        self.start_at_mean(self.head.bias)  # type: ignore[arg-type]

    def layers(self, masks: Tensor, noise: Tensor) -> dict[str, Capsules]:
        """The capsules of every layer, by name, in their order."""
        labels = self.labels(masks, noise)
        height, width = masks.shape[1:]
        if isinstance(self.noise, Grain):
            return self.through_u(torch.cat([labels, self.noise(noise, height, width)], dim=1))
        made = self.noise(noise)
        if self.fixed_size:
            return self.through_u(torch.cat([labels, made.view(-1, 1, height, width)], dim=1))
        capsule = made[:, None, :, None, None].expand(-1, 1, -1, height // 8, width // 8)
        return self.through_u(labels, Capsules(capsule))

    def features(self, masks: Tensor, noise: Tensor) -> Tensor:
        return self.layers(masks, noise)["classes"].pose.flatten(1, 2)


@register_model
def capspix2pix(image_shape: Sequence[int] = (1, 256, 256), num_classes: int = 2, **options: Any) -> CapsPix2Pix:
    """The paper's generator: 1,416,529 parameters for grey images of one class beside the background."""
    return CapsPix2Pix(image_shape, num_classes, **options)


@register_model
def capspix2pix_small(image_shape: Sequence[int] = (1, 64, 64), num_classes: int = 2, **options: Any) -> CapsPix2Pix:
    """An eighth of it, for small images and two CPU cores."""
    return CapsPix2Pix(image_shape, num_classes, **{"channels": 8, "width": 0.5, **options})
