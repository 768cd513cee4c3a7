"""Tensors of another repository: missing, misshapen and unused ones are errors that name the tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError

STRIDE = 2  # of the primary capsules in every known layout; weights do not contain it


class SourceTensors:
    """Tensors by name, which are taken one by one.

    Args:
        tensors: by name.
        layout: name of the repository, for messages.

    Attributes:
        lines: for each tensor taken, what it became.
    """

    def __init__(self, tensors: Mapping[str, Tensor], layout: str):
        self._left = dict(tensors)
        self.layout = layout
        self.lines: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def names(self) -> list[str]:
        """The names of the tensors that have not been taken, in the order of the file."""
        return list(self._left)

    def take(self, name: str, to: str, shape: tuple[int | None, ...], how: str = "") -> Tensor:
        """Take a tensor and convert it to float32.

        Args:
            name: in the other repository.
            to: its name here.
            shape: expected; None stands for any number.
            how: it is converted, for `lines`.
        """
        if name not in self._left:
            raise UserError(f"{self.layout}: the weights have no {name}; they have {', '.join(sorted(self._left))}")
        tensor = self._left.pop(name)
        fits = tensor.ndim == len(shape) and all(want in (None, has) for want, has in zip(shape, tensor.shape))
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise UserError(f"{self.layout}: {name} is {tuple(tensor.shape)}; it should be ({wanted})")
        if not _are_weights(tensor):
            raise UserError(
                f"{self.layout}: {name} is {tuple(tensor.shape)} of {tensor.dtype}: weights must be dense "
                "floating-point tensors with all values in the file. Save a state_dict() of such tensors"
            )
        self.lines.append(f"{name} {tuple(tensor.shape)} → {to}{how and ': ' + how}")
        return tensor.float()

    def check_all_used(self) -> None:
        """Raise a UserError if a tensor has not been taken."""
        if self._left:
            raise UserError(f"{self.layout}: these tensors are unknown: {', '.join(sorted(self._left))}")


def _are_weights(tensor: Tensor) -> bool:
    """Whether the storage holds all values: a file of a few bytes may declare any shape."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_floating_point()
    return plain and 0 < tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


class CapsNetTensors(NamedTuple):
    """The tensors of a CapsNet in the axes of this package.

    Attributes:
        conv: weight (channels out, channels in, k, k) and bias of the first convolution.
        primary: weight and bias of the primary capsules' convolution.
        classes: (I, J, D, K).
        decoder: weight (out, in) and bias of each layer; empty without a decoder.
    """

    conv: tuple[Tensor, Tensor]
    primary: tuple[Tensor, Tensor]
    classes: Tensor
    decoder: list[tuple[Tensor, Tensor]]

    def options(self, layout: str) -> dict[str, Any]:
        """The arguments of a CapsNet with these tensors."""
        _, J, D, K = self.classes.shape
        channels, colours, kernel, _ = self.conv[0].shape
        primary_kernel = self.primary[0].shape[-1]
        if self.primary[0].shape[0] % K:
            raise UserError(f"{layout}: {self.primary[0].shape[0]} channels are not a multiple of {K} dimensions")
        types = self.primary[0].shape[0] // K
        side = self.image_side(layout)
        return {
            "image_shape": (colours, side, side),
            "num_classes": J,
            "channels": channels,
            "kernel": kernel,
            "types": types,
            "dim": K,
            "primary_kernel": primary_kernel,
            "stride": STRIDE,
            "class_dim": D,
            "decoder": "dense" if self.decoder else "none",
            "hidden": tuple(len(bias) for _, bias in self.decoder[:-1]),
        }

    def image_side(self, layout: str) -> int:
        """The side of the images, which must be square: that of the decoder's output, or the largest that fits."""
        I, K = self.classes.shape[0], self.classes.shape[3]
        types, colours = self.primary[0].shape[0] // K, self.conv[0].shape[1]
        reach = self.conv[0].shape[-1] + self.primary[0].shape[-1] - 1
        grid = math.isqrt(I // types)
        side = (grid - 1) * STRIDE + reach + 1
        if self.decoder:
            pixels = len(self.decoder[-1][1])
            side = math.isqrt(pixels // colours)
            if side * side * colours != pixels:
                raise UserError(
                    f"{layout}: the decoder draws {pixels} values, which are not a square image of {colours} channels"
                )
        if grid * grid * types != I or (side - reach) // STRIDE + 1 != grid:
            raise UserError(
                f"{layout}: images of {side}×{side} with a stride of {STRIDE} do not give {I} primary capsules of "
                f"{types} types"
            )
        return side

    def state(self) -> dict[str, Tensor]:
        """The state dict of a CapsNet."""
        named = {"conv": self.conv, "primary.conv": self.primary}
        named |= {f"decoder.layers.{2 * index}": layer for index, layer in enumerate(self.decoder)}
        state = {f"{name}.{part}": each for name, pair in named.items() for part, each in zip(("weight", "bias"), pair)}
        return {**state, "classes.weight": self.classes}
