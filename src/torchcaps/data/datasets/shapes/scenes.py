"""Images of shapes with everything that is in them: one whole or many, crowded, among other parts, or scrambled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchcaps.data.datasets.shapes.draws import Draws
from torchcaps.data.datasets.shapes.layouts import scramble
from torchcaps.data.datasets.shapes.objects import Objects, join
from torchcaps.data.datasets.shapes.parameters import ShapeParameters
from torchcaps.data.datasets.shapes.parts import PARTS
from torchcaps.data.datasets.shapes.render import composite, coverage
from torchcaps.data.datasets.shapes.wholes import members_of, place_members, whole_of
from torchcaps.errors import UserError
from torchcaps.geometry import Affine

CHUNK_VALUES = 2**22  # pixels × parts × images drawn at a time: bounds the memory
ATTEMPTS = 300  # to reach an overlap
EPS = 1e-9  # square pixels
LEAST_SPREAD = 0.1  # of crowded wholes, as a share of the room in the image


@dataclass(frozen=True, eq=False)
class Scenes:
    """B drawn images and what is in them.

    Attributes:
        images: (B, 1, H, W) in [0, 1].
        levels: the objects of each level, from parts to wholes. levels[0] are drawn, in their order; the owners in each
            level are positions in the next one; objects of the last level belong to none.
        light: (B, N) grey level of each part, 0 for padding.
        visible: (B, N) share of each part in the image that no later part covers; 0 for padding.
        overlap: (B,) mean share of the area of a whole that others overlap; 0 for fewer than two wholes.
    """

    images: Tensor
    levels: tuple[Objects, ...]
    light: Tensor
    visible: Tensor
    overlap: Tensor

    @property
    def parts(self) -> Objects:
        """The lowest level."""
        return self.levels[0]

    @property
    def wholes(self) -> Objects:
        """The highest level."""
        return self.levels[-1]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, images: Any) -> Scenes:
        """Some of the images, given by a slice, positions or a mask."""
        levels = tuple(level[images] for level in self.levels)
        rest = (each[images] for each in (self.light, self.visible, self.overlap))
        return Scenes(self.images[images], levels, *rest)


def draw_shapes(
    count: int,
    seed: int = 0,
    *,
    start: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **parameters: Any,
) -> Scenes:
    """Draw images of shapes, with the class and the pose of every part and whole.

    An image depends only on the parameters, the seed and its number. What is in it is computed in float64 on the CPU,
    and is the same for every device; pixels are computed on the device.

    Args:
        count: number of images.
        seed: of all random draws.
        start: number of the first image; larger numbers give other images of the same kind.
        device: of the results.
        dtype: of the images, positions, angles, scales and grey levels.
        **parameters: of `ShapeParameters`.
    """
    if count < 0 or start < 0:
        raise UserError(f"count={count}, start={start}: give 0 or more")
    params = ShapeParameters.of(**parameters)
    parts = 2 * (params.number[1] + 1) * max(whole_of(name).parts for name in params.wholes) + params.distractors[1]
    block = max(1, CHUNK_VALUES // (parts * math.prod(params.height_width)))
    drawn = [
        _draw(params, Draws(seed, range(first, min(first + block, start + count))), torch.device(device), dtype)
        for first in range(start, start + max(count, 1), block)
    ]
    levels = tuple(join(level) for level in zip(*(each.levels for each in drawn)))
    images, light, visible, overlap = (
        torch.cat([getattr(each, name) for each in drawn]) for name in ("images", "light", "visible", "overlap")
    )
    return Scenes(images, levels, light, visible, overlap)


def _draw(params: ShapeParameters, draws: Draws, device: torch.device, dtype: torch.dtype) -> Scenes:
    wholes, overlap = _placed_wholes(params, draws)
    levels = _levels(params, draws, wholes)
    light = _lights(params, draws, levels[0])
    if params.distractors[1]:
        distractors = _distractors(params, draws)
        light = torch.cat([draws.between("distractor light", *params.light, distractors.label.shape[1]), light], dim=1)
        levels = [join([distractors, levels[0]], dim=1), *levels[1:]]
    light = light.where(levels[0].present, 0.0).to(device, dtype)
    levels = [level.to(device, dtype) for level in levels]
    covered = coverage(levels[0], params.height_width)
    images = composite(covered, light, ground=params.ground)
    if params.noise:
        noise = params.noise * draws.normal("noise", 1, *params.height_width)
        images = (images + noise.to(images)).clamp(0, 1)
    return Scenes(images, tuple(levels), light, _visible(covered), overlap.to(device, dtype))


def _placed_wholes(params: ShapeParameters, draws: Draws) -> tuple[Objects, Tensor]:
    """Draw wholes until they overlap as they should; return them and the overlap (B,)."""
    wholes = _wholes(params, draws, 0)
    overlap, wrong = _crowding(params, draws, wholes)
    for attempt in range(1, ATTEMPTS):
        again = wrong.nonzero()[:, 0]
        if not len(again):
            return wholes, overlap
        some = draws.subset(again)
        fresh = _wholes(params, some, attempt)
        merged = {name: tensor.index_copy(0, again, fresh.tensors()[name]) for name, tensor in wholes.tensors().items()}
        wholes = wholes.with_tensors(merged)
        fresh_overlap, fresh_wrong = _crowding(params, some, fresh)
        overlap, wrong = overlap.index_copy(0, again, fresh_overlap), wrong.index_copy(0, again, fresh_wrong)
    raise UserError(
        f"overlap={params.overlap} with visible={params.visible} was not reached in {ATTEMPTS} attempts: "
        "give a wider range, a larger size, or another number or scale of wholes"
    )


def _wholes(params: ShapeParameters, draws: Draws, attempt: int) -> Objects:
    """Draw classes, poses and places of (B, N) wholes; another attempt gives other places."""
    N, (H, W) = max(params.number[1], 1), params.height_width
    if params.number == (1, 1):  # every class equally often
        label = torch.from_numpy(draws.images.astype("int64"))[:, None] % len(params.wholes)
    else:
        label = draws.integers("class", 0, len(params.wholes) - 1, N)
    angle = draws.between("angle", -params.turn, params.turn, N)
    scale = draws.between("scale", math.log(params.scale[0]), math.log(params.scale[1]), N).exp()
    unit = 2 * draws.unit(f"place {attempt}", 2, N) - 1
    if params.overlap[0] > 0:  # crowded: all near one place
        spread = draws.between(f"spread {attempt}", LEAST_SPREAD, 1, 1, 1)
        middle = 2 * draws.unit(f"middle {attempt}", 2, 1) - 1
        unit = spread * unit + (1 - spread) * middle
    if params.shift is None:
        radius = scale * torch.tensor([whole_of(name).radius for name in params.wholes], dtype=torch.float64)[label]
        room = torch.stack([(side - 1) / 2 - radius - params.twin / 2 for side in (W, H)], dim=1).clamp_min(0)
    else:
        room = torch.full_like(unit, params.shift)
    x, y = (unit * room).unbind(1)
    x, y = x + (W - 1) / 2, y + (H - 1) / 2
    present = torch.arange(N) < draws.integers("number", *params.number, 1)
    if params.twin:
        way = draws.between(f"twin {attempt}", 0, 360, N).deg2rad()
        right, up = params.twin / 2 * way.cos(), params.twin / 2 * way.sin()
        x, y = torch.cat([x - right, x + right], dim=1), torch.cat([y + up, y - up], dim=1)
        label, angle, scale, present = (each.repeat(1, 2) for each in (label, angle, scale, present))
    poses = Affine.of(x=x, y=y, angle=angle, scale=scale)
    return Objects.of(params.wholes, label, poses, torch.full_like(label, -1), present)


def _levels(params: ShapeParameters, draws: Draws, wholes: Objects) -> list[Objects]:
    """All levels from parts to wholes."""
    levels = [wholes]
    while levels[0].names != PARTS:
        wrong = params.scrambled and levels[0] is wholes
        members = scramble(wholes, draws) if wrong else members_of(levels[0])
        levels.insert(0, place_members(levels[0], members))
    if params.scrambled:  # the parts are there, the wholes are not
        nothing = torch.zeros_like(wholes.present)
        below = replace(levels[-2], owner=torch.full_like(levels[-2].owner, -1))
        levels[-2:] = [below, Objects.of(wholes.names, wholes.label, wholes.poses(), wholes.owner, nothing)]
    return levels


def _crowding(params: ShapeParameters, draws: Draws, wholes: Objects) -> tuple[Tensor, Tensor]:
    """Measure how much wholes overlap, each image by itself.

    Returns:
        (B,) the mean share of the area of a whole that others overlap, and (B,) whether it is not what was asked for.
    """
    N = wholes.label.shape[1]
    if N < 2:
        nothing = torch.zeros(len(draws), dtype=torch.float64)
        return nothing, nothing > 0
    covered_BPHW = coverage(_levels(params, draws, wholes)[0], params.height_width)
    covered_BNHW = covered_BPHW.unflatten(1, (N, -1)).amax(2)
    first, second = (each[:, None] for each in covered_BNHW.topk(2, dim=1).values.unbind(1))
    others_BNHW = torch.where(covered_BNHW == first, second, first)
    shared_BN = torch.minimum(covered_BNHW, others_BNHW).sum((2, 3))
    share_BN = shared_BN / covered_BNHW.sum((2, 3)).clamp_min(EPS)
    count_B = wholes.present.sum(1)
    overlap_B = share_BN.sum(1) / count_B.clamp_min(1)
    hidden_B = (_visible(covered_BPHW) < params.visible).logical_and(covered_BPHW.sum((2, 3)) > 0).any(1)
    wrong_B = (overlap_B < params.overlap[0]) | (overlap_B > params.overlap[1]) | hidden_B
    return overlap_B, wrong_B & (count_B > 1)


def _visible(covered_BPHW: Tensor) -> Tensor:
    """(B, P) the share of each part that no later one covers; 0 outside the image."""
    free = torch.ones_like(covered_BPHW[:, :0].sum(1))
    seen = []
    for share in reversed(covered_BPHW.unbind(1)):
        seen.append((share * free).sum((1, 2)) / share.sum((1, 2)).clamp_min(EPS))
        free = free * (1 - share)
    return torch.stack(seen[::-1], dim=1)


def _lights(params: ShapeParameters, draws: Draws, parts: Objects) -> Tensor:
    """Draw grey levels (B, N) of parts; twins are lit alike."""
    N = parts.label.shape[1]
    light = draws.between("light", *params.light, N // 2 if params.twin else N)
    return light.repeat(1, 2) if params.twin else light


def _distractors(params: ShapeParameters, draws: Draws) -> Objects:
    """Draw single parts (B, N) anywhere in the images."""
    N, (H, W) = params.distractors[1], params.height_width
    kinds = torch.tensor([PARTS.index(name) for name in params.distractor_parts])
    label = kinds[draws.integers("distractor", 0, len(kinds) - 1, N)]
    present = torch.arange(N) < draws.integers("distractors", *params.distractors, 1)
    x, y = (draws.between(f"distractor {axis}", 0, side - 1, N) for axis, side in (("x", W), ("y", H)))
    angle = draws.between("distractor angle", -180, 180, N)
    scale = draws.between("distractor scale", math.log(params.scale[0]), math.log(params.scale[1]), N).exp()
    return Objects.of(PARTS, label, Affine.of(x=x, y=y, angle=angle, scale=scale), torch.full_like(label, -1), present)
