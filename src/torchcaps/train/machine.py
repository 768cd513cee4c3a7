"""What a figure was measured on."""

from __future__ import annotations

import platform

import torch

from torchcaps._version import __version__


def machine(device: torch.device) -> str:
    """The device in words, with the versions that matter."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"{name}{threads}, torch {torch.__version__}, torchcaps {__version__}"
