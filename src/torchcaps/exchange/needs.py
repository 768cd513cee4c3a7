"""Packages that only some commands need."""

from __future__ import annotations

import importlib
from types import ModuleType

from torchcaps.errors import UserError


def needed(extra: str, *names: str) -> list[ModuleType]:
    """The packages of these names; if one is missing, a UserError says what to install."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(
            f"this needs the package {error.name}, which is not installed: pip install 'torchcaps[{extra}]'"
        ) from error
