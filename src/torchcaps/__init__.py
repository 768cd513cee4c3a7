"""Capsule networks for PyTorch at the speed of a CNN."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchcaps._version import __version__

if TYPE_CHECKING:
    from torchcaps import explain, layers, losses, models, ops, testing
    from torchcaps.capsules import Capsules
    from torchcaps.data import register_data
    from torchcaps.detection import detect
    from torchcaps.errors import UserError
    from torchcaps.estimator import CapsClassifier
    from torchcaps.layers import register_routing
    from torchcaps.models import create_model, list_models, load, register_model, save
    from torchcaps.train.fit import fit
    from torchcaps.train.loggers import register_callback
    from torchcaps.train.tasks import register_task

# Loaded when first used, so that `import torchcaps` costs little more than `import torch`.
_LAZY = {
    "CapsClassifier": "torchcaps.estimator",
    "Capsules": "torchcaps.capsules",
    "UserError": "torchcaps.errors",
    "create_model": "torchcaps.models",
    "detect": "torchcaps.detection",
    "list_models": "torchcaps.models",
    "load": "torchcaps.models",
    "save": "torchcaps.models",
    "register_data": "torchcaps.data",
    "register_model": "torchcaps.models",
    "register_routing": "torchcaps.layers",
    "register_task": "torchcaps.train.tasks",
    "register_callback": "torchcaps.train.loggers",
    "fit": "torchcaps.train.fit",
}
_LAZY_MODULES = ("explain", "layers", "losses", "models", "ops", "testing")

__all__ = [
    "CapsClassifier",
    "Capsules",
    "UserError",
    "__version__",
    "create_model",
    "detect",
    "explain",
    "fit",
    "layers",
    "list_models",
    "load",
    "losses",
    "models",
    "ops",
    "register_callback",
    "register_data",
    "register_model",
    "register_routing",
    "register_task",
    "save",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return _import(f"torchcaps.{name}", name)
    if name in _LAZY:
        return getattr(_import(_LAZY[name], name), name)
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def _import(module: str, name: str) -> ModuleType:
    """Import a module of this package; layers, losses and ops need PyTorch, NumPy and safetensors alone."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __name__:
            raise
        from torchcaps.errors import MissingPackage

        words = f"torchcaps.{name} needs the package {error.name}, which is not installed: pip install torchcaps"
        raise MissingPackage(words, error.name) from error


def __dir__() -> list[str]:
    return sorted(__all__)
