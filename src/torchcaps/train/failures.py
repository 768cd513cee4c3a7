"""Failures around a run: another run in its folder, a full or lost disk, too little memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from torchcaps.errors import UserError
from torchcaps.train.checkpoint import reason, saved_step
from torchcaps.train.recipe import Recipe

LOCK = "run.lock"


@contextmanager
def lock_folder(folder: Path, remedy: str) -> Iterator[None]:
    """Lock a run folder inside the block. The system releases the lock of a process that dies.

    Args:
        folder: of the run.
        remedy: what the user can do if the folder cannot be written to.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another run is training in {folder}: wait for it, or choose another folder") from None
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}; {remedy}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of writing inside the block say what is saved and how to resume."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}. {saved_state(folder)}") from error
    except UserError as error:
        raise UserError(f"{error}. {saved_state(folder)}") from error


def saved_state(folder: Path) -> str:
    """A sentence about the last good checkpoint of a run."""
    step = saved_step(folder / "checkpoints")
    if step is None:
        return "Nothing had been saved yet"
    return f"The state after step {step} is saved; when this is fixed, resume with: torchcaps train --resume {folder}"


@contextmanager
def enough_memory(recipe: Recipe, folder: Path, resumed: bool) -> Iterator[None]:
    """Out-of-memory errors inside the block say what needs less memory, and what is saved."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_out_of_memory(error):
            raise
        size = recipe.train.batch_size
        smaller = f"train.batch_size={size // 2}" if size > 1 else "a smaller model"
        window = f", augment.crop={recipe.augment.crop // 2}" if recipe.augment.crop else ", a smaller data.image_size"
        less = f"try {smaller}{window}, or --precision bf16"
        if resumed:  # its batch size is fixed
            less = f"resume on a device with more memory or on several (--devices), or start a new run: {less}"
        raise UserError(
            f"the device has too little memory for batches of {size}: {less}. {saved_state(folder)}"
        ) from error


def is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether an error means that memory ran out: PyTorch has no type for that on the CPU."""
    text = f"{type(error).__name__}: {error}"
    return any(words in text for words in ("MemoryError", "allocate memory", "out of memory"))
