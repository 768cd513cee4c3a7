"""What users can add by name: models, routings, data sets and tasks. Each kind has one registry and one decorator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from torchcaps.errors import UserError, did_you_mean
from torchcaps.plugins import load_installed, plugin_of

Value = TypeVar("Value")
OWN = "torchcaps"  # the package itself


class _Home(NamedTuple):
    """Where a registered function or class was defined."""

    module: str
    file: str  # a script that is also imported as a plugin has two modules and one file
    name: str


_REGISTRIES: list[Registry[Any]] = []


def plugins_of(noun: str, names: Iterable[str]) -> set[str]:
    """The plugins that registered things of a kind under these names."""
    found = (each.plugin(name) for each in _REGISTRIES if each.noun == noun for name in names)
    return {plugin for plugin in found if plugin is not None}


class Registry(dict[str, Value]):
    """The things of one kind by name.

    Before a name counts as unknown, the plugins of installed packages are imported: they may register it.

    Args:
        noun: what messages call a thing of this kind.
        decorator: what messages call the function that users register with.
        known: what comes with the package.
    """

    def __init__(self, noun: str, decorator: str, known: Mapping[str, Value] | None = None):
        super().__init__(known or {})
        self.noun, self.decorator = noun, decorator
        self._homes = {name: _Home(OWN, "", name) for name in self}
        _REGISTRIES.append(self)

    def add(self, name: str, value: Value, source: Callable[..., Any]) -> None:
        """Register a value. Another one of the same name is refused, but a cell of a notebook may be run again.

        Args:
            name: by which recipes, arguments and commands refer to the value.
            value: what is registered.
            source: the user's function or class, which tells where the value comes from.
        """
        module = source.__module__
        home = _Home(module, getattr(sys.modules.get(module), "__file__", None) or module, source.__qualname__)
        known = self._homes.get(name, home) if dict.__contains__(self, name) else home
        if known[1:] != home[1:]:
            raise UserError(
                f"{self.decorator}: {known.module} already has a {self.noun} called {name!r}; choose another name"
            )
        self[name], self._homes[name] = value, home

    def plugin(self, name: str) -> str | None:
        """The plugin that registered a name; None if the package did, or nobody."""
        home = self._homes.get(name) if dict.__contains__(self, name) else None
        return None if home is None or home.module.partition(".")[0] == OWN else plugin_of(home.module)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (load_installed() and super().__contains__(name))

    def __missing__(self, name: str) -> Value:
        if name not in self:
            raise UserError(f"there is no {self.noun} called {name!r}: {did_you_mean(name, self)}")
        return self[name]
