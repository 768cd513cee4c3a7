"""Class capsules on the feature map of any network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.checks import check_floats, check_whole
from torchcaps.errors import UserError
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.primary import PrimaryCaps

LONG = 1.5  # length of a primary capsule before squash, at the start


class CapsHead(nn.Module):
    """Primary capsules by a 1×1 convolution at every place of a feature map, routed to one capsule for each class.

    All places share the matrices of a type, so the number of parameters does not depend on the size of the map. Batch
    normalisation in front brings the features of any network to the same scale.

    Args:
        in_channels: C of the feature map.
        size: (h, w) of the feature map.
        num_classes: J.
        types: T types of primary capsules at each place.
        dim: dimensions of a primary capsule.
        class_dim: dimensions of a class capsule.
        routing: a name in ROUTINGS. EM routes matrices, so it needs a square number for both dim and class_dim.
        iterations: number of routing iterations.
        leaky: let a capsule that fits no class keep part of its coupling.
        grid: largest number of places in each direction; a larger map is first averaged over windows.

    Attributes:
        grid: (rows, columns) of the primary capsules.
    """

    def __init__(
        self,
        in_channels: int,
        size: tuple[int, int],
        num_classes: int,
        *,
        types: int = 16,
        dim: int = 8,
        class_dim: int = 16,
        routing: str = "dynamic",
        iterations: int = 3,
        leaky: bool = False,
        grid: int = 4,
    ):
        super().__init__()
        check_whole("CapsHead", in_channels=in_channels, num_classes=num_classes, types=types, dim=dim, grid=grid)
        if len(size) != 2 or min(size) < 1:
            raise UserError(f"CapsHead: size must be the height and width of the feature map, got {tuple(size)}")
        self.in_channels, self.size = in_channels, (int(size[0]), int(size[1]))
        self.window = tuple(math.ceil(side / grid) for side in self.size)
        self.grid = tuple(math.ceil(side / window) for side, window in zip(self.size, self.window))
        places = self.grid[0] * self.grid[1]
        self.norm = nn.BatchNorm2d(in_channels)
        # Behind normalised features PyTorch's weight makes poses √(dim / 3) long: LONG makes squash return 0.7.
        self.primary = PrimaryCaps(in_channels, types, dim, kernel_size=1, stride=1, gain=LONG * math.sqrt(3 / dim))
        self.classes = DenseCaps(
            types * places,
            dim,
            num_classes,
            class_dim,
            routing=routing,
            iterations=iterations,
            places=places,
            leaky=leaky,
        )

    @classmethod
    def behind(cls, backbone: nn.Module, image_shape: Sequence[int], num_classes: int, **options: Any) -> CapsHead:
        """Make a head that fits a network: `nn.Sequential(backbone, head)` then classifies images.

        Args:
            backbone: maps images (B, C, H, W) to a feature map, or to a list of maps of which the last is used.
            image_shape: (C, H, W) of the images.
            num_classes: J.
            **options: arguments of `CapsHead`.
        """
        channels, *size = feature_shape(backbone, image_shape)
        return cls(channels, (size[0], size[1]), num_classes, **options)

    def children_of(self, features: Tensor | Sequence[Tensor]) -> Capsules:
        """Compute the primary capsules.

        Args:
            features: (B, C, h, w), or a list of maps of which the last is used.

        Returns:
            (B, I, K) poses; I runs over types, then over rows and columns of `grid`.
        """
        if isinstance(features, (list, tuple)):
            features = features[-1]
        check_floats("CapsHead", features=features)
        assert isinstance(features, Tensor)
        if features.ndim != 4 or tuple(features.shape[1:]) != (self.in_channels, *self.size):
            raise ValueError(
                f"CapsHead: expected a feature map of shape (B, {self.in_channels}, {self.size[0]}, {self.size[1]}), "
                f"got {tuple(features.shape)}; give in_channels and size of the network below it"
            )
        if self.window != (1, 1):  # a window at the border has the mean of what is there
            features = functional.avg_pool2d(features, self.window, ceil_mode=True, count_include_pad=False)
        return self.primary(self.norm(features))

    def forward(
        self, features: Tensor | Sequence[Tensor], *, iterations: int | None = None, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor | None]:
        """Classify feature maps.

        Args:
            features: (B, C, h, w), or a list of maps of which the last is used.
            iterations: of routing, instead of the layer's own number.
            return_couplings: also return the couplings of the last iteration.

        Returns:
            pose (B, J, D) of the classes, whose lengths say how present they are; with return_couplings a tuple of that
            and the couplings (B, I, J).
        """
        children = self.children_of(features)
        return self.classes(children, iterations=iterations, return_couplings=return_couplings)

    def parameter_count(self) -> int:
        """Count the parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def extra_repr(self) -> str:
        rows, columns = self.grid
        children, classes = self.classes.in_capsules, self.classes.out_capsules
        return (
            f"grid={rows}×{columns}, {children:,} capsules → {classes} classes, {self.parameter_count():,} parameters"
        )


def feature_shape(backbone: nn.Module, image_shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape (C, h, w) of a network's feature map, found by applying it to a black image.

    Args:
        backbone: maps images to a feature map, or to a list of maps of which the last counts; is not changed.
        image_shape: (C, H, W) of the images.
    """
    modes = [(module, module.training) for module in backbone.modules()]
    parameter = next(backbone.parameters(), None)
    device = torch.get_default_device() if parameter is None else parameter.device
    try:
        with torch.no_grad():
            maps = backbone.eval()(torch.zeros(1, *image_shape, device=device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UserError(f"the backbone cannot be applied to images of {tuple(image_shape)}: {error}") from error
    finally:
        for module, training in modes:
            module.training = training
    last = maps[-1] if isinstance(maps, (list, tuple)) and maps else maps
    if not isinstance(last, Tensor) or last.ndim != 4:
        found = f"a tensor {tuple(last.shape)}" if isinstance(last, Tensor) else f"a {type(last).__name__}"
        raise UserError(
            f"the backbone returned {found}, and capsules need a feature map (B, C, h, w): remove its pooling and its "
            "last layer (of timm: features_only=True)"
        )
    return int(last.shape[1]), int(last.shape[2]), int(last.shape[3])
