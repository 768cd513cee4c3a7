"""A layer of wholes that knows from the tables how shapes are put together, so that nothing has to be learned."""

from __future__ import annotations

from collections.abc import Sequence

from torchcaps.data.datasets.shapes.parts import PART_KINDS
from torchcaps.data.datasets.shapes.wholes import member_table
from torchcaps.layers import WholeCaps
from torchcaps.similarity import Similarity


def known_wholes(names: Sequence[str], tolerance: Sequence[float]) -> WholeCaps:
    """Build a `WholeCaps` in float64 with the layouts of the tables; its parts are those of `member_table(names)`.

    Args:
        names: of the wholes, all of one level.
        tolerance: standard deviations of votes, in the frame of a whole: pixels, degrees, and log scale.
    """
    table = member_table(tuple(names))
    symmetry = [PART_KINDS[name].symmetry if name in PART_KINDS else 1 for name in table.names]
    members = [
        [label for label, there in zip(*row) if there] for row in zip(table.label.tolist(), table.present.tolist())
    ]
    layer = WholeCaps(len(table.names), len(names), members, symmetry=symmetry, tolerance=tolerance).double()
    layer.set_layouts(Similarity.of_affine(table.poses))
    return layer.requires_grad_(False)
