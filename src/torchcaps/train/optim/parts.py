"""Parts of a network: frozen for some epochs, thawed layer by layer, and trained with learning rates of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from torchcaps.errors import UserError, did_you_mean
from torchcaps.train.recipe import TransferSection

WRAPPED = "module."  # what names begin with in a module of a user's that `fit` has wrapped


class Freezer:
    """Freezes parts of a network, as the recipe's section says for each epoch.

    Frozen weights have no gradient, so a step neither computes nor changes anything for them, and they have no moments
    yet; frozen batch normalisation and dropout work as in an evaluation. A step that was recorded or wrapped before a
    part was thawed must be made again.

    Args:
        model: what is trained.
        section: of the recipe.
    """

    def __init__(self, model: nn.Module, section: TransferSection):
        if (section.epochs is not None or section.gradual) and not section.freeze:
            raise UserError("transfer.epochs and transfer.gradual are for transfer.freeze: name the part to freeze")
        if section.gradual and section.epochs is None:
            raise UserError("transfer.gradual needs transfer.epochs, the epochs before the first layer is thawed")
        self.section = section
        self._parts = [find_part(model, name) for name in section.freeze]
        self._trained = [each for each in model.parameters() if each.requires_grad]
        frozen = {id(each) for module in self._frozen(0) for each in module.parameters()}
        if section.freeze and all(id(each) in frozen for each in self._trained):
            raise UserError(
                f"transfer.freeze: {', '.join(section.freeze)} is all of the model, so there is nothing to train; name "
                "a part, such as backbone"
            )
        self._now: list[int] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block parts are frozen; afterwards all that was trained before can be trained again."""
        try:
            yield
        finally:
            for each in self._trained:
                each.requires_grad_(True)

    def start_epoch(self, epoch: int) -> bool:
        """Freeze what is frozen in this epoch; returns whether that has changed since the last call."""
        modules = self._frozen(epoch)
        before, self._now = self._now, [id(module) for module in modules]
        if before == self._now:
            return False
        frozen = {id(each) for module in modules for each in module.parameters()}
        for each in self._trained:
            each.requires_grad_(id(each) not in frozen)
        return True

    def set_modes(self, epoch: int) -> None:
        """Put what is frozen into evaluation mode, after the model was put into training mode."""
        for module in self._frozen(epoch):
            module.eval()

    def _frozen(self, epoch: int) -> list[nn.Module]:
        """The modules that are frozen in an epoch; of a part that is being thawed its first layers."""
        epochs, gradual = self.section.epochs, self.section.gradual
        if epochs is None or epoch < epochs:
            return list(self._parts)
        if not gradual:
            return []
        thawed = 1 + (epoch - epochs) // gradual
        layers = [[each for each in part.children() if any(True for _ in each.parameters())] for part in self._parts]
        return [layer for each in layers for layer in each[: max(0, len(each) - thawed)]]


def find_part(model: nn.Module, name: str) -> nn.Module:
    """The submodule of a name, such as "backbone"."""
    modules = dict(model.named_modules())
    found = modules.get(name) or modules.get(WRAPPED + name)
    if not name or found is None:
        named = {each.removeprefix(WRAPPED) for each in modules} - {"", WRAPPED.rstrip(".")}
        known = sorted(each for each in named if "." not in each)
        raise UserError(f"transfer: the model has no part {name!r}: {did_you_mean(name, known)}")
    return found


def split_by_rate(
    groups: Iterable[dict[str, Any]], model: nn.Module, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Split groups of an optimizer by the learning rates of parts; each new group has the rate as its "share".

    Args:
        groups: with a "share" each.
        model: whose parts are named.
        rates: by part, as multiples of the share; of parts within parts the innermost counts.
    """
    if not rates:
        return list(groups)
    parts = sorted(rates, key=lambda name: name.count("."))
    of_parameter = {id(each): rates[name] for name in parts for each in find_part(model, name).parameters()}
    split: list[dict[str, Any]] = []
    for group in groups:
        by_rate: dict[float, list[nn.Parameter]] = {}
        for each in group["params"]:
            by_rate.setdefault(of_parameter.get(id(each), 1.0), []).append(each)
        split += [group | {"params": by_rate[rate], "share": group["share"] * rate} for rate in sorted(by_rate)]
    return split
