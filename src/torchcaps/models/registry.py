"""Models by name, and the classes that a saved model may name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from torchcaps.errors import UserError, did_you_mean
from torchcaps.models.base import ImageModel
from torchcaps.plugins import load_installed
from torchcaps.registry import Registry

Registered = TypeVar("Registered", bound=Callable[..., ImageModel])

MODELS: Registry[Callable[..., ImageModel]] = Registry("model", "register_model")  # by the name of the function
# By the name that the config of a saved model has.
CLASSES: Registry[type[ImageModel]] = Registry("model", "register_model")


def register_model(function: Registered) -> Registered:
    """Register a function that builds a model, under its own name; use it as a decorator.

    `create_model` and `list_models` then know the name, and `load` knows the class that the function is annotated to
    return. A class may be registered instead of a function: `load` then knows it, `create_model` does not.

        @register_model
        def my_capsnet(image_shape=(1, 28, 28), num_classes=10, **options) -> MyCapsNet:
            return MyCapsNet(image_shape, num_classes, **options)

    Args:
        function: what `create_model` calls with the user's options, or a subclass of `ImageModel`.

    Returns:
        The same function or class.
    """
    name, built = function.__name__, _class_of(function)
    if built is None:
        raise UserError(
            f"register_model: annotate {name} with the class that it returns, a subclass of ImageModel defined at the "
            f"top of its module: def {name}(...) -> MyModel"
        )
    CLASSES.add(built.__name__, built, built)
    if not inspect.isclass(function):
        MODELS.add(name, function, function)
    return function


def create_model(name: str, **options: Any) -> ImageModel:
    """Create a new model by name: create_model("capsnet", image_shape=(1, 28, 28), num_classes=10).

    Args:
        name: one of `list_models()`.
        **options: arguments of the model's function in `torchcaps.models`.
    """
    make = MODELS[name]
    try:
        return make(**options)
    except TypeError as error:
        found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if found is None:
            raise
        option = found[1]
        owners = [each for each in sorted(MODELS) if accepts_option(each, option)]
        some = ", ".join(owners[:5]) + (", …" if len(owners) > 5 else "")
        known = f"{some} have it" if owners else did_you_mean(option, _options(name))
        raise UserError(f"model {name} has no option {option!r}: {known}; omit it, or choose another model") from error


def accepts_option(name: str, option: str) -> bool:
    """Whether the function of a model, or the class that it returns, has this argument; also by inheritance."""
    return option in _options(name)


def _options(name: str) -> set[str]:
    if name not in MODELS:
        return set()
    function = MODELS[name]
    built = _class_of(function)
    inherited = (
        () if built is None else (vars(each)["__init__"] for each in built.__mro__[:-1] if "__init__" in vars(each))
    )
    found: set[str] = set()
    for each in (function, *inherited):
        parameters = inspect.signature(each).parameters.values()
        found |= {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return found - {"self"}


def list_models() -> list[str]:
    """List the names that `create_model` knows, in alphabetical order."""
    load_installed()
    return sorted(MODELS)


def _class_of(function: Any) -> type[ImageModel] | None:
    """The class itself, or the one that a function is annotated to return."""
    built = function
    if not inspect.isclass(function):
        try:
            built = inspect.signature(function, eval_str=True).return_annotation
        except NameError:  # another annotation is for type checkers only
            built = function.__globals__.get(function.__annotations__.get("return"))
    return built if inspect.isclass(built) and issubclass(built, ImageModel) else None
