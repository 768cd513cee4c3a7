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
    """The device of this name, as PyTorch names devices: "cpu", "cuda:1"; raise a UserError if there is none."""
    import torch

    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        what = _hint(str(device)) or "give a device of PyTorch, such as 'cpu', 'cuda' or 'cuda:0'"
        raise UserError(f"device={device!r}: {what}") from error
    if place.type in ("cuda", "mps"):
        count = torch.cuda.device_count() if place.type == "cuda" else int(torch.backends.mps.is_available())
        if count <= (place.index or 0):
            found = (
                f"PyTorch finds {count} of this kind" if count else "this machine, or this build of PyTorch, has none"
            )
            raise UserError(f"device={str(device)!r}: {found}; use device='cpu'")
    return place


def _hint(device: str) -> str:
    small = device.lower()
    kind = small.partition(":")[0]
    if kind == "gpu":
        return "PyTorch calls a GPU 'cuda' (on a Mac 'mps')"
    return f"did you mean {small!r}?" if device != small and kind in ("auto", "cpu", "cuda", "mps") else ""
