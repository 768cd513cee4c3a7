"""Networks with a given number of parameters, so that they can be compared with another network of that size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from torchcaps.errors import UserError
from torchcaps.models.base import ImageModel

TOLERANCE = 0.01  # relative to the requested number of parameters

Start = TypeVar("Start")
Model = TypeVar("Model", bound=ImageModel)


def fit(
    parameters: int, build: Callable[[Start, int], Model], starts: Iterable[Start], least: Callable[[Start], int]
) -> Model | None:
    """Build a network with a given number of parameters, within 1 %.

    Args:
        parameters: the number to meet.
        build: makes a network from a start and a number of channels; the more channels, the more parameters.
        starts: what to try, in order of preference.
        least: the smallest number of channels to try with a start.

    Returns:
        The network of the first start that meets the number, with the channels that meet it best; None if none does.
    """
    for start in starts:

        def count(channels: int, start: Start = start) -> int:
            return count_parameters(lambda: build(start, channels))

        low = largest(lambda channels: count(channels) <= parameters, least(start))
        error, _, channels = min(
            (abs(count(channels) - parameters), (channels - least(start)) % 2, channels) for channels in (low, low + 1)
        )
        if error <= TOLERANCE * parameters:
            return build(start, channels)
    return None


def count_parameters(build: Callable[[], ImageModel]) -> int:
    """Count the parameters of a network without allocating them."""
    with torch.device("meta"):
        return build().parameter_count()


def largest(holds: Callable[[int], bool], least: int = 1) -> int:
    """Find the largest number for which a monotonic condition holds; `least` if it never holds."""
    low = least
    while holds(low * 2):
        low *= 2
    high = low * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def check_not_given(name: str, options: Mapping[str, Any], *decided: str) -> None:
    """Raise a UserError if options are given that follow from the number of parameters."""
    if given := [each for each in decided if each in options]:
        raise UserError(f"{name}: parameters decides {', '.join(given)}; omit one or the other")


def size_error(name: str, parameters: int, image_shape: Sequence[int]) -> UserError:
    """The error for a number of parameters that no network meets."""
    shape = tuple(image_shape)
    return UserError(
        f"{name}: no network of {parameters:,} parameters exists for images of {shape}; give a larger number"
    )
