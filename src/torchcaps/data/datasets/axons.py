"""Synthetic axons that resemble two-photon images of labelled ones: fibres that branch and carry boutons.

Each fibre has its own depth: the deeper, the dimmer and the more blurred. The images also have clutter, uneven light,
and shot and read noise. The mask shows the fibres without blur.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.segmentation import SegmentationDataset
from torchcaps.errors import UserError, did_you_mean

Range = tuple[float, float]

CLASS_NAMES = ("background", "axon")
CHUNK_PIXELS = 2**18  # drawn at a time: bounds the memory for fibres
PAD_PIXELS = 8  # drawn around an image, whose light reaches into it
STEP_PIXELS = 0.75  # between two points of a fibre
CURVATURE_PIXELS = 12  # between two random curvatures of a fibre
BRANCH_RADIUS = 0.85  # as a fraction of its parent's


@dataclass(frozen=True)
class AxonParameters:
    """Parameters of `draw_axons`. Lengths are in pixels, light is a fraction of white, and a pair is (least, most).

    Args:
        fibres: axons that enter an image.
        branching: the probability that an axon branches.
        curl: standard deviation of the curvature, in degrees per pixel.
        radius: of a fibre.
        every: mean distance between two boutons of a fibre.
        swelling: what a bouton adds to the radius.
        light: of a fibre at the surface, half a pixel within its edge; it grows with the thickness.
        dim: the fraction of it that is left at the greatest depth.
        blur: standard deviation at the surface, and at the greatest depth.
        haze: light that is everywhere.
        blobs: clutter, 1/16 to 1/6 of the image wide, such as cell bodies out of focus.
        blob_light: of each blob.
        specks: clutter as sharp as fibres, such as dust, and fibres that cross the plane.
        speck_light: of each speck.
        shading: largest relative change of the illumination across an image.
        photons: photons for white: the fewer, the more shot noise.
        read_noise: standard deviation of the camera's read noise.
    """

    fibres: tuple[int, int] = (2, 4)
    branching: float = 0.5
    curl: float = 2.0
    radius: Range = (0.8, 1.2)
    every: float = 12.0
    swelling: Range = (0.6, 1.8)
    light: Range = (0.35, 0.65)
    dim: float = 0.5
    blur: Range = (0.6, 1.8)
    haze: float = 0.06
    blobs: tuple[int, int] = (2, 6)
    blob_light: Range = (0.1, 0.4)
    specks: tuple[int, int] = (2, 8)
    speck_light: Range = (0.2, 0.6)
    shading: float = 0.4
    photons: float = 50.0
    read_noise: float = 0.02

    def __post_init__(self) -> None:
        for field in fields(self):
            value, paired = getattr(self, field.name), isinstance(field.default, tuple)
            if isinstance(value, tuple) != paired or (paired and len(value) != 2):
                raise UserError(f"{field.name}={value}: give {'a pair (least, most)' if paired else 'one number'}")
            least, most = value if paired else (value, value)
            if not 0 <= least <= most < math.inf:
                raise UserError(f"{field.name}={value}: give 0 or more, and the smaller number first in a pair")
            if field.name in ("radius", "every", "blur", "photons") and least == 0:
                raise UserError(f"{field.name}={value}: give more than 0")
        if self.reach > PAD_PIXELS:
            raise UserError(
                f"radius={self.radius} and swelling={self.swelling} add up to more than {PAD_PIXELS - 1}: give less"
            )

    @property
    def reach(self) -> int:
        """The largest distance of a fibre's pixels from its centre line, rounded up."""
        return math.ceil(self.radius[1] + self.swelling[1]) + 1


