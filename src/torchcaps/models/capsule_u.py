"""The U of capsule layers that SegCaps (LaLonde & Bagci 2018) and CapsPix2Pix (Bass et al. 2019) are made of."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import ConvCaps2d, DeconvCaps2d
from torchcaps.ops.squash import at_least_float32, no_autocast

Routing = Literal["r1", "r3"]


class CapsuleU(nn.Module):
    """Three times to half the size, three times back, with what was seen at each size: a part of a model's own class.

    A model calls `make_u` once; its layers are then the model's own, so that their weights have the same names in all.
    """

    def make_u(self, inputs: int, outputs: int, dim: int, width: float, routing: Routing, below: int = 0) -> None:
        """Make the layers, whose weights are then the model's.

        inputs   channels of what the U is given
        outputs  capsule types of its last layer, of `dim` dimensions each
        width    of every layer, as a multiple of the papers' types; 1 for 1.4 million parameters at 16 dimensions
        routing  "r3": three iterations everywhere but in the first capsules; "r1": one where the size stays, three
                 where it changes
        below    capsule types of 2·dim dimensions that come from elsewhere into the lowest layer
        """
        if routing not in ("r1", "r3"):
            raise UserError(f"{type(self).__name__.lower()}: routing must be 'r1' or 'r3', got {routing!r}")
        two, four, eight = (max(1, round(types * width)) for types in (2, 4, 8))
        stay = 1 if routing == "r1" else 3  # iterations where the size stays
        self.conv = nn.Conv2d(inputs, dim, 5, padding=2)
        self.primary = ConvCaps2d(1, dim, two, dim, stride=2, iterations=1)
        self.at_half = ConvCaps2d(two, dim, four, dim, iterations=stay)
        self.to_quarter = ConvCaps2d(four, dim, four, 2 * dim, stride=2)
        self.at_quarter = ConvCaps2d(four, 2 * dim, eight, 2 * dim, iterations=stay)
        self.to_eighth = ConvCaps2d(eight, 2 * dim, eight, 4 * dim, stride=2)
        self.at_eighth = ConvCaps2d(eight, 4 * dim, eight, 2 * dim, iterations=stay)
        self.back_to_quarter = DeconvCaps2d(eight + below, 2 * dim, eight, 2 * dim)
        self.again_at_quarter = ConvCaps2d(2 * eight, 2 * dim, four, 2 * dim, iterations=stay)
        self.back_to_half = DeconvCaps2d(four, 2 * dim, four, dim)
        self.again_at_half = ConvCaps2d(2 * four, dim, four, dim, iterations=stay)
        self.back_to_full = DeconvCaps2d(four, dim, two, dim)
        self.classes = ConvCaps2d(two + 1, dim, outputs, dim, kernel=1, iterations=stay)

    @property
    def capsule_layers(self) -> list[tuple[str, ConvCaps2d | DeconvCaps2d]]:
        """By name, in their order."""
        kinds = (ConvCaps2d, DeconvCaps2d)
        return [(name, layer) for name, layer in self.named_children() if isinstance(layer, kinds)]

    def through_u(self, inputs: Tensor, below: Capsules | None = None) -> dict[str, Capsules]:
        """The capsules of every layer, by name, in their order.

        inputs  (B, channels, H, W), H and W multiples of 8
        below   pose (B, types, 2·dim, H/8, W/8), if the U was made for any
        """
        seen = Capsules(functional.relu(self.conv(inputs))[:, None])
        found = {"conv": seen}
        for name in ("primary", "at_half", "to_quarter", "at_quarter", "to_eighth", "at_eighth"):
            found[name] = seen = getattr(self, name)(seen)
        found["back_to_quarter"] = seen = self.back_to_quarter(seen if below is None else _beside(seen, below))
        found["again_at_quarter"] = seen = self.again_at_quarter(_beside(seen, found["at_quarter"]))
        found["back_to_half"] = seen = self.back_to_half(seen)
        found["again_at_half"] = seen = self.again_at_half(_beside(seen, found["at_half"]))
        found["back_to_full"] = seen = self.back_to_full(seen)
        # Lengths of poses that were rounded to half precision may exceed 1: the last layer is not left to autocast.
        last = _beside(seen, found["conv"]).pose
        with no_autocast(last):
            found["classes"] = self.classes(at_least_float32(last))
        return found


def _beside(*capsules: Capsules) -> Capsules:
    """The types of all of them; the upward path's first."""
    poses = [each.pose for each in capsules]
    if not poses[0].is_cuda:
        return Capsules(torch.cat(poses, dim=1))
    maps = torch.cat([pose.permute(0, 1, 3, 4, 2) for pose in poses], dim=1)  # as they lie there, dimensions last
    return Capsules(maps.permute(0, 1, 4, 2, 3))
