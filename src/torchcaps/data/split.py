"""Stratified splits that depend on the data and a seed alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from torchcaps.data.dataset import count_classes
from torchcaps.errors import UserError

# The test images do not depend on the seed of the split: a user who tries several seeds must never train on the test
# images of an earlier run.
TEST_SEED = 20171026


class Splittable(Protocol):
    """The interface of what can be split: decoded images or lists of files."""

    @property
    def targets(self) -> Tensor: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    def subset(self: T, indices: Tensor) -> T: ...


T = TypeVar("T", bound=Splittable)


@dataclass(frozen=True)
class SplitOptions:
    """How to split a data set.

    Args:
        validation: images to hold out: a fraction below 1, or a number; 0 for none.
        test: the same for testing.
        seed: of the validation images and of the training images kept; the test images do not depend on it.
        limit: the most training images to keep.
        per_class: the number of training images to keep of each class; not together with limit.
    """

    validation: float = 0.1
    test: float = 0.2
    seed: int = 0
    limit: int | None = None
    per_class: int | None = None

    def __post_init__(self) -> None:
        for name, amount in (("validation", self.validation), ("test", self.test)):
            whole_or_fraction = 0 <= amount < 1 or (math.isfinite(amount) and amount >= 1 and amount == int(amount))
            if not whole_or_fraction:
                raise UserError(
                    f"{name}={amount}: give a fraction from 0 up to (not including) 1, or a whole number of images"
                )
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit={self.limit}: give the number of training images to keep, at least 1")
        if self.per_class is not None and (self.per_class < 1 or self.limit is not None):
            raise UserError(f"per_class={self.per_class}: give at least 1, and omit limit")


def split_dataset(
    train: T, validation: T | None, test: T | None, options: SplitOptions
) -> tuple[T, T | None, T | None]:
    """Hold out the parts that are None from the training data, then apply `limit` or `per_class` to the rest.

    Returns:
        Training, validation and test data; None for a part of size 0.
    """
    if not len(train.targets):
        raise UserError("there are no training images in this data set")
    take_test = test is None and options.test > 0
    take_validation = validation is None and options.validation > 0
    _check_class_sizes(train, 1 + take_test + take_validation)
    if take_test:
        train, test = _hold_out(train, options.test, TEST_SEED, "test")
    if take_validation:
        train, validation = _hold_out(train, options.validation, options.seed, "validation")
    if options.per_class is not None:
        train = train.subset(_draw(train, _equal_counts(train, options.per_class), options.seed)[0])
    if options.limit is not None and options.limit < len(train.targets):
        sizes = strata(train.targets, len(train.class_names)).bincount().tolist()
        least = int(options.limit >= sum(n > 0 for n in sizes))
        train = train.subset(_draw(train, allocate(sizes, options.limit, sizes, least), options.seed)[0])
    return train, validation, test


def strata(targets: Tensor, num_classes: int) -> Tensor:
    """Return the stratum of each image: its class, or the rarest of its labels.

    Args:
        targets: (N,) or (N, J).
        num_classes: J.

    Returns:
        (N,) in 0..J; J is the stratum of images without a label.
    """
    if targets.ndim == 1:
        return targets
    rarity = count_classes(targets, num_classes).float().expand_as(targets)
    rarest = torch.where(targets > 0, rarity, torch.inf).argmin(dim=1)
    return torch.where(targets.any(dim=1), rarest, num_classes)


def allocate(sizes: list[int], total: int, most: list[int], least: int) -> list[int]:
    """Decide how many images to take from each stratum: proportional shares that add up to `total`.

    Args:
        sizes: images in each stratum.
        total: images to take in all; the bounds must allow it.
        most: the most to take from each stratum.
        least: the least to take from each stratum that is not empty.
    """
    shares = [total * n / max(sum(sizes), 1) for n in sizes]
    floors = [min(least, n) for n in sizes]
    taken = [min(top, max(low, int(share))) for top, low, share in zip(most, floors, shares)]
    while (missing := total - sum(taken)) != 0:
        step = 1 if missing > 0 else -1
        movable = [j for j, t in enumerate(taken) if floors[j] <= t + step <= most[j]]
        furthest = max(movable, key=lambda j: (step * (shares[j] - taken[j]), -j))
        taken[furthest] += step
    return taken


def _hold_out(data: T, amount: float, seed: int, name: str) -> tuple[T, T]:
    """Return what remains, and what is held out."""
    sizes = strata(data.targets, len(data.class_names)).bincount().tolist()
    # Keep one of each class for training, and another for validation, if there are that many, even if no validation set
    # follows: the test images must not depend on that.
    kept = 2 if name == "test" else 1
    most = [max(n - kept, 1) if n > 1 else 0 for n in sizes]
    least = 0 if data.targets.ndim == 2 else 1
    if amount < 1:
        total = min(max(round(amount * sum(sizes)), 1), sum(most))
        shares = allocate(sizes, total, most, 0)
        taken = [max(share, min(least, top)) for share, top in zip(shares, most)]  # even small classes give one
    else:
        total = int(amount)
        if total > sum(most):
            raise UserError(
                f"{name}={total} leaves too little of the {sum(sizes)} images to train on: "
                f"at most {sum(most)} can be held out, or give a fraction such as 0.1"
            )
        taken = allocate(sizes, total, most, least if total >= sum(n > 0 for n in sizes) else 0)
    chosen, rest = _draw(data, taken, seed)
    return data.subset(rest), data.subset(chosen)


def _equal_counts(data: Splittable, each: int) -> list[int]:
    """Return `each` for every class, if all have that many."""
    sizes = strata(data.targets, len(data.class_names)).bincount(minlength=len(data.class_names)).tolist()
    small = [name for name, size in zip(data.class_names, sizes) if size < each]
    if small:
        raise UserError(f"per_class={each}: there are fewer images of {', '.join(map(repr, small[:5]))}")
    return [each] * len(sizes)


def _draw(data: Splittable, counts: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Draw `counts[j]` images from each stratum j; return the drawn positions and the others, both ascending."""
    generator = torch.Generator().manual_seed(seed)
    groups = strata(data.targets, len(data.class_names))
    chosen = torch.zeros(len(groups), dtype=torch.bool)
    for stratum, count in enumerate(counts):
        members = (groups == stratum).nonzero().flatten()
        chosen[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()


def _check_class_sizes(data: Splittable, needed: int) -> None:
    counts = count_classes(data.targets, len(data.class_names)).tolist()
    small = [(name, n) for name, n in zip(data.class_names, counts) if 0 < n < needed]
    if small:
        named = ", ".join(f"{name!r} has {n}" for name, n in small[:5])
        more = f" and {len(small) - 5} more classes have too few" if len(small) > 5 else ""
        raise UserError(
            f"every class needs {needed} images, one for each part of the split, but class {named}{more}: "
            "add images, remove the class, or set validation or test to 0"
        )
