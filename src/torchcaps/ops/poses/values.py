"""What routing by poses reads and writes: parts, layouts of wholes, hypotheses, and how they explain parts.

Axes as in `reference`: M members of a whole, K hypotheses. Poses are the four numbers of a `Similarity`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from torchcaps.similarity import Similarity


class Parts(NamedTuple):
    """What was found in images.

    Attributes:
        pose: (B, I).
        presence: (B, I) in [0, 1].
        types: (B, I, T) probabilities.
        symmetry: (B, I) how many turns map each part onto itself; 0 for every turn.
    """

    pose: Similarity
    presence: Tensor
    types: Tensor
    symmetry: Tensor


class Layouts(NamedTuple):
    """What wholes are made of.

    Attributes:
        pose: (J, M) of each member in the frame of its whole.
        tolerance: (J, M, 4) standard deviation of a vote, in the frame of the whole: two in pixels, radians,
            log scale.
        types: (J, M, T) probability that a part of a type can be this member; all zero for padding.
        prior: (J,) log-odds of each class.
        missing: (J, M) log-odds that a whole is there and this member of it is not.
        clutter: log-density of parts that belong to no whole, per pixel², radian and unit of log scale.
    """

    pose: Similarity
    tolerance: Tensor
    types: Tensor
    prior: Tensor
    missing: Tensor
    clutter: float

    @property
    def present(self) -> Tensor:
        """(J, M) whether a member is more than padding."""
        return self.types.sum(-1) > 0

    @property
    def exact(self) -> Tensor:
        """(J,) log-likelihood of a part that is exactly where it should be; the mean over the members."""
        log_JM = log_volume(self.tolerance).neg() - self.clutter
        return (log_JM * self.present).sum(-1) / self.present.sum(-1).clamp_min(1)


class Hypotheses(NamedTuple):
    """Wholes that may be there.

    Attributes:
        pose: (B, K).
        label: (B, K) class of each.
        possible: (B, K) False for what only fills the tensor.
    """

    pose: Similarity
    label: Tensor
    possible: Tensor

    def take(self, order: Tensor) -> Hypotheses:
        """Hypotheses by their positions (B, L)."""
        numbers = self.pose.numbers.take_along_dim(order[..., None], 1)
        return Hypotheses(Similarity(numbers), self.label.gather(1, order), self.possible.gather(1, order))


class Explained(NamedTuple):
    """How hypotheses explain parts.

    Attributes:
        log_odds: (B, K) of each being there.
        found: (B, K, I, M) how much of each member each part is.
        claims: (B, K, I) how much of a part a hypothesis takes, of what is left to it.
    """

    log_odds: Tensor
    found: Tensor
    claims: Tensor

    def take(self, order: Tensor) -> Explained:
        """Those of hypotheses by their positions (B, L)."""
        return Explained(
            self.log_odds.gather(1, order),
            self.found.take_along_dim(order[..., None, None], 1),
            self.claims.take_along_dim(order[..., None], 1),
        )


def log_volume(tolerance: Tensor) -> Tensor:
    """Logarithm (…) of the volume √(2π)⁴ Πσ of a Gaussian with these standard deviations (…, 4)."""
    return tolerance.log().sum(-1) + 2 * math.log(2 * math.pi)
