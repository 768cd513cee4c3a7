"""Data sets of a user's own, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from torchcaps.data.checks import check_images
from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.mask_sources import MASK_SOURCES, MaskOptions
from torchcaps.data.segmentation import split_segmentation
from torchcaps.data.sources import SOURCES, convert_splits
from torchcaps.data.split import SplitOptions, split_dataset
from torchcaps.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def register_data(function: Function) -> Function: ...
@overload
def register_data(*, name: str | None = None, masks: bool = False) -> Callable[[Function], Function]: ...
def register_data(function: Any = None, *, name: str | None = None, masks: bool = False) -> Any:
    """Register a data set, so that `load_data`, recipes (data.source) and `--data` find it; use it as a decorator.

        @register_data
        def noise():
            return Dataset(torch.rand(100, 1, 28, 28), torch.arange(100) % 10, tuple("0123456789"))

    Args:
        function: returns a `Dataset`, which the recipe's settings split, or `Splits` with parts of its own. A `path`
            that the user gives is passed on, if the function has such an argument.
        name: by default that of the function.
        masks: whether images have masks; the function then returns a `SegmentationDataset`, or `Splits` of them.

    Returns:
        The same function.
    """

    def register(function: Function) -> Function:
        called = name or function.__name__
        if called in (SOURCES if masks else MASK_SOURCES):
            raise UserError(f"register_data: there already is a data set called {called!r}; choose another name")
        if masks:
            MASK_SOURCES.add(called, lambda options: _with_masks(called, function, options), function)
        else:
            SOURCES.add(called, lambda *options: _with_classes(called, function, *options), function)
        return function

    return register if function is None else register(function)


def _with_classes(
    name: str,
    function: Callable[..., Any],
    path: Path | None,
    size: tuple[int, int] | None,
    channels: int | None,
    options: SplitOptions,
) -> Splits[Any]:
    parts = _made(name, function, path)
    if not isinstance(parts.train, Dataset):  # of another type: only its author knows how to change it
        return parts
    for part in (parts.train, parts.validation, parts.test):
        if isinstance(part, Dataset):
            check_images(part.images, f"the data set {name!r}")
    train, validation, test = split_dataset(parts.train, parts.validation, parts.test, options)
    return convert_splits(Splits(train, validation, test, name), size, channels)


def _with_masks(name: str, function: Callable[..., Any], options: MaskOptions) -> Splits[Any]:
    parts = _made(name, function, options.path)
    for setting, asked, own in (
        ("image_size", options.size, None),
        ("positive", options.positive, None),
        ("channels", options.channels, parts.train.channels),
        ("num_classes", options.num_classes, parts.train.num_classes),
    ):
        if asked not in (None, own):
            raise UserError(f"{setting}: the data set {name!r} makes its own images and masks; omit {setting}")
    if parts.validation is not None or parts.test is not None:
        return parts
    train, validation, test = split_segmentation(
        parts.train, options.validation, options.test, options.seed, options.limit
    )
    return Splits(train, validation, test, name)


def _made(name: str, function: Callable[..., Any], path: Path | None) -> Splits[Any]:
    takes_path = "path" in inspect.signature(function).parameters
    if path is not None and not takes_path:
        raise UserError(f"path: the data set {name!r} takes no path; omit it, or give its function an argument `path`")
    found = function(path=path) if path is not None else function()
    return found if isinstance(found, Splits) else Splits(found, None, None, name)
