"""A reader of .npy files with numbers; `numpy.load` would allocate whatever size an untrusted header gives."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib import format as npy

from torchcaps.errors import UnreadableImage
from torchcaps.io.limits import read_up_to, size_in_bytes, size_of

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npy(path: Path) -> np.ndarray:
    """Read an image or a mask: two or three axes, none of size 0, in native byte order."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            shape, by_column, dtype = HEADERS[npy.read_magic(file)](file)
            if dtype.kind not in "buif" or len(shape) not in (2, 3) or min(shape) < 1:
                raise ValueError(f"{dtype} of shape {shape} is not two or three axes of numbers")
            expected = size_in_bytes(shape, dtype.itemsize)
            if expected != size - file.tell():
                raise ValueError(f"the header gives {expected} bytes, the file has {size - file.tell()}")
            order: Literal["F", "C"] = "F" if by_column else "C"
            array = np.ndarray(shape, dtype, buffer=read_up_to(file, expected), order=order)
    except Exception as error:
        # The header is a Python literal, and a damaged one raises a KeyError, a TokenError, a RecursionError, ...
        raise UnreadableImage(path, f"not an array in NumPy's .npy format ({error})") from error
    return array.astype(dtype.newbyteorder("="), copy=False)
