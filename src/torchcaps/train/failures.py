"""What can go wrong around a run: another in its folder, a disk that is full or gone, too little memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from torchcaps.errors import UserError
from torchcaps.train.checkpoint import reason, saved_step
from torchcaps.train.recipe import Recipe

LOCK = "run.lock"


@contextmanager
def alone(folder: Path, way_out: str) -> Iterator[None]:
    """Nobody else trains in this folder while the block runs. The system lets go of the lock of a process that dies.

    way_out  what to do if nothing can be written to it, in words
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another run is training in {folder}: wait for it, or start one in another folder") from None
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}; {way_out}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What a run writes: where that fails, the error says what is left of it, and how to go on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}. {kept(folder)}") from error
    except UserError as error:
        raise UserError(f"{error}. {kept(folder)}") from error


def kept(folder: Path) -> str:
    """The last good state of a run, in words."""
    step = saved_step(folder / "checkpoints")
    if step is None:
        return "Nothing had been saved yet"
    return f"Its state after step {step} is safe; when that is put right, go on with: torchcaps train --resume {folder}"


@contextmanager
def enough_memory(recipe: Recipe, folder: Path, resumed: bool) -> Iterator[None]:
    """Where a device has too little, the error says what takes less, and what is left of the run."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not about_memory(error):
            raise
        size = recipe.train.batch_size
        smaller = f"train.batch_size={size // 2}" if size > 1 else "a smaller model"
        window = f", augment.crop={recipe.augment.crop // 2}" if recipe.augment.crop else ", a smaller data.image_size"
        less = f"try {smaller}{window}, or --precision bf16"
        if resumed:  # whose batches are fixed
            less = f"resume it on a device with more, on several (--devices), or start a new run: {less}"
        raise UserError(f"the device has too little memory for batches of {size}: {less}. {kept(folder)}") from error


def about_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)
