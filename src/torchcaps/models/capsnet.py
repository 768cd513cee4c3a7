"""CapsNet: Dynamic Routing Between Capsules (Sabour, Frosst & Hinton 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, PrimaryCaps, make_decoder
from torchcaps.layers.patches import PatchConv2d
from torchcaps.models.base import CapsuleModel
from torchcaps.models.registry import register_model
from torchcaps.ops.em.reference import FLOOR, LEAST

# Constants of EM routing with which results were published.
PUBLISHED_EM: dict[str, Any] = {"inverse_temperature": 0.1, "epsilon": LEAST, "floor": FLOOR}


def published_std(children: int, parents: int, dim: int) -> float:
    """Std of the class capsules' initial weight with which results were published."""
    return 2 * parents / math.sqrt(children * dim)


class CapsNet(CapsuleModel):
    """A convolution, primary capsules, class capsules, and a decoder that reconstructs the image from one of them.

    Args:
        image_shape: (C, H, W) of the images.
        num_classes: J.
        channels: of the first convolution, with stride 1 and ReLU.
        kernel: of the first convolution.
        types: of primary capsules.
        dim: dimensions of a primary capsule.
        primary_kernel: of the primary capsules' convolution.
        stride: of the primary capsules' convolution.
        padding: of both convolutions.
        class_dim: dimensions of a class capsule.
        routing: from primary to class capsules.
        iterations: of routing.
        inverse_temperature: of routing, see `layers.DenseCaps`; above 1 couplings decide more.
        variant: "paper": as in the paper's text; "authors": as in their code, with biases inside routing, primary
            capsules divided by the number of types, and truncated normal initialisation.
        leaky: whether routing has one more parent, which belongs to no class.
        drop: share of the primary capsules that are dropped in a training step, at random.
        decoder: "dense" (the paper's), "conv", "none", or "auto": dense up to 4,096 values per image.
        hidden: units of the dense decoder's hidden layers.
        **kwargs: arguments of `ImageModel`.
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: int = 256,
        kernel: int = 9,
        types: int = 32,
        dim: int = 8,
        primary_kernel: int = 9,
        stride: int = 2,
        padding: int = 0,
        class_dim: int = 16,
        routing: str = "dynamic",
        iterations: int = 3,
        inverse_temperature: float | None = None,
        variant: Literal["paper", "authors"] = "paper",
        leaky: bool = False,
        drop: float = 0.0,
        decoder: Literal["auto", "dense", "conv", "none"] = "auto",
        hidden: Sequence[int] = (512, 1024),
        **kwargs: Any,
    ):
        super().__init__(image_shape, num_classes, **kwargs)
        sizes = {"channels": channels, "kernel": kernel, "types": types, "dim": dim, "primary_kernel": primary_kernel}
        check_whole("capsnet", **sizes, stride=stride, class_dim=class_dim, iterations=iterations)
        check_whole("capsnet", 0, padding=padding)
        if variant not in ("paper", "authors"):
            raise UserError(f"capsnet: variant must be 'paper' or 'authors', got {variant!r}")
        if not 0 <= drop < 1:
            raise UserError(f"capsnet: drop must be a share of at least 0 and less than 1, got {drop}")
        if routing == "em":  # its activations are not lengths, and rarely reach the margins
            self.objective = "spread"
        authors = variant == "authors"
        colours, *sides = self.image_shape
        self.grid = tuple((side + 4 * padding - kernel + 1 - primary_kernel) // stride + 1 for side in sides)
        _check_sides(sides, kernel, primary_kernel, padding)
        self.conv = PatchConv2d(colours, channels, kernel, padding=padding)
        self.primary = PrimaryCaps(
            channels, types, dim, primary_kernel, stride, padding, routed=authors, leaky=authors and leaky, gain=1.0
        )
        children = types * self.grid[0] * self.grid[1]
        self.classes = DenseCaps(
            children,
            dim,
            num_classes,
            class_dim,
            routing=routing,
            iterations=iterations,
            bias=authors,
            leaky=leaky,
            std=0.1 if authors else published_std(children, num_classes, class_dim),
            **_constants(routing, inverse_temperature),
        )
        self.drop = drop
        self.decoder = make_decoder(decoder, num_classes, class_dim, self.image_shape, tuple(hidden))
        if authors:
            _initialise_as_authors(self)

    def children_of(self, images: Tensor) -> Capsules:
        """Compute the primary capsules, see `CapsuleModel.children_of`."""
        children = self.primary(functional.relu(self.conv(self.normalise(images))))
        if self.training and self.drop:
            kept_BI = functional.dropout(torch.ones_like(children.pose[..., 0]), self.drop)
            children = Capsules(children.pose * kept_BI[..., None])
        return children

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        return [self.conv, self.primary.conv]


@register_model
def capsnet(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> CapsNet:
    """Build the network of the paper: 8,215,568 parameters for 1×28×28 images and 10 classes."""
    return CapsNet(image_shape, num_classes, **options)


@register_model
def capsnet_small(image_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, **options: Any) -> CapsNet:
    """Build a CapsNet that trains in a minute on a CPU: smaller kernels, fewer channels and types."""
    small = {"channels": 32, "kernel": 5, "types": 8, "primary_kernel": 5, "hidden": (128, 256)}
    return CapsNet(image_shape, num_classes, **{**small, **options})


def _constants(routing: str, inverse_temperature: float | None) -> dict[str, Any]:
    """Of routing: the published ones of EM, and what is given."""
    given = {} if inverse_temperature is None else {"inverse_temperature": inverse_temperature}
    return {**(PUBLISHED_EM if routing == "em" else {}), **given}


def _check_sides(sides: Sequence[int], kernel: int, primary_kernel: int, padding: int) -> None:
    least = max(kernel - 2 * padding, kernel + primary_kernel - 1 - 4 * padding)
    if min(sides) < least:
        raise UserError(
            f"capsnet: images of {sides[0]}×{sides[1]} are too small for a {kernel}×{kernel} convolution followed "
            f"by primary capsules of {primary_kernel}×{primary_kernel}: they must be at least {least}×{least}. "
            "Enlarge them (data.image_size) or use smaller kernels (model.kernel, model.primary_kernel)"
        )


def _initialise_as_authors(model: CapsNet) -> None:
    """Set weights to truncated normal values (std 0.1, first convolution 0.05) and biases to 0.1."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            std = 0.05 if module is model.conv else 0.1
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.1)
