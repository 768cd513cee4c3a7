"""Which pixels a primary capsule sees."""

from __future__ import annotations

from typing import NamedTuple

from torchcaps.models import CapsuleModel


class ReceptiveField(NamedTuple):
    """Receptive fields of the primary capsules along one axis, in pixels.

    Attributes:
        start: first pixel of capsule 0; negative in the padding.
        stride: from one capsule to the next.
        field: size of each receptive field.
    """

    start: int
    stride: int
    field: int

    def pixels(self, position: int, side: int) -> tuple[int, int]:
        """Return the half-open range [start, stop) of a capsule's pixels, clipped to an image of this side."""
        first = self.start + position * self.stride
        return max(0, first), min(side, first + self.field)


def receptive_field(model: CapsuleModel, axis: int) -> ReceptiveField:
    """Compute the receptive fields along an axis: 0 for rows, 1 for columns."""
    start, stride, field = 0, 1, 1
    for conv in model.convolutions:
        start -= int(conv.padding[axis]) * stride
        field += (conv.kernel_size[axis] - 1) * stride
        stride *= conv.stride[axis]
    return ReceptiveField(start, stride, field)
