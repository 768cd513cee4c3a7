"""Checks of arguments that operations, layers, losses and models share, so that each mistake has one sentence.

They look at types and shapes only: values on a GPU would have to be waited for.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
