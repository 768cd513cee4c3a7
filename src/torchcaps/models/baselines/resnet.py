"""Deep Residual Learning for Image Recognition (He, Zhang, Ren & Sun 2016), at the size for CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.models.baselines.mean_pooled import MeanPooled
from torchcaps.models.baselines.sizes import check_not_given, count_parameters, fit, largest, size_error
from torchcaps.models.registry import register_model


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalisation, added to their input.

    Args:
        before: channels of the input.
        after: channels of the output.
        stride: of the first convolution. If it is not 1, or the channels change, the input passes a 1×1 convolution.
    """

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, before, H, W) to (B, after, ⌈H/stride⌉, ⌈W/stride⌉)."""
        return (self.residual(x) + self.shortcut(x)).relu()


class ResNet(MeanPooled):
    """A 3×3 convolution, stages of residual blocks, the mean over positions, one linear layer, softmax.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        channels: of each stage. The resolution is halved before every stage but the first.
        blocks: of each stage.
        multi_label: whether each class has its own sigmoid instead of one softmax over all.
        **kwargs: arguments of `ImageModel`.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: Sequence[int] = (16, 32, 64),
        blocks: int = 3,
        multi_label: bool = False,
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        if not channels or min(channels) < 1 or blocks < 1:
            raise UserError(
                f"ResNet: channels and blocks must be at least 1, and there must be a stage, got {list(channels)} and "
                f"{blocks}"
            )
        self.multi_label = multi_label
        width = channels[0]
        stem = nn.Conv2d(self.image_shape[0], width, 3, padding=1, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        for stage, wider in enumerate(channels):
            for block in range(blocks):
                layers.append(Block(width, wider, stride=2 if stage and not block else 1))
                width = wider
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@register_model
def small_resnet(
    image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, *, parameters: int | None = None, **options: Any
) -> ResNet:
    """Build the ResNet-20 of He et al. with 0.27 million parameters, or a ResNet of a given size, within 1 %.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        parameters: the number to meet; the stages then have about w, 2w and 4w channels.
        **options: arguments of `ResNet`.
    """
    if parameters is None:
        return ResNet(image_shape, num_classes, **options)
    check_not_given("small_resnet", options, "channels")

    def build(stages: tuple[int, int], last: int) -> ResNet:
        return ResNet(image_shape, num_classes, channels=(*stages, last), **options)

    widest = largest(lambda width: count_parameters(lambda: build((width, 2 * width), 4 * width)) <= parameters)
    # In a small network one channel of the last stage is more than 1 %; channels of the second stage compensate.
    starts = ((width, 2 * width + more) for width in range(widest, 0, -1) for more in range(width + 1))
    model = fit(parameters, build, starts, least=lambda stages: 4 * stages[0])
    if model is None:
        raise size_error("small_resnet", parameters, image_shape)
    return model
