"""Plugins: modules of users that register models, routings, data sets or tasks when they are imported.

A plugin is the name of a module or the path of a .py file. It is given with `--plugin`, by the key `plugins` of a
recipe, or by an installed package as an entry point of the group `torchcaps.plugins`. Child processes inherit the names
in the environment variable TORCHCAPS_PLUGINS. Nothing else imports one: a model file only names those that it needs.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from torchcaps.errors import UserError

VARIABLE = "TORCHCAPS_PLUGINS"
GROUP = "torchcaps.plugins"
_files: dict[str, Path] = {}  # plugins that were imported from a file, by the name of their module
_installed: list[str] | None = None  # the plugins of installed packages, once they have been imported


def load_plugins(plugins: Iterable[str]) -> None:
    """Import plugins, each once in a process.

    Args:
        plugins: names of modules, or paths of .py files.
    """
    for plugin in plugins:
        _import_file(Path(plugin)) if is_file(plugin) else _import_module(plugin)


def load_installed() -> bool:
    """Import the plugins of installed packages, at the first call; whether there are any."""
    global _installed
    if _installed is None:
        _installed = []  # so that a plugin may ask for names while it is imported
        for entry in entry_points(group=GROUP):
            try:
                _import_module(entry.value.partition(":")[0])
                _installed.append(entry.name)
            except UserError as error:  # of a package that is perhaps not needed now
                warnings.warn(str(error), stacklevel=2)
    return bool(_installed)


def inherited() -> tuple[str, ...]:
    """The plugins that this process and its children were started with."""
    return tuple(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def inherit(plugins: Iterable[str]) -> tuple[str, ...]:
    """Add plugins to those that child processes import; returns all of them."""
    every = tuple(dict.fromkeys((*inherited(), *map(absolute, plugins))))
    if every:
        os.environ[VARIABLE] = os.pathsep.join(every)
    return every


def is_file(plugin: str) -> bool:
    """Whether this is the path of a file and not the name of a module."""
    return plugin.endswith(".py")


def absolute(plugin: str, folder: str | os.PathLike[str] = ".") -> str:
    """The plugin so that a process in another folder finds it.

    Args:
        plugin: the name of a module, which stays as it is, or a path.
        folder: that the path starts from.
    """
    return os.path.abspath(Path(folder, plugin)) if is_file(plugin) else plugin


def plugin_of(module: str) -> str | None:
    """The name by which a user gives a module as a plugin; of a file without its folder, which may be elsewhere now.

    None for what was typed into an interpreter or a notebook.
    """
    if module in _files:
        return _files[module].name
    if module != "__main__":
        return module
    script = getattr(sys.modules["__main__"], "__file__", None)
    return Path(script).name if script and is_file(script) else None


def _import_module(name: str) -> None:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that its files hide nothing
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(
                f"there is no plugin {name!r}: give a module that Python can import here, or the path of a .py file"
            ) from error
        raise _failed(name, error) from error
    except Exception as error:  # whatever a user's module raises
        raise _failed(name, error) from error


def _import_file(path: Path) -> None:
    path = path.resolve()
    if not path.is_file():
        raise UserError(f"there is no plugin {path}: check the path")
    if any(_is_from(module, path) for module in list(sys.modules.values())):
        return  # also the running script
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the file may import others beside it, as a script does
    name = path.stem
    if name in sys.modules or not _is_found_at(name, path):
        name += "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # of a .py file there always is one, with a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], _files[name] = module, path
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name], _files[name]
        raise _failed(str(path), error) from error


def _is_from(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.basename(file) == path.name and Path(file).resolve() == path


def _is_found_at(name: str, path: Path) -> bool:
    """Whether `import name` would import this file."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path


def _failed(plugin: str, error: Exception) -> UserError:
    return UserError(f"the plugin {plugin} cannot be imported: {type(error).__name__}: {error}")
