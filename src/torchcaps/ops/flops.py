"""Formulas of our operators for PyTorch's FLOP counter, which counts matrix products and convolutions.

An operator counts as its reference does, whichever backend runs: so figures of different devices can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

COUNTER = "torch.utils.flop_counter"
_formulas: dict[str, Callable[..., int]] = {}


def add_formula(name: str, formula: Callable[..., int]) -> None:
    """Remember the formula of an operator until somebody counts.

    Args:
        name: of the operator, "torchcaps::…".
        formula: (*arguments, out_shape), with shapes in place of tensors.
    """
    _formulas[name] = formula


def register_formulas() -> None:
    """Give the formulas to PyTorch's counter, and to one that is counting already, if anybody has imported it.

    Importing it takes longer than the first training step.
    """
    counter: Any = sys.modules.get(COUNTER)
    if counter is None or torch.compiler.is_compiling():
        return
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    active = [getattr(mode, "counter", None) for mode in _get_current_dispatch_mode_stack()]
    registries = [each.flop_registry for each in active if isinstance(each, counter.FlopCounterMode)]
    for name, formula in _formulas.items():
        packet = getattr(torch.ops.torchcaps, name.partition("::")[2])
        if packet not in counter.flop_registry:
            counter.register_flop_formula(packet)(formula)
        for registry in registries:
            registry.setdefault(packet, counter.flop_registry[packet])
