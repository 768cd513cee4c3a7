"""From capsules back to the image."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.checks import check_floats, check_whole
from torchcaps.errors import UserError
from torchcaps.losses import check_batch, multi_hot
from torchcaps.ops.squash import at_least_float32

MAX_DENSE_IMAGE_VALUES = 4096  # with more, the last layer of a dense decoder is larger than the rest of a network


def mask_capsules(capsules: Capsules | Tensor, targets: Tensor | None = None) -> Tensor:
    """Keep the poses of the target classes and set the others to zero.

    Args:
        capsules: pose (B, J, D).
        targets: (B,) class ids, (B, J) multi-hot, or None for the longest capsule.

    Returns:
        (B, J, D).
    """
    capsules = as_capsules(capsules, "mask_capsules")
    J = capsules.pose.shape[1]
    if targets is None:
        targets = capsules.activation.argmax(-1)
    check_batch("mask_capsules", capsules.pose, targets)
    return capsules.pose * multi_hot(targets, J).to(capsules.pose)[..., None]


class Decoder(nn.Module):
    """The paper's decoder: two hidden layers with ReLU, a sigmoid for every pixel.

    Args:
        capsules: J.
        dim: D.
        image_shape: C, H, W.
        hidden: widths of the hidden layers.
    """

    def __init__(
        self, capsules: int, dim: int, image_shape: tuple[int, int, int], hidden: tuple[int, ...] = (512, 1024)
    ):
        super().__init__()
        check_whole(type(self).__name__, capsules=capsules, dim=dim)
        self.capsules, self.dim = capsules, dim
        self.image_shape = tuple(image_shape)
        widths = [capsules * dim, *hidden]
        layers: list[nn.Module] = []
        for width, wider in itertools.pairwise(widths):
            layers += [nn.Linear(width, wider), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], math.prod(image_shape)))

    def forward(self, masked_BJD: Tensor) -> Tensor:
        """Map masked poses (B, J, D) to images (B, C, H, W) in [0, 1]."""
        pixels = self.layers(_flat(self, masked_BJD))
        return torch.sigmoid(at_least_float32(pixels)).view(-1, *self.image_shape)


class ConvDecoder(nn.Module):
    """A decoder for larger images: a small map, then nearest-neighbour doubling and 3×3 convolutions.

    Its size grows with the number of doublings, not with the number of pixels.

    Args:
        capsules: J.
        dim: D.
        image_shape: C, H, W.
        width: channels of the smallest map.
    """

    def __init__(self, capsules: int, dim: int, image_shape: tuple[int, int, int], width: int = 128):
        super().__init__()
        check_whole(type(self).__name__, capsules=capsules, dim=dim)
        self.capsules, self.dim = capsules, dim
        channels, height, columns = image_shape
        self.image_shape = tuple(image_shape)
        doublings = max(0, math.ceil(math.log2(max(height, columns) / 8)))
        self.start = (math.ceil(height / 2**doublings), math.ceil(columns / 2**doublings))
        self.width = width
        self.spread = nn.Linear(capsules * dim, width * self.start[0] * self.start[1])
        widths = [max(16, width >> step) for step in range(doublings + 1)]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths))
        self.pixels = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, masked_BJD: Tensor) -> Tensor:
        """Map masked poses (B, J, D) to images (B, C, H, W) in [0, 1]."""
        maps = functional.relu(self.spread(_flat(self, masked_BJD)).view(-1, self.width, *self.start))
        for conv in self.convs:
            maps = functional.relu(conv(functional.interpolate(maps, scale_factor=2.0, mode="nearest")))
        pixels = self.pixels(maps)[..., : self.image_shape[1], : self.image_shape[2]]
        return torch.sigmoid(at_least_float32(pixels))


class EnlargedDecoder(nn.Module):
    """A decoder of reduced images, enlarged by repeating pixels, so that its size does not follow that of the images.

    The squared error of an enlarged image has the gradient that a comparison with the reduced image would have, times
    the number of pixels that become one.

    Args:
        decoder: of the reduced images.
        image_shape: C, H, W after enlarging.
    """

    def __init__(self, decoder: Decoder | ConvDecoder, image_shape: tuple[int, int, int]):
        super().__init__()
        self.decoder = decoder
        self.capsules, self.dim = decoder.capsules, decoder.dim
        self.image_shape = tuple(image_shape)

    def forward(self, masked_BJD: Tensor) -> Tensor:
        """Map masked poses (B, J, D) to images (B, C, H, W) in [0, 1]."""
        return functional.interpolate(self.decoder(masked_BJD), self.image_shape[1:], mode="nearest")


def _flat(decoder: Decoder | ConvDecoder, masked_BJD: Tensor) -> Tensor:
    """(B, J·D), if that is what the decoder was made for."""
    name = type(decoder).__name__
    if isinstance(masked_BJD, Capsules):  # a decoder of all poses would draw all classes at once
        raise TypeError(f"{name}: expected masked poses, got Capsules; use mask_capsules(capsules, targets)")
    check_floats(name, poses=masked_BJD)
    flat = masked_BJD.flatten(1)
    if flat.shape[1] != decoder.capsules * decoder.dim:
        raise ValueError(
            f"{name}: expected poses of shape (B, {decoder.capsules}, {decoder.dim}), got "
            f"{tuple(masked_BJD.shape)}; give capsules and dim of the class capsules below it"
        )
    return flat


def make_decoder(
    kind: str, num_classes: int, dim: int, image_shape: tuple[int, int, int], hidden: tuple[int, ...]
) -> Decoder | ConvDecoder | None:
    """Make a decoder.

    Args:
        kind: "dense" (the paper's), "conv", "none", or "auto", which is dense unless images are large.
        num_classes: J.
        dim: D of a class capsule.
        image_shape: C, H, W.
        hidden: widths of the hidden layers of the dense decoder.
    """
    if kind == "auto":
        kind = "dense" if torch.Size(image_shape).numel() <= MAX_DENSE_IMAGE_VALUES else "conv"
    if kind == "dense":
        return Decoder(num_classes, dim, image_shape, hidden)
    if kind == "conv":
        return ConvDecoder(num_classes, dim, image_shape)
    if kind == "none":
        return None
    raise UserError(f"decoder must be 'auto', 'dense', 'conv' or 'none', got {kind!r}")
