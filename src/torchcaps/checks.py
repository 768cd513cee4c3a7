"""Checks of arguments that operations, layers, losses and models share, so that each mistake has one sentence.

They look at types and shapes only: values on a GPU would have to be waited for.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import SymInt, Tensor

from torchcaps.errors import UserError


def check_tensor(name: str, **values: Any) -> None:
    """Raise a TypeError unless each is a tensor.

    Args:
        name: of the function or layer that was called.
        **values: by the name of the argument.
    """
    for label, x in values.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {label} must be a tensor, got {type(x).__name__}; use torch.as_tensor({label})")


def check_floats(name: str, **tensors: Any) -> None:
    """Raise a TypeError unless each is a tensor that does not hold integers or booleans.

    Args:
        name: of the function or layer that was called.
        **tensors: by the name of the argument; None passes.
    """
    for label, x in tensors.items():
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{name}: {label} must be a tensor, got {type(x).__name__}; use torch.as_tensor({label}).float()"
            )
        if not (x.is_floating_point() or x.is_complex()):
            raise TypeError(f"{name}: {label} must hold floating-point numbers, got {x.dtype}; use {label}.float()")


def check_whole(name: str, least: int = 1, **numbers: Any) -> None:
    """Raise a UserError unless each number is an integer of at least `least`.

    Args:
        name: of the function or layer that was called.
        least: the smallest that is allowed.
        **numbers: by the name of the argument. True is not a number; integers of NumPy are.
    """
    for label, value in numbers.items():
        if not _is_whole(value) or value < least:
            raise UserError(f"{name}: {label} must be a whole number, at least {least}, got {value!r}")


def check_positive(name: str, **numbers: Any) -> None:
    """Raise a UserError unless each is a finite number above zero.

    Args:
        name: of the function or layer that was called.
        **numbers: by the name of the argument.
    """
    for label, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise UserError(f"{name}: {label} must be a positive number, got {value!r}")


def _is_whole(value: Any) -> bool:
    if isinstance(value, (int, SymInt)):
        return not isinstance(value, bool)
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
