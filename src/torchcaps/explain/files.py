"""Pictures as files: each is either the old one or the new one, never half of either."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from torchcaps.errors import UserError

PAUSE = 120  # milliseconds that a frame is shown


def write_png(path: Path, pixels: np.ndarray) -> None:
    """(H, W) or (H, W, 3) uint8"""
    from PIL import Image

    _write(path, lambda aside: Image.fromarray(pixels).save(aside, format="png"))


def write_gif(path: Path, frames: Sequence[np.ndarray]) -> None:
    """Frames (H, W) or (H, W, 3) uint8, shown to the end and back again, over and over."""
    from PIL import Image

    first, *others = [Image.fromarray(frame) for frame in (*frames, *frames[-2:0:-1])]
    _write(
        path,
        lambda aside: first.save(aside, "gif", save_all=True, append_images=others, duration=PAUSE, loop=0),
    )


def _write(path: Path, write: Callable[[Path], None]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(aside)
        os.replace(aside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
