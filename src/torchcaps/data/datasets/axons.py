"""Synthetic axons, in the spirit of two-photon images of labelled ones: fibres that branch and carry boutons.

Each fibre lies at a depth of its own: the deeper, the dimmer and the more blurred. Around them there is clutter that is
no axon, uneven light, and the noise of few photons and of the camera. The mask shows what is there, not its blur.
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
PIXELS = 2**18  # of images drawn at a time: bounds the canvases of their fibres
PAD = 8  # pixels drawn around an image, whose light reaches into it
STEP = 0.75  # pixels between two points of a fibre
KNOT = 12  # pixels over which a fibre's curvature changes
THIN = 0.85  # radius of a branch, as a share of its parent's


@dataclass(frozen=True)
class AxonParameters:
    """How axons look. Lengths are in pixels, light is in shares of white; a pair is the least and the most.

    fibres       axons that enter an image
    branching    the probability that one of them branches
    curl         standard deviation of the curvature, in degrees a pixel
    radius       of a fibre
    every        distance between two boutons of a fibre, on average
    swelling     what a bouton adds to the radius
    light        of a fibre at the surface, half a pixel within its edge; it grows with the thickness
    dim          the share of it that is left at the greatest depth
    blur         standard deviation at the surface, and at the greatest depth
    haze         light that is everywhere
    blobs        clutter, a sixteenth to a sixth of the image wide, such as cell bodies out of focus
    blob_light   of each of them
    specks       clutter as sharp as fibres, such as dust, and fibres that cross the plane
    speck_light  of each of them
    shading      by how much the illumination of an image rises or falls, as a share
    photons      that make white: the fewer, the more shot noise
    read_noise   standard deviation of the camera's own noise
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
                raise UserError(f"{field.name}={value}: give 0 or more, and of a pair the smaller number first")
            if field.name in ("radius", "every", "blur", "photons") and least == 0:
                raise UserError(f"{field.name}={value}: give more than 0")
        if self.reach > PAD:
            raise UserError(
                f"radius={self.radius} and swelling={self.swelling} add up to more than {PAD - 1}: give less"
            )

    @property
    def reach(self) -> int:
        """Pixels around a point of a fibre that can be a part of it."""
        return math.ceil(self.radius[1] + self.swelling[1]) + 1


