"""Images of classes a model was not trained on: letters, curves, noise and plain shapes, drawn from a seed.

Every function takes the number of images, their size (C, H, W) and a seed, and returns float images (N, C, H, W) in
[0, 1]. Shapes are white on black, and grey where C is more than 1; noise differs between channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.sources import has_files, load_data
from torchcaps.errors import UserError

if TYPE_CHECKING:
    from PIL import Image, ImageFont

Size = tuple[int, int, int]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LOOK_ALIKES = "OoDQIilZzSsbBqg"  # like 0 (four of them), 1 (three), 2, 2, 5, 5, 6, 8, 9, 9
FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
)
DIGIT, FRAME = 20, 28  # pixels of an MNIST digit, on its longer side, and of its frame
OVERSAMPLE = 4  # letters are drawn this much larger, then averaged
GAUSSIAN_STDS = (0.1, 0.25, 0.5)
FAINT_STD = 0.02  # noise of the noisy greys
CHUNK_DISTANCES = 1 << 23  # between pixels and points of curves, computed at a time


def letters(
    n: int, size: Size, seed: int, *, alphabet: str = LETTERS, height: float | None = None
) -> tuple[Tensor, str]:
    """Draw printed letters in the faces of DejaVu, each in the middle of its image, give or take a tenth of its height.

    Args:
        n: number of images.
        size: (C, H, W).
        seed: of the letters, faces, sizes and positions.
        alphabet: the letters to choose from.
        height: pixels of a letter's longer side, give or take 10 %; by default that of an MNIST digit, which has 20
            pixels in a frame of 28 or more, and 5/7 of a smaller one.

    Returns:
        (N, C, H, W) images, and a string of N letters.
    """
    if not alphabet:
        raise UserError("alphabet: give at least one letter")
    generator, (H, W) = _begin(n, size, seed), size[1:]
    height = _height(size, height)
    which_N = torch.randint(len(alphabet), (n,), generator=generator).tolist()
    face_N = torch.randint(len(FACES), (n,), generator=generator).tolist()
    grow_N, right_N, down_N = (2 * torch.rand(3, n, generator=generator) - 1).tolist()
    images = torch.empty(n, H, W)
    for number, (which, face) in enumerate(zip(which_N, face_N)):
        side = min(height * (1 + 0.1 * grow_N[number]), H, W)
        shift = (0.1 * height * right_N[number], 0.1 * height * down_N[number])
        images[number] = _letter(alphabet[which], FACES[face], side, shift, (H, W))
    return _in_channels(images, size), "".join(alphabet[which] for which in which_N)


def splines(n: int, size: Size, seed: int, *, height: float | None = None) -> Tensor:
    """Draw two to four smooth strokes, each a cubic Bézier curve, as thick as a pen's in MNIST.

    Args:
        n: number of images.
        size: (C, H, W).
        seed: of the number of strokes, their control points and their thickness.
        height: pixels of the longer side of the box around all strokes, which is in the middle; see `letters`.

    Returns:
        (N, C, H, W) images.
    """
    generator = _begin(n, size, seed)
    height = _height(size, height)
    radius_N = height / DIGIT * (1.0 + 0.6 * torch.rand(n, generator=generator))
    strokes_N = torch.randint(2, 5, (n,), generator=generator)
    control_N442 = torch.rand(n, 4, 4, 2, generator=generator)
    # An image with fewer strokes repeats some of them, which does not show.
    stroke_N4 = torch.arange(4) % strokes_N[:, None]
    points_NP2 = _bezier(control_N442[torch.arange(n)[:, None], stroke_N4], samples=max(16, math.ceil(4 * height)))
    low_N12, high_N12 = points_NP2.amin(1, keepdim=True), points_NP2.amax(1, keepdim=True)
    longer_N11 = (high_N12 - low_N12).amax(2, keepdim=True)
    grow_N11 = (height - 2 * radius_N)[:, None, None] / longer_N11
    return _in_channels(_near((points_NP2 - (low_N12 + high_N12) / 2) * grow_N11, radius_N, size[1:]), size)


def uniform_noise(n: int, size: Size, seed: int) -> Tensor:
    """Draw every value independently from [0, 1): (N, C, H, W)."""
    return torch.rand(n, *size, generator=_begin(n, size, seed))


def gaussian_noise(n: int, size: Size, seed: int) -> Tensor:
    """Draw every value around 0.5, clipped to [0, 1], with the standard deviations in turn: (N, C, H, W)."""
    noise = torch.randn(n, *size, generator=_begin(n, size, seed))
    std_N = torch.tensor(GAUSSIAN_STDS)[torch.arange(n) % len(GAUSSIAN_STDS)]
    return (0.5 + std_N[:, None, None, None] * noise).clamp(0, 1)


def constants(n: int, size: Size, seed: int) -> Tensor:
    """Make images of one value, in turn black, white, grey, and grey with faint noise: (N, C, H, W)."""
    generator = _begin(n, size, seed)
    grey_N = 0.1 + 0.8 * torch.rand(n, generator=generator)
    noise = FAINT_STD * torch.randn(n, *size, generator=generator)
    kind_N = torch.arange(n) % 4
    value_N = torch.where(kind_N == 0, 0.0, torch.where(kind_N == 1, 1.0, grey_N))
    flat = value_N[:, None, None, None].expand(n, *size)
    return torch.where((kind_N == 3)[:, None, None, None], flat + noise, flat).clamp(0, 1)


def dots(n: int, size: Size, seed: int) -> Tensor:
    """Draw one round dot, of a radius of 0.5 to 2 pixels, anywhere on black: (N, C, H, W)."""
    generator = _begin(n, size, seed)
    radius_N = 0.5 + 1.5 * torch.rand(n, generator=generator)
    half_2 = torch.tensor([size[2], size[1]]) / 2
    room_N2 = (half_2 - radius_N[:, None]).clamp_min(0)
    centre_N12 = ((2 * torch.rand(n, 2, generator=generator) - 1) * room_N2)[:, None]
    return _in_channels(_near(centre_N12, radius_N, size[1:]), size)


def gradients(n: int, size: Size, seed: int) -> Tensor:
    """Shade images evenly from dark (0 to 0.4) to light (0.6 to 1), in any direction: (N, C, H, W)."""
    generator = _begin(n, size, seed)
    angle_N, dark_N, light_N = torch.rand(3, n, generator=generator)
    dark_N, light_N = 0.4 * dark_N, 1 - 0.4 * light_N
    direction_N2 = torch.stack([(2 * math.pi * angle_N).cos(), (2 * math.pi * angle_N).sin()], dim=1)
    along_NP = direction_N2 @ _pixels(size[1:]).T
    reach_N1 = along_NP.amax(1, keepdim=True).clamp_min(1e-6)
    share_NP = (along_NP / reach_N1 + 1) / 2
    shade_NP = dark_N[:, None] + (light_N - dark_N)[:, None] * share_NP
    return _in_channels(shade_NP.view(n, *size[1:]).clamp(0, 1), size)


def _letters_alone(n: int, size: Size, seed: int, *, alphabet: str, height: float | None = None) -> Tensor:
    return letters(n, size, seed, alphabet=alphabet, height=height)[0]


# By name; each is called as draw(n, size, seed). Those in SIZED also take height=.
UNFAMILIAR: dict[str, Callable[..., Tensor]] = {
    "letters": partial(_letters_alone, alphabet="".join(sorted(set(LETTERS) - set(LOOK_ALIKES)))),
    "look-alikes": partial(_letters_alone, alphabet=LOOK_ALIKES),
    "splines": splines,
    "uniform noise": uniform_noise,
    "Gaussian noise": gaussian_noise,
    "constants": constants,
    "dots": dots,
    "gradients": gradients,
}
SIZED = ("letters", "look-alikes", "splines")


def fashion_mnist(n: int, size: Size, seed: int) -> Tensor | None:
    """Take test images of Fashion-MNIST, in the middle of the frame, if the data folder has them.

    Args:
        n: number of images; at most as many as there are.
        size: (C, H, W). They are shrunk for a frame of less than 28 pixels, and padded with black for a larger one.
        seed: of the choice.

    Returns:
        (N, C, H, W) images; None where the files are missing. Nothing is downloaded.
    """
    generator, (H, W) = _begin(n, size, seed), size[1:]
    if not has_files("fashion-mnist"):
        return None
    side = min(FRAME, H, W)
    test = load_data("fashion-mnist", image_size=side, validation=0).test
    assert test is not None
    chosen = torch.randperm(len(test), generator=generator)[:n]
    left, top = (W - side) // 2, (H - side) // 2
    framed = F.pad(test.images[chosen, 0].float() / 255, (left, W - side - left, top, H - side - top))
    return _in_channels(framed, size)


def ink_height(images: Tensor) -> float:
    """Measure the usual size of the objects in images, so that unfamiliar shapes can be as large.

    Args:
        images: (N, C, H, W) in [0, 1], light on dark.

    Returns:
        The median, over the images, of the longer side of the box around all values above 0.3; 0 if they are black.
    """
    ink_NHW = (images > 0.3).any(1)
    sides = [_span(ink_NHW.any(other)) for other in (1, 2)]
    return float(torch.maximum(*sides).float().median())


def _span(mask_NS: Tensor) -> Tensor:
    """Return (N,) the number of positions from the first True to the last."""
    position_S = torch.arange(mask_NS.shape[1], device=mask_NS.device)
    last_N = torch.where(mask_NS, position_S, -1).amax(1)
    first_N = torch.where(mask_NS, position_S, mask_NS.shape[1]).amin(1)
    return (last_N - first_N + 1).clamp_min(0)


def _begin(n: int, size: Size, seed: int) -> torch.Generator:
    if n < 1 or len(size) != 3 or min(size) < 1:
        raise UserError(f"n={n}, size={tuple(size)}: give at least one image, and (channels, height, width)")
    return torch.Generator().manual_seed(seed)


def _height(size: Size, height: float | None) -> float:
    if height is None:
        return min(DIGIT, DIGIT / FRAME * min(size[1:]))
    if not 1 <= height <= min(size[1:]):
        raise UserError(f"height={height:g}: give 1 to {min(size[1:])} pixels, which is the shorter side of the image")
    return height


def _in_channels(images_NHW: Tensor, size: Size) -> Tensor:
    return images_NHW[:, None].repeat(1, size[0], 1, 1)


def _letter(letter: str, face: str, side: float, shift: tuple[float, float], frame: tuple[int, int]) -> Tensor:
    """Draw one letter (H, W) with `side` pixels on its longer side, shifted from the middle but inside the frame."""
    from PIL import Image

    H, W = (OVERSAMPLE * each for each in frame)
    probe = 256
    scale = OVERSAMPLE * side / max(_glyph(letter, face, probe).size)
    glyph = _glyph(letter, face, max(1, int(scale * probe)))
    free_x, free_y = W - glyph.width, H - glyph.height
    x = min(max(free_x / 2 + OVERSAMPLE * shift[0], 0), max(free_x, 0))
    y = min(max(free_y / 2 + OVERSAMPLE * shift[1], 0), max(free_y, 0))
    canvas = Image.new("L", (W, H))
    canvas.paste(glyph, (round(x), round(y)))
    return torch.from_numpy(np.asarray(canvas.reduce(OVERSAMPLE), dtype=np.float32) / 255)


def _glyph(letter: str, face: str, size: int) -> Image.Image:
    """Draw a letter in white, cropped to its ink: the font's box includes the space around it."""
    from PIL import Image, ImageDraw

    font = _font(face, size)
    left, top, right, bottom = font.getbbox(letter)
    canvas = Image.new("L", (math.ceil(right - left) + 1, math.ceil(bottom - top) + 1))
    ImageDraw.Draw(canvas).text((-left, -top), letter, fill=255, font=font)
    return canvas.crop(canvas.getbbox())


