"""Images from clients, whose size is checked before they are decoded, and images for clients, as data URLs."""

from __future__ import annotations

import base64
import binascii
import io
import struct

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from torchcaps.data.images import TooManyPixels, decode_bytes
from torchcaps.errors import UserError

MAX_BYTES = 1 << 20  # of a picture file
MAX_SIDE_PIXELS = 2048  # of a picture file
FORMATS = ("PNG", "JPEG", "WEBP")  # no other decoder of Pillow ever sees what a client sent
MNIST_BOX = 20 / 28  # size of a digit in MNIST, as a share of the image's side
MIN_INK = 0.1  # a darker pixel is background
TIE_PIXELS = 1e-4  # a symmetric drawing can be centred half a pixel to either side; rounding must not choose
MISSING_COLOUR, EXTRA_COLOUR = "#ff6b6b", "#4dabf7"  # light: pure red and blue are hardly visible on black
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


def decode_picture(data: bytes, channels: int = 1) -> Tensor:
    """Decode a picture file to (C, H, W) uint8, grey or in colours; transparent parts become white.

    The size is checked in the header, so that a small file never becomes a large picture.
    """
    if len(data) > MAX_BYTES:
        raise UserError("the picture is larger than 1 MiB: make it smaller")
    try:
        pixels = decode_bytes(data, channels, FORMATS, MAX_SIDE_PIXELS, background="white")
    except TooManyPixels as error:
        raise UserError(f"the picture has {error}: at most {MAX_SIDE_PIXELS}×{MAX_SIDE_PIXELS} are read") from None
    except Image.UnidentifiedImageError:
        raise UserError("the picture is no PNG, JPEG or WebP file") from None
    except Exception:
        # A damaged file makes a decoder raise nearly anything: OSError, SyntaxError, struct.error, IndexError, ...
        raise UserError("the picture is damaged: it cannot be decoded") from None
    return torch.from_numpy(pixels.copy())


def white_on_black(grey_HW: Tensor) -> Tensor:
    """Invert an image with a light border, which shows dark ink on light paper."""
    return 1 - grey_HW if _border(grey_HW).mean() > 0.5 else grey_HW


def _border(grey_HW: Tensor) -> Tensor:
    return torch.cat([grey_HW[0], grey_HW[-1], grey_HW[:, 0], grey_HW[:, -1]])


def ink(grey_HW: Tensor) -> Tensor:
    """Remove the background of a white-on-black image; in photographs it is grey, noisy and unevenly lit.

    The border shows the background. Pixels that are clearly brighter are ink, and the brightest becomes 1.
    """
    border = _border(grey_HW)
    paper = border.median()
    spread = (border - paper).abs().median() / 0.6745  # a robust standard deviation
    contrast = (grey_HW - paper - 4 * spread).clamp_min(0)
    strongest = contrast.max()
    return contrast / strongest if strongest > MIN_INK else torch.zeros_like(contrast)


def fit(grey_HW: Tensor, height: int, width: int) -> Tensor:
    """Resize with antialiasing; the aspect ratio is not kept."""
    if grey_HW.shape == (height, width):
        return grey_HW
    return F.interpolate(grey_HW[None, None], (height, width), mode="bilinear", antialias=True)[0, 0].clamp(0, 1)


def centre(grey_HW: Tensor, height: int, width: int, box: float = MNIST_BOX) -> Tensor:
    """Scale and centre the ink as in MNIST: its bounding box gets a fixed size, its centre of mass is centred.

    An image without ink stays empty.

    Args:
        grey_HW: (H, W) white ink on black.
        height, width: Size of the result.
        box: Size of the ink's bounding box, as a share of the result's sides.
    """
    ink = grey_HW > MIN_INK
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
    """Position of the first row (or column) that centres the ink's centre of mass without cropping it."""
    mass = small.sum(1 - axis)
    middle = float((mass * torch.arange(len(mass))).sum() / mass.sum())
    return min(max(round((side - 1) / 2 - middle - TIE_PIXELS), 0), side - len(mass))


def data_url(picture: Tensor) -> str:
    """Encode an image (H, W) or (C, H, W) in [0, 1] as a PNG data URL: in colour if C is 3, otherwise grey."""
    if picture.ndim == 3 and len(picture) != 3:
        picture = picture.mean(0)
    pixels = (picture.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    array = (pixels.permute(1, 2, 0) if pixels.ndim == 3 else pixels).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="png", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def strip(pictures_RVCHW: Tensor) -> Tensor:
    """Tile (R, V, C, H, W) images into one of (C, R·H, V·W)."""
    rows, columns, channels, height, width = pictures_RVCHW.shape
    return pictures_RVCHW.permute(2, 0, 3, 1, 4).reshape(channels, rows * height, columns * width)


def coloured(grey_HW: Tensor, index: int) -> Tensor:
    """(3, H, W) reconstruction, tinted with the colour that belongs to its index."""
    return _tint(COLOURS[index % len(COLOURS)], grey_HW)


def _tint(code: str, grey_HW: Tensor) -> Tensor:
    colour = torch.tensor(struct.unpack("BBB", bytes.fromhex(code[1:]))) / 255
    return colour[:, None, None] * grey_HW


def missing(drawn_HW: Tensor, redrawn_HW: Tensor) -> Tensor:
    """(3, H, W) difference image: red where only the drawing has ink, blue where only the reconstruction has."""
    difference = drawn_HW - redrawn_HW
    return _tint(MISSING_COLOUR, difference.clamp_min(0)) + _tint(EXTRA_COLOUR, (-difference).clamp_min(0))
