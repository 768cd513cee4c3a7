"""A model as its file describes it, without its memory: compared with the weights before anything is allocated."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from torchcaps.io.tensors import Unreadable
from torchcaps.models.base import ImageModel

FILLING = {name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")} | {"div"}
MAX_ARGUMENT = 1 << 20  # number among the arguments of a model: pixels a side, channels, classes


def checked_arguments(arguments: Any) -> dict[str, Any]:
    """The same, if a model can have been made with numbers like these."""
    if not isinstance(arguments, dict):
        raise ValueError("its arguments are missing")
    for name, value in arguments.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, (int, float)) and not (math.isfinite(number) and abs(number) <= MAX_ARGUMENT):
                raise ValueError(f"{name} is {number}")
    return arguments


def planned(kind: type[ImageModel], arguments: dict[str, Any], weights: int) -> ImageModel:
    """The model on no device, where a tensor of any size costs nothing.

    weights  how many tensors there are for it: the description of another million layers is not followed
    """
    with torch.device("meta"), _Unfilled(), _at_most(2 * weights), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers without a channel, which will not fit
        return kind(**arguments)


def fitted(plan: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as the model has them, if they are those that it has, and numbers."""
    wanted = plan.state_dict()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise Unreadable(f"it has no {missing[0]}")
    if unknown := sorted(tensors.keys() - wanted.keys()):
        raise Unreadable(f"the model has no {unknown[0]}")
    for name, tensor in wanted.items():
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)} in the file and {tuple(tensor.shape)} in the model"
            raise Unreadable(f"size mismatch: {name} is {shapes}")
        if tensor.is_floating_point() and not tensors[name].float().isfinite().all():
            raise Unreadable(f"{name} is not all numbers, so the run that saved it had diverged")
    return {name: _as_saved(tensors[name], tensor.dtype) for name, tensor in wanted.items()}


def _as_saved(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Weights that were once shrunk to half precision have counts of batches that it cannot hold; nothing reads them.
    return tensor.float() if dtype.is_floating_point else tensor.double().nan_to_num(0, 0, 0).to(dtype)


class _Unfilled(TorchFunctionMode):
    """Weights are left without values: to draw some on no device, PyTorch would first load its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in FILLING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    here, made = threading.get_ident(), 0

    def counted(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal made
        made += threading.get_ident() == here
        if made > count:
            raise ValueError(f"it has more than {count} weights, twice as many as the file")

    handle = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()
