"""EM-CapsNet: Matrix Capsules with EM Routing (Hinton, Sabour & Frosst 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers import ClassCaps, MatrixConvCaps2d, MatrixPrimaryCaps
from torchcaps.models.base import ImageModel, Output
from torchcaps.models.registry import register_model
from torchcaps.ops.em.reference import FLOOR, LEAST


class EMCapsNet(ImageModel):
    """A convolution, primary matrix capsules, two convolutional capsule layers, class capsules.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        channels: the paper's A, of the convolution.
        primary: the paper's B, types of primary capsules.
        first: the paper's C, types of the first convolutional capsule layer.
        second: the paper's D, types of the second.
        size: P; poses are P×P matrices.
        iterations: of EM routing in each layer.
        inverse_temperature: at the start and at the end of training; it rises, which sharpens the activations.
        batch_norm: whether batch normalisation follows the convolution; the paper has none.
        **kwargs: arguments of `ImageModel`.
    """

    objective = "spread"

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: int = 64,
        primary: int = 8,
        first: int = 16,
        second: int = 16,
        size: int = 4,
        iterations: int = 2,
        inverse_temperature: Sequence[float] = (0.01, 0.1),
        batch_norm: bool = True,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        sizes = {"channels": channels, "primary": primary, "first": first, "second": second, "size": size}
        check_whole("em_capsnet", **sizes, iterations=iterations)
        colours, *sides = self.image_shape
        # Stride 2, then a window of 3 with stride 2 and one with stride 1: the last map must not be empty.
        least = 13
        if min(sides) < least:
            raise UserError(
                f"em_capsnet: images of {sides[0]}×{sides[1]} are too small for its layers: they must be at least "
                f"{least}×{least}. Enlarge them (data.image_size)"
            )
        if isinstance(inverse_temperature, (int, float)) or len(inverse_temperature) != 2:
            raise UserError(
                f"em_capsnet: inverse_temperature must be two numbers, first and last, got {inverse_temperature}"
            )
        settings: dict[str, Any] = {"iterations": iterations, "inverse_temperature": inverse_temperature}
        settings |= {"std": 1 / math.sqrt(size), "epsilon": LEAST, "floor": FLOOR}  # as published
        self.conv = nn.Conv2d(colours, channels, 5, stride=2, padding=2, bias=not batch_norm)
        self.norm = nn.BatchNorm2d(channels) if batch_norm else nn.Identity()
        self.primary = MatrixPrimaryCaps(channels, primary, size)
        self.first = MatrixConvCaps2d(primary, first, size, kernel=3, stride=2, **settings)
        self.second = MatrixConvCaps2d(first, second, size, kernel=3, stride=1, **settings)
        self.classes = ClassCaps(second, num_classes, size, **settings)
        for layer in (self.first, self.second, self.classes):  # as published, too
            nn.init.zeros_(layer.beta_u)
            nn.init.zeros_(layer.beta_a)

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Classify images.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot, which do not change anything.
            each: (B, M) class ids, which do not either.
        """
        self.check_targets(images, targets, each)
        features = functional.relu(self.norm(self.conv(self.normalise(images))))
        parents = self.classes(self.second(self.first(self.primary(features))))
        return Output(parents.activation, parents.pose)


@register_model
def em_capsnet(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> EMCapsNet:
    """Build the smaller network of the paper: A, B, C, D = 64, 8, 16, 16."""
    return EMCapsNet(image_shape, num_classes, **options)


@register_model
def em_capsnet_large(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> EMCapsNet:
    """Build the larger network of the paper: A = B = C = D = 32."""
    sizes = {"channels": 32, "primary": 32, "first": 32, "second": 32}
    return EMCapsNet(image_shape, num_classes, **{**sizes, **options})
