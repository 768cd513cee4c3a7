"""What was changed in a model after it was built, and which a file of its tensors and arguments would not hold."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from torchcaps.errors import UserError
from torchcaps.models.base import ImageModel

SAVED_ATTRIBUTES = ("arguments", "class_names", "none_below", "task", "trained_by")  # config.json has them
COMPILED = "_orig_mod"  # where torch.compile keeps the module that it wraps
RESOLVED_HOOKS = (prune.BasePruningMethod, SpectralNorm, WeightNorm)  # they compute a weight, which is saved

Modules = Mapping[str, nn.Module]


def check_layers(model: ImageModel, fresh: ImageModel) -> None:
    """Raise a UserError if layers were replaced, removed or added after a model was built, or do something else.

    Args:
        model: to be saved.
        fresh: of the same class and arguments, on the meta device.
    """
    for name, module, built in _pairs(model, fresh):
        _check_class(name, module, built)
    _check_modules(modules_of(model), dict(fresh.named_modules()))
    for name, module, built in _pairs(model, fresh):
        _check_behaviour(name or "model", module, built)


def check_values(model: ImageModel, fresh: ImageModel) -> None:
    """Raise a UserError if attributes, or tensors that are not saved, were changed after a model was built.

    Args:
        model: to be saved.
        fresh: as of `check_layers`; is changed.
    """
    pairs = _pairs(model, fresh)
    _check_constants(pairs, model, fresh)
    _check_attributes(pairs, model.arguments, _scheduled(fresh))


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model by their names without torch.compile."""
    named = model.named_modules()
    return {plain_name(name): getattr(module, COMPILED, module) for name, module in named}


def plain_name(name: str) -> str:
    """The name of a module or tensor as if nothing had been compiled."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def _pairs(model: ImageModel, fresh: ImageModel) -> list[tuple[str, nn.Module, nn.Module]]:
    """Name, module, and the module of that name that load would build."""
    built = dict(fresh.named_modules())
    return [(name, module, built[name]) for name, module in modules_of(model).items() if name in built]


def _check_class(name: str, module: nn.Module, built: nn.Module) -> None:
    """Refuse a layer that was replaced by one of another class."""
    now, before = (parametrize.type_before_parametrizations(each) for each in (module, built))
    if now is not before:
        same = now.__name__ == before.__name__
        words = [f"{each.__module__}.{each.__qualname__}" if same else each.__name__ for each in (now, before)]
        raise UserError(
            f"save: {name or 'model'} is a {words[0]}, but load would build a {words[1]}: register a class of your own "
            "that builds this model"
        )


def _check_modules(modules: Modules, built: Modules) -> None:
    """Refuse layers that were removed, or added with tensors."""
    own = {name for name, module in modules.items() if module.state_dict() and "parametrizations" not in name}
    for names, words in (
        (
            built.keys() - modules.keys(),
            "was removed, but load would build it again: give the constructor arguments with which it does not",
        ),
        (own - built.keys(), "was added, but load would not build it: register a class of your own that does"),
    ):
        if names:
            raise UserError(f"save: {min(names, key=len)} {words}")


def _check_behaviour(name: str, module: nn.Module, built: nn.Module) -> None:
    """Refuse what is Python and not a tensor: hooks of the forward pass, and methods that were replaced."""
    for kind, word in (("_forward_pre_hooks", "pre-hook"), ("_forward_hooks", "hook")):
        hooks = [hook for hook in getattr(module, kind).values() if not isinstance(hook, RESOLVED_HOOKS)]
        if len(hooks) > len(getattr(built, kind)):
            called = getattr(hooks[-1], "__qualname__", hooks[-1])
            raise UserError(
                f"save: {name} has a forward {word} ({called}), which load would not know: remove it "
                "before saving (handle.remove()), or register it in the constructor"
            )
    for key, value in vars(module).items():
        if callable(value) and key not in vars(built) and callable(getattr(type(module), key, None)):
            raise UserError(
                f"save: {name}.{key} was replaced after the model was built, and load would not know: register a class "
                f"of your own that defines {key}"
            )


def _check_constants(modules: list[tuple[str, nn.Module, nn.Module]], model: ImageModel, fresh: ImageModel) -> None:
    """Refuse changed tensors that are not saved: buffers with persistent=False, and plain attributes."""
    if any(value is not None and value.is_meta for _, _, built in modules for value in _constants(built).values()):
        fresh = _with_values(model)
    built = dict(fresh.named_modules())
    for name, module, _ in modules:
        now, before = _constants(module), _constants(built[name])
        for key in sorted(before.keys() & now.keys()):
            if not _same(now[key], before[key]):
                value = before[key]
                way = "set it after loading" if name else f"give {key} to the constructor"
                raise UserError(
                    f"save: {name or 'model'}.{key} was changed after the model was built, or is drawn anew each time, "
                    f"and load would bring back {None if value is None else value.flatten()[:4].tolist()}: {way}, or "
                    "let register_buffer with persistent=True save it"
                )


def _constants(module: nn.Module) -> dict[str, Tensor | None]:
    """The tensors of a module itself that its state_dict does not hold."""
    names = module._non_persistent_buffers_set
    plain = {name: value for name, value in vars(module).items() if isinstance(value, Tensor) and name[0] != "_"}
    return {name: value for name, value in module._buffers.items() if name in names} | plain


def _with_values(model: ImageModel) -> ImageModel:
    """The model as `load` would build it, with all tensors."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return type(model)(**model.arguments)


def _same(now: Tensor | None, before: Tensor | None) -> bool:
    if now is None or before is None:
        return now is before
    if now.shape != before.shape:
        return False
    one, two = (each.detach().to(now.dtype).to("cpu", torch.float64) for each in (now, before))  # also after .half()
    return torch.allclose(one, two, rtol=1e-5, atol=1e-7, equal_nan=True)


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
