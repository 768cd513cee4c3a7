"""Request images, and how to decode the images in responses."""

import base64
import io

import numpy as np
import torch
from PIL import Image


def pixels_of(data_url):
    """Decode to (H, W) or (H, W, 3), from 0 to 255."""
    head, _, body = data_url.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body)))).astype(int)


def as_file(pixels, kind="png", **options):
    """Encode uint8 pixels or a Pillow image as a file in base64."""
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def random_pixels(seed=0, side=28):
    return {"pixels": torch.rand(side, side, generator=torch.Generator().manual_seed(seed)).tolist()}
