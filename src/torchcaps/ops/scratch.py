"""Memory on a CPU that is kept from call to call.

The C library gives large blocks back to the system, and then each page of 4 KiB costs a fault when it is first written,
which takes longer than most sums over it. A thread keeps at most MOST blocks of KEPT elements; a page of them that was
never written takes no memory.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

LEAST = 2**14  # elements of the smallest array for which this pays
KEPT = 2**22  # of the largest
MOST = 4


class _Kept(threading.local):
    def __init__(self) -> None:
        self.blocks: list[Tensor] = []


_kept = _Kept()


class Scratch:
    """Makes arrays without values, whose memory is used again after the `with` block; nothing may refer to them then.

    Args:
        like: has the type and the device of the arrays.
    """

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.taken: list[Tensor] = []

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *error: object) -> None:
        if self.taken:
            _kept.blocks = [*self.taken, *_kept.blocks][:MOST]

    def take(self, *shape: int) -> Tensor:
        """An array of this shape, contiguous."""
        count = math.prod(shape)
        if not (LEAST <= count <= KEPT and self.like.is_cpu):
            return self.like.new_empty(shape)
        block = self._block()
        self.taken.append(block)
        return block[:count].view(shape)

    def _block(self) -> Tensor:
        for number, block in enumerate(_kept.blocks):
            if block.dtype == self.like.dtype:
                return _kept.blocks.pop(number)
        with torch.inference_mode(False):  # such a tensor could be written in that mode only
            return torch.empty(KEPT, dtype=self.like.dtype)
