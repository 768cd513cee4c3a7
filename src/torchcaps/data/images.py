"""The decoder of image files, used for training, prediction and the explorer; and the same steps for tensors."""

from __future__ import annotations

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.errors import UnreadableImage, UserError

if TYPE_CHECKING:
    from PIL import Image

# The formats of IMAGE_SUFFIXES, and PPM. Pillow has forty more decoders, one of which starts Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
CHUNK_IMAGES = 4096  # converted at a time: bounds the wider copy that the arithmetic needs
CHUNK_PIXELS = 1 << 22  # of each of them
# A file may hold the larger of MIN_PIXEL_LIMIT and MAX_PIXELS_PER_BYTE times its size; a blank PNG has 1,000 per byte.
MIN_PIXEL_LIMIT = 1 << 24
MAX_PIXELS_PER_BYTE = 4096


class TooManyPixels(ValueError):
    """An image has more pixels than may be decoded; the message says how many."""


def load_image(path: str | Path, image_shape: tuple[int, int, int]) -> Tensor:
    """Read one image file in the shape that a model takes.

    Args:
        path: the file.
        image_shape: (C, H, W); C is 1 or 3.

    Returns:
        (C, H, W) uint8.
    """
    channels, height, width = image_shape
    check_channels(channels)
    pixels = decode(Path(path), (height, width), channels)
    return torch.from_numpy(np.broadcast_to(pixels, image_shape).copy())


def decode(path: Path, size: tuple[int, int] | None, channels: int | None, content: bytes | None = None) -> np.ndarray:
    """Decode a file, upright and resized.

    Args:
        path: the file.
        size: (H, W); None keeps the size of the file.
        channels: 1 converts to grey; with 3 or None a grey file keeps its one channel.
        content: of a file that is inside another; `path` then only names it.

    Returns:
        (1 or 3, H, W) uint8.
    """
    from PIL import Image, ImageOps

    with opened_image(path, content) as image:
        if size is not None:
            # the JPEG decoder may skip the detail of large photographs; keep twice the size for the resize
            image.draft(None, (2 * max(size), 2 * max(size)))
        ImageOps.exif_transpose(image, in_place=True)
        flat = _eight_bits(image)
        if channels == 1:
            flat = flat.convert("L")
        if size is not None and flat.size != size[::-1]:
            flat = flat.resize(size[::-1], Image.Resampling.BILINEAR)  # Pillow's bilinear averages when it shrinks
        pixels = np.asarray(flat)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def decode_bytes(
    data: bytes, channels: int, formats: tuple[str, ...], max_side_pixels: int, background: str
) -> np.ndarray:
    """Decode the content of an image file, upright and at its own size.

    Args:
        data: the file's content.
        channels: 1 for grey, 3 for colours.
        formats: the only Pillow formats to try.
        max_side_pixels: the largest height or width to decode.
        background: the colour behind transparent pixels.

    Returns:
        (C, H, W) uint8.

    Raises:
        TooManyPixels: the header gives a larger image. Damaged files raise other exceptions, of nearly any type.
    """
    from PIL import ImageOps

    with _bounded(io.BytesIO(data), formats, max_side_pixels) as image:
        ImageOps.exif_transpose(image, in_place=True)
        pixels = np.asarray(_eight_bits(image, background).convert("L" if channels == 1 else "RGB"))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def upright_size(path: Path) -> tuple[int, int]:
    """Return the height and width of an image file as shown upright, in most formats without decoding it."""
    from PIL import ExifTags, ImageOps

    with opened_image(path) as image:
        if image.format == "TIFF":
            ImageOps.exif_transpose(image, in_place=True)  # before that its size depends on the version of Pillow
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
        return (image.width, image.height) if turned else (image.height, image.width)


def is_grey(path: Path, content: bytes | None = None) -> bool:
    """Return whether a file decodes to one channel; its header says so, and no pixel is decoded."""
    with opened_image(path, content) as image:
        return _is_grey(image)


@contextmanager
def opened_image(path: Path, content: bytes | None = None) -> Iterator[Image.Image]:
    """Open an image file without decoding it; every error, here or while it is used, becomes an UnreadableImage."""
    from PIL import Image

    try:
        file, size = _opened(path) if content is None else (io.BytesIO(content), len(content))
        # not Image.open(path), which memory-maps an uncompressed TIFF with the sides of a turned one swapped
        with file, _bounded(file, FORMATS) as image:
            if image.width * image.height > max(MIN_PIXEL_LIMIT, MAX_PIXELS_PER_BYTE * size):
                raise ValueError(f"{image.width}×{image.height} pixels cannot be in {size:,} bytes")
            yield image
    except FileNotFoundError as error:
        raise UnreadableImage(path, "there is no such file") from error
    except TooManyPixels as error:
        raise UnreadableImage(path, f"more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller") from error
    except Image.UnidentifiedImageError as error:
        raise UnreadableImage(path, "not an image in a known format") from error
    except Exception as error:
        # A damaged file can make a decoder raise nearly anything (SyntaxError, struct.error, IndexError, ...).
        raise UnreadableImage(path, str(error) or type(error).__name__) from error


