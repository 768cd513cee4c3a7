"""Optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType

from torchcaps.errors import UserError


def import_extra(extra: str, *names: str) -> list[ModuleType]:
    """Import the packages of an extra; if one is missing, a UserError names the command that installs it."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(
            f"this needs the package {error.name}, which is not installed: pip install 'torchcaps[{extra}]'"
        ) from error