def draw_axons(count: int, size: int = 64, seed: int = 0, **parameters: Any) -> SegmentationDataset:
    """So many images of axons with their masks: 1 is axon or bouton, 0 is everything else.

    An image depends on the parameters, the size, the seed and its position alone, and is the same everywhere.

    size        pixels a side
    parameters  of `AxonParameters`
    returns     images (1, size, size) and masks (size, size), views of one tensor each
    """
    known = {field.name for field in fields(AxonParameters)}
    if unknown := sorted(parameters.keys() - known):
        raise UserError(f"axons have no parameter {unknown[0]!r}: {did_you_mean(unknown[0], known)}")
    if count < 1 or size < PAD:
        raise UserError(f"count={count}, size={size}: give at least 1 image of at least {PAD} pixels a side")
    pairs = {name: tuple(value) for name, value in parameters.items() if isinstance(value, list)}  # as YAML has them
    look, chance = AxonParameters(**parameters | pairs), _Chance(seed)
    images = torch.empty(count, 1, size, size, dtype=torch.uint8)
    masks = torch.empty(count, size, size, dtype=torch.uint8)
    block = max(1, PIXELS // size**2)
    for some, theirs in zip(images.split(block), masks.split(block)):
        some[:, 0], theirs[:] = _draw(look, chance, len(some), size)
    return SegmentationDataset(list(images), list(masks), CLASS_NAMES, tuple(f"axons-{i:05d}" for i in range(count)))


class _Chance:
    """Draws in float64, each quantity from a stream of its own, so that no block of images depends on another."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.streams: dict[str, torch.Generator] = {}

    def unit(self, name: str, *shape: int) -> Tensor:
        """In [0, 1)"""
        if name not in self.streams:
            digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
            self.streams[name] = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        return torch.rand(*shape, generator=self.streams[name], dtype=torch.float64)

    def between(self, name: str, span: Range, *shape: int) -> Tensor:
        return span[0] + (span[1] - span[0]) * self.unit(name, *shape)

    def present(self, name: str, span: tuple[int, int], batch: int) -> Tensor:
        """(B, most)  the first so many of each row, as many as chance has it; one column where there may be none"""
        number_B = (span[0] + (span[1] - span[0] + 1) * self.unit(name, batch)).long()
        return torch.arange(max(span[1], 1)) < number_B[:, None]

    def normal(self, name: str, *shape: int) -> Tensor:
        """By Box and Muller: a normal generator's own method may differ between machines."""
        length, turn = self.unit(name, *shape, 2).unbind(-1)
        return (-2 * (1 - length).log()).sqrt() * (2 * math.pi * turn).cos()


class _Fibres(NamedTuple):
    """M fibres of B images, as T points each; x and y from the centre of the image."""

    image_M: Tensor
    x_MT: Tensor
    y_MT: Tensor
    radius_MT: Tensor
    light_M: Tensor
    blur_M: Tensor


def _draw(look: AxonParameters, chance: _Chance, batch: int, size: int) -> tuple[Tensor, Tensor]:
    """(B, H, W) twice, uint8: images and masks"""
    fibres = _fibres(look, chance, batch, size)
    inside_MHW = _inside(fibres, size, look.reach)
    light_BHW = torch.zeros(batch, size, size, dtype=torch.float64)
    light_BHW.index_add_(0, fibres.image_M, _blurred(inside_MHW, fibres))
    solid_MHW = inside_MHW[:, PAD:-PAD, PAD:-PAD] >= 0
    mask_BHW = torch.zeros(batch, size, size, dtype=torch.long)
    mask_BHW.index_add_(0, fibres.image_M, solid_MHW.long())
    light_BHW += _spots(chance, "blob", look.blobs, look.blob_light, (size / 16, size / 6), batch, size)
    light_BHW += _spots(chance, "speck", look.specks, look.speck_light, look.blur, batch, size)
    seen_BHW = (look.haze + light_BHW) * _illumination(look, chance, batch, size)
    return _camera(look, chance, seen_BHW), (mask_BHW > 0).to(torch.uint8)


def _fibres(look: AxonParameters, chance: _Chance, batch: int, size: int) -> _Fibres:
    """Axons that come in over an edge, and the branches that leave them."""
    there_BF = chance.present("fibres", look.fibres, batch)
    shape = there_BF.shape
    depth_BF = chance.unit("depth", *shape)
    light_BF = chance.between("light", look.light, *shape) * (1 - (1 - look.dim) * depth_BF)
    blur_BF = look.blur[0] + (look.blur[1] - look.blur[0]) * depth_BF
    radius_BF = chance.between("radius", look.radius, *shape)

    # Over the upper edge, downwards; then turned about the centre, so that it may be any edge.
    along_BF, out = chance.between("along", (-0.4 * size, 0.4 * size), *shape), size / 2 + PAD
    turn_BF = (4 * chance.unit("edge", *shape)).floor() * (math.pi / 2)
    x_BF, y_BF = along_BF * turn_BF.cos() + out * turn_BF.sin(), along_BF * turn_BF.sin() - out * turn_BF.cos()
    inward_BF = turn_BF + math.pi / 2 + chance.between("entry", (-0.9, 0.9), *shape)
    x_BFT, y_BFT, heading_BFT = _walk(look, chance, "axon", x_BF, y_BF, inward_BF, size)
    swollen_BFT = _swollen(look, chance, "axon", radius_BF, x_BFT.shape[2])
    axons = _present(there_BF, x_BFT, y_BFT, swollen_BFT, light_BF, blur_BF)

    # A branch leaves its axon to either side, somewhere about the middle of the image.
    fork_BF1 = (chance.between("fork", (0.2, 0.5), *shape, 1) * x_BFT.shape[2]).long()
    sharp_BF = chance.between("sharp", (-1.0, 1.0), *shape)
    x_BF, y_BF, heading_BF = (along.gather(2, fork_BF1)[..., 0] for along in (x_BFT, y_BFT, heading_BFT))
    x_BFT, y_BFT, _ = _walk(look, chance, "branch", x_BF, y_BF, heading_BF + sharp_BF + 0.4 * sharp_BF.sign(), size)
    swollen_BFT = _swollen(look, chance, "branch", THIN * radius_BF, x_BFT.shape[2])
    there_BF = there_BF & (chance.unit("branching", *shape) < look.branching)
    branches = _present(there_BF, x_BFT, y_BFT, swollen_BFT, light_BF, blur_BF)
    return _Fibres(*(torch.cat(both) for both in zip(axons, branches)))


def _present(
    there_BF: Tensor, x_BFT: Tensor, y_BFT: Tensor, radius_BFT: Tensor, light_BF: Tensor, blur_BF: Tensor
) -> _Fibres:
    looks = (x_BFT, y_BFT, radius_BFT, light_BF, blur_BF)
    return _Fibres(there_BF.nonzero()[:, 0], *(each[there_BF] for each in looks))


def _walk(
    look: AxonParameters, chance: _Chance, kind: str, x_BF: Tensor, y_BF: Tensor, heading_BF: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, F, T) three times: x, y and heading of the points of a curve, long enough to cross the image"""
    length = 1.5 * size + 2 * PAD
    points, knots = round(length / STEP), round(length / KNOT) + 1
    curvature = math.radians(look.curl) * chance.normal(f"{kind} curvature", *x_BF.shape, knots)
    curvature_BFT = F.interpolate(curvature, points, mode="linear", align_corners=True)
    heading_BFT = heading_BF[..., None] + STEP * curvature_BFT.cumsum(2)
    x_BFT = x_BF[..., None] + STEP * heading_BFT.cos().cumsum(2)
    return x_BFT, y_BF[..., None] + STEP * heading_BFT.sin().cumsum(2), heading_BFT


def _swollen(look: AxonParameters, chance: _Chance, kind: str, radius_BF: Tensor, points: int) -> Tensor:
    """(B, F, T)  the radius at each point: boutons are its hills"""
    place_T1 = STEP * torch.arange(points, dtype=torch.float64)[:, None]
    boutons = math.ceil(points * STEP / look.every)
    at_BF1K = look.every * (torch.arange(boutons) + chance.unit(f"{kind} bouton", *radius_BF.shape, 1, boutons))
    rise_BF1K = chance.between(f"{kind} swelling", look.swelling, *radius_BF.shape, 1, boutons)
    width_BF1K = 0.6 * (radius_BF[..., None, None] + rise_BF1K)
    hills_BFTK = rise_BF1K * (-0.5 * ((place_T1 - at_BF1K) / width_BF1K).square()).exp()
    return radius_BF[..., None] + hills_BFTK.amax(3)


def _inside(fibres: _Fibres, size: int, reach: int) -> Tensor:
    """(M, H + 2·PAD, W + 2·PAD)  how far within each fibre a pixel's centre lies; -inf far away from it"""
    side = size + 2 * PAD
    x_MT, y_MT = (coordinate + (side - 1) / 2 for coordinate in (fibres.x_MT, fibres.y_MT))
    column_MT, row_MT = x_MT.floor(), y_MT.floor()
    near_MT = (column_MT >= reach) & (column_MT < side - reach) & (row_MT >= reach) & (row_MT < side - reach)
    fibre_P = near_MT.nonzero()[:, 0, None]
    around = torch.arange(-reach, reach + 1)
    step_y, step_x = (step.flatten() for step in torch.meshgrid(around, around, indexing="ij"))
    row_PW, column_PW = row_MT[near_MT][:, None] + step_y, column_MT[near_MT][:, None] + step_x
    away_PW = ((row_PW - y_MT[near_MT][:, None]).square() + (column_PW - x_MT[near_MT][:, None]).square()).sqrt()
    places_PW = (fibre_P * side + row_PW.long()) * side + column_PW.long()
    inside = torch.full((len(x_MT) * side * side,), -torch.inf, dtype=torch.float64)
    inside.scatter_reduce_(0, places_PW.flatten(), (fibres.radius_MT[near_MT][:, None] - away_PW).flatten(), "amax")
    return inside.view(-1, side, side)


def _blurred(inside_MHW: Tensor, fibres: _Fibres) -> Tensor:
    """(M, H, W)  the light of each fibre: the thicker it is, the more of it shines, so boutons are bright"""
    solid_MHW = (inside_MHW + 0.5).clamp(min=0)  # an edge that runs through a pixel fills a part of it
    place = torch.arange(inside_MHW.shape[1], dtype=torch.float64)
    spread_MHK = _bell(place[:, None] - place, fibres.blur_M[:, None, None])
    spread_MHK = (spread_MHK / spread_MHK.sum(2, keepdim=True))[:, PAD:-PAD]
    return fibres.light_M[:, None, None] * (spread_MHK @ solid_MHW @ spread_MHK.mT)


def _spots(
    chance: _Chance, kind: str, number: tuple[int, int], light: Range, blur: Range, batch: int, size: int
) -> Tensor:
    """(B, H, W)  round ones, anywhere"""
    there_BK = chance.present(f"{kind} number", number, batch)
    light_BK = chance.between(f"{kind} light", light, *there_BK.shape) * there_BK
    blur_BK1 = chance.between(f"{kind} blur", blur, *there_BK.shape, 1)
    place = torch.arange(size, dtype=torch.float64)
    x_BKS, y_BKS = (
        _bell(place - chance.between(f"{kind} {axis}", (0, size), *there_BK.shape, 1), blur_BK1) for axis in "xy"
    )
    return torch.einsum("bk,bky,bkx->byx", light_BK, y_BKS, x_BKS)


def _illumination(look: AxonParameters, chance: _Chance, batch: int, size: int) -> Tensor:
    """(B, H, W)  about 1, smooth"""
    knots_B133 = chance.between("shading", (-look.shading, look.shading), batch, 1, 3, 3)
    return 1 + F.interpolate(knots_B133, (size, size), mode="bilinear", align_corners=True)[:, 0]


def _camera(look: AxonParameters, chance: _Chance, light_BHW: Tensor) -> Tensor:
    """(B, H, W)  uint8"""
    # The square root of a Poisson count and 3/8 is nearly normal, with a deviation of 1/2 (Anscombe 1948); its square
    # is then 3/8 + 1/4 too much on average.
    root = (look.photons * light_BHW.clamp(min=0) + 3 / 8).sqrt() + chance.normal("shot", *light_BHW.shape) / 2
    seen = (root.clamp(min=0).square() - 5 / 8) / look.photons
    noisy = seen + look.read_noise * chance.normal("read", *light_BHW.shape)
    return (255 * noisy).round().clamp(0, 255).to(torch.uint8)


def _bell(distance: Tensor, deviation: Tensor) -> Tensor:
    return (-0.5 * (distance / deviation).square()).exp()
