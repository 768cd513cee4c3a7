"""Where a trained model should answer "none of these", found on validation images."""

from __future__ import annotations

import torch

from torchcaps.data import Dataset, Segments
from torchcaps.explain.familiarity import KEPT, score_images
from torchcaps.models import ImageModel


def none_threshold(model: ImageModel, validation: Dataset | Segments | None, kept: float = KEPT) -> float | None:
    """Find the familiarity that a given share of the validation images reaches.

    Args:
        model: one with a method `familiarity`; others get None.
        validation: images of the known classes that the model was not trained on. None, or fewer than 20, give None.
        kept: the share that is to be kept.
    """
    if not callable(getattr(model, "familiarity", None)) or not isinstance(validation, Dataset):
        return None
    if len(validation) < 20:
        return None
    scores = score_images(model, model.prepare(validation.images)).scores["familiarity"]
    return round(torch.quantile(scores, 1 - kept).item(), 6)