def _opened(path: Path) -> tuple[BinaryIO, int]:
    """A file and its size."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a file")  # opening a pipe would block
    return path.open("rb"), found.st_size


@contextmanager
def _bounded(file: BinaryIO, formats: tuple[str, ...], max_side_pixels: int | None = None) -> Iterator[Image.Image]:
    """Open an image and check its size in the header, before it is decoded."""
    from PIL import Image

    try:
        with Image.open(file, formats=formats) as image:
            width, height = image.size
            if max_side_pixels is not None and max(width, height) > max_side_pixels:
                raise TooManyPixels(f"{width}×{height} pixels")
            if width * height > (Image.MAX_IMAGE_PIXELS or np.inf):
                raise TooManyPixels(f"{width}×{height} pixels")  # Pillow only warns, up to twice as many
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixels("far too many pixels") from error


def _eight_bits(image: Image.Image, background: str = "black") -> Image.Image:
    """Convert to mode L or RGB; black is also what padding and shifts fill in."""
    from PIL import Image

    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save it with 8 or 16 bits a channel")
    grey = _is_grey(image)
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image.convert("RGBA"))
    return image.convert("L" if grey else "RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    values = np.asarray(image).astype(np.int32)  # I;16, or I where Pillow widened a 16-bit file
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("32-bit pixels have no known range; save it with 8 or 16 bits a channel")
    return Image.fromarray(sixteen_to_eight_bits(values))


def sixteen_to_eight_bits(values: np.ndarray) -> np.ndarray:
    """Scale 0..65535 to 0..255, rounded to the nearest."""
    return ((values.astype(np.int32) + 128) // 257).astype(np.uint8)


def _is_grey(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        return _grey_palette(image)
    return image.mode in ("1", "L", "LA") or image.mode.startswith("I")


def _grey_palette(image: Image.Image) -> bool:
    colours = np.asarray(image.getpalette("RGB") or []).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images, with averaging where they shrink.

    Args:
        images: (N, C, H, W) uint8.
        size: (h, w).

    Returns:
        (N, C, h, w) uint8.
    """
    if tuple(images.shape[2:]) == size:
        return images
    resized = torch.empty(*images.shape[:2], *size, dtype=torch.uint8)
    for block, out in zip(images.split(CHUNK_IMAGES), resized.split(CHUNK_IMAGES)):
        if len(block):
            smooth = F.interpolate(block.float(), size=size, mode="bilinear", antialias=True)
            out.copy_(smooth.round().clamp(0, 255))
    return resized


def set_channels(images: Tensor, channels: int | None) -> Tensor:
    """Convert grey to RGB or RGB to grey, with the weights and rounding of Pillow.

    Args:
        images: (N, C, H, W) uint8.
        channels: 1 or 3; None returns the images unchanged.

    Returns:
        (N, channels, H, W) uint8.
    """
    if channels is None or images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(3, 1, 1)
    grey = images.new_empty(len(images), 1, *images.shape[2:])
    rows = max(1, CHUNK_PIXELS // max(1, images.shape[3]))  # one huge image is converted in parts too
    for block, out in zip(images.split(CHUNK_IMAGES), grey.split(CHUNK_IMAGES)):
        for part, lines in zip(block.split(rows, dim=2), out.split(rows, dim=2)):
            lines.copy_(((part * weights).sum(dim=1, keepdim=True, dtype=torch.int32) + 0x8000) >> 16)
    return grey


def check_size(image_size: object) -> tuple[int, int] | None:
    """Return (H, W) from a number or a pair; None stays None."""
    if image_size is None:
        return None
    pair: list = list(image_size) if isinstance(image_size, (tuple, list)) else [image_size, image_size]
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in pair):
        raise UserError(f"image_size={image_size}: give a whole number of pixels, or a pair (height, width)")
    return pair[0], pair[1]


def check_channels(channels: int | None) -> None:
    """Refuse numbers of channels other than 1 and 3; None is allowed."""
    if channels not in (None, 1, 3):
        raise UserError(f"channels={channels}: choose 1 (grey) or 3 (RGB)")
