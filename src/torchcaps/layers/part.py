"""Capsules of parts at every position of a feature map: whether a part is there, and its pose in pixels and degrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import check_whole
from torchcaps.errors import UserError
from torchcaps.ops.squash import at_least_float32, no_autocast
from torchcaps.similarity import Similarity

# Columns of the rows (B, N, 8) that describe known objects; see `torchcaps.data.ObjectDataset`.
LEVEL, LABEL, POSE, SIZE = 0, 1, slice(2, 6), slice(6, 8)
NUMBERS = 7  # beside the presence: x, y, cos, sin, log scale, log width and log height
RARE = -4.0  # logit of presence at first: few positions have a part
BUMP_CELLS = 1.0  # standard deviation of the bump around a part within which false detections cost less
NEIGHBOUR_WEIGHT = 0.3  # of the eight positions around that of a part, in the loss of the pose
BETA = 0.05  # of the smooth L1 loss
NEIGHBOURS = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]


class PartMaps(NamedTuple):
    """Part capsules at every position.

    Attributes:
        logits: (B, T, h, w) of presence.
        numbers: (B, T, NUMBERS, h, w) as the network gives them: x and y in cells from that position, cosine and sine
            of the angle times the symmetry, and logarithms of scale, width and height.
        appearance: (B, T, A, h, w) what else is known about the part.
    """

    logits: Tensor
    numbers: Tensor
    appearance: Tensor


class PickedParts(NamedTuple):
    """The parts that were found; the first three fields are what `WholeCaps` takes.

    Attributes:
        pose: (B, I, 4) as the numbers of a `Similarity`.
        presence: (B, I) in [0, 1]; 0 for what only fills the tensor.
        types: (B, I, T) 1 at the type of each part, else 0.
        size: (B, I, 2) width and height in the frame of the part, at scale 1.
        appearance: (B, I, A).
    """

    pose: Tensor
    presence: Tensor
    types: Tensor
    size: Tensor
    appearance: Tensor


class PartCaps(nn.Module):
    """At every position of a feature map a capsule for each type of part, whose numbers have units.

    The pose is relative to the position, so a part that is moved by a whole number of cells moves its pose exactly.

    Args:
        channels: of the feature map.
        types: T.
        symmetry: T numbers of turns within a full circle that map a part onto itself; 0 for every turn. By default 1.
        stride: pixels of the image for one position of the map.
        appearance: A further numbers for each part.
    """

    def __init__(
        self, channels: int, types: int, *, symmetry: Sequence[int] | None = None, stride: int = 2, appearance: int = 0
    ):
        super().__init__()
        check_whole("PartCaps", channels=channels, types=types, stride=stride)
        self.types, self.stride, self.appearance = types, stride, appearance
        self.symmetry = (1,) * types if symmetry is None else tuple(symmetry)
        if len(self.symmetry) != types or min(self.symmetry) < 0:
            raise UserError(f"PartCaps: give symmetry for each of the {types} types, got {self.symmetry}")
        self.conv = nn.Conv2d(channels, types * (1 + NUMBERS + appearance), 1)
        with torch.no_grad():
            self.conv.weight.mul_(0.1)
            self.conv.bias.zero_().view(types, -1)[:, 0] = RARE  # type: ignore[union-attr]

    def forward(self, maps: Tensor) -> PartMaps:
        """Read capsules (B, T, …, h, w) from a feature map (B, C, h, w)."""
        found = at_least_float32(self.conv(maps)).unflatten(1, (self.types, -1))
        logits, numbers, appearance = found.split([1, NUMBERS, self.appearance], dim=2)
        return PartMaps(logits[:, :, 0], numbers, appearance)

    def pick(self, maps: PartMaps, count: int, threshold: float) -> PickedParts:
        """The most present parts that are more present than the eight positions around them.

        Args:
            maps: as `forward` returns them.
            count: I, the most parts of an image.
            threshold: presence below which there is no part.
        """
        with no_autocast(maps.logits):
            presence = maps.logits.sigmoid()
            peaks = presence * (F.max_pool2d(presence, 3, 1, 1) == presence)
            h, w = presence.shape[-2:]
            best, places = peaks.flatten(1).topk(min(count, self.types * h * w), dim=1)
            types = F.one_hot(places // (h * w), self.types).to(presence)
            pose, size = self._poses(self._at(maps.numbers, places), places, (h, w))
            return PickedParts(pose, best * (best > threshold), types, size, self._at(maps.appearance, places))

    def read(self, maps: PartMaps, label: Tensor, pose: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the capsules say at the positions where parts are known to be.

        Args:
            maps: as `forward` returns them.
            label: (B, N) types.
            pose: (B, N, 4) of the known parts.

        Returns:
            (B, N, 4) poses, (B, N, 2) sizes and (B, N, A) appearances.
        """
        h, w = maps.logits.shape[-2:]
        places, _ = self._cells(label, pose, (h, w))
        numbers = self._at(maps.numbers, places)
        return *self._poses(numbers, places, (h, w)), self._at(maps.appearance, places)

    def losses(
        self, maps: PartMaps, label: Tensor, pose: Tensor, size: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:
        """How far the capsules are from known parts.

        Args:
            maps: as `forward` returns them.
            label: (B, N) types of the known parts.
            pose: (B, N, 4) as the numbers of a `Similarity`.
            size: (B, N, 2) width and height at scale 1.
            present: (B, N) False for padding.

        Returns:
            (B,) focal loss of the presences, and (B,) smooth L1 loss of the poses; both means over the parts.
        """
        h, w = maps.logits.shape[-2:]
        places, inside = self._cells(label, pose, (h, w))
        there = present & inside
        count = there.sum(1).clamp_min(1)
        true, near = self._targets(label, pose, places, there, maps.logits)
        # Only the negatives are focal: focal positives left presences near two thirds, which routing needs certain.
        right = F.logsigmoid(maps.logits)
        wrong = F.logsigmoid(-maps.logits) * maps.logits.sigmoid() ** 2 * (1 - near) ** 4
        focal = -torch.where(true, right, wrong).flatten(1).sum(1) / count
        return focal, self._pose_loss(maps, label, pose, size, there) / count

    def f1(self, maps: PartMaps, label: Tensor, pose: Tensor, present: Tensor) -> Tensor:
        """(B,) F1 of the presences above one half: a part counts as found up to one position away.

        Args:
            maps: as `forward` returns them.
            label: (B, N) types of the known parts.
            pose: (B, N, 4) of the known parts.
            present: (B, N) False for padding.
        """
        h, w = maps.logits.shape[-2:]
        places, inside = self._cells(label, pose, (h, w))
        around = F.max_pool2d(maps.logits.detach(), 3, 1, 1)
        said = ((maps.logits == around) & (around > 0)).flatten(1).sum(1)
        right = ((around.flatten(1).gather(1, places) > 0) & present & inside).sum(1)
        total = said + (present & inside).sum(1)
        return torch.where(total > 0, 2 * right / total.clamp_min(1), torch.ones_like(total, dtype=torch.float32))

    def _pose_loss(self, maps: PartMaps, label: Tensor, pose: Tensor, size: Tensor, there: Tensor) -> Tensor:
        """(B,) sum over the parts, at their positions and those around them."""
        h, w = maps.logits.shape[-2:]
        turns = self._turns(label)
        angle = torch.atan2(pose[..., 3], pose[..., 2]) * turns.clamp_min(1)
        log_scale = 0.5 * pose[..., 2:].square().sum(-1).clamp_min(1e-12).log()
        turned = (turns > 0).to(pose)  # a disc has no angle
        rest = torch.cat([torch.stack([angle.cos(), angle.sin(), log_scale], -1), size.clamp_min(1e-3).log()], -1)
        ones = torch.ones_like(turned)
        weights = torch.stack([ones, ones, turned, turned, 2 * ones, ones, ones], -1)
        total = pose.new_zeros(len(pose))
        for down, right in NEIGHBOURS:
            step = self.stride * pose.new_tensor([right, down, 0, 0]) if down or right else 0.0
            places, inside = self._cells(label, pose + step, (h, w))
            cells = self._centres(places, (h, w))
            wanted = torch.cat([(pose[..., :2] - cells) / self.stride, rest], -1)
            error = F.smooth_l1_loss(self._at(maps.numbers, places), wanted, reduction="none", beta=BETA)
            share = 1.0 if down == right == 0 else NEIGHBOUR_WEIGHT
            total = total + share * ((error * weights).sum(-1) * (there & inside)).sum(1)
        return total

    def _targets(
        self, label: Tensor, pose: Tensor, places: Tensor, there: Tensor, like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, T, h, w) whether a position has a part, and how near one is, in [0, 1]."""
        B, T, h, w = like.shape
        cells = torch.arange(h * w, device=like.device).expand(1, 1, -1)
        apart = self._centres(cells, (h, w)) - pose[:, :, None, :2]
        near_BNC = (-apart.square().sum(-1) / (2 * (self.stride * BUMP_CELLS) ** 2)).exp() * there[..., None]
        hot_BNT = F.one_hot(label, T).bool()
        near = torch.stack([(near_BNC * hot_BNT[:, :, t, None]).amax(1) for t in range(T)], 1)
        true = like.new_zeros(B, T * h * w).scatter_add(1, places, there.to(like))
        return true.view(B, T, h, w) > 0, near.view(B, T, h, w).to(like)

    def _cells(self, label: Tensor, pose: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """(B, N) flat positions of the parts in (T, h, w), and whether they lie inside the map."""
        h, w = size
        column, row = (pose[..., :2] / self.stride + 0.5).floor().long().unbind(-1)
        inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
        return (label * h + row.clamp(0, h - 1)) * w + column.clamp(0, w - 1), inside

    def _centres(self, places: Tensor, size: tuple[int, int]) -> Tensor:
        """(…, 2) x and y in pixels of flat positions."""
        h, w = size
        return self.stride * torch.stack([places % w, places // w % h], -1).float()

    def _at(self, values: Tensor, places: Tensor) -> Tensor:
        """(B, N, X) of values (B, T, X, h, w) at flat positions (B, N)."""
        flat = values.movedim(2, -1).flatten(1, 3)
        return flat.gather(1, places[..., None].expand(-1, -1, flat.shape[-1]))

    def _turns(self, label: Tensor) -> Tensor:
        turns = torch.zeros_like(label)
        for type, count in enumerate(self.symmetry):  # nothing is copied from the host: a CUDA graph can record it
            turns = turns.masked_fill(label == type, count)
        return turns

    def _poses(self, numbers: Tensor, places: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """(B, N, 4) poses and (B, N, 2) sizes of what the network gives at flat positions."""
        h, w = size
        turns = self._turns(places // (h * w))
        x, y = (self._centres(places, size) + self.stride * numbers[..., :2]).unbind(-1)
        angle = torch.atan2(numbers[..., 3], numbers[..., 2]) / turns.clamp_min(1)
        steps = torch.stack([x, y, angle.where(turns > 0, 0.0), numbers[..., 4].clamp(-4, 4)], -1)
        return Similarity.exp(steps).numbers, numbers[..., 5:].clamp(-4, 8).exp()

    def extra_repr(self) -> str:
        return f"{self.types} types, stride={self.stride}"
