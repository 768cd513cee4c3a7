"""The state of a run in one file, written so that it is either the old one or the new one, never half of either.

The one before it is kept as well: should a disk have spoiled the newest, a run goes on from there. Every file says what
its contents add up to, so that one flipped bit is not taken for a weight.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.io.tensors import (
    Metadata,
    Unavailable,
    Unreadable,
    checksum,
    read_json,
    read_tensors,
    write_tensors,
)
from torchcaps.models import Discriminator, ImageModel
from torchcaps.train.dtensor import in_pieces, like, whole

log = logging.getLogger("torchcaps")

FORMAT = "2"
LAST, PREVIOUS = "last.safetensors", "previous.safetensors"


@dataclass
class State:
    """All that a run must have to go on exactly where it was.

    average     the model whose weights are the running mean of the trained one's, if the recipe asks for it
    discriminator       the discriminator that a generator learns from, with an optimiser of its own
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
    discriminator: Discriminator | None = None
    discriminator_optimizer: torch.optim.Optimizer | None = None

    @property
    def final(self) -> ImageModel:
        """The model to evaluate and keep."""
        return self.average or self.model

    @property
    def networks(self) -> dict[str, nn.Module]:
        """All that has weights, by the name it has in a checkpoint."""
        named = {"model": self.model, "average": self.average, "discriminator": self.discriminator}
        return {name: network for name, network in named.items() if network is not None}

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        named = {"optimizer": self.optimizer, "discriminator_optimizer": self.discriminator_optimizer}
        return {name: optimizer for name, optimizer in named.items() if optimizer is not None}


_PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "batch", "step"), (int,)),
    "seconds": (int, float),
    "totals": (dict,),
    "history": (list,),
    "best": (int, float, type(None)),
    "data": (str,),
}


class Damaged(Exception):
    """A file that is not what was written, in words."""


def has_checkpoint(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (LAST, PREVIOUS))


def untouched(folder: Path) -> bool:
    """Whether nothing was ever saved here: no checkpoint, nor what is left of a damaged one."""
    return not has_checkpoint(folder) and not any(folder.glob("*.damaged"))


def clear(folder: Path) -> None:
    """Remove what killed processes had begun to write; nobody may be writing here."""
    for path in folder.rglob(".*"):
        if re.fullmatch(r"\..+\.\d+", path.name):  # aside from its place, by the number of a process
            with suppress(OSError):
                path.unlink()


def saved_step(folder: Path) -> int | None:
    """After how many steps the newest checkpoint was written, by its own word; None if there is none."""
    for path in (folder / LAST, folder / PREVIOUS):
        known = SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError, Unreadable
        with suppress(*known), safe_open(path, framework="pt") as file:
            return int(read_json(file.metadata()["state"])["step"])
    return None


def save_checkpoint(state: State, folder: Path) -> None:
    """Write a state: to a temporary file, flushed to the disk, then moved into place of the last, which becomes the
    previous. Should the power fail between two of these, one of them is there."""
    tensors, text = dict(_flatten(state)), json.dumps({name: getattr(state, name) for name in _PLAIN})
    if broken := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise UserError(f"{broken[0]} is no number in step {state.step}: it does not replace the last checkpoint")
    try:
        write_tensors(folder / LAST, tensors, {"format": FORMAT, "state": text}, previous=folder / PREVIOUS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write a checkpoint to {folder}: {reason(error)}") from error


def load_checkpoint(state: State, folder: Path) -> list[str]:
    """Fill a state, made from the same recipe, with the last that was saved, or if that is damaged the one before.

    returns  what was found damaged, in words; such a file is moved out of the way
    """
    damaged: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS):
        try:
            metadata, tensors = _read(path)
        except FileNotFoundError:
            continue
        except Damaged as error:
            damaged.append(f"{path} {error}")
            with suppress(OSError):  # where nothing can be written, the next save will say so
                os.replace(path, path.with_suffix(".damaged"))
            continue
        _fill(state, metadata, tensors, path)
        return damaged
    aside = ", ".join(str(path) for path in sorted(folder.glob("*.damaged")))
    if damaged or aside:
        words = "; ".join(damaged) or f"the checkpoints in {folder} were found damaged before"
        raise UserError(f"{words}: there is nothing left to resume from, start a new run (what is left is in {aside})")
    raise UserError(f"{folder / LAST} does not exist: there is nothing to resume, start a new run")


def copy_state(source: State, target: State, keep: bool = True) -> None:
    """Fill a state with what another is; either may be in pieces, and then every process has to ask for it.

    keep  no in a process that only has to ask
    """
    copy_progress(source, target)
    if keep:
        _restore(target, dict(_flatten(source)))
        return
    for _ in _flatten(source):
        pass


def copy_progress(source: State, target: State) -> None:
    """All but weights, moments and random states."""
    for name in _PLAIN:
        setattr(target, name, getattr(source, name))


