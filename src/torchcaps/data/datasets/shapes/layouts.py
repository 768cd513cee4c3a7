"""How the parts of a whole stand to each other: how far two such layouts are apart, and wrong layouts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from torchcaps.data.datasets.shapes.draws import Draws
from torchcaps.data.datasets.shapes.objects import Objects
from torchcaps.data.datasets.shapes.parts import PART_KINDS
from torchcaps.data.datasets.shapes.wholes import WHOLES, Members, member_table, members_of, whole_of
from torchcaps.errors import UserError
from torchcaps.geometry import Affine, half_turn

# A wrong layout differs from every right one by at least one of these, however the two are moved, turned, scaled or
# mirrored onto each other.
MARGIN_PIXELS = 4.0  # at scale 1: a quarter of a boat
MARGIN_DEGREES = 30.0
MARGIN_SCALE = 1.25
MAX_RADIUS_PIXELS = 12.0  # of a wrong layout at scale 1, from its centroid; a boat has 10.6
CANDIDATES = 64  # wrong layouts drawn for each whole, of which the first is used that differs enough and is compact


def layout_distance(names: Sequence[str], found: Affine, known: Affine) -> Tensor:
    """Measure how differently the same parts stand to each other in two layouts, in units of the margins.

    One layout is moved, turned, scaled, and mirrored if that helps, so that one part lies exactly on its counterpart;
    then the largest difference in position, angle or scale of any other part counts, and of all these ways the best.
    It is 0 if and only if a similarity or a reflection maps one layout onto the other. Parts of one name may stand for
    each other, and a part for itself turned by its symmetry. Every part is taken for its own mirror image.

    Args:
        names: of the M parts, each in `PARTS` or `WHOLES`.
        found: (..., M) poses of the parts.
        known: (M) poses to compare with.

    Returns:
        (...) 1 or more means: different by at least MARGIN_PIXELS, MARGIN_DEGREES or MARGIN_SCALE.
    """
    symmetry = [PART_KINDS[name].symmetry if name in PART_KINDS else 1 for name in names]
    best = torch.full(found.shift.shape[:-2], math.inf, dtype=found.shift.dtype)
    for other in _variants(names, known):
        for anchor, own_turns in enumerate(symmetry):
            for turn in range(own_turns):
                turned = Affine.of(angle=torch.tensor(360.0 * turn / own_turns, dtype=torch.float64))
                found_anchor = Affine(found.linear[..., anchor, :, :], found.shift[..., anchor, :])
                onto = found_anchor @ turned @ other[anchor].inverse()
                best = torch.minimum(best, _differences(found, onto, other, symmetry))
    if all(own_turns == 0 for own_turns in symmetry):
        raise UserError("layouts of discs alone cannot be compared: add a part that shows how it is turned")
    return best


def _variants(names: Sequence[str], known: Affine) -> Iterator[Affine]:
    """The layout and its mirror image, with every exchange of parts of the same name."""
    x, y, angle, scale, *_ = known.parts()
    mirrored = Affine.of(x=-x, y=y, angle=-angle, scale=scale)
    for order in itertools.permutations(range(len(names))):
        if [names[index] for index in order] == list(names):
            yield from (each[list(order)] for each in (known, mirrored))


def _differences(found: Affine, onto: Affine, other: Affine, symmetry: Sequence[int]) -> Tensor:
    """The largest difference of any part, (...), once a map (...) has taken the other layout onto the found one."""
    whole = Affine(onto.linear[..., None, :, :], onto.shift[..., None, :])
    moved = whole @ other
    pixels = (found.shift - moved.shift).square().sum(-1).sqrt()
    step = (found.inverse() @ moved).parts()
    fold = torch.tensor([max(each, 1) for each in symmetry], dtype=torch.float64)
    degrees = (half_turn(step.angle * fold).abs() / fold).where(torch.tensor(symmetry) > 0, 0.0)
    scales = step.scale.log().abs() / math.log(MARGIN_SCALE)
    return torch.stack([pixels / MARGIN_PIXELS, degrees / MARGIN_DEGREES, scales]).amax((0, -1))


def distance_to_right_layouts(names: Sequence[str], found: Affine) -> Tensor:
    """The least `layout_distance` (...) of a layout (..., M) from the wholes in `WHOLES` that have these parts."""
    right = [whole for whole in WHOLES if [member.name for member in whole_of(whole).members] == list(names)]
    return torch.stack([layout_distance(names, found, member_table((whole,)).poses[0]) for whole in right]).amin(0)


def scramble(wholes: Objects, draws: Draws) -> Members:
    """Give the members of wholes wrong poses, at least the margins away from every right layout.

    Parts that are wholes themselves exchange their places, each keeping its angle and its scale. Of two parts without
    parts, the second touches the first from any direction and at any angle.

    Args:
        wholes: N in each of B images.
        draws: of B images.

    Returns:
        (B, N, M) members.
    """
    right = members_of(wholes)
    linear, shift = right.poses.linear.clone(), right.poses.shift.clone()
    for label, name in enumerate(wholes.names):
        chosen = wholes.label == label
        wrong = _exchanged(name, wholes, draws) if whole_of(name).depth > 1 else _touching(name, wholes, draws)
        M = wrong.shift.shape[-2]
        linear[chosen, :M], shift[chosen, :M] = wrong.linear[chosen], wrong.shift[chosen]
    return right._replace(poses=Affine(linear, shift))


def check_scrambled(name: str) -> None:
    """Raise a UserError unless the parts of a whole can be scrambled."""
    members = whole_of(name).members
    polygons = all(member.name in PART_KINDS and PART_KINDS[member.name].corners for member in members)
    if whole_of(name).depth == 1 and not (polygons and len(members) == 2):
        raise UserError(f"scrambled: {name!r} is not made of two polygons or of wholes; use 'boat', 'house' or 'face'")


@cache
def exchanges(name: str) -> tuple[tuple[int, ...], ...]:
    """The orders of places in which the parts of a whole are wrong: part i stands where part order[i] should."""
    members, table = whole_of(name).members, member_table((name,)).poses[0]
    names, found = [member.name for member in members], []
    seen = set()
    for order in itertools.permutations(range(len(members))):
        at_places = tuple(names[order.index(place)] for place in range(len(members)))
        wrong = Affine(table.linear, table.shift[list(order)])
        if at_places not in seen and float(distance_to_right_layouts(names, wrong)) >= 1:
            found.append(order)
        seen.add(at_places)
    return tuple(found)


def _exchanged(name: str, wholes: Objects, draws: Draws) -> Affine:
    """Poses (B, N, M) of parts that stand at each other's places."""
    table = member_table((name,)).poses[0]
    orders_QM = torch.tensor(exchanges(name))
    orders_BNM = orders_QM[draws.integers("exchange", 0, len(orders_QM) - 1, wholes.label.shape[1])]
    return Affine(table.linear.expand(*orders_BNM.shape, 2, 2), table.shift[orders_BNM])


