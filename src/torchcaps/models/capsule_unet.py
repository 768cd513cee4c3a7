"""The U-Net of capsule layers that SegCaps (LaLonde & Bagci 2018) and CapsPix2Pix (Bass et al. 2019) use."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.layers import ConvCaps2d, DeconvCaps2d
from torchcaps.ops.squash import at_least_float32, no_autocast

Routing = Literal["r1", "r3"]


class CapsuleUNet(nn.Module):
    """Mixin: halve the resolution three times and restore it, with skip connections.

    A model calls `make_layers` once. The layers are then attributes of the model itself, so that their weights have the
    same names in every model.
    """

    def make_layers(
        self, inputs: int, outputs: int, dim: int, width: float, routing: Routing, bottleneck: int = 0
    ) -> None:
        """Create the layers.

        Args:
            inputs: channels of the input.
            outputs: capsule types of the last layer, of `dim` dimensions each.
            dim: dimensions of the first capsules.
            width: number of capsule types relative to the papers; 1 for 1.4 million parameters at 16 dimensions.
            routing: "r3": three iterations everywhere but in the first capsules; "r1": one where the resolution stays,
                three where it changes.
            bottleneck: capsule types of 2·dim dimensions that are added to the lowest layer, see `run_layers`.
        """
        if routing not in ("r1", "r3"):
            raise UserError(f"{type(self).__name__.lower()}: routing must be 'r1' or 'r3', got {routing!r}")
        check_whole(type(self).__name__.lower(), channels=dim)
        two, four, eight = (max(1, round(types * width)) for types in (2, 4, 8))
        stay = 1 if routing == "r1" else 3  # iterations where the resolution stays
        self.conv = nn.Conv2d(inputs, dim, 5, padding=2)
        self.primary = _conv_caps(1, dim, two, dim, stride=2, iterations=1)
        self.at_half = _conv_caps(two, dim, four, dim, iterations=stay)
        self.to_quarter = _conv_caps(four, dim, four, 2 * dim, stride=2)
        self.at_quarter = _conv_caps(four, 2 * dim, eight, 2 * dim, iterations=stay)
        self.to_eighth = _conv_caps(eight, 2 * dim, eight, 4 * dim, stride=2)
        self.at_eighth = _conv_caps(eight, 4 * dim, eight, 2 * dim, iterations=stay)
        self.back_to_quarter = _deconv_caps(eight + bottleneck, 2 * dim, eight, 2 * dim)
        self.again_at_quarter = _conv_caps(2 * eight, 2 * dim, four, 2 * dim, iterations=stay)
        self.back_to_half = _deconv_caps(four, 2 * dim, four, dim)
        self.again_at_half = _conv_caps(2 * four, dim, four, dim, iterations=stay)
        self.back_to_full = _deconv_caps(four, dim, two, dim)
        self.classes = _conv_caps(two + 1, dim, outputs, dim, kernel=1, iterations=stay)

    @property
    def capsule_layers(self) -> list[tuple[str, ConvCaps2d | DeconvCaps2d]]:
        """The capsule layers by name, in order."""
        kinds = (ConvCaps2d, DeconvCaps2d)
        return [(name, layer) for name, layer in self.named_children() if isinstance(layer, kinds)]

    def run_layers(self, inputs: Tensor, bottleneck: Capsules | None = None) -> dict[str, Capsules]:
        """Compute the capsules of every layer.

        Args:
            inputs: (B, channels, H, W), H and W multiples of 8.
            bottleneck: poses (B, types, 2·dim, H/8, W/8), if `make_layers` was given a number of types.

        Returns:
            The capsules by the name of the layer, in order.
        """
        x = Capsules(functional.relu(self.conv(inputs))[:, None])
        found = {"conv": x}
        for name in ("primary", "at_half", "to_quarter", "at_quarter", "to_eighth", "at_eighth"):
            found[name] = x = getattr(self, name)(x)
        found["back_to_quarter"] = x = self.back_to_quarter(x if bottleneck is None else _concat(x, bottleneck))
        found["again_at_quarter"] = x = self.again_at_quarter(_concat(x, found["at_quarter"]))
        found["back_to_half"] = x = self.back_to_half(x)
        found["again_at_half"] = x = self.again_at_half(_concat(x, found["at_half"]))
        found["back_to_full"] = x = self.back_to_full(x)
        # Poses rounded to half precision may have lengths above 1, so the last layer runs without autocast.
        last = _concat(x, found["conv"]).pose
        with no_autocast(last):
            found["classes"] = self.classes(at_least_float32(last))
        return found


def _conv_caps(in_types: int, in_dim: int, out_types: int, out_dim: int, kernel: int = 5, **options: Any) -> ConvCaps2d:
    """With the initial weight of the published results: values of votes are √2 times as large as those of children."""
    std = math.sqrt(2 / (in_dim * kernel**2))
    return ConvCaps2d(in_types, in_dim, out_types, out_dim, kernel, std=std, **options)


def _deconv_caps(in_types: int, in_dim: int, out_types: int, out_dim: int) -> DeconvCaps2d:
    """The same for a layer that doubles the size."""
    kernel, stride = 4, 2
    std = math.sqrt(2 / (in_dim * (kernel / stride) ** 2))
    return DeconvCaps2d(in_types, in_dim, out_types, out_dim, kernel, stride, std=std)


def _concat(*capsules: Capsules) -> Capsules:
    """Concatenate the types, those of the upward path first."""
    poses = [each.pose for each in capsules]
    if not poses[0].is_cuda:
        return Capsules(torch.cat(poses, dim=1))
    maps = torch.cat([pose.permute(0, 1, 3, 4, 2) for pose in poses], dim=1)  # the layout in memory, dimensions last
    return Capsules(maps.permute(0, 1, 4, 2, 3))
