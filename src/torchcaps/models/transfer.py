"""Start a model from the weights of another: what fits is taken, the rest stays as it was made, and both are said."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.models.base import ImageModel
from torchcaps.models.wrapped import WrappedModule

MAX_NAMED = 6  # tensors in a message


class Taken(NamedTuple):
    """What a model took of another.

    Attributes:
        source: what the other model is called.
        taken: names of the tensors that were copied.
        fresh: the model's other tensors, each with the reason why it was not copied.
        unused: tensors of the other model that this one has no place for.
    """

    source: str
    taken: tuple[str, ...]
    fresh: dict[str, str]
    unused: tuple[str, ...]

    def describe(self) -> str:
        """One line for each of the three."""
        lines = [f"weights of {self.source}: {len(self.taken)} of {len(self.taken) + len(self.fresh)} tensors taken"]
        if self.fresh:
            lines.append("  new: " + _listed([f"{name} ({why})" for name, why in self.fresh.items()]))
        if self.unused:
            lines.append("  not used: " + _listed(list(self.unused)))
        return "\n".join(lines)


def take_weights(model: nn.Module, source: nn.Module, called: str = "the given model") -> Taken:
    """Copy the tensors of another model that have the same name and shape.

    Where the classes of the two differ, tensors whose shape depends on the number of classes are not copied, although
    their shapes may agree by chance. Statistics of normalisation are copied with the weights that they belong to.

    Args:
        model: is changed in place.
        source: the other model; may be of another class.
        called: the other model in messages.
    """
    own, given = _bare(model).state_dict(), _bare(source).state_dict()
    for_classes = _class_tensors(model) if _other_classes(model, source) else set()
    fresh: dict[str, str] = {}
    for name, tensor in own.items():
        if name not in given:
            fresh[name] = "not there"
        elif name in for_classes:
            fresh[name] = "other classes"
        elif given[name].shape != tensor.shape:
            fresh[name] = f"{_size(given[name])} there, {_size(tensor)} here"
    parameters = {name for name, _ in _bare(model).named_parameters()}
    for name in own.keys() - parameters - fresh.keys():
        path = name.rpartition(".")[0]
        if any(each in fresh for each in parameters if each.rpartition(".")[0] == path):
            fresh[name] = "of weights that are new"
    taken = tuple(name for name in own if name not in fresh)
    if not parameters & set(taken):
        example = next((f": {name} is {why}" for name, why in fresh.items() if name in parameters), "")
        raise UserError(
            f"no weight of {called} fits this {type(_bare(model)).__name__}{example}; start from a model of the same "
            "architecture, or build this one with the options of that one"
        )
    with torch.no_grad():
        for name in taken:
            own[name].copy_(given[name])
    ordered = {name: fresh[name] for name in own if name in fresh}
    return Taken(called, taken, ordered, tuple(name for name in given if name not in own))


def _bare(model: nn.Module) -> nn.Module:
    """The module itself of one that was wrapped for `fit`."""
    return model.module if isinstance(model, WrappedModule) else model


def _other_classes(model: nn.Module, source: nn.Module) -> bool:
    both = isinstance(model, ImageModel) and isinstance(source, ImageModel)
    return both and model.class_names != source.class_names


def _class_tensors(model: nn.Module) -> set[str]:
    """The tensors whose shape changes with the number of classes; of a user's own module none is known."""
    arguments = dict(getattr(model, "arguments", {}))
    if "num_classes" not in arguments or isinstance(model, WrappedModule):
        return set()
    arguments |= {"num_classes": arguments["num_classes"] + 1, "class_names": None}
    with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        larger = type(model)(**arguments).state_dict()
    return {name for name, tensor in model.state_dict().items() if tensor.shape != larger[name].shape}


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
