"""The machine, versions and commit of a result."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from torchcaps._version import __version__

LIBRARIES = (
    "torch",
    "triton",
    "numpy",
    "lightning-fabric",
    "safetensors",
    "monai",
)  # libraries that results may depend on


def machine(device: torch.device) -> str:
    """The device and the main versions, as one line."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"{name}{threads}, torch {torch.__version__}, torchcaps {__version__}"


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of LIBRARIES."""
    found = {"python": platform.python_version(), "torchcaps": __version__}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # triton, on most machines without a GPU
            continue
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def commit() -> str | None:
    """The commit of the source tree that this package runs from, with a + if it has uncommitted changes; None if the
    package was installed."""
    here = Path(__file__).parent
    try:
        root, asked, changed = (
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (
                ["rev-parse", "--show-toplevel"],
                ["rev-parse", "--short", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no", "."],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    own = (Path(root) / "src" / "torchcaps").resolve() == here.parent.resolve()
    return asked + ("+" if changed else "") if own else None
