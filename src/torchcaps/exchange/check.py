"""Whether an exported model answers as the model does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.exchange.program import Answers

TOLERANCE = 1e-4
BATCHES = (1, 3, 8)
SHORT = 0.05  # length below which a class capsule has a less certain place
UNDECIDED = 80.0  # degrees of spread; below it the votes' mean is longer than cos 80°, so its angle withstands rounding
UNITS = {"angle": " radians", "spread": " radians", "x": " pixels", "y": " pixels", "thickness": " pixels"}
Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]  # an exported model, on the inputs of the model


class Agreement(NamedTuple):
    """How an exported model compares with the model: over how many examples, and by how much numbers differ at most."""

    examples: int
    difference: float


def check(answers: Answers, run: Run) -> Agreement:
    """Compare on several batch sizes and, where sizes are free, on another size; what differs is a UserError."""
    difference, examples = 0.0, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch, scale in [(batch, 0) for batch in BATCHES] + ([(2, 1)] if answers.multiple else []):
            difference = max(difference, compare(answers, run, answers.example(batch, scale)))
            examples += batch
    return Agreement(examples, difference)


@torch.no_grad()
def compare(answers: Answers, run: Run, inputs: tuple[Tensor, ...]) -> float:
    """The largest difference in these inputs; more than TOLERANCE, or another class, is a UserError."""
    expected = dict(zip(answers.outputs, answers(*inputs)))
    found = dict(zip(answers.outputs, run(inputs)))
    worst = 0.0
    for name, values in expected.items():
        if found[name].shape != values.shape:
            shapes = tuple(found[name].shape), tuple(values.shape)
            raise UserError(f"the exported model's {name} are {shapes[0]}, those of the model {shapes[1]}")
        if name == "masks":  # follow from lengths
            continue
        gap = (found[name] - values).abs()
        if name in ("x", "y"):  # the shorter a capsule, the more of its direction is rounding
            gap = gap * (expected["lengths"] / SHORT).clamp(max=1)
        if name in ("angle", "spread"):
            gap = _turn(gap) * (expected["spread"] < UNDECIDED)
        if name in ("reconstruction", "familiarity"):  # of another class where two are equally likely but for rounding
            decided = _decided(expected["lengths"]) & _upright(expected)
            gap = gap * (decided if name == "reconstruction" else decided.flatten())
        largest = gap.max().item() if gap.numel() else 0.0
        if not largest <= TOLERANCE:  # NaN, too
            raise UserError(
                f"the exported model's {name} differ from those of the model by up to {largest:.2g}"
                f"{UNITS.get(name, '')}, more than the {TOLERANCE:g} that rounding explains; nothing was written"
            )
        worst = max(worst, largest)
    if "lengths" in expected:
        _same_class(expected, found)
    return worst


def _same_class(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    masks = "masks" in expected
    ours, theirs = (each["masks"][:, None] if masks else each["lengths"].argmax(1) for each in (expected, found))
    decided = _decided(expected["lengths"])
    other = (ours != theirs) & (decided if masks else decided.flatten())
    if other.any():
        what = "pixels" if masks else "images"
        raise UserError(
            f"the exported model finds another class than the model in {int(other.sum())} of {other.numel()} {what}; "
            "nothing was written"
        )


def _turn(degrees: Tensor) -> Tensor:
    """Differences (...) in degrees as the shorter way round, in radians: 359 is as near to 0 as 1 is."""
    degrees = degrees % 360
    return torch.minimum(degrees, 360 - degrees).deg2rad()


def _upright(expected: dict[str, Tensor]) -> Tensor:
    """(B, 1, 1, 1), or (1) for all: whether the angle is decided by which the longest class is drawn."""
    if "spread" not in expected:
        return torch.ones(1, dtype=torch.bool)
    drawn = expected["lengths"].argmax(1, keepdim=True)
    return (expected["spread"].gather(1, drawn) < UNDECIDED)[..., None, None]


def _decided(lengths: Tensor) -> Tensor:
    """(B, 1, H, W), (B, 1, 1, 1) of classes: where one class is ahead of the next by more than the tolerance."""
    if lengths.ndim == 4 and lengths.shape[1] == 1:
        return (lengths - 0.5).abs() > TOLERANCE
    if lengths.shape[1] == 1:
        return torch.ones(len(lengths), 1, 1, 1, dtype=torch.bool)
    first, second = lengths.topk(2, dim=1).values.unbind(1)
    ahead = first - second > TOLERANCE
    return ahead[:, None] if lengths.ndim == 4 else ahead.view(-1, 1, 1, 1)
