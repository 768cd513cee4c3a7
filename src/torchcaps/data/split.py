"""Stratified splits that depend on the data and a seed, and on nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from torchcaps.data.dataset import count_classes
from torchcaps.errors import UserError

# The test images stay the same whatever seed chooses the validation images: a user who tries
# several split seeds must never train on what an earlier run was tested on.
TEST_SEED = 20171026


class Labelled(Protocol):
    """What can be split: decoded images or a list of files alike."""

    @property
    def targets(self) -> Tensor: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    def subset(self: T, indices: Tensor) -> T: ...


T = TypeVar("T", bound=Labelled)


@dataclass(frozen=True)
class HoldOut:
    """How much to keep back: fractions below 1, counts from 1 up, 0 for nothing."""

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
            raise UserError(f"per_class={self.per_class}: give at least 1, and no limit beside it")


def divide(train: T, validation: T | None, test: T | None, plan: HoldOut) -> tuple[T, T | None, T | None]:
    """Hold out what the source did not come with, then keep at most `limit` images, or `per_class` of each class."""
    if not len(train.targets):
        raise UserError("there are no training images in this data set")
    take_test = test is None and plan.test > 0
    take_validation = validation is None and plan.validation > 0
    _check_class_sizes(train, 1 + take_test + take_validation)
    if take_test:
        train, test = _hold_out(train, plan.test, TEST_SEED, "test")
    if take_validation:
        train, validation = _hold_out(train, plan.validation, plan.seed, "validation")
    if plan.per_class is not None:
        train = train.subset(_choose(train, _alike(train, plan.per_class), plan.seed)[0])
    if plan.limit is not None and plan.limit < len(train.targets):
        sizes = strata(train.targets, len(train.class_names)).bincount().tolist()
        least = int(plan.limit >= sum(n > 0 for n in sizes))
        train = train.subset(_choose(train, apportion(sizes, plan.limit, sizes, least), plan.seed)[0])
    return train, validation, test


def strata(targets: Tensor, num_classes: int) -> Tensor:
    """The group within which images are interchangeable for a split: the class, or the rarest of several labels.

    targets  (N,) or (N, J)
    returns  (N,)  in 0..J; J is "no label at all"
    """
    if targets.ndim == 1:
        return targets
    rarity = count_classes(targets, num_classes).float().expand_as(targets)
    rarest = torch.where(targets > 0, rarity, torch.inf).argmin(dim=1)
    return torch.where(targets.any(dim=1), rarest, num_classes)


def apportion(sizes: list[int], total: int, most: list[int], least: int) -> list[int]:
    """How many to take of each stratum: proportional shares, each between `least` and its `most`, `total` in all.

    Strata with nothing in them give nothing. The caller sees to it that the total can be reached.
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
    """(what remains, what is held out)"""
    sizes = strata(data.targets, len(data.class_names)).bincount().tolist()
    # One of each class stays for training, and one more for validation if there are three: the choice of test
    # images must not depend on whether there will be a validation set.
    kept = 2 if name == "test" else 1
    most = [max(n - kept, 1) if n > 1 else 0 for n in sizes]
    least = 0 if data.targets.ndim == 2 else 1
    if amount < 1:
        total = min(max(round(amount * sum(sizes)), 1), sum(most))
        shares = apportion(sizes, total, most, 0)
        taken = [max(share, min(least, top)) for share, top in zip(shares, most)]  # small classes give one all the same
    else:
        total = int(amount)
        if total > sum(most):
            raise UserError(
                f"{name}={total} leaves too little of the {sum(sizes)} images to train on: "
                f"at most {sum(most)} can be held out, or give a fraction such as 0.1"
            )
        taken = apportion(sizes, total, most, least if total >= sum(n > 0 for n in sizes) else 0)
    chosen, rest = _choose(data, taken, seed)
    return data.subset(rest), data.subset(chosen)


def _alike(data: Labelled, each: int) -> list[int]:
    """The same number of every class."""
    sizes = strata(data.targets, len(data.class_names)).bincount(minlength=len(data.class_names)).tolist()
    small = [name for name, size in zip(data.class_names, sizes) if size < each]
    if small:
        raise UserError(f"per_class={each}: there are fewer images of {', '.join(map(repr, small[:5]))}")
    return [each] * len(sizes)


def _choose(data: Labelled, taken: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """(chosen, the others), as positions in ascending order: `taken[j]` at random from stratum j."""
    generator = torch.Generator().manual_seed(seed)
    groups = strata(data.targets, len(data.class_names))
    chosen = torch.zeros(len(groups), dtype=torch.bool)
    for stratum, count in enumerate(taken):
        members = (groups == stratum).nonzero().flatten()
        chosen[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()


def _check_class_sizes(data: Labelled, needed: int) -> None:
    counts = count_classes(data.targets, len(data.class_names)).tolist()
    small = [(name, n) for name, n in zip(data.class_names, counts) if 0 < n < needed]
    if small:
        named = ", ".join(f"{name!r} has {n}" for name, n in small[:5])
        more = f" and {len(small) - 5} more classes are as small" if len(small) > 5 else ""
        raise UserError(
            f"every class needs {needed} images, one for each part of the split, but class {named}{more}: "
            "add images, remove the class, or set validation or test to 0"
        )
