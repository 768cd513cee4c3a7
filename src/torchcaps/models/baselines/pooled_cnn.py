"""Capsule Network is Not More Robust than Convolutional Network (Gu, Tresp & Hu 2021): its CNN with average pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from torchcaps.errors import UserError
from torchcaps.models.baselines.mean_pooled import MeanPooled
from torchcaps.models.baselines.sizes import check_not_given, count_parameters, fit, largest, size_error
from torchcaps.models.registry import register_model


class PooledCNN(MeanPooled):
    """The convolutions of a CapsNet, then the mean over all positions instead of capsules.

    Two convolutions without padding, the second with stride 2, each with ReLU; one linear layer; softmax.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        channels: of the first and of the second convolution.
        kernel: side of the kernels of both.
        multi_label: whether each class has its own sigmoid instead of one softmax over all.
        **kwargs: arguments of `ImageModel`.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: Sequence[int] = (256, 256),
        kernel: int = 9,
        multi_label: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        if len(channels) != 2 or min(channels) < 1 or kernel < 1:
            raise UserError(
                f"PooledCNN: channels must be two numbers and kernel one, all at least 1, got {list(channels)} "
                f"and {kernel}"
            )
        inputs, H, W = self.image_shape
        smallest = 2 * kernel - 1
        if min(H, W) < smallest:
            raise UserError(
                f"PooledCNN: a kernel of {kernel} needs images of at least {smallest}×{smallest}, got {H}×{W}; "
                "enlarge them, or give a smaller kernel"
            )
        self.multi_label = multi_label
        first, second = channels
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, first, kernel),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, second, kernel, stride=2),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(second, num_classes)


@register_model
def pooled_cnn(
    image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, *, parameters: int | None = None, **options: Any
) -> PooledCNN:
    """Build the published network of 256 channels and 5.3 million parameters, or one of a given size, within 1 %.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        parameters: the number to meet; the two convolutions then have about equally many channels.
        **options: arguments of `PooledCNN`.
    """
    if parameters is None:
        return PooledCNN(image_shape, num_classes, **options)
    check_not_given("pooled_cnn", options, "channels")

    def build(first: int, second: int) -> PooledCNN:
        return PooledCNN(image_shape, num_classes, channels=(first, second), **options)

    widest = largest(lambda width: count_parameters(lambda: build(width, width)) <= parameters)
    model = fit(parameters, build, range(widest, 0, -1), least=lambda first: first)
    if model is None:
        raise size_error("pooled_cnn", parameters, image_shape)
    return model
