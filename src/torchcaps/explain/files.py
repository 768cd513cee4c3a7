"""Write pictures to files atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from torchcaps.errors import UserError

FRAME_MILLISECONDS = 120


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write (H, W) or (H, W, 3) uint8 as a PNG file."""
    from PIL import Image

    _write(path, lambda aside: Image.fromarray(pixels).save(aside, format="png"))


def write_gif(path: Path, frames: Sequence[np.ndarray]) -> None:
    """Write frames (H, W) or (H, W, 3) uint8 as a GIF file that plays forwards and backwards in a loop."""
    from PIL import Image

    first, *others = [Image.fromarray(frame) for frame in (*frames, *frames[-2:0:-1])]
    options = {"save_all": True, "append_images": others, "duration": FRAME_MILLISECONDS, "loop": 0}
    _write(path, lambda aside: first.save(aside, "gif", **options))


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
