"""What every routing returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Routed(NamedTuple):
    """The parents that a routing found.

    Attributes:
        poses: (B, J, D) dense, or (B, J, D, Y, X) maps.
        activation: (B, J) or (B, J, Y, X) how present each parent is; None for vector capsules, whose activation is
            the length of the pose.
        couplings: (B, I, J) or (B, I, J, Y, X) of the last iteration; None unless `return_couplings=True`.
    """

    poses: Tensor
    activation: Tensor | None = None
    couplings: Tensor | None = None
