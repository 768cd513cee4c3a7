"""Checkpoints: the state of a run in one file, written atomically.

The previous checkpoint is kept as well: if the newest is damaged, a run resumes from the previous one. Every file holds
a checksum of its contents, so that a flipped bit is detected.
"""

from __future__ import annotations

import json
import logging
import os
import re
import reprlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

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
from torchcaps.train.dtensor import gather, is_sharded, shard_like
from torchcaps.train.state import State

log = logging.getLogger("torchcaps")

FORMAT = "2"
LAST, PREVIOUS = "last.safetensors", "previous.safetensors"


class _Progress(BaseModel):
    """The plain values of a state."""

    model_config = ConfigDict(extra="forbid", strict=True)

    epoch: int = Field(ge=0)
    batch: int = Field(ge=0)
    step: int = Field(ge=0)
    seconds: float = Field(ge=0, allow_inf_nan=False)
    totals: dict[str, Any]
    history: list[Any]
    best: float | None = Field(allow_inf_nan=False)
    data: str


class Damaged(Exception):
    """A file whose contents are not what was written."""


def has_checkpoint(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (LAST, PREVIOUS))


def never_saved(folder: Path) -> bool:
    """Whether no checkpoint was ever saved here, not even a damaged one."""
    return not has_checkpoint(folder) and not any(folder.glob("*.damaged"))


def clear(folder: Path) -> None:
    """Remove temporary files of killed processes; no other process may be writing here."""
    for path in folder.rglob(".*"):
        if re.fullmatch(r"\..+\.\d+", path.name):  # a temporary file, with the id of its process
            with suppress(OSError):
                path.unlink()


def saved_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, as its metadata says; None if there is none."""
    for path in (folder / LAST, folder / PREVIOUS):
        known = SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError, Unreadable
        with suppress(*known), safe_open(path, framework="pt") as file:
            return int(read_json(file.metadata()["state"])["step"])
    return None


def save_checkpoint(state: State, folder: Path) -> None:
    """Write a state: to a temporary file, flushed to the disk, then moved into place of the last, which becomes the
    previous. Should the power fail between two of these, one of them is there."""
    tensors, text = dict(_flatten(state)), json.dumps({name: getattr(state, name) for name in _Progress.model_fields})
    if broken := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise UserError(f"{broken[0]} is not finite in step {state.step}: the checkpoint was not written")
    try:
        write_tensors(folder / LAST, tensors, {"format": FORMAT, "state": text}, previous=folder / PREVIOUS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write a checkpoint to {folder}: {reason(error)}") from error


def load_checkpoint(state: State, folder: Path) -> list[str]:
    """Load the newest checkpoint into a state made from the same recipe, or the previous one if that is damaged.

    Returns:
        A sentence for each damaged file; such a file is renamed.
    """
    damaged: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS):
        try:
            metadata, tensors = _read(path)
        except FileNotFoundError:
            continue
        except Damaged as error:
            damaged.append(f"{path} {error}")
            with suppress(OSError):  # if nothing can be written, the next save reports it
                os.replace(path, path.with_suffix(".damaged"))
            continue
        _fill(state, metadata, tensors, path)
        return damaged
    aside = ", ".join(str(path) for path in sorted(folder.glob("*.damaged")))
    if damaged or aside:
        words = "; ".join(damaged) or f"the checkpoints in {folder} were found damaged before"
        raise UserError(f"{words}: no checkpoint is left to resume from; start a new run (the damaged files: {aside})")
    raise UserError(f"{folder / LAST} does not exist: there is nothing to resume, start a new run")


def copy_state(source: State, target: State, keep: bool = True) -> None:
    """Copy one state into another. Either may be sharded; then every rank must call this.

    Args:
        source, target: the states.
        keep: False on a rank that only takes part in the collectives.
    """
    copy_progress(source, target)
    if keep:
        _restore(target, dict(_flatten(source)))
        return
    for _ in _flatten(source):
        pass


def copy_progress(source: State, target: State) -> None:
    """Copy everything but weights, moments and random states."""
    for name in _Progress.model_fields:
        setattr(target, name, getattr(source, name))


def reason(error: BaseException) -> str:
    """The reason of an error in one line."""
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def _read(path: Path) -> tuple[Metadata, dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        metadata, tensors = read_tensors(path)
    except Unavailable as error:
        raise UserError(f"{path} cannot be read: {error}. Nothing was changed: fix that and resume again") from error
    except Unreadable as error:
        raise Damaged(f"cannot be read ({error})") from error
    if metadata.get("checksum") != checksum(tensors, metadata):
        raise Damaged("is damaged (its checksum differs)")
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} has format {metadata.get('format')}, this version reads {FORMAT}: upgrade torchcaps")
    try:
        _checked(read_json(metadata["state"], finite=False))
    except Unreadable as error:
        raise Damaged(f"cannot be read ({error})") from error
    return metadata, tensors


def _fill(state: State, metadata: Metadata, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        _restore(state, tensors)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[-1].strip()
        raise UserError(f"the checkpoint {path} belongs to another model: {why}") from error
    for name, value in json.loads(metadata["state"]).items():
        setattr(state, name, value)


def _checked(plain: Any) -> None:
    """Check the plain values of a checkpoint: exactly these names, each of its type."""
    try:
        _Progress.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "its progress"
        raise Unreadable(f"{field}: {first['msg'].lower()}, got {reprlib.repr(first['input'])}") from error


def _flatten(state: State) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state with its name, copied to the CPU."""
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
        yield name, gather(tensor.detach()).cpu().clone().contiguous()


def _restore(state: State, tensors: dict[str, Tensor]) -> None:
    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    for prefix, network in state.networks.items():
        now, new = network.state_dict(), below(f"{prefix}/")
        shared = {
            name: shard_like(tensor, now[name]) for name, tensor in new.items() if name in now and is_sharded(now[name])
        }
        network.load_state_dict(new | shared)
    for prefix, optimizer in state.optimizers.items():
        _restore_moments(optimizer, below(f"{prefix}/"))
    torch.set_rng_state(tensors["random/torch"])
    on_cuda = state.generator.device.type == "cuda"
    if on_cuda != ("random/cuda" in tensors):
        log.warning("the run was saved on another type of device: augmentation continues with other random numbers")
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
    if any(map(is_sharded, weights)):
        for number, found in moments.items():  # one at a time: no device needs room for all of them
            weight = weights[number]
            optimizer.state[weight] = {
                n: shard_like(t, weight) if t.shape == weight.shape else t for n, t in found.items()
            }
        return
    groups: list[Any] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for parameter, moment in optimizer.state.items():
        # The fused update needs moments with the memory layout of their parameter.
        for name, value in moment.items():
            if value.shape == parameter.shape:
                moment[name] = shard_like(value, parameter)


def _check_moments(optimizer: torch.optim.Optimizer, moments: dict[int, dict[str, Tensor]]) -> None:
    """Check that the moments fit this optimizer's weights: it would accept any, and fail in its next step."""
    weights = [(weight, group.get("rows")) for group in optimizer.param_groups for weight in group["params"]]
    for index, found in moments.items():
        if not 0 <= index < len(weights):
            raise ValueError(f"it has moments of weight {index}, but there are {len(weights)} weights")
        weight, rows = weights[index]
        names = ("mean",) if rows else ("exp_avg", "exp_avg_sq")
        wanted = {"step": torch.Size(())} | dict.fromkeys(names, weight.shape)
        if {name: tensor.shape for name, tensor in found.items()} != wanted:
            raise ValueError(f"the moments of weight {index} are not what {type(optimizer).__name__} keeps of it")
