"""Arrays in NumPy's own format, of numbers alone; `numpy.load` allocates what a header says before it looks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib import format as npy

from torchcaps.errors import UnreadableImage
from torchcaps.io.limits import read_up_to, size_in_bytes, size_of

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npy(path: Path) -> np.ndarray:
    """An image or a mask: two or three axes, none of them 0, of the machine's own order of bytes."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            shape, by_column, dtype = HEADERS[npy.read_magic(file)](file)
            if dtype.kind not in "buif" or len(shape) not in (2, 3) or min(shape) < 1:
                raise ValueError(f"{dtype} of shape {shape} is not two or three axes of numbers")
            expected = size_in_bytes(shape, dtype.itemsize)
            if expected != size - file.tell():
                raise ValueError(f"{expected} bytes are promised, {size - file.tell()} are there")
            order: Literal["F", "C"] = "F" if by_column else "C"
            array = np.ndarray(shape, dtype, buffer=read_up_to(file, expected), order=order)
    except Exception as error:
        # The header is Python's own syntax, and a damaged one ends in a KeyError, a TokenError, a RecursionError, ...
        raise UnreadableImage(path, f"not an array in NumPy's own format ({error})") from error
    return array.astype(dtype.newbyteorder("="), copy=False)
