"""Callbacks by name, for the key `train.callbacks` of a recipe: loggers of experiments, and those of users."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from torchcaps.errors import UserError
from torchcaps.registry import Registry
from torchcaps.train.callbacks import Callback
from torchcaps.train.loggers.mlflow_logger import MLflowLogger
from torchcaps.train.loggers.wandb_logger import WandbLogger

__all__ = ["CALLBACKS", "MLflowLogger", "WandbLogger", "make_callbacks", "register_callback"]

Made = TypeVar("Made", bound=Callable[[], Callback])

CALLBACKS: Registry[Callable[[], Callback]] = Registry(
    "callback", "register_callback", {"mlflow": MLflowLogger, "wandb": WandbLogger}
)


@overload
def register_callback(callback: Made) -> Made: ...
@overload
def register_callback(*, name: str | None = None) -> Any: ...
def register_callback(callback: Any = None, *, name: str | None = None) -> Any:
    """Register a callback, so that recipes find it in `train.callbacks`; use it as a decorator.

        @register_callback
        class Beep(Callback):  # its name is "Beep"
            def on_finish(self, folder, summary):
                print("\\a")

    Args:
        callback: a subclass of `Callback`, or a function that returns one; it is called without arguments.
        name: by default that of the class or function.

    Returns:
        The same class or function.
    """

    def register(made: Made) -> Made:
        CALLBACKS.add(name or made.__name__, made, made)
        return made

    return register if callback is None else register(callback)


def make_callbacks(names: Iterable[str]) -> list[Callback]:
    """Make the callbacks of these names."""
    found = []
    for name in names:
        made: Any = CALLBACKS[name]()
        if not all(callable(getattr(made, each, None)) for each in vars(Callback) if not each.startswith("_")):
            raise UserError(f"train.callbacks: {name} makes a {type(made).__name__}: derive it from Callback")
        found.append(made)
    return found
