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
    if device not in available:
        raise UserError(f"--device {device}: {_hint(device) or 'choose one of ' + ', '.join(available)}")
    if not available[device]:
        raise UserError(f"--device {device}: this machine, or this build of PyTorch, has none; use --device cpu")
    return next(each for each in ("cuda", "mps", "cpu") if available[each]) if device == "auto" else device


def make_device(device: str) -> torch.device:
    """The first device of this kind."""
    import torch

    accelerator = choose_accelerator(device)
    return torch.device(accelerator) if accelerator == "cpu" else torch.device(accelerator, 0)


def parse_device(device: str | torch.device) -> torch.device:
    """The device of this name, as PyTorch names devices: "cpu", "cuda:1"."""
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        what = _hint(str(device)) or "give a device of PyTorch, such as 'cpu', 'cuda' or 'cuda:0'"
        raise UserError(f"device={device!r}: {what}") from error


def _hint(device: str) -> str:
    return "PyTorch calls a GPU 'cuda' (on a Mac 'mps')" if device.partition(":")[0] == "gpu" else ""
