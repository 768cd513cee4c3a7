"""Devices by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcaps.errors import UserError

if TYPE_CHECKING:
    import torch


def choose_accelerator(device: str) -> str:
    """The accelerator that a user's --device means: cpu, cuda or mps; "auto" is the best there is."""
    import torch  # late: the command line imports this module

    available = {
        "auto": True,
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    name = "cuda" if device == "gpu" else device
    if name not in available:
        raise UserError(f"--device {device}: choose one of {', '.join(available)}")
    if not available[name]:
        raise UserError(f"--device {device}: this machine, or this build of PyTorch, has none; use --device cpu")
    return next(each for each in ("cuda", "mps", "cpu") if available[each]) if name == "auto" else name


def make_device(device: str) -> torch.device:
    """The first device of this kind."""
    import torch

    accelerator = choose_accelerator(device)
    return torch.device(accelerator) if accelerator == "cpu" else torch.device(accelerator, 0)
