"""Wholes as tables of parts: boat and house of the same two, faces and a harbour of parts that have parts.

At scale 1 a boat is 14×16 pixels, a house 14×13, a face 17×19, and a harbour 41×33.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.datasets.shapes.objects import Objects
from torchcaps.data.datasets.shapes.parts import BASE, HEIGHT, PART_KINDS, PARTS, RECTANGLE
from torchcaps.errors import UserError, did_you_mean
from torchcaps.geometry import Affine


class Member(NamedTuple):
    """One part of a whole.

    Attributes:
        name: a name of `PARTS`, or of another whole in `WHOLES`.
        x, y: pixels right and down, in the whole's frame.
        angle: degrees, counter-clockwise.
        scale: relative to the part's own size.
    """

    name: str
    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0
    scale: float = 1.0


_SAIL = BASE / math.sqrt(2)  # the two equal sides of the triangle: mast and foot
_DECK, _MAST_X = -RECTANGLE[1] / 2, -4.0

_TABLES: dict[str, tuple[Member, ...]] = {
    # The roof lies on the long side of the rectangle.
    "house": (Member("rectangle"), Member("triangle", 0, _DECK - HEIGHT / 3)),
    # The right angle of the sail is at its lower left: mast at the left, foot on the deck.
    "boat": (Member("rectangle"), Member("triangle", _MAST_X + _SAIL / 3, _DECK - _SAIL / 3, 135)),
    # Parts of a face, made of strokes: lid and pupil, the two sides, lips and teeth.
    "eye": (Member("arc", 0, -1.5, 0, 0.55), Member("disc", 0, 1.0, 0, 0.4)),
    "nose": (Member("bar", -1.0, 0, 70, 0.38), Member("bar", 1.0, 0, -70, 0.38)),
    "mouth": (Member("arc", 0, 1.2, 180, 0.85), Member("bar", 0, -1.6, 0, 0.7)),
    "face": (Member("eye", -5, -6), Member("eye", 5, -6), Member("nose", 0, 0), Member("mouth", 0, 7)),
    "sad face": (Member("eye", -5, -6), Member("eye", 5, -6), Member("nose", 0, 0), Member("mouth", 0, 7, 180)),
    "harbour": (
        Member("house", -13, -11, 0, 0.9),
        Member("house", 11, -11, 0, 0.9),
        Member("boat", -9, 10, 0, 0.9),
        Member("boat", 15, 10, 0, 0.9),
    ),
}


class Whole(NamedTuple):
    """A whole and its parts.

    Attributes:
        members: with poses in a frame whose origin is the centroid of the area; parts that overlap count twice.
        area: the sum of the parts' areas, in square pixels at scale 1.
        radius: distance of its farthest point from the origin, at most.
        depth: levels of parts below it: 1 for a boat, 2 for a face.
        parts: how many parts of `PARTS` it is made of.
    """

    members: tuple[Member, ...]
    area: float
    radius: float
    depth: int
    parts: int


@cache
def whole_of(name: str) -> Whole:
    """The whole of a name in `WHOLES`, with its members moved so that the centroid is the origin."""
    if name not in _TABLES:
        raise UserError(f"there is no whole called {name!r}: {did_you_mean(name, _TABLES)}")
    members = _TABLES[name]
    kinds = [PART_KINDS[each.name] if each.name in PART_KINDS else whole_of(each.name) for each in members]
    areas = [kind.area * member.scale**2 for kind, member in zip(kinds, members)]
    x = sum(area * member.x for area, member in zip(areas, members)) / sum(areas)
    y = sum(area * member.y for area, member in zip(areas, members)) / sum(areas)
    moved = tuple(member._replace(x=member.x - x, y=member.y - y) for member in members)
    radius = max(math.hypot(member.x, member.y) + member.scale * kind.radius for kind, member in zip(kinds, moved))
    depth = 1 + max(kind.depth if isinstance(kind, Whole) else 0 for kind in kinds)
    parts = sum(kind.parts if isinstance(kind, Whole) else 1 for kind in kinds)
    return Whole(moved, sum(areas), radius, depth, parts)


WHOLES = tuple(_TABLES)


class Members(NamedTuple):
    """The members of objects: poses (…, M) in their frames, labels (…, M) within `names`, and which are not padding."""

    names: tuple[str, ...]
    label: Tensor
    poses: Affine
    present: Tensor


def member_table(names: tuple[str, ...]) -> Members:
    """The members of wholes, as (J, M) tensors in float64; their names are those of the next lower level."""
    tables = [whole_of(name).members for name in names]
    below = tuple(dict.fromkeys(member.name for table in tables for member in table))
    below = PARTS if set(below) <= set(PARTS) else below
    most = max(map(len, tables))
    padded = [[*table, *[table[0]] * (most - len(table))] for table in tables]
    x, y, angle, scale = (
        torch.tensor([[member[field] for member in table] for table in padded], dtype=torch.float64)
        for field in range(1, 5)
    )
    label = torch.tensor([[below.index(member.name) for member in table] for table in padded])
    present = torch.arange(most) < torch.tensor(list(map(len, tables)))[:, None]
    return Members(below, label, Affine.of(x=x, y=y, angle=angle, scale=scale), present)


def members_of(wholes: Objects) -> Members:
    """Look up the members (B, N, M) of wholes in the tables."""
    table = member_table(wholes.names)
    return Members(table.names, table.label[wholes.label], table.poses[wholes.label], table.present[wholes.label])


def place_members(wholes: Objects, members: Members) -> Objects:
    """Compute the poses of the members in the image: whole ∘ member.

    Args:
        wholes: N in each of B images, in float64 on the CPU.
        members: (B, N, M) as `members_of` returns them.

    Returns:
        N · M objects, those of one whole beside each other, which own them.
    """
    B, N, M = members.label.shape
    whole = wholes.poses()
    poses = Affine(whole.linear[:, :, None], whole.shift[:, :, None]) @ members.poses
    owner = torch.arange(N)[:, None].expand(B, N, M)
    present = wholes.present[:, :, None] & members.present
    flat = Affine(poses.linear.flatten(1, 2), poses.shift.flatten(1, 2))
    return Objects.of(members.names, members.label.flatten(1, 2), flat, owner.flatten(1, 2), present.flatten(1, 2))