def reason(error: BaseException) -> str:
    """Why something could not be written or read, without what only programmers want to know."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]


def _read(path: Path) -> tuple[Metadata, dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        metadata, tensors = read_tensors(path)
    except Unavailable as error:
        raise UserError(
            f"{path} cannot be read: {error}. Nothing was changed: put that right, and resume again"
        ) from error
    except Unreadable as error:
        raise Damaged(f"cannot be read ({error})") from error
    while metadata.get("format") in MIGRATIONS:
        metadata, tensors = MIGRATIONS[metadata["format"]](metadata, tensors)
    if metadata.get("checksum") != checksum(tensors, metadata):
        raise Damaged("is not as it was written (its checksum differs)")
    if metadata["format"] != FORMAT:
        raise UserError(f"{path} has format {metadata['format']}, this version reads {FORMAT}: upgrade torchcaps")
    try:
        _checked(read_json(metadata["state"], finite=False))
    except Unreadable as error:
        raise Damaged(f"cannot be read ({error})") from error
    return metadata, tensors


def _from_1(metadata: Metadata, tensors: dict[str, Tensor]) -> tuple[Metadata, dict[str, Tensor]]:
    """Format 1 had no checksum: what can be read is taken for what was written."""
    if "state" not in metadata or "checksum" in metadata:
        raise Damaged("is not as it was written (of no known format)")
    metadata = {"format": "2", "state": metadata["state"]}
    return {**metadata, "checksum": checksum(tensors, metadata)}, tensors


# From each format but the newest to the next.
MIGRATIONS: dict[str, Callable[[Metadata, dict[str, Tensor]], tuple[Metadata, dict[str, Tensor]]]] = {"1": _from_1}


def _fill(state: State, metadata: Metadata, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        _restore(state, tensors)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[-1].strip()
        raise UserError(f"the checkpoint {path} is of another model: {why}") from error
    for name, value in json.loads(metadata["state"]).items():
        setattr(state, name, value)


def _checked(plain: Any) -> None:
    """What a checkpoint says beside its tensors: all of it, each of its own kind, and nothing more."""
    if not isinstance(plain, dict) or set(plain) != set(_PLAIN):
        raise Unreadable("it does not say how far the run was")
    for name, kinds in _PLAIN.items():
        if not isinstance(plain[name], kinds) or isinstance(plain[name], bool):
            raise Unreadable(f"{name} is {plain[name]!r}")
    if not all(0 <= plain[name] < math.inf for name in ("epoch", "batch", "step", "seconds")):
        raise Unreadable("it was less than nothing, or for ever, into the run")
    if plain["best"] is not None and not math.isfinite(plain["best"]):
        raise Unreadable(f"best is {plain['best']!r}")


def _flatten(state: State) -> Iterator[tuple[str, Tensor]]:
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
    for name, tensor in named:
        yield name, whole(tensor.detach()).cpu().clone().contiguous()


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    for prefix, network in state.networks.items():
        now, new = network.state_dict(), below(f"{prefix}/")
        shared = {name: like(tensor, now[name]) for name, tensor in new.items() if name in now and in_pieces(now[name])}
        network.load_state_dict(new | shared)
    for prefix, optimizer in state.optimizers.items():
        _restore_moments(optimizer, below(f"{prefix}/"))
    torch.set_rng_state(tensors["random/torch"])
    on_cuda = state.generator.device.type == "cuda"
    if on_cuda != ("random/cuda" in tensors):
        log.warning("the run was saved on another kind of device: augmentation goes on with other random numbers")
        state.generator.manual_seed(state.generator.initial_seed() + 1)
        return
    state.generator.set_state(tensors["random/augment"])
    if on_cuda:
        torch.cuda.set_rng_state(tensors["random/cuda"], state.generator.device)


def _restore_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split("/")
        moments.setdefault(int(index), {})[key] = tensor
    _check_moments(optimizer, moments)
    weights: list[Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
    if any(map(in_pieces, weights)):
        for number, found in moments.items():  # one at a time: no device has to have room for all of them
            weight = weights[number]
            optimizer.state[weight] = {n: like(t, weight) if t.shape == weight.shape else t for n, t in found.items()}
        return
    groups: list[Any] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for parameter, moment in optimizer.state.items():
        # The fused update wants moments laid out in memory as their parameter is.
        for name, value in moment.items():
            if value.shape == parameter.shape:
                moment[name] = like(value, parameter)


def _check_moments(optimizer: torch.optim.Optimizer, moments: dict[int, dict[str, Tensor]]) -> None:
    """Whether they are those of this optimiser's weights: it would take any, and fail in its next step."""
    weights = [(weight, group.get("rows")) for group in optimizer.param_groups for weight in group["params"]]
    for index, found in moments.items():
        if not 0 <= index < len(weights):
            raise ValueError(f"it has moments of weight {index}, and there are {len(weights)} weights")
        weight, rows = weights[index]
        names = ("mean",) if rows else ("exp_avg", "exp_avg_sq")
        wanted = {"step": torch.Size(())} | dict.fromkeys(names, weight.shape)
        if {name: tensor.shape for name, tensor in found.items()} != wanted:
            raise ValueError(f"the moments of weight {index} are not what {type(optimizer).__name__} keeps of it")
