"""Arrays as PNG and GIF files, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from torchcaps.errors import UserError
from torchcaps.io.atomic import atomic_write

FRAME_MILLISECONDS = 120


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write an image.

    Args:
        path: the file; missing folders are made.
        pixels: (H, W) or (H, W, 3) uint8.
    """
    from PIL import Image

    _write(path, lambda file: Image.fromarray(pixels).save(file, format="png"))


def write_gif(path: Path, frames: Sequence[np.ndarray]) -> None:
    """Write an animation that plays forwards and backwards in a loop.

    Args:
        path: the file; missing folders are made.
        frames: T of (H, W) or (H, W, 3) uint8.
    """
    from PIL import Image

    first, *others = [Image.fromarray(frame) for frame in (*frames, *frames[-2:0:-1])]
    _write(
        path,
        lambda file: first.save(file, "gif", save_all=True, append_images=others, duration=FRAME_MILLISECONDS, loop=0),
    )


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            write(temporary)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
