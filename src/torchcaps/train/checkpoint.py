"""The state of a run in one file, written so that it is either the old one or the new one, never half of either."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.models import Discriminator, ImageModel
from torchcaps.models.tensors import Unreadable, read_json, read_tensors

FORMAT = "1"


@dataclass
class State:
    """All that a run must have to go on exactly where it was.

    average     the model whose weights are the running mean of the trained one's, if the recipe asks for it
    rival       the discriminator that a generator learns from, with an optimiser of its own
    generator   makes every random number of augmentation, and of the noise that images are drawn with
    epoch, batch, step   finished epochs, finished batches of this epoch, finished steps in all
    totals      sums over this epoch so far, for its line in the history
    history     one dict for each finished epoch
    best        the best so far on validation images, by the task's measure
    data        the fingerprint of the images the run trains, chooses and tests with
    """

    model: ImageModel
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    average: ImageModel | None = None
    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    data: str = ""
    rival: Discriminator | None = None
    rival_optimizer: torch.optim.Optimizer | None = None

    @property
    def final(self) -> ImageModel:
        """The model to evaluate and keep."""
        return self.average or self.model

    @property
    def networks(self) -> dict[str, nn.Module]:
        """All that has weights, by the name it has in a checkpoint."""
        named = {"model": self.model, "average": self.average, "rival": self.rival}
        return {name: network for name, network in named.items() if network is not None}

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        named = {"optimizer": self.optimizer, "rival_optimizer": self.rival_optimizer}
        return {name: optimizer for name, optimizer in named.items() if optimizer is not None}


_PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "batch", "step"), (int,)),
    "seconds": (int, float),
    "totals": (dict,),
    "history": (list,),
    "best": (int, float, type(None)),
    "data": (str,),
}


def save_checkpoint(state: State, path: Path) -> None:
    """Write a state: to a temporary file, flushed to the disk, then moved into place."""
    tensors = dict(_flatten(state))
    plain = {name: getattr(state, name) for name in _PLAIN}
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, aside, {"format": FORMAT, "state": json.dumps(plain)})
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise UserError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def load_checkpoint(state: State, path: Path) -> None:
    """Fill a state, made from the same recipe, with what was saved."""
    if not path.exists():
        raise UserError(f"{path} does not exist: there is nothing to resume")
    try:
        metadata, tensors = read_tensors(path)
        if metadata.get("format") != FORMAT:
            raise UserError(f"{path} is not a checkpoint of this version of torchcaps")
        plain = _checked(read_json(metadata.get("state", "null")))
    except Unreadable as error:
        raise UserError(f"the checkpoint {path} cannot be read: {error}") from error
    try:
        _restore(state, tensors)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[-1].strip()
        raise UserError(f"the checkpoint {path} is of another model: {reason}") from error
    for name, value in plain.items():
        setattr(state, name, value)


def _checked(plain: Any) -> dict[str, Any]:
    """What a checkpoint says beside its tensors: all of it, each of its own kind, and nothing more."""
    if not isinstance(plain, dict) or set(plain) != set(_PLAIN):
        raise Unreadable("it does not say how far the run was")
    for name, kinds in _PLAIN.items():
        if not isinstance(plain[name], kinds) or isinstance(plain[name], bool):
            raise Unreadable(f"{name} is {plain[name]!r}")
    if min(plain[name] for name in ("epoch", "batch", "step", "seconds")) < 0:
        raise Unreadable("it was less than nothing into the run")
    return plain


def _flatten(state: State) -> list[tuple[str, Tensor]]:
    """Every tensor of a state under a name of its own, on the CPU, none sharing memory with another."""
    named: list[tuple[str, Tensor]] = []
    for prefix, network in state.networks.items():
        named += [(f"{prefix}/{name}", tensor) for name, tensor in network.state_dict().items()]
    for prefix, optimizer in state.optimizers.items():
        for index, moments in optimizer.state_dict()["state"].items():
            named += [(f"{prefix}/{index}/{name}", tensor) for name, tensor in moments.items()]
    named.append(("random/torch", torch.get_rng_state()))
    named.append(("random/augment", state.generator.get_state()))
    if state.generator.device.type == "cuda":
        named.append(("random/cuda", torch.cuda.get_rng_state(state.generator.device)))
    return [(name, tensor.detach().cpu().clone().contiguous()) for name, tensor in named]


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    for prefix, network in state.networks.items():
        network.load_state_dict(below(f"{prefix}/"))
    for prefix, optimizer in state.optimizers.items():
        _restore_moments(optimizer, below(f"{prefix}/"))
    torch.set_rng_state(tensors["random/torch"])
    state.generator.set_state(tensors["random/augment"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"], state.generator.device)


def _restore_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split("/")
        moments.setdefault(int(index), {})[key] = tensor
    groups: list[Any] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for parameter, moment in optimizer.state.items():
        # The fused update wants moments laid out in memory as their parameter is.
        for name, value in moment.items():
            if value.shape == parameter.shape:
                moment[name] = torch.empty_like(parameter).copy_(value)
