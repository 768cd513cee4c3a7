"""What `save` refuses because `load` could not build the same model again from it."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchcaps.errors import UserError
from torchcaps.io.tensors import Unreadable
from torchcaps.models.base import ImageModel
from torchcaps.models.meta_init import build_on_meta, check_arguments, check_tensors
from torchcaps.models.registry import CLASSES

SAVED_ATTRIBUTES = ("arguments", "class_names", "none_below", "task", "trained_by")  # config.json has them
COMPILED = "_orig_mod"  # where torch.compile keeps the module that it wraps


def unwrapped(model: Any) -> ImageModel:
    """The model itself, without the wrappers of torch.compile and of data parallelism."""
    model = getattr(model, COMPILED, model)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    if not isinstance(model, ImageModel):
        raise UserError(
            f"save: a {type(model).__name__} is not a torchcaps model, so load could not build it again: derive it "
            "from ImageModel and decorate it with @register_model, or save its state_dict with safetensors"
        )
    return model


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
    pairs = [(name, getattr(module, COMPILED, module)) for name, module in model.named_modules()]
    built = dict(fresh.named_modules())
    common = [(name, module, built[name]) for name, module in pairs if name in built]
    _check_classes(common)
    tensors = _resolved(model, fresh.state_dict())
    try:
        check_tensors(fresh.state_dict(), tensors)
    except Unreadable as error:
        raise UserError(f"save: this {kind.__name__} does not fit its own arguments: {error}") from error
    _check_attributes(common, model.arguments, _scheduled(fresh))
    return tensors


def _built_again(model: ImageModel, config: str) -> ImageModel:
    """The model on the meta device, as `load` builds it."""
    try:
        arguments = check_arguments(json.loads(config)["arguments"])
        return build_on_meta(type(model), arguments, len(model.state_dict()))
    except Exception as error:  # whatever a user's class raises
        raise UserError(
            f"save: a {type(model).__name__} cannot be built again from its arguments, which load would do: {error}"
        ) from error


def _check_classes(modules: list[tuple[str, nn.Module, nn.Module]]) -> None:
    """Refuse layers that were replaced by those of another class: (name, the module, the module as load builds it)."""
    for name, module, built in modules:
        now, before = (parametrize.type_before_parametrizations(each) for each in (module, built))
        if now is not before:
            raise UserError(
                f"save: {name} is a {now.__name__}, but load would build a {before.__name__}: register a class of your "
                "own that builds this model"
            )


def _check_attributes(
    modules: list[tuple[str, nn.Module, nn.Module]], arguments: dict[str, Any], scheduled: set[tuple[str, str]]
) -> None:
    """Refuse changed attributes: load would bring back the first values."""
    for name, module, built in modules:
        now, before = _attributes(module), _attributes(built)
        if not name:  # of the model itself: an argument that was set as if it were an attribute
            before = {key: _plain(value) for key, value in arguments.items()} | before
        for key in before.keys() & now.keys():
            if now[key] != before[key] and (name, key) not in scheduled:
                raise UserError(
                    f"save: {name or 'model'}.{key} was changed from {before[key]} to {now[key]} after the model was "
                    f"built, and load would not know: give {key} to the constructor, or set it after loading"
                )


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes that hold numbers, text or lists of them."""
    found = {name: _plain(value) for name, value in vars(module).items() if not name.startswith("_")}
    return {
        name: value
        for name, value in found.items()
        if value is not ... and name != "training" and name not in SAVED_ATTRIBUTES
    }


def _plain(value: Any) -> Any:
    """A value as JSON would give it back; ... for what is not plain."""
    if isinstance(value, (list, tuple)):
        values = [_plain(each) for each in value]
        return ... if any(each is ... for each in values) else values
    return value if value is None or isinstance(value, (bool, int, float, str)) else ...


def _scheduled(fresh: ImageModel) -> set[tuple[str, str]]:
    """The attributes that `anneal` sets, as (name of the module, name of the attribute)."""
    if type(fresh).anneal is ImageModel.anneal:
        return set()
    seen = []
    for progress in (0.0, 1.0):
        fresh.anneal(progress)
        modules = fresh.named_modules()
        seen.append({(name, key): value for name, each in modules for key, value in _attributes(each).items()})
    first, last = seen
    return {where for where in first if first[where] != last.get(where)}


def _resolved(model: ImageModel, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model; where names differ from the expected ones, what layers make of them in a forward pass."""
    tensors = {name.replace(f"{COMPILED}.", ""): tensor for name, tensor in model.state_dict().items()}
    modules = {name.replace(f"{COMPILED}.", ""): module for name, module in model.named_modules()}
    for name in expected.keys() - tensors.keys():
        path, _, last = name.rpartition(".")
        module = modules.get(path)
        if module is None:
            continue
        if parametrize.is_parametrized(module, last):
            parts = [each for each in tensors if each.startswith(f"{path}.parametrizations.{last}.")]
            tensors[name] = getattr(module, last).detach()
        elif {f"{name}_orig", f"{name}_mask"} <= tensors.keys():
            parts = [f"{name}_orig", f"{name}_mask"]
            tensors[name] = tensors[parts[0]] * tensors[parts[1]]
        else:
            continue
        for part in parts:
            del tensors[part]
    return tensors
