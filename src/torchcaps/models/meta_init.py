"""Build a model on the meta device, and check the saved tensors against it before memory is allocated."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from torchcaps.io.tensors import Unreadable
from torchcaps.models.base import ImageModel

INIT_FUNCTIONS = {name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")} | {"div"}
MAX_ARGUMENT_VALUE = 1 << 20  # of a model's numeric arguments: pixels per side, channels, classes

Model = TypeVar("Model", bound=ImageModel)


def check_arguments(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a saved model; raise a ValueError if a number is not finite or too large."""
    if not isinstance(arguments, dict):
        raise ValueError("its arguments are missing")
    for name, value in arguments.items():
        for number in _leaves(value):
            if isinstance(number, (int, float)) and not (math.isfinite(number) and abs(number) <= MAX_ARGUMENT_VALUE):
                raise ValueError(f"{name} is {number}")
    return arguments


def _leaves(value: Any) -> Iterator[Any]:
    """The values in lists and dicts, however deep."""
    if isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value


def build_on_meta(kind: type[Model], arguments: dict[str, Any], saved_tensors: int) -> Model:
    """Build a model on the meta device, where tensors take no memory.

    Args:
        kind: the class of the model.
        arguments: of its constructor.
        saved_tensors: the number of tensors in the file. Building stops at twice as many parameters, so that a file
            cannot ask for millions of layers.
    """
    with torch.device("meta"), _SkipInit(), _limit_parameters(2 * saved_tensors), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about layers without channels, which will not match
        return kind(**arguments)


def match_tensors(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Check names, shapes and values of saved tensors against a model.

    Returns:
        Copies of the tensors in the model's types: floating-point tensors in float32.
    """
    expected = model.state_dict()
    check_tensors(expected, tensors)
    return {name: _convert(tensors[name], tensor.dtype) for name, tensor in expected.items()}


def check_tensors(expected: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Raise Unreadable unless names and shapes are the expected ones, and all values finite."""
    if missing := sorted(expected.keys() - tensors.keys()):
        raise Unreadable(f"the file has no tensor {missing[0]}")
    if unknown := sorted(tensors.keys() - expected.keys()):
        raise Unreadable(f"the model has no tensor {unknown[0]}")
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)} in the file and {tuple(tensor.shape)} in the model"
            raise Unreadable(f"size mismatch: {name} is {shapes}")
        if tensor.is_floating_point() and not tensors[name].float().isfinite().all():
            raise Unreadable(f"{name} has values that are NaN or infinite, so the run that saved it had diverged")


def fill(model: Model, tensors: dict[str, Tensor]) -> Model:
    """Give a model on the meta device its tensors, as `match_tensors` returns them.

    A model whose class has buffers that are neither saved nor made on `constant_device()` is built a second time.
    """
    model.load_state_dict(tensors, assign=True)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        model = type(model)(**model.arguments)
        model.load_state_dict(tensors)
    return model


def _convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    # Batch counts that were saved in half precision may be infinite; nothing reads them.
    return tensor.double().nan_to_num(0, 0, 0).to(dtype)


class _SkipInit(TorchFunctionMode):
    """Skip the initialisation of weights: random numbers on the meta device would make PyTorch import its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in INIT_FUNCTIONS:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@contextmanager
def _limit_parameters(count: int) -> Iterator[None]:
    """Raise a ValueError when modules that this thread builds register more than `count` parameters."""
    thread, registered = threading.get_ident(), 0

    def hook(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal registered
        registered += threading.get_ident() == thread
        if registered > count:
            raise ValueError(f"it has more than {count} parameters, twice as many as the file has tensors")

    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()
