"""Check that an exported model gives the same output as the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.exchange.program import ExportWrapper

TOLERANCE = 1e-4
BATCHES = (1, 3, 8)
MIN_LENGTH = 0.05  # of a class capsule; below it, x and y are compared less strictly
MAX_SPREAD_DEGREES = 80.0  # below it the mean of the votes is longer than cos 80°, so that rounding hardly turns it
UNITS = {"angle": " radians", "spread": " radians", "x": " pixels", "y": " pixels", "thickness": " pixels"}
Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]  # runs an exported model on the inputs of the model


class Agreement(NamedTuple):
    """How an exported model compares with the model.

    Attributes:
        examples: number of inputs compared.
        difference: largest difference of an output value.
    """

    examples: int
    difference: float


def check(wrapper: ExportWrapper, run: Run) -> Agreement:
    """Compare several batch sizes and, where image sizes are free, another size.

    Args:
        wrapper: the model.
        run: the exported model.
    """
    difference, examples = 0.0, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch, scale in [(batch, 0) for batch in BATCHES] + ([(2, 1)] if wrapper.multiple else []):
            difference = max(difference, compare(wrapper, run, wrapper.example(batch, scale)))
            examples += batch
    return Agreement(examples, difference)


@torch.no_grad()
def compare(wrapper: ExportWrapper, run: Run, inputs: tuple[Tensor, ...]) -> float:
    """Return the largest difference; raise a UserError if it exceeds TOLERANCE or a predicted class differs.

    Args:
        wrapper: the model.
        run: the exported model.
        inputs: of the model.
    """
    expected = dict(zip(wrapper.outputs, wrapper(*inputs)))
    found = dict(zip(wrapper.outputs, run(inputs)))
    worst = 0.0
    for name, values in expected.items():
        if found[name].shape != values.shape:
            shapes = tuple(found[name].shape), tuple(values.shape)
            raise UserError(f"the exported model's {name} has shape {shapes[0]}, that of the model {shapes[1]}")
        if name == "masks":  # they follow from lengths
            continue
        gap = (found[name] - values).abs()
        if name in ("x", "y"):  # rounding changes the direction of short capsules more
            gap = gap * (expected["lengths"] / MIN_LENGTH).clamp(max=1)
        if name in ("angle", "spread"):
            gap = _angle_distance(gap) * (expected["spread"] < MAX_SPREAD_DEGREES)
        if name in ("reconstruction", "familiarity"):  # rounding may choose another class where two are equally likely
            decided = _is_certain(expected["lengths"]) & _angle_is_certain(expected)
            gap = gap * (decided if name == "reconstruction" else decided.flatten())
        largest = gap.max().item() if gap.numel() else 0.0
        if not largest <= TOLERANCE:  # also if it is NaN
            raise UserError(
                f"the exported model's {name} differs from the model's by up to {largest:.2g}{UNITS.get(name, '')}, "
                f"more than the {TOLERANCE:g} that rounding explains; nothing was written"
            )
        worst = max(worst, largest)
    if "lengths" in expected:
        _check_classes(expected, found)
    return worst


def _check_classes(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    masks = "masks" in expected
    own, exported = (each["masks"][:, None] if masks else each["lengths"].argmax(1) for each in (expected, found))
    decided = _is_certain(expected["lengths"])
    other = (own != exported) & (decided if masks else decided.flatten())
    if other.any():
        what = "pixels" if masks else "images"
        raise UserError(
            f"the exported model predicts another class in {int(other.sum())} of {other.numel()} {what}; "
            "nothing was written"
        )


def _angle_distance(degrees: Tensor) -> Tensor:
    """Convert differences of angles (...) from degrees to radians, the shorter way round: 359 is as near to 0 as 1."""
    degrees = degrees % 360
    return torch.minimum(degrees, 360 - degrees).deg2rad()


def _angle_is_certain(expected: dict[str, Tensor]) -> Tensor:
    """(B, 1, 1, 1), or (1) for all: whether the angle in which the longest class is drawn withstands rounding."""
    if "spread" not in expected:
        return torch.ones(1, dtype=torch.bool)
    drawn = expected["lengths"].argmax(1, keepdim=True)
    return (expected["spread"].gather(1, drawn) < MAX_SPREAD_DEGREES)[..., None, None]


def _is_certain(lengths: Tensor) -> Tensor:
    """Where one class is ahead of the next by more than the tolerance: (B, 1, H, W) or (B, 1, 1, 1)."""
    if lengths.ndim == 4 and lengths.shape[1] == 1:
        return (lengths - 0.5).abs() > TOLERANCE
    if lengths.shape[1] == 1:
        return torch.ones(len(lengths), 1, 1, 1, dtype=torch.bool)
    first, second = lengths.topk(2, dim=1).values.unbind(1)
    ahead = first - second > TOLERANCE
    return ahead[:, None] if lengths.ndim == 4 else ahead.view(-1, 1, 1, 1)
