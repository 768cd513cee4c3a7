"""The public names and their signatures, as tests/api.txt has them; a user's code depends on each line of it.

After a change that is meant: python tests/test_api.py, and a line in CHANGELOG.md for what was removed or renamed.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("api.txt")
MODULES = ("torchcaps", "torchcaps.layers", "torchcaps.ops", "torchcaps.models", "torchcaps.data")
MODULES += (
    "torchcaps.train.fit",
    "torchcaps.train.recipe",
    "torchcaps.train.ray",
    "torchcaps.train.run",
    "torchcaps.train.tasks",
    "torchcaps.train.callbacks",
    "torchcaps.train.loggers",
    "torchcaps.train.auto",
    "torchcaps.testing",
    "torchcaps.losses",
    "torchcaps.similarity",
)


def public_api() -> str:
    lines: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        own = [each for each, value in vars(module).items() if getattr(value, "__module__", None) == name]
        for each in sorted(getattr(module, "__all__", own)):
            if not each.startswith("_"):
                lines += _described(f"{name}.{each}", getattr(module, each))
    return "\n".join(lines) + "\n"


def _described(name: str, value: object) -> list[str]:
    if inspect.isclass(value):
        own = {each: found for each, found in vars(value).items() if not each.startswith("_")}
        methods = {each: found for each, found in own.items() if inspect.isfunction(found)}
        if issubclass(value, BaseException):
            return [f"{name}: exception"]
        heads = [f"{name}{_signature(value)}"]
        heads += [f"{name}.{each}{_signature(found)}" for each, found in sorted(methods.items())]
        return heads + [
            f"{name}.{each}: property" for each, found in sorted(own.items()) if isinstance(found, property)
        ]
    if inspect.ismodule(value):
        return [f"{name}: module"]
    return [f"{name}{_signature(value)}" if callable(value) else f"{name}: {type(value).__name__}"]


def _signature(value: object) -> str:
    """Names, kinds and defaults; annotations are for the type checker, and are written differently by each Python."""
    signature = inspect.signature(value)  # type: ignore[arg-type]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", shown)  # of a default that is a function


def test_the_public_names_and_signatures_are_those_that_were_promised():
    promised, found = SNAPSHOT.read_text(encoding="utf-8"), public_api()
    difference = difflib.unified_diff(promised.splitlines(), found.splitlines(), "promised", "found", n=0, lineterm="")
    assert found == promised, (
        "the public API has changed. If it is meant, run `python tests/test_api.py` and say in CHANGELOG.md what was "
        "removed or renamed:\n" + "\n".join(difference)
    )


if __name__ == "__main__":
    SNAPSHOT.write_text(public_api(), encoding="utf-8")