def draw_axons(count: int, size: int = 64, seed: int = 0, **parameters: Any) -> SegmentationDataset:
    """Draw images of axons with masks: 1 is axon or bouton, 0 is everything else.

    An image depends only on the parameters, the size, the seed and its position, and is the same on every machine.

    Args:
        count: number of images.
        size: pixels a side.
        seed: of all random draws.
        **parameters: of `AxonParameters`.

    Returns:
        Images (1, size, size) and masks (size, size).
    """
    known = {field.name for field in fields(AxonParameters)}
    if unknown := sorted(parameters.keys() - known):
        raise UserError(f"axons have no parameter {unknown[0]!r}: {did_you_mean(unknown[0], known)}")
    if count < 1 or size < PAD_PIXELS:
        raise UserError(f"count={count}, size={size}: give at least 1 image of at least {PAD_PIXELS} pixels a side")
    pairs = {name: tuple(value) for name, value in parameters.items() if isinstance(value, list)}  # YAML has no tuples
    params, random = AxonParameters(**parameters | pairs), _Random(seed)
    images = torch.empty(count, 1, size, size, dtype=torch.uint8)
    masks = torch.empty(count, size, size, dtype=torch.uint8)
    block = max(1, CHUNK_PIXELS // size**2)
    for image_block, mask_block in zip(images.split(block), masks.split(block)):
        image_block[:, 0], mask_block[:] = _draw(params, random, len(image_block), size)
    return SegmentationDataset(list(images), list(masks), CLASS_NAMES, tuple(f"axons-{i:05d}" for i in range(count)))


class _Random:
    """Random draws in float64; each quantity has its own stream, so that images do not depend on the block size."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.streams: dict[str, torch.Generator] = {}

    def unit(self, name: str, *shape: int) -> Tensor:
        """Return uniform values in [0, 1)."""
        if name not in self.streams:
            digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
            self.streams[name] = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        return torch.rand(*shape, generator=self.streams[name], dtype=torch.float64)

    def between(self, name: str, span: Range, *shape: int) -> Tensor:
        return span[0] + (span[1] - span[0]) * self.unit(name, *shape)

    def present(self, name: str, span: tuple[int, int], batch: int) -> Tensor:
        """Return (B, most): the first n of each row are True, n being random; one column if `most` is 0."""
        number_B = (span[0] + (span[1] - span[0] + 1) * self.unit(name, batch)).long()
        return torch.arange(max(span[1], 1)) < number_B[:, None]

    def normal(self, name: str, *shape: int) -> Tensor:
        """Return normal values by Box and Muller: `torch.randn` may differ between machines."""
        length, turn = self.unit(name, *shape, 2).unbind(-1)
        return (-2 * (1 - length).log()).sqrt() * (2 * math.pi * turn).cos()


class _Fibres(NamedTuple):
    """M fibres in B images, with T points each; x and y are from the image's centre."""

    image_M: Tensor
    x_MT: Tensor
    y_MT: Tensor
    radius_MT: Tensor
    light_M: Tensor
    blur_M: Tensor


def _draw(params: AxonParameters, random: _Random, batch: int, size: int) -> tuple[Tensor, Tensor]:
    """Return images and masks, (B, H, W) uint8 each."""
    fibres = _fibres(params, random, batch, size)
    inside_MHW = _inside(fibres, size, params.reach)
    light_BHW = torch.zeros(batch, size, size, dtype=torch.float64)
    light_BHW.index_add_(0, fibres.image_M, _blurred(inside_MHW, fibres))
    solid_MHW = inside_MHW[:, PAD_PIXELS:-PAD_PIXELS, PAD_PIXELS:-PAD_PIXELS] >= 0
    mask_BHW = torch.zeros(batch, size, size, dtype=torch.long)
    mask_BHW.index_add_(0, fibres.image_M, solid_MHW.long())
    light_BHW += _spots(random, "blob", params.blobs, params.blob_light, (size / 16, size / 6), batch, size)
    light_BHW += _spots(random, "speck", params.specks, params.speck_light, params.blur, batch, size)
    seen_BHW = (params.haze + light_BHW) * _illumination(params, random, batch, size)
    return _camera(params, random, seen_BHW), (mask_BHW > 0).to(torch.uint8)


def _fibres(params: AxonParameters, random: _Random, batch: int, size: int) -> _Fibres:
    """Draw axons that enter over an edge, and their branches."""
    present_BF = random.present("fibres", params.fibres, batch)
    shape = present_BF.shape
    depth_BF = random.unit("depth", *shape)
    light_BF = random.between("light", params.light, *shape) * (1 - (1 - params.dim) * depth_BF)
    blur_BF = params.blur[0] + (params.blur[1] - params.blur[0]) * depth_BF
    radius_BF = random.between("radius", params.radius, *shape)

    # Enter over the upper edge, downwards; then rotate about the centre to any edge.
    along_BF, out = random.between("along", (-0.4 * size, 0.4 * size), *shape), size / 2 + PAD_PIXELS
    turn_BF = (4 * random.unit("edge", *shape)).floor() * (math.pi / 2)
    x_BF, y_BF = along_BF * turn_BF.cos() + out * turn_BF.sin(), along_BF * turn_BF.sin() - out * turn_BF.cos()
    inward_BF = turn_BF + math.pi / 2 + random.between("entry", (-0.9, 0.9), *shape)
    x_BFT, y_BFT, heading_BFT = _walk(params, random, "axon", x_BF, y_BF, inward_BF, size)
    swollen_BFT = _swollen(params, random, "axon", radius_BF, x_BFT.shape[2])
    axons = _present(present_BF, x_BFT, y_BFT, swollen_BFT, light_BF, blur_BF)

    # A branch leaves its axon to either side, near the middle of the image.
    fork_BF1 = (random.between("fork", (0.2, 0.5), *shape, 1) * x_BFT.shape[2]).long()
    sharp_BF = random.between("sharp", (-1.0, 1.0), *shape)
    x_BF, y_BF, heading_BF = (along.gather(2, fork_BF1)[..., 0] for along in (x_BFT, y_BFT, heading_BFT))
    x_BFT, y_BFT, _ = _walk(params, random, "branch", x_BF, y_BF, heading_BF + sharp_BF + 0.4 * sharp_BF.sign(), size)
    swollen_BFT = _swollen(params, random, "branch", BRANCH_RADIUS * radius_BF, x_BFT.shape[2])
    present_BF = present_BF & (random.unit("branching", *shape) < params.branching)
    branches = _present(present_BF, x_BFT, y_BFT, swollen_BFT, light_BF, blur_BF)
    return _Fibres(*(torch.cat(both) for both in zip(axons, branches)))


def _present(
    present_BF: Tensor, x_BFT: Tensor, y_BFT: Tensor, radius_BFT: Tensor, light_BF: Tensor, blur_BF: Tensor
) -> _Fibres:
    attributes = (x_BFT, y_BFT, radius_BFT, light_BF, blur_BF)
    return _Fibres(present_BF.nonzero()[:, 0], *(each[present_BF] for each in attributes))


def _walk(
    params: AxonParameters, random: _Random, kind: str, x_BF: Tensor, y_BF: Tensor, heading_BF: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y and heading, (B, F, T) each, of points on a curve that is long enough to cross the image."""
    length = 1.5 * size + 2 * PAD_PIXELS
    points, knots = round(length / STEP_PIXELS), round(length / CURVATURE_PIXELS) + 1
    curvature = math.radians(params.curl) * random.normal(f"{kind} curvature", *x_BF.shape, knots)
    curvature_BFT = F.interpolate(curvature, points, mode="linear", align_corners=True)
    heading_BFT = heading_BF[..., None] + STEP_PIXELS * curvature_BFT.cumsum(2)
    x_BFT = x_BF[..., None] + STEP_PIXELS * heading_BFT.cos().cumsum(2)
    return x_BFT, y_BF[..., None] + STEP_PIXELS * heading_BFT.sin().cumsum(2), heading_BFT


def _swollen(params: AxonParameters, random: _Random, kind: str, radius_BF: Tensor, points: int) -> Tensor:
    """Return (B, F, T) the radius at each point; boutons are its maxima."""
    place_T1 = STEP_PIXELS * torch.arange(points, dtype=torch.float64)[:, None]
    boutons = math.ceil(points * STEP_PIXELS / params.every)
    at_BF1K = params.every * (torch.arange(boutons) + random.unit(f"{kind} bouton", *radius_BF.shape, 1, boutons))
    rise_BF1K = random.between(f"{kind} swelling", params.swelling, *radius_BF.shape, 1, boutons)
    width_BF1K = 0.6 * (radius_BF[..., None, None] + rise_BF1K)
    hills_BFTK = rise_BF1K * (-0.5 * ((place_T1 - at_BF1K) / width_BF1K).square()).exp()
    return radius_BF[..., None] + hills_BFTK.amax(3)


def _inside(fibres: _Fibres, size: int, reach: int) -> Tensor:
    """Return (M, H + padding, W + padding) depths of pixel centres within each fibre; -inf far away."""
    side = size + 2 * PAD_PIXELS
    x_MT, y_MT = (coordinate + (side - 1) / 2 for coordinate in (fibres.x_MT, fibres.y_MT))
    column_MT, row_MT = x_MT.floor(), y_MT.floor()
    near_MT = (column_MT >= reach) & (column_MT < side - reach) & (row_MT >= reach) & (row_MT < side - reach)
    fibre_P = near_MT.nonzero()[:, 0, None]
    around = torch.arange(-reach, reach + 1)
    step_y, step_x = (step.flatten() for step in torch.meshgrid(around, around, indexing="ij"))
    row_PW, column_PW = row_MT[near_MT][:, None] + step_y, column_MT[near_MT][:, None] + step_x
    away_PW = ((row_PW - y_MT[near_MT][:, None]).square() + (column_PW - x_MT[near_MT][:, None]).square()).sqrt()
    positions_PW = (fibre_P * side + row_PW.long()) * side + column_PW.long()
    inside = torch.full((len(x_MT) * side * side,), -torch.inf, dtype=torch.float64)
    inside.scatter_reduce_(0, positions_PW.flatten(), (fibres.radius_MT[near_MT][:, None] - away_PW).flatten(), "amax")
    return inside.view(-1, side, side)


def _blurred(inside_MHW: Tensor, fibres: _Fibres) -> Tensor:
    """Return (M, H, W) the light of each fibre, which grows with the thickness, so that boutons are bright."""
    solid_MHW = (inside_MHW + 0.5).clamp(min=0)  # an edge through a pixel fills a part of it
    place = torch.arange(inside_MHW.shape[1], dtype=torch.float64)
    spread_MHK = _bell(place[:, None] - place, fibres.blur_M[:, None, None])
    spread_MHK = (spread_MHK / spread_MHK.sum(2, keepdim=True))[:, PAD_PIXELS:-PAD_PIXELS]
    return fibres.light_M[:, None, None] * (spread_MHK @ solid_MHW @ spread_MHK.mT)


def _spots(
    random: _Random, kind: str, number: tuple[int, int], light: Range, blur: Range, batch: int, size: int
) -> Tensor:
    """Return (B, H, W) light of round spots at random positions."""
    present_BK = random.present(f"{kind} number", number, batch)
    light_BK = random.between(f"{kind} light", light, *present_BK.shape) * present_BK
    blur_BK1 = random.between(f"{kind} blur", blur, *present_BK.shape, 1)
    place = torch.arange(size, dtype=torch.float64)
    x_BKS, y_BKS = (
        _bell(place - random.between(f"{kind} {axis}", (0, size), *present_BK.shape, 1), blur_BK1) for axis in "xy"
    )
    return torch.einsum("bk,bky,bkx->byx", light_BK, y_BKS, x_BKS)


def _illumination(params: AxonParameters, random: _Random, batch: int, size: int) -> Tensor:
    """Return (B, H, W) smooth factors around 1."""
    knots_B133 = random.between("shading", (-params.shading, params.shading), batch, 1, 3, 3)
    return 1 + F.interpolate(knots_B133, (size, size), mode="bilinear", align_corners=True)[:, 0]


def _camera(params: AxonParameters, random: _Random, light_BHW: Tensor) -> Tensor:
    """Add shot and read noise, and convert to (B, H, W) uint8."""
    # The square root of a Poisson count plus 3/8 is nearly normal with a deviation of 1/2 (Anscombe 1948); its square
    # is 3/8 + 1/4 too large on average.
    root = (params.photons * light_BHW.clamp(min=0) + 3 / 8).sqrt() + random.normal("shot", *light_BHW.shape) / 2
    seen = (root.clamp(min=0).square() - 5 / 8) / params.photons
    noisy = seen + params.read_noise * random.normal("read", *light_BHW.shape)
    return (255 * noisy).round().clamp(0, 255).to(torch.uint8)


def _bell(distance: Tensor, deviation: Tensor) -> Tensor:
    return (-0.5 * (distance / deviation).square()).exp()
