"""What `save` writes: the tensors of a model, if `load` could build the same model again from them."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from torchcaps.errors import UserError
from torchcaps.io.tensors import Unreadable
from torchcaps.models.base import ImageModel
from torchcaps.models.meta_init import build_on_meta, check_arguments, check_tensors
from torchcaps.models.registry import CLASSES
from torchcaps.models.unchanged import COMPILED, check_layers, check_values, modules_of, plain_name

MAX_PARAMETERS = 1 << 20  # of a model that is built again to be compared


def unwrapped(model: Any) -> ImageModel:
    """The model itself, without the wrappers of torch.compile and of data parallelism."""
    while (inner := _inner(model)) is not None:
        model = inner
    if not isinstance(model, ImageModel):
        raise UserError(
            f"save: a {type(model).__name__} is not a torchcaps model, so load could not build it again: derive it "
            "from ImageModel and decorate it with @register_model, or save its state_dict with safetensors"
        )
    return model


def _inner(model: Any) -> Any:
    """What a wrapper wraps; None if this is none."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return model.module
    if isinstance(model, nn.Module):
        return getattr(model, COMPILED, None)
    # torch.compile makes a function of the call of what it has compiled before.
    return getattr(getattr(model, "_torchdynamo_orig_callable", None), "__self__", None)


def savable_tensors(model: ImageModel, config: str) -> dict[str, Tensor]:
    """The tensors of a model by the names that `load` expects; parametrisations and pruning are resolved.

    Args:
        model: is not changed.
        config: the text of config.json.
    """
    kind = type(model)
    known = dict.get(CLASSES, kind.__name__)
    if known is None or (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise UserError(
            f"save: the class {kind.__name__} is not registered, so load would not know it: decorate it, or a function "
            "that returns it, with @register_model"
        )
    fresh = _built_again(model, config)
    check_layers(model, fresh)
    tensors = _resolved(model, fresh.state_dict())
    try:
        check_tensors(fresh.state_dict(), tensors)
    except Unreadable as error:
        raise UserError(f"save: this {kind.__name__} does not fit its own arguments: {error}") from error
    check_values(model, fresh)
    return tensors


def _built_again(model: ImageModel, config: str) -> ImageModel:
    """The model on the meta device, as `load` builds it."""
    try:
        arguments = check_arguments(json.loads(config)["arguments"])
        return build_on_meta(type(model), arguments, MAX_PARAMETERS)
    except Exception as error:  # whatever a user's class raises
        raise UserError(
            f"save: a {type(model).__name__} cannot be built again from its arguments, which load would do: {error}"
        ) from error


def _resolved(model: ImageModel, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model; where names differ from the expected ones, what layers make of them in a forward pass."""
    tensors = {plain_name(name): tensor for name, tensor in model.state_dict().items()}
    modules = modules_of(model)
    for name in expected.keys() - tensors.keys():
        path, _, last = name.rpartition(".")
        module = modules.get(path)
        if module is None:
            continue
        hooks: list[Any] = list(module._forward_pre_hooks.values())
        norm = next((each for each in hooks if _normalises(each, last)), None)
        if parametrize.is_parametrized(module, last):
            parts = [each for each in tensors if each.startswith(f"{path}.parametrizations.{last}.")]
            tensors[name] = getattr(module, last).detach()
        elif norm is not None:
            parts = [f"{name}_{end}" for end in ("g", "v", "orig", "u") if f"{name}_{end}" in tensors]
            with torch.no_grad():
                tensors[name] = norm.compute_weight(module, *([False] if isinstance(norm, SpectralNorm) else []))
        elif {f"{name}_orig", f"{name}_mask"} <= tensors.keys():
            parts = [f"{name}_orig", f"{name}_mask"]
            tensors[name] = tensors[parts[0]] * tensors[parts[1]]
        else:
            continue
        for part in parts:
            del tensors[part]
    return tensors


def _normalises(hook: Any, name: str) -> bool:
    """Whether a hook is that of torch.nn.utils.weight_norm or spectral_norm for the weight of this name."""
    return isinstance(hook, (SpectralNorm, WeightNorm)) and hook.name == name