def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    try:
        return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise UserError(
            f"cannot read the font {path}, which comes with matplotlib: install matplotlib again"
        ) from error


def _bezier(control_NS42: Tensor, samples: int) -> Tensor:
    """Return (N, S · samples, 2) points of cubic Bézier curves with these control points."""
    t = torch.linspace(0, 1, samples)
    weights_P4 = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], dim=1)
    return (weights_P4 @ control_NS42).flatten(1, 2)


def _near(points_NP2: Tensor, radius_N: Tensor, frame: tuple[int, int]) -> Tensor:
    """Return (N, H, W): 1 within the radius of any point (x, y), falling to 0 over a pixel."""
    pixels_P2 = _pixels(frame)
    chunk_size = max(1, CHUNK_DISTANCES // (points_NP2.shape[1] * len(pixels_P2)))
    away = [
        torch.cdist(chunk, pixels_P2.expand(len(chunk), -1, -1), compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        for chunk in points_NP2.split(chunk_size)
    ]
    return (radius_N[:, None] + 0.5 - torch.cat(away)).clamp(0, 1).view(-1, *frame)


def _pixels(frame: tuple[int, int]) -> Tensor:
    """Return (H · W, 2) the (x, y) of each pixel, from the centre."""
    y_H, x_W = (torch.arange(side) - (side - 1) / 2 for side in frame)
    return torch.stack([x_W.expand(frame), y_H[:, None].expand(frame)], dim=-1).flatten(0, 1)
