"""Folders that results are written to."""

from __future__ import annotations

from pathlib import Path

from torchcaps.errors import UserError


def make_folder(folder: Path, option: str = "--out") -> Path:
    """Make a folder, or say that the option which names it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{option} {folder}: it cannot be written to: {error.strerror or error}") from error
    return folder
