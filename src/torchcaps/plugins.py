"""Plugins: modules of users that register models, routings, data sets or tasks when they are imported.

A plugin is the name of a module or the path of a .py file. It is given with `--plugin`, by the key `plugins` of a
recipe, or by an installed package as an entry point of the group `torchcaps.plugins`. Child processes inherit them in
the environment variable TORCHCAPS_PLUGINS. Nothing else imports one: a model file only names those that it needs.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from torchcaps.errors import UserError

VARIABLE = "TORCHCAPS_PLUGINS"
GROUP = "torchcaps.plugins"
INIT = "__init__.py"
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
        plugin: the name of a module, or a path. The name of a module that is found through the current folder alone
            becomes its path; that of an installed one stays as it is.
        folder: that a path starts from.
    """
    if is_file(plugin):
        return os.path.abspath(Path(folder, plugin))
    found = _file_here(plugin)
    return plugin if found is None else str(found)


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
    if name := _name_in_package(path):
        _import_module(name)  # the file may import others of its package by relative names
        return
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


def _name_in_package(path: Path) -> str | None:
    """The name by which a file in a package is imported, with the folder of the package in the search path."""
    parts = [] if path.name == INIT else [path.stem]
    folder = path.parent
    while (folder / INIT).is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == path.parent or not all(part.isidentifier() for part in parts):
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return ".".join(parts) if _is_found_at(parts[0], folder / parts[0] / INIT) else None


def _file_here(name: str) -> Path | None:
    """The file of a module that Python finds through the current folder, and nowhere else."""
    here = Path.cwd()
    parts = name.split(".")
    files = (here.joinpath(*parts[:-1], f"{parts[-1]}.py"), here.joinpath(*parts, INIT))
    file = next((each for each in files if each.is_file()), None)
    packages = [here.joinpath(*parts[: depth + 1], INIT) for depth in range(len(parts) - 1)]
    if file is None or not all(each.is_file() for each in packages):
        return None  # a folder without __init__.py is no package, and from a path its relative imports would fail
    elsewhere = [folder for folder in sys.path if Path(folder).resolve() != here.resolve()]
    for finder in sys.meta_path:  # also that of packages that are installed in place
        with suppress(ImportError, AttributeError, ValueError):
            if finder.find_spec(parts[0], elsewhere) is not None:
                return None
    return file


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
