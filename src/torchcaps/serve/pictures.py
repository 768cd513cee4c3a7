"""Pictures from a client, bounded before they are decoded, and pictures for it, as data URLs."""

from __future__ import annotations

import base64
import binascii
import io
import struct

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from torchcaps.data.images import TooManyPixels, decode_grey
from torchcaps.errors import UserError

MAX_BYTES = 1 << 20  # of a picture file
MAX_SIDE_PIXELS = 2048  # of a picture file
FORMATS = ("PNG", "JPEG", "WEBP")  # no other decoder of Pillow ever sees what a client sent
BOX = 20 / 28  # share of the picture that the ink of MNIST was fitted into
FAINT = 0.1  # below it, a pixel is paper
LACKING, MADE_UP = "#ff6b6b", "#4dabf7"  # of light colours: pure red and blue can hardly be seen on black
COLOURS = ("#e8590c", "#1c7ed6", "#2b8a3e", "#ae3ec9", "#f08c00")


def decode_base64(text: str) -> bytes:
    """The bytes of a picture, with or without `data:image/…;base64,` before them."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise UserError("the picture's data URL must be base64: data:image/png;base64,…")
    if len(text) > 4 * (MAX_BYTES // 3 + 1):
        raise UserError("the picture is larger than 1 MiB: make it smaller")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the picture is not base64") from None


def decode_picture(data: bytes) -> Tensor:
    """Decode a picture file to grey (H, W) in [0, 1]; transparent parts become white.

    The size is checked in the header, so that a small file never becomes a large picture.
    """
    if len(data) > MAX_BYTES:
        raise UserError("the picture is larger than 1 MiB: make it smaller")
    try:
        grey = decode_grey(data, FORMATS, MAX_SIDE_PIXELS, background="white")
    except TooManyPixels as error:
        raise UserError(f"the picture has {error}: at most {MAX_SIDE_PIXELS}×{MAX_SIDE_PIXELS} are read") from None
    except Image.UnidentifiedImageError:
        raise UserError("the picture is no PNG, JPEG or WebP file") from None
    except Exception:
        # A damaged file makes a decoder raise nearly anything: OSError, SyntaxError, struct.error, IndexError, ...
        raise UserError("the picture is damaged: it cannot be decoded") from None
    return torch.from_numpy(grey.astype(np.float32) / 255)


def white_on_black(grey_HW: Tensor) -> Tensor:
    """Inverted if its border is light: then it is dark ink on white paper."""
    return 1 - grey_HW if _border(grey_HW).mean() > 0.5 else grey_HW


def _border(grey_HW: Tensor) -> Tensor:
    return torch.cat([grey_HW[0], grey_HW[-1], grey_HW[:, 0], grey_HW[:, -1]])


def ink(grey_HW: Tensor) -> Tensor:
    """White on black without the paper, which photographs show grey, noisy and unevenly lit.

    Paper is what the border is made of, ink what stands out from it: the darkest of it becomes white.
    """
    border = _border(grey_HW)
    paper = border.median()
    spread = (border - paper).abs().median() / 0.6745  # the standard deviation of a normal one, whatever crosses it
    rest = (grey_HW - paper - 4 * spread).clamp_min(0)
    most = rest.max()
    return rest / most if most > FAINT else torch.zeros_like(rest)


def fit(grey_HW: Tensor, height: int, width: int) -> Tensor:
    """Stretched to another size, averaged where it shrinks."""
    if grey_HW.shape == (height, width):
        return grey_HW
    return F.interpolate(grey_HW[None, None], (height, width), mode="bilinear", antialias=True)[0, 0].clamp(0, 1)


def centre(grey_HW: Tensor, height: int, width: int, box: float = BOX) -> Tensor:
    """The ink as MNIST has it: fitted into a box in the middle, its centre of mass at the picture's centre.

    A picture without ink stays empty.

    Args:
        grey_HW: white ink on black.
        height, width: of the result.
        box: share of the result's sides that the ink is fitted into.
    """
    ink = grey_HW > FAINT
    if not ink.any():
        return torch.zeros(height, width)
    rows, columns = ink.any(1).nonzero().flatten(), ink.any(0).nonzero().flatten()
    cut = grey_HW[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
    factor = min(box * height / cut.shape[0], box * width / cut.shape[1])
    small = fit(cut, *(max(1, round(factor * side)) for side in cut.shape))
    picture = torch.zeros(height, width)
    top, left = (_start(small, axis, side) for axis, side in enumerate((height, width)))
    picture[top : top + small.shape[0], left : left + small.shape[1]] = small
    return picture


def _start(small: Tensor, axis: int, side: int) -> int:
    """Where the first row (or column) goes so that the mean of the ink is in the middle, and nothing is cut off."""
    mass = small.sum(1 - axis)
    middle = float((mass * torch.arange(len(mass))).sum() / mass.sum())
    return min(max(round((side - 1) / 2 - middle), 0), side - len(mass))


def data_url(picture: Tensor) -> str:
    """(H, W), or (C, H, W) in [0, 1], as a PNG that a page can show: in colour if C is 3, else grey."""
    if picture.ndim == 3 and len(picture) != 3:
        picture = picture.mean(0)
    pixels = (picture.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    array = (pixels.permute(1, 2, 0) if pixels.ndim == 3 else pixels).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="png", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def strip(pictures_RVCHW: Tensor) -> Tensor:
    """(C, R·H, V·W): R rows of V pictures as one."""
    rows, columns, channels, height, width = pictures_RVCHW.shape
    return pictures_RVCHW.permute(2, 0, 3, 1, 4).reshape(channels, rows * height, columns * width)


def coloured(grey_HW: Tensor, index: int) -> Tensor:
    """(3, H, W): a reconstruction in the colour of its place among the decoded ones."""
    return _tint(COLOURS[index % len(COLOURS)], grey_HW)


def _tint(code: str, grey_HW: Tensor) -> Tensor:
    colour = torch.tensor(struct.unpack("BBB", bytes.fromhex(code[1:]))) / 255
    return colour[:, None, None] * grey_HW


def missing(drawn_HW: Tensor, redrawn_HW: Tensor) -> Tensor:
    """(3, H, W): red what was drawn but not reconstructed, blue what was reconstructed but not drawn."""
    difference = drawn_HW - redrawn_HW
    return _tint(LACKING, difference.clamp_min(0)) + _tint(MADE_UP, (-difference).clamp_min(0))
