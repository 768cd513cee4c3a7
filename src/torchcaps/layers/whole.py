"""Capsules of wholes, from parts that have poses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.errors import UserError
from torchcaps.ops.poses import CLUTTER, Wholes, layouts_of, member_log_likelihood, parts_of, pose_routing
from torchcaps.ops.poses.reference import votes
from torchcaps.ops.poses.values import Layouts
from torchcaps.similarity import Similarity

LEAST_TOLERANCE = 1e-3  # pixels, radians or log scale
SPREAD = 5.0  # pixels: standard deviation of random layouts
# Of the numbers that are learned, so that usual learning rates move them in time: a layout in pixels, radians or log
# scale, and the logarithms of tolerances.
UNIT, TOLERANCE_UNIT = 25.0, 5.0


class WholeCaps(nn.Module):
    """Parts vote for wholes of several classes, of which an image may have many, each with a pose.

    For each member of each class the layer learns how it stands in its whole, how exactly, and how often it is missing.
    What it returns can be the parts of another such layer: `harbours(*boats(pose, presence, types)[:3])`.

    Args:
        types: T types of parts.
        wholes: J classes of wholes.
        members: how many members M each class has, whose types are learned; or for each class the types of its members.
        symmetry: T numbers of turns within a full circle that map a part onto itself; 0 for every turn. By default 1.
        iterations: number of routing iterations.
        hypotheses: K wholes that are returned, at most; by default one for each part.
        tolerance: standard deviations of votes at first, in the frame of a whole: pixels, degrees, and log scale.
        missing: how often a member of a whole is not there, at first.
        clutter: log-density of parts that belong to no whole, per pixel², radian and unit of log scale.
        learn_prior: whether the log-odds of the classes are learned; they depend on what routing finds, not on
            `log_likelihood`.
    """

    prior: Tensor

    def __init__(
        self,
        types: int,
        wholes: int,
        members: int | Sequence[Sequence[int]],
        *,
        symmetry: Sequence[int] | None = None,
        iterations: int = 3,
        hypotheses: int | None = None,
        tolerance: Sequence[float] = (0.7, 5.0, 0.07),
        missing: float = 1e-3,
        clutter: float = CLUTTER,
        learn_prior: bool = True,
    ):
        super().__init__()
        self.types, self.wholes = types, wholes
        self.symmetry = (1,) * types if symmetry is None else tuple(symmetry)
        self.iterations, self.hypotheses, self.clutter = iterations, hypotheses, clutter
        self._check(members, tolerance, missing)
        most = members if isinstance(members, int) else max(map(len, members))
        if isinstance(members, int):
            self.type_logits = nn.Parameter(0.1 * torch.randn(wholes, most, types))
        else:
            fixed = torch.zeros(wholes, most, types)
            for label, row in enumerate(members):
                fixed[label, : len(row)] = functional.one_hot(torch.tensor(row), types).float()
            self.register_parameter("type_logits", None)
            self.register_buffer("fixed_types", fixed)
        scales = torch.tensor([SPREAD, SPREAD, math.pi / math.sqrt(3), 0.1])
        self.layout = nn.Parameter(scales / UNIT * torch.randn(wholes, most, 4))
        pixels, degrees, log_scale = tolerance
        each = torch.tensor([pixels, pixels, math.radians(degrees), log_scale])
        self.log_tolerance = nn.Parameter(each.log().repeat(wholes, most, 1) / TOLERANCE_UNIT)
        if learn_prior:
            self.prior = nn.Parameter(torch.zeros(wholes))
        else:
            self.register_buffer("prior", torch.zeros(wholes))
        self.missing = nn.Parameter(torch.full((wholes, most), math.log(missing / (1 - missing))))

    def _check(self, members: int | Sequence[Sequence[int]], tolerance: Sequence[float], missing: float) -> None:
        listed = [[0] * members] * self.wholes if isinstance(members, int) else members
        if len(listed) != self.wholes or not listed or min(map(len, listed)) < 1:
            raise UserError(f"WholeCaps: give at least one member for each of the {self.wholes} classes, got {members}")
        if not all(0 <= label < self.types for row in listed for label in row):
            raise UserError(f"WholeCaps: types of members are 0 to {self.types - 1}, got {members}")
        if len(self.symmetry) != self.types or min(self.symmetry) < 0:
            raise UserError(f"WholeCaps: give symmetry for each of the {self.types} types, got {self.symmetry}")
        if len(tolerance) != 3 or min(tolerance) <= 0:
            raise UserError(f"WholeCaps: tolerance is (pixels, degrees, log scale), above 0, got {tuple(tolerance)}")
        if not 0 < missing < 1:
            raise UserError(f"WholeCaps: missing must lie between 0 and 1, got {missing}")

    def forward(
        self,
        pose: Tensor,
        presence: Tensor,
        types: Tensor,
        *,
        iterations: int | None = None,
        hypotheses: int | None = None,
    ) -> Wholes:
        """Route the parts to wholes.

        Args:
            pose: (B, I, 4) as the numbers of a `Similarity`.
            presence: (B, I) in [0, 1]; a part with presence 0 has no influence.
            types: (B, I, T) probabilities.
            iterations: instead of the layer's own number.
            hypotheses: instead of the layer's own number.

        Returns:
            K wholes, the most present first.
        """
        known = self.layouts(pose)
        return pose_routing(
            pose,
            presence,
            types,
            known.pose.numbers,
            known.tolerance,
            known.types,
            known.prior,
            known.missing,
            self.iterations if iterations is None else iterations,
            symmetry=self.symmetry,
            clutter=self.clutter,
            hypotheses=self.hypotheses if hypotheses is None else hypotheses,
        )

    def log_likelihood(self, pose: Tensor, presence: Tensor, types: Tensor, whole: Tensor, label: Tensor) -> Tensor:
        """How well parts fit wholes whose class and pose are known; its negative is a loss.

        Args:
            pose: (B, I, 4) of the parts.
            presence: (B, I).
            types: (B, I, T).
            whole: (B, K, 4) poses of the wholes.
            label: (B, K) their classes.

        Returns:
            (B, K, M) of each member, relative to clutter.
        """
        parts = parts_of(pose, presence, types, self.symmetry)
        return member_log_likelihood(parts, self.layouts(pose), whole, label)

    def votes(self, pose: Tensor, presence: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """Which wholes each part votes for, before any routing.

        Args:
            pose: (B, I, 4) of the parts.
            presence: (B, I).
            types: (B, I, T).

        Returns:
            (B, I, J, M, S, 4) pose of class j if part i is its member m and stands in its s-th equal way; and
            (B, I, J, M, S) how much the vote counts: presence times the probability of the type.
        """
        parts, known = parts_of(pose, presence, types, self.symmetry), self.layouts(pose)
        voted, valid = votes(parts, known, max(1, *self.symmetry))
        fitting = torch.einsum("bi,bit,jmt->bijm", parts.presence, parts.types, known.types)
        return voted.numbers, fitting[..., None] * valid

    def layouts(self, like: Tensor) -> Layouts:
        """The learned layouts, in the type of a tensor."""
        tolerance = (TOLERANCE_UNIT * self.log_tolerance).exp().clamp_min(LEAST_TOLERANCE)
        types = self.fixed_types if self.type_logits is None else self.type_logits.softmax(-1)
        poses = Similarity.exp(UNIT * self.layout).numbers
        return layouts_of(poses, tolerance, types, self.prior, self.missing, self.clutter, like)

    @torch.no_grad()
    def set_layouts(self, poses: Similarity) -> None:
        """Take known layouts (J, M) instead of learned ones."""
        self.layout.copy_(poses.log() / UNIT)

    def extra_repr(self) -> str:
        return f"{self.types} types → {self.wholes}×{self.missing.shape[1]} members, iterations={self.iterations}"
