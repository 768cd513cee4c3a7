"""CapsPix2Pix: Image Synthesis with a Convolutional Capsule Generative Adversarial Network (Bass et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.models.capsule_unet import CapsuleUNet, Routing
from torchcaps.models.registry import register_model
from torchcaps.models.synthesis import SpatialNoise, SynthesisModel

INIT_NORM = 4.0  # of the head's initial weights: capsules have lengths up to 1, and logits of ±4 are black and white


class CapsPix2Pix(CapsuleUNet, SynthesisModel):
    """The generator: the capsule U-Net of SegCaps on label map and noise, then a 1×1 convolution of its last capsules.

    Args:
        image_shape: (C, H, W) of the training images.
        num_classes: J, including the background.
        z: dimensions of the noise vector.
        noise: "broadcast": one input channel, see `SpatialNoise`; "linear": one input channel by a fully connected
            layer, as published, of H·W·(z + 1) parameters; "latent": one more capsule type in the lowest layer, the
            same at every position.
        routing: as in SegCaps.
        channels: of the first convolution, and dimensions of the first capsules.
        width: number of capsule types relative to the paper; 1 for its 1.4 million parameters.
        **kwargs: arguments of `ImageModel`.
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
        self.noise = (
            SpatialNoise(z) if noise == "broadcast" else nn.Linear(z, 2 * channels if latent else math.prod(sides))
        )
        self.make_layers(num_classes - 1 + (not latent), 1, channels, width, routing, bottleneck=int(latent))
        self.head = nn.Conv2d(channels, colours, 1)
        nn.init.normal_(self.head.weight, std=INIT_NORM / math.sqrt(channels))
        self.init_bias_to_mean(self.head.bias)  # type: ignore[arg-type]

    def layers(self, masks: Tensor, noise: Tensor) -> dict[str, Capsules]:
        """Compute the capsules of every layer.

        Args:
            masks: (B, H, W) class ids.
            noise: (B, Z).

        Returns:
            The capsules by the name of the layer, in order.
        """
        labels = self.one_hot(masks, noise)
        height, width = masks.shape[1:]
        if isinstance(self.noise, SpatialNoise):
            return self.run_layers(torch.cat([labels, self.noise(noise, height, width)], dim=1))
        projected = self.noise(noise)
        if self.fixed_size:
            return self.run_layers(torch.cat([labels, projected.view(-1, 1, height, width)], dim=1))
        capsule = projected[:, None, :, None, None].expand(-1, 1, -1, height // 8, width // 8)
        return self.run_layers(labels, Capsules(capsule))

    def features(self, masks: Tensor, noise: Tensor) -> Tensor:
        return self.layers(masks, noise)["classes"].pose.flatten(1, 2)


@register_model
def capspix2pix(image_shape: Sequence[int] = (1, 256, 256), num_classes: int = 2, **options: Any) -> CapsPix2Pix:
    """Build the generator of the paper: 1,416,529 parameters for grey images and one class besides the background."""
    return CapsPix2Pix(image_shape, num_classes, **options)


@register_model
def capspix2pix_small(image_shape: Sequence[int] = (1, 64, 64), num_classes: int = 2, **options: Any) -> CapsPix2Pix:
    """Build a generator of an eighth of that size, for small images and two CPU cores."""
    return CapsPix2Pix(image_shape, num_classes, **{"channels": 8, "width": 0.5, **options})
