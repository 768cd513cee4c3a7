"""Image files to uint8 tensors, by the same steps in training and in prediction; and the same steps for tensors."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.errors import UnreadableImage, UserError

if TYPE_CHECKING:
    from PIL import Image

# What IMAGE_SUFFIXES promise and PPM; PIL knows forty more, of which one starts Ghostscript on what it is given.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
BLOCK = 4096  # images converted at a time: bounds the wider copy that the arithmetic needs
BLOCK_PIXELS = 1 << 22  # of each of them
SMALL = 1 << 24  # pixels that may come out of any file
PACKED = 4096  # beyond that, pixels for each byte of it: four times what PNG makes of a blank image


def load_image(path: str | Path, image_shape: tuple[int, int, int]) -> Tensor:
    """One image file, in the shape a model wants.

    image_shape  (C, H, W)
    returns      (C, H, W)  uint8
    """
    channels, height, width = image_shape
    check_channels(channels)
    pixels = decode(Path(path), (height, width), channels)
    return torch.from_numpy(np.broadcast_to(pixels, image_shape).copy())


def decode(path: Path, size: tuple[int, int], channels: int | None) -> np.ndarray:
    """The pixels of a file, upright and resized.

    size      (H, W)
    channels  1 makes it grey; 3 and None leave a grey file with its one channel, to be broadcast
    returns   (1 or 3, H, W)  uint8
    """
    from PIL import Image, ImageOps

    height, width = size
    with opened_image(path) as image:
        # lets the JPEG decoder skip the detail of large photographs; twice the size is left for the resize
        image.draft(None, (2 * max(size), 2 * max(size)))
        ImageOps.exif_transpose(image, in_place=True)
        flat = _eight_bits(image)
        if channels == 1:
            flat = flat.convert("L")
        if flat.size != (width, height):
            flat = flat.resize((width, height), Image.Resampling.BILINEAR)  # PIL's bilinear averages when it shrinks
        pixels = np.asarray(flat)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def upright_size(path: Path) -> tuple[int, int]:
    """Rows and columns of an image file as it is shown, upright; most formats are not decoded for it."""
    from PIL import ExifTags, ImageOps

    with opened_image(path) as image:
        if image.format == "TIFF":
            ImageOps.exif_transpose(image, in_place=True)  # its size before depends on the version of PIL
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
        return (image.width, image.height) if turned else (image.height, image.width)


@contextmanager
def opened_image(path: Path) -> Iterator[Image.Image]:
    """The picture, not yet decoded; whatever goes wrong with it, here or while it is used, names the file."""
    from PIL import Image

    too_large = f"more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a file")  # to open a pipe would be to wait for ever
        # not Image.open(path), which maps an uncompressed TIFF into memory with the sides of a turned one swapped
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or np.inf):
                raise ValueError(too_large)  # PIL itself only warns, up to twice as many
            if image.width * image.height > max(SMALL, PACKED * found.st_size):
                raise ValueError(f"{image.width}×{image.height} pixels cannot be in {found.st_size:,} bytes")
            yield image
    except FileNotFoundError as error:
        raise UnreadableImage(path, "there is no such file") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableImage(path, too_large) from error
    except Image.UnidentifiedImageError as error:
        raise UnreadableImage(path, "not an image in a known format") from error
    except Exception as error:
        # A damaged file can make a decoder raise nearly anything (SyntaxError, struct.error, IndexError, ...).
        raise UnreadableImage(path, str(error) or type(error).__name__) from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """The same picture in mode L or RGB: transparency over black, the value that padding and shifts fill in."""
    from PIL import Image

    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save it with 8 or 16 bits a channel")
    grey = image.mode in ("1", "L", "LA") or (image.mode in ("P", "PA") and _grey_palette(image))
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        image = Image.alpha_composite(black, image.convert("RGBA"))
    return image.convert("L" if grey else "RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    values = np.asarray(image).astype(np.int32)  # I;16, or I where PIL widened a 16-bit file
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("32-bit pixels have no known range; save it with 8 or 16 bits a channel")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))  # 65535 / 257 = 255, rounded to the nearest


def _grey_palette(image: Image.Image) -> bool:
    colours = np.asarray(image.getpalette("RGB") or []).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The images at another size, averaged where they shrink.

    images   (N, C, H, W)  uint8
    size     (h, w)
    returns  (N, C, h, w)  uint8
    """
    if tuple(images.shape[2:]) == size:
        return images
    resized = torch.empty(*images.shape[:2], *size, dtype=torch.uint8)
    for block, out in zip(images.split(BLOCK), resized.split(BLOCK)):
        if len(block):
            smooth = F.interpolate(block.float(), size=size, mode="bilinear", antialias=True)
            out.copy_(smooth.round().clamp(0, 255))
    return resized


def set_channels(images: Tensor, channels: int | None) -> Tensor:
    """Grey to RGB or RGB to grey, with the weights and rounding that PIL uses.

    images   (N, C, H, W)  uint8
    returns  (N, channels, H, W)  uint8; None leaves them as they are
    """
    if channels is None or images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(3, 1, 1)
    grey = images.new_empty(len(images), 1, *images.shape[2:])
    rows = max(1, BLOCK_PIXELS // max(1, images.shape[3]))  # of one huge image not all at a time, either
    for block, out in zip(images.split(BLOCK), grey.split(BLOCK)):
        for part, lines in zip(block.split(rows, dim=2), out.split(rows, dim=2)):
            lines.copy_(((part * weights).sum(dim=1, keepdim=True, dtype=torch.int32) + 0x8000) >> 16)
    return grey


def check_size(image_size: object) -> tuple[int, int] | None:
    """(H, W) from a number or a pair; None stays None."""
    if image_size is None:
        return None
    pair: list = list(image_size) if isinstance(image_size, (tuple, list)) else [image_size, image_size]
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in pair):
        raise UserError(f"image_size={image_size}: give a whole number of pixels, or a pair (height, width)")
    return pair[0], pair[1]


def check_channels(channels: int | None) -> None:
    """Only grey and RGB images can be made from files."""
    if channels not in (None, 1, 3):
        raise UserError(f"channels={channels}: choose 1 (grey) or 3 (RGB)")
