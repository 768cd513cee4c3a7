"""Tensors of another repository, taken one by one: what is missing, misshapen or left over is told by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError

STRIDE = 2  # of the primary capsules, in every layout that is known; weights do not tell it


class Foreign:
    """Tensors by name; `take` checks one, `lines` says what became of each."""

    def __init__(self, tensors: Mapping[str, Tensor], layout: str):
        self._left = dict(tensors)
        self.layout = layout
        self.lines: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def names(self) -> list[str]:
        """Of what is left, in the order of the file."""
        return list(self._left)

    def take(self, name: str, to: str, shape: tuple[int | None, ...], how: str = "") -> Tensor:
        """The tensor of this name, whose shape must be `shape`, None standing for any number."""
        if name not in self._left:
            raise UserError(f"{self.layout}: the weights have no {name}; they have {', '.join(sorted(self._left))}")
        tensor = self._left.pop(name)
        fits = tensor.ndim == len(shape) and all(want in (None, has) for want, has in zip(shape, tensor.shape))
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise UserError(f"{self.layout}: {name} is {tuple(tensor.shape)}; it should be ({wanted})")
        if not _are_weights(tensor):
            raise UserError(
                f"{self.layout}: {name} is {tuple(tensor.shape)} of {tensor.dtype}, which no weights are: those are "
                "dense and floating-point, with a value in the file for each number. Save a state_dict() of such"
            )
        self.lines.append(f"{name} {tuple(tensor.shape)} → {to}{how and ': ' + how}")
        return tensor.float()

    def done(self) -> None:
        """Nothing may be left over: it would have meant something."""
        if self._left:
            raise UserError(f"{self.layout}: no place is known for {', '.join(sorted(self._left))}")


def _are_weights(tensor: Tensor) -> bool:
    """Whether it has values, as many as there is memory behind it: a file of a few bytes may claim any shape."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.is_floating_point()
    return plain and 0 < tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


class Parts(NamedTuple):
    """The tensors of a CapsNet, in the axes and orders of this package.

    conv, primary  weight (channels out, channels in, k, k) and bias of the two convolutions
    classes        (I, J, D, K)
    decoder        weight (out, in) and bias of each of its layers; none if there is no decoder
    """

    conv: tuple[Tensor, Tensor]
    primary: tuple[Tensor, Tensor]
    classes: Tensor
    decoder: list[tuple[Tensor, Tensor]]

    def options(self, layout: str) -> dict[str, Any]:
        """The arguments of the CapsNet that these tensors are for."""
        _, J, D, K = self.classes.shape
        channels, colours, kernel, _ = self.conv[0].shape
        primary_kernel = self.primary[0].shape[-1]
        if self.primary[0].shape[0] % K:
            raise UserError(f"{layout}: {self.primary[0].shape[0]} channels are no capsules of {K} dimensions")
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
        """Rows and columns of the images, which must be square: as many as the decoder draws; without one, the most
        that give these capsules."""
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
                    f"{layout}: the decoder draws {pixels} values, which are no square of {colours} channels"
                )
        if grid * grid * types != I or (side - reach) // STRIDE + 1 != grid:
            raise UserError(
                f"{layout}: {I} primary capsules of {types} types are not those of {side}×{side} images with a stride "
                f"of {STRIDE}"
            )
        return side

    def state(self) -> dict[str, Tensor]:
        """By the names of CapsNet."""
        named = {"conv": self.conv, "primary.conv": self.primary}
        named |= {f"decoder.layers.{2 * index}": layer for index, layer in enumerate(self.decoder)}
        state = {f"{name}.{part}": each for name, pair in named.items() for part, each in zip(("weight", "bias"), pair)}
        return {**state, "classes.weight": self.classes}