def _touching(name: str, wholes: Objects, draws: Draws) -> Affine:
    """Poses (B, N, 2) of two polygons, one of which touches the other."""
    members = whole_of(name).members
    one, two = members
    N = wholes.label.shape[1]
    way = draws.between("scramble way", 0, 360, N, CANDIDATES).deg2rad()
    turn = draws.between("scramble turn", -180, 180, N, CANDIDATES)
    direction = torch.stack([way.cos(), -way.sin()], dim=-1)
    fixed = _corners(one.name, Affine.of(scale=torch.tensor(one.scale, dtype=torch.float64)))
    turned = Affine.of(angle=turn, scale=two.scale)
    shift = direction * _touch(fixed, _corners(two.name, turned), direction)[..., None]
    areas = [PART_KINDS[member.name].area * member.scale**2 for member in members]
    centroid = shift * (areas[1] / sum(areas))  # which becomes the origin
    identity = Affine.of(angle=torch.zeros_like(turn), scale=one.scale)
    layouts = Affine(
        torch.stack([identity.linear, turned.linear], dim=-3), torch.stack([-centroid, shift - centroid], dim=-2)
    )
    corners = [_corners(one.name, identity) - centroid[..., None, :]]
    corners += [_corners(two.name, turned) + (shift - centroid)[..., None, :]]
    radius = torch.cat(corners, dim=-2).square().sum(-1).amax(-1).sqrt()
    good = (distance_to_right_layouts([one.name, two.name], layouts) >= 1) & (radius <= MAX_RADIUS_PIXELS)
    if not bool(good.any(-1).all()):
        raise UserError(f"{name!r} has no wrong layout among {CANDIDATES}: use another seed")
    first = good.long().argmax(-1)
    return layouts[torch.arange(len(draws))[:, None], torch.arange(N), first]


def _corners(name: str, poses: Affine) -> Tensor:
    """(..., C, 2) corners of a polygon that is only turned and scaled."""
    corners_C2 = torch.tensor(PART_KINDS[name].corners, dtype=torch.float64)
    return corners_C2 @ poses.linear.mT


def _touch(fixed_A2: Tensor, moved_B2: Tensor, direction_2: Tensor) -> Tensor:
    """How far a convex polygon (..., B, 2) must move in a direction (..., 2) until it just leaves a fixed one (A, 2).

    Two convex polygons are apart once they are along the normal of one of their edges.
    """
    reach = []
    for corners in (fixed_A2.expand(*moved_B2.shape[:-2], -1, 2), moved_B2):
        edges = corners.roll(-1, -2) - corners
        for sign in (1, -1):
            normals_E2 = sign * torch.stack([edges[..., 1], -edges[..., 0]], dim=-1)
            far_E = (normals_E2 @ fixed_A2.T).amax(-1)
            near_E = (normals_E2 @ moved_B2.mT).amin(-1)
            speed_E = (normals_E2 @ direction_2[..., None])[..., 0]
            reach.append(((far_E - near_E) / speed_E).where(speed_E > 1e-9, math.inf))
    return torch.cat(reach, dim=-1).amin(-1)
