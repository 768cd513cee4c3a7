"""Plain convolutional networks: the paper's baseline, and one with as many parameters as a CapsNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.models.base import ImageModel, Output
from torchcaps.models.baselines.sizes import check_not_given, count_parameters, fit, largest, size_error
from torchcaps.models.registry import register_model
from torchcaps.ops.squash import at_least_float32


class CNN(ImageModel):
    """Convolutions with ReLU, optionally pooling after each, dense layers with dropout, softmax.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        channels: of each convolution.
        kernel: of each convolution, odd.
        hidden: units of the dense layers.
        pool: whether 2×2 max pooling follows each convolution, while the map is larger than 1.
        dropout: after each dense layer.
        multi_label: whether each class has its own sigmoid instead of one softmax over all.
        **kwargs: arguments of `ImageModel`.
    """

    objective = "cross_entropy"

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: Sequence[int] = (256, 256, 128),
        kernel: int = 5,
        hidden: Sequence[int] = (328, 192),
        pool: bool = False,
        dropout: float = 0.5,
        multi_label: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        if kernel % 2 == 0:
            raise UserError(f"CNN: kernel must be odd, got {kernel}")
        self.multi_label = multi_label
        width, *sides = self.image_shape
        layers: list[nn.Module] = []
        for wider in channels:
            layers += [nn.Conv2d(width, wider, kernel, padding=kernel // 2), nn.ReLU(inplace=True)]
            width = wider
            if pool and min(sides) > 1:
                layers.append(nn.MaxPool2d(2))
                sides = [side // 2 for side in sides]
        layers.append(nn.Flatten())
        width *= sides[0] * sides[1]
        for wider in hidden:
            layers += [nn.Linear(width, wider), nn.ReLU(inplace=True), nn.Dropout(dropout)]
            width = wider
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_classes))

    def forward(self, images: Tensor, targets: Tensor | None = None, *, each: Tensor | None = None) -> Output:
        """Classify images.

        Args:
            images: (B, C, H, W) in [0, 1].
            targets: (B,) class ids or (B, J) multi-hot, which do not change anything.
            each: (B, M) class ids, which do not either.
        """
        self.check_targets(images, targets, each)
        logits = at_least_float32(self.layers(self.normalise(images)))
        return Output(logits.sigmoid() if self.multi_label else logits.softmax(-1), logits=logits)


@register_model
def baseline_cnn(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> CNN:
    """Build the baseline of Sabour et al. 2017: 35.4 million parameters for 1×28×28 images."""
    return CNN(image_shape, num_classes, **options)


@register_model
def matched_cnn(
    image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, *, parameters: int = 8_215_568, **options: Any
) -> CNN:
    """Build a pooled CNN with a given number of parameters, within 1 %, half of them in the dense layer.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        parameters: by default those of the paper's CapsNet.
        **options: arguments of `CNN`.
    """

    check_not_given("matched_cnn", options, "channels", "hidden")

    def build(width: int, hidden: int) -> CNN:
        channels = (width, 2 * width, 4 * width)
        settings = {"channels": channels, "kernel": 3, "hidden": (hidden,), "pool": True, **options}
        return CNN(image_shape, num_classes, **settings)

    # A small network may narrowly miss the number with one width; a slightly narrower one then meets it.
    widest = largest(lambda width: count_parameters(lambda: build(width, 1)) <= parameters / 2)
    model = fit(parameters, build, range(widest, 0, -1), least=lambda width: 1)
    if model is None:
        raise size_error("matched_cnn", parameters, image_shape)
    return model
